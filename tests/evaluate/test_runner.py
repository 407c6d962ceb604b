"""ESC-Eval and SAGE from end to end: the files, the figures, kills, failures, costs, and the command line."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from compeer.cli import app
from compeer.errors import InputError
from compeer.evaluate.answers import DIMENSIONS
from compeer.evaluate.esc_eval import EscEval
from compeer.evaluate.judging import EscEvalSettings, read_rows
from compeer.evaluate.players import Player, Players, Prices, cost_of, read_prices
from compeer.evaluate.runner import Evaluation, rehearse, run_evaluation, sample
from compeer.evaluate.sage import Sage, SageSettings, measure_sage
from compeer.models import Failure, Generation, Request, Sampling
from compeer.simulate import AgentTurn, Complaint, Scenario, read_conversations
from compeer.simulate.conversation import view_of
from compeer.simulate.emotion import RLVER, SAGE, SAGE_RELEASED
from compeer.simulate.seekers import card_messages, own_cards, read_card_message, read_cards
from compeer.simulate.sentient import SeekerProfile, own_profiles, read_profiles

STRUCTURED = (
    "History: They lost a job. [exploration]\nEmotion: Low. [negative, sadness, 4]\n"
    "Strategy: Name it. [Reflection of feelings]\nResponse: That hurts."
)
PLAYERS = Players(Player("sup@http://x/v1"), Player("see@http://x/v1"), [Player("jud@http://x/v1")])


class Answering:
    """A model whose answers are a function of each request; it can break off a run after so many answers."""

    def __init__(self, name: str, answer: Callable[[Request], str | Failure], at_once: int = 4) -> None:
        self.name, self._answer, self.at_once = name, answer, at_once
        self.batch_size = 1
        self.asked: list[Request] = []
        self.left = 1 << 30

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        await asyncio.sleep(0)
        found: list[Generation | Failure] = []
        for request in requests:
            self.asked.append(request)
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            answer = self._answer(request)
            found.append(answer if isinstance(answer, Failure) else Generation(answer, prompt_tokens=10, tokens=5))
        return found


def cast(
    supporter: Callable[[Request], str | Failure] = lambda request: f"I hear you {request.seed % 97}.",
    seeker: Callable[[Request], str | Failure] = lambda request: f"It goes on {request.seed % 89}.",
    judge: Callable[[Request], str | Failure] = lambda request: json.dumps(
        {"reason": "so it is", "score": request.seed % 5}
    ),
) -> dict[str, Any]:
    models = (Answering("sup", supporter), Answering("see", seeker), Answering("jud", judge))
    return {f"{model.name}@http://x/v1": model for model in models}


def sentient(change: str) -> Callable[[Request], str]:
    return lambda request: f"Reasons: it was said\nChange: {change}" if request.grammar else "There is more to it."


def esc_eval(count: int = 3, seed: int = 0, **settings: Any) -> EscEval:
    cards = read_cards(own_cards("en"))[:count]
    return EscEval(PLAYERS, cards, EscEvalSettings(**{"rounds": 2, **settings}), seed)


def sage(count: int = 2, seed: int = 0, **settings: Any) -> Sage:
    profiles = read_profiles(own_profiles())[:count]
    rules = settings.get("rules", SAGE)
    players = Players(PLAYERS.supporter, PLAYERS.seeker)
    return Sage(players, profiles, SageSettings(**{"rounds": rules.turns, **settings}), seed)


def run(evaluation: Evaluation, folder: Path, models: Mapping[str, Any]) -> dict[str, Any]:
    return asyncio.run(run_evaluation(evaluation, folder, models))


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run; of its figures, all but the seconds."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "answers.sqlite" not in path.name and path.name != "report.html"
    }
    metrics = json.loads(found["figures.json"])
    del metrics["cost"]["seconds"]
    return {**found, "figures.json": json.dumps(metrics).encode()}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- cards and the seeker that plays them -----------------------------------------------------------------------------


def test_our_cards_and_profiles_load() -> None:
    cards = read_cards(own_cards("en")) + read_cards(own_cards("zh"))
    assert len(cards) >= 40
    assert {card.language for card in cards} == {"en", "zh"}
    assert all(card.opening for card in cards)
    profiles = read_profiles(own_profiles())
    assert len(profiles) >= 20
    first = json.loads(own_profiles().read_text(encoding="utf-8").splitlines()[0])
    assert first["hidden_intention"] in profiles[0].facts["intention"]
    assert all(one in profiles[0].facts["intention"] for one in (*first["likes"], *first["dislikes"]))


def test_released_cards_and_profiles_load(tmp_path: Path) -> None:
    released = [
        {"base": "Ann lost her job.", "res": "work", "source": "s", "language": "en", "id": 7},
        {"base": "小王失业了。", "res": ["work"], "source": "s", "language": "zh", "id": 7},
    ]
    as_list, as_lines = tmp_path / "cards.json", tmp_path / "cards.jsonl"
    as_list.write_text(json.dumps(released), encoding="utf-8")
    as_lines.write_text("".join(json.dumps(one) + "\n" for one in released), encoding="utf-8")
    cards = read_cards(as_list)
    assert cards == read_cards(as_lines)
    assert [(card.id, card.language, card.opening) for card in cards] == [("en-7", "en", None), ("zh-7", "zh", None)]
    profile = {
        "id": "p",
        "player": "一个人",
        "scene": "下雨",
        "task": "想被听见",
        "first_talk": "在吗",
        "cha_group": [],
    }
    (tmp_path / "p.jsonl").write_text(json.dumps(profile), encoding="utf-8")
    [seeker] = read_profiles(tmp_path / "p.jsonl")
    assert (seeker.language, seeker.opening) == ("zh", "在吗")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("3\n", "line 1"),
        ('{"id": "x"}\n', "'language'"),
        ('\n{"base": "", "id": 1}\n', "line 2, field 'base'"),
        ('[{"base": "x", "id": 1}, {"base": "y", "id": 1}]', "item 2, id"),
        ("[]", "no card"),
        ("[1", "cards"),
    ],
)
def test_a_bad_card_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "cards"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=named):
        read_cards(path)


def test_a_bad_profile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profiles.jsonl"
    path.write_text('{"id": "a", "hidden_intention": "x"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"line 1, field 'language'"):
        read_profiles(path)


def test_the_seeker_is_told_its_card_in_its_language_and_begins_where_no_opening_is_given() -> None:
    for language, word in (("en", "supporter"), ("zh", "支持者")):
        scenario = Scenario(id="a", language=language, facts={"card": "You lost {everything}."})
        messages = card_messages(view_of(scenario, (), "seeker"))
        assert [message["role"] for message in messages] == ["system", "user"]
        assert "You lost {everything}." in str(messages[0]["content"])
        assert word in str(messages[0]["content"])


@pytest.mark.parametrize(
    ("answer", "spoken"),
    [
        ("It is bad.", "It is bad."),
        ("Seeker: It is bad.", "It is bad."),
        ("**Seeker:** It is bad.", "It is bad."),
        ("求助者：很糟。", "很糟。"),
        ("It is bad.\nSupporter: Oh no.\nSeeker: Yes.", "It is bad."),
        ("The supporter: a word that I hate.", "The supporter: a word that I hate."),
        ("Supporter: I am here for you.", None),
        ("<think>what would she say</think>It is bad.", "It is bad."),
        (" ", None),
    ],
)
def test_what_a_seeker_says_is_read(answer: str, spoken: str | None) -> None:
    found = read_card_message(Generation(answer))
    assert (found.text if isinstance(found, AgentTurn) else None) == spoken
    assert isinstance(found, AgentTurn if spoken else Complaint)


# --- runs by scripted models ------------------------------------------------------------------------------------------


def test_esc_eval_writes_what_was_agreed(tmp_path: Path) -> None:
    models = cast(judge=lambda request: json.dumps({"reason": "so it is", "score": 3}))
    metrics = run(esc_eval(repeats=2), tmp_path, models)
    assert metrics["figures"]["average"]["score"] == 75
    assert metrics["figures"]["dimensions"]["empathy"]["scored"] == 6
    assert metrics["coverage"]["empathy"] == {"scored": 6, "of": 6}
    assert metrics["cost"]["roles"]["supporter"] == {"calls": 12, "prompt_tokens": 120, "tokens": 60}
    assert metrics["cost"]["roles"]["seeker"]["calls"] == 6  # the openings are given
    assert metrics["cost"]["roles"]["judge"]["calls"] == 42
    scores = lines(tmp_path / "scores.jsonl")
    assert [(one["scenario"], one["repeat"]) for one in scores] == [
        (f"en-0{number}", repeat) for repeat in (1, 2) for number in (1, 2, 3)
    ]
    assert scores[0]["judges"] == {"jud": dict.fromkeys(DIMENSIONS, 3)}
    assert scores[0]["failed"] is None
    talks = read_conversations(tmp_path / "conversations.jsonl")
    assert talks[0].turns[0].text == read_cards(own_cards("en"))[0].opening
    assert talks[0].turns[1].text != talks[3].turns[1].text  # the repeats are drawn anew


def test_all_dimensions_may_be_asked_for_in_one_call(tmp_path: Path) -> None:
    answer = json.dumps({"reason": "so", **{name: place % 5 for place, name in enumerate(DIMENSIONS)}})
    models = cast(judge=lambda _: answer)
    metrics = run(esc_eval(one_call=True), tmp_path, models)
    assert metrics["cost"]["roles"]["judge"]["calls"] == 3
    assert [metrics["figures"]["dimensions"][name]["score"] for name in DIMENSIONS] == [0, 25, 50, 75, 100, 0, 25]


def test_what_a_judge_cannot_say_is_unscored_and_what_a_supporter_cannot_say_has_failed(tmp_path: Path) -> None:
    first = json.loads(own_cards("en").read_text(encoding="utf-8").splitlines()[0])["opening"]
    models = cast(
        supporter=lambda request: " " if first in str(request.messages) else "I see.",
        judge=lambda request: "somewhere between" if '"Fluency"' in str(request.messages) else '{"score": 4}',
    )
    metrics = run(esc_eval(), tmp_path, models)
    assert metrics["failures"]["model"]["supporter: empty"] == 1
    assert metrics["failures"]["infrastructure"] == {}
    scores = lines(tmp_path / "scores.jsonl")
    assert scores[0]["failed"] == "model failed: supporter: empty"
    assert scores[0]["judges"] == {}
    assert metrics["coverage"]["empathy"] == {"scored": 2, "of": 3}


@pytest.mark.parametrize(
    ("rules", "change", "final", "end"),
    [
        (SAGE, "+30", 100, "success"),
        (SAGE, "-10", 0, "failure"),
        (SAGE, "+1", 50, None),
        (SAGE_RELEASED, "+1", 49, None),
        (RLVER, "+30", 100, "success"),
        (RLVER, "-30", 0, "failure"),
        (RLVER, "+1", 38, None),
    ],
)
def test_sage_goes_by_its_rules(tmp_path: Path, rules: Any, change: str, final: int, end: str | None) -> None:
    metrics = run(sage(rules=rules), tmp_path, cast(seeker=sentient(change)))
    scores = lines(tmp_path / "scores.jsonl")
    assert {(one["final"], one["end"]) for one in scores} == {(final, end)}
    assert scores[0]["emotions"][0] == rules.start
    assert scores[0]["emotions"][-1] == final
    assert metrics["figures"]["emotion"]["score"] == final
    assert metrics["figures"]["success"]["count"] == (2 if end == "success" else 0)
    assert metrics["judges"] == []


def test_sage_figures_draw_scenarios_with_their_repeats() -> None:
    def line(scenario: str, repeat: int, final: float | None, end: str | None = None) -> dict[str, Any]:
        return {"scenario": scenario, "repeat": repeat, "final": final, "end": end, "emotions": [40, 50]}

    found = measure_sage([line("a", 1, 100, "success"), line("a", 2, 60), line("b", 1, 20), line("b", 2, None)])
    assert found["emotion"]["score"] == 60
    assert (found["emotion"]["low"], found["emotion"]["high"]) == (20, 80)
    assert (found["emotion"]["scored"], found["emotion"]["items"]) == (3, 4)
    assert found["success"]["score"] == pytest.approx(1 / 3)
    assert found["by_repeat"] == {"1": {"average": 60}, "2": {"average": 60}}
    assert found["repeat_deviation"] == 0
    assert found["unmoved"] == 0
    still = {**line("a", 1, 40), "emotions": [40, 40, 40]}
    assert measure_sage([still, line("b", 1, 50), {**still, "final": None}])["unmoved"] == 1
    assert measure_sage([line("a", 1, None)])["emotion"]["score"] is None


def test_a_structured_supporter_shows_the_seeker_its_response_alone(tmp_path: Path) -> None:
    models = cast(supporter=lambda _: STRUCTURED)
    run(esc_eval(1, mode="structured"), tmp_path, models)
    [talk] = read_conversations(tmp_path / "conversations.jsonl")
    assert talk.turns[1].text == "That hurts."
    assert talk.turns[1].reasoning is not None
    assert "Reflection of feelings" in talk.turns[1].reasoning
    asked = str([request.messages for request in models["see@http://x/v1"].asked])
    judged = str([request.messages for request in models["jud@http://x/v1"].asked])
    assert "That hurts." in asked
    assert "Reflection of feelings" not in asked + judged


# --- kills, other settings, failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [esc_eval, sage])
def test_a_kill_at_any_moment_changes_nothing(tmp_path: Path, make: Callable[..., Evaluation]) -> None:
    def models() -> dict[str, Any]:
        if make is sage:
            return cast(seeker=lambda request: sentient(f"+{request.seed % 7}")(request))
        return cast()

    whole = models()
    run(make(2), tmp_path / "whole", whole)
    expected = contents(tmp_path / "whole")
    for name, model in whole.items():
        for left in range(0, len(model.asked), 7):
            folder = tmp_path / f"{model.name}{left}"
            killed = models()
            killed[name].left = left
            with pytest.raises(KeyboardInterrupt):
                run(make(2), folder, killed)
            again = models()
            run(make(2), folder, again)
            assert contents(folder) == expected
    run(make(2), tmp_path / "whole", idle := models())
    assert contents(tmp_path / "whole") == expected
    assert not any(model.asked for model in idle.values())


def test_another_evaluation_in_the_same_folder_is_refused_by_name(tmp_path: Path) -> None:
    run(esc_eval(1), tmp_path / "run", cast())
    before = contents(tmp_path / "run")
    for other, named in (
        (esc_eval(1, rounds=3), r"settings.rounds \(there: 2, now: 3\)"),
        (esc_eval(1, seed=1), "seed"),
        (esc_eval(2), "scenarios.ids"),
        (sage(1), "protocol"),
    ):
        with pytest.raises(InputError, match=named):
            run(other, tmp_path / "run", cast())
    assert contents(tmp_path / "run") == before
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    with pytest.raises(InputError, match="something else"):
        run(esc_eval(1), tmp_path / "thesis", cast())


def test_a_second_process_is_kept_out_of_the_folder(tmp_path: Path) -> None:
    folder, evaluation = tmp_path / "run", sage(1)
    hold = "import sys; from pathlib import Path; from compeer.io import only_one\n"
    hold += "with only_one(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another run is at work"):
            run(evaluation, folder, cast(seeker=sentient("+5")))
        assert [path.name for path in folder.iterdir()] == [".lock"]
        other.kill()
    run(evaluation, folder, cast(seeker=sentient("+5")))  # a lock goes with its process
    assert (folder / "figures.json").is_file()


def test_a_failure_of_infrastructure_is_told_apart_and_tried_again(tmp_path: Path) -> None:
    down = Failure("connection", "nobody there")
    run(esc_eval(), tmp_path / "good", cast())
    metrics = run(esc_eval(), tmp_path / "run", cast(supporter=lambda request: down if request.seed % 2 else "I see."))
    assert metrics["failures"]["infrastructure"]["supporter: connection"] >= 1
    metrics = run(esc_eval(), tmp_path / "run", cast(judge=lambda _: down))
    assert metrics["failures"] == {"model": {}, "infrastructure": {"jud: failed": 21}}
    assert metrics["figures"]["average"]["score"] is None
    metrics = run(esc_eval(), tmp_path / "run", cast())
    assert metrics["failures"] == {"model": {}, "infrastructure": {}}
    assert metrics["coverage"] == json.loads((tmp_path / "good" / "figures.json").read_text())["coverage"]


def test_every_supporter_gets_the_same_scenarios() -> None:
    cards = read_cards(own_cards("en"))
    chosen = sample(cards, 5, seed=3)
    assert chosen == sample(list(cards), 5, seed=3)
    assert chosen != sample(cards, 5, seed=4)
    assert [one.id for one in chosen] == sorted(one.id for one in chosen)
    assert set(map(str, chosen)) <= set(map(str, sample(cards, 9, seed=3)))
    assert sample(cards, None, 0) == cards


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "evaluation", [esc_eval(), esc_eval(one_call=True, mode="structured"), sage(), sage(rules=RLVER)]
)
def test_the_rehearsal_counts_the_calls_that_are_made(tmp_path: Path, evaluation: Evaluation) -> None:
    all_scores = json.dumps({"reason": "so", **dict.fromkeys(DIMENSIONS, 2)})
    structured = evaluation.settings.mode == "structured"
    models = cast(
        supporter=(lambda _: STRUCTURED) if structured else (lambda _: "I see."),
        seeker=sentient("+0"),
        judge=(lambda _: all_scores) if structured else (lambda _: '{"score": 2}'),
    )
    count = len(evaluation.scenarios)
    expected = asyncio.run(rehearse(evaluation, count, count))
    metrics = run(evaluation, tmp_path, models)
    roles = metrics["cost"]["roles"]
    calls = {role: typical["calls"] for role, (typical, _) in expected.items()}
    assert calls == {role: one["calls"] for role, one in roles.items()}
    assert all(typical[name] <= most[name] for typical, most in expected.values() for name in typical)
    twice = asyncio.run(rehearse(evaluation, 2 * count, 0))
    assert all(twice[role][0]["calls"] == 2 * calls[role] for role in ("supporter", "seeker"))
    assert all(typical["calls"] == 0 for role, (typical, _) in twice.items() if role.startswith("judge"))


def test_prices_are_read_and_applied_to_servers_only() -> None:
    prices = read_prices(["0.5/2", "jud=10/20"], "EUR")
    players = Players(Player("sup@http://x/v1"), Player("embedded"), [Player("jud@http://x/v1")])
    took = {role: {"calls": 1, "prompt_tokens": 1_000_000, "tokens": 500_000} for role in players.by_role}
    cost = cost_of(players, took, prices)
    assert (cost["price"], cost["currency"]) == (0.5 + 1 + 10 + 10, "EUR")
    assert "price" not in cost_of(players, took, None)
    assert "price" not in cost_of(players, took, Prices({}))


@given(st.text(max_size=12))
def test_no_text_but_a_price_is_a_price(text: str) -> None:
    try:
        found = read_prices([text])
    except InputError:
        return
    [(low, high)] = found.by_model.values()
    assert low >= 0
    assert high >= 0
    assert "/" in text


# --- a model in this process ------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes_on_a_local_model(tmp_path: Path, tiny_learner: Path) -> None:
    from compeer.models.local import LocalModel

    player = Player(str(tiny_learner))
    model = LocalModel(tiny_learner, batch_size=2)
    cards = read_cards(own_cards("en"))[:2]
    limits = {"rounds": 2, "supporter_tokens": 12, "seeker_tokens": 12, "judge_tokens": 16, "retries": 0, "batch": 2}

    def made(name: str, seed: int = 0) -> dict[str, bytes]:
        settings = EscEvalSettings(one_call=True, **limits)
        evaluation = EscEval(Players(player, player, [player]), cards, settings, seed)
        run(evaluation, tmp_path / name, {player.given: model})
        return contents(tmp_path / name)

    first = made("first")
    assert made("second") == first
    assert made("other", seed=1)["conversations.jsonl"] != first["conversations.jsonl"]
    folder = tmp_path / "second"
    for path in folder.iterdir():  # what a kill leaves: some dialogues are over, one is in the midst of a line
        if path.is_file() and path.name != "manifest.json":
            path.unlink()
    log = sorted((folder / "dialogues").iterdir())[0]
    log.write_bytes(log.read_bytes()[:-200])
    assert made("second") == first


def test_sage_on_a_local_model_gives_the_same_bytes_killed_or_not(tmp_path: Path, tiny_learner: Path) -> None:
    from compeer.models.local import LocalModel

    player = Player(str(tiny_learner))
    people = [SeekerProfile(id=one, person="Shy.", scene="Alone.", intention="Be seen.", opening=one) for one in "ab"]
    limits = {"supporter_tokens": 8, "seeker_tokens": 128, "message_tokens": 8, "retries": 0, "batch": 2}
    rules = SAGE.model_copy(update={"turns": 2})
    settings = SageSettings(rounds=2, rules=rules, **limits)
    evaluation = Sage(Players(player, player), [one.scenario() for one in people], settings, seed=1)

    def made(name: str) -> dict[str, bytes]:
        run(evaluation, tmp_path / name, {player.given: LocalModel(tiny_learner, batch_size=2)})  # it remembers nothing
        return contents(tmp_path / name)

    first = made("first")
    felt = [line["emotions"] for line in lines(tmp_path / "first" / "scores.jsonl")]
    assert all(len(one) == 3 and len(set(one)) > 1 for one in felt)
    folder = tmp_path / "second"
    made("second")
    for log in (folder / "dialogues").iterdir():
        log.write_bytes(b"\n".join(log.read_bytes().split(b"\n")[:4]) + b"\n")
    assert made("second") == first


# --- a server ---------------------------------------------------------------------------------------------------------


class Server:
    """An endpoint that is slow, sometimes broken, and for some conversations down until it is mended."""

    def __init__(self, delay: float = 0.004) -> None:
        self.delay, self.mended = delay, False
        self.served: Counter[bytes] = Counter()
        self.handled = 0
        self._tried: Counter[bytes] = Counter()

    @contextmanager
    def serving(self) -> Iterator[str]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), loop).result()
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            loop.call_soon_threadsafe(server.close)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _until_blank(reader):
            size = next(int(line.split(b":")[1]) for line in head if line.lower().startswith(b"content-length"))
            body = await reader.readexactly(size)
            status, text = await self._answer(body)
            answer = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
            data = json.dumps(answer | {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}).encode()
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)

    async def _answer(self, body: bytes) -> tuple[int, str]:
        self.handled += 1
        self._tried[body] += 1
        asked = json.loads(body)
        kind = asked["seed"] % 20
        await asyncio.sleep(self.delay * (5 if kind == 7 else 1))
        if (kind == 3 and self._tried[body] == 1) or (kind == 5 and not self.mended):
            return 500, ""
        self.served[body] += 1
        if "fluency" in asked["messages"][-1]["content"]:
            return 200, json.dumps({"reason": "so", **dict.fromkeys(DIMENSIONS, asked["seed"] % 5)})
        return 200, f"Words {asked['seed']}."


async def _until_blank(reader: asyncio.StreamReader) -> list[bytes]:
    lines = []
    while (line := await reader.readline()) not in (b"\r\n", b""):
        lines.append(line)
    return lines


def test_two_hundred_dialogues_at_once_are_all_accounted_for(tmp_path: Path) -> None:
    cards = tmp_path / "cards.json"
    cards.write_text(
        json.dumps([{"id": number, "base": f"Person {number}.", "language": "en"} for number in range(200)])
    )
    server = Server()
    words = ["--cards", str(cards), "--rounds", "1", "--one-call", "--at-once", "50", "--out", str(tmp_path / "run")]
    with server.serving() as url:
        command = ["evaluate", "esc-eval", "--endpoint", f"m@{url}", *words, "--call", "retries=2"]
        command += ["--call", "first_pause=0.01", "--yes"]
        first = CliRunner().invoke(app, command)
        assert isinstance(first.exception, InputError)
        assert "could not be asked" in str(first.exception)
        scores = lines(tmp_path / "run" / "scores.jsonl")
        broken = [one for one in scores if one["failed"]]
        metrics = json.loads((tmp_path / "run" / "figures.json").read_text())
        reported = metrics["failures"]["infrastructure"]
        assert len(scores) == 200
        assert len(broken) == sum(count for why, count in reported.items() if not why.startswith("m: "))
        assert all(one["failed"].startswith("infrastructure failed") for one in broken)
        assert metrics["failures"]["model"] == {}
        assert 5 <= len(broken) <= 60
        server.mended = True
        second = CliRunner().invoke(app, command)
        assert second.exception is None, second.output
    rows = read_rows(tmp_path / "run" / "judged.jsonl")
    assert len(rows) == 200 * 7 == len({(row.conversation, row.repeat, row.judge, row.dimension) for row in rows})
    assert all(row.score is not None for row in rows)
    assert set(server.served.values()) == {1}  # nothing was answered, and paid for, twice
    assert len(server.served) == 600
    logs = list((tmp_path / "run" / "dialogues").iterdir())
    assert len(logs) == 200


def test_the_cost_is_shown_before_the_first_call_and_a_person_is_asked(tmp_path: Path) -> None:
    server = Server()
    with server.serving() as url:
        words = ["evaluate", "sage", "--endpoint", f"m@{url}", "--limit", "2", "--price", "1/2"]
        words += ["--out", str(tmp_path / "run")]
        result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, InputError)
    assert "--yes" in str(result.exception)
    assert "2 conversations of up to 10 rounds" in result.stderr
    assert "USD, at most" in result.stderr
    assert server.handled == 0
    assert not (tmp_path / "run").exists()


def test_one_command_line_and_one_server_are_enough_for_all_three_roles(tmp_path: Path) -> None:
    server = Server()
    server.mended = True
    with server.serving() as url:
        words = ["evaluate", "esc-eval", "--endpoint", f"m@{url}", "--limit", "2", "--rounds", "1", "--one-call"]
        words += ["--price", "1/2", "--call", "first_pause=0.01", "--out", str(tmp_path / "run")]
        unasked = CliRunner().invoke(app, words)
        assert isinstance(unasked.exception, InputError)
        assert server.handled == 0
        result = CliRunner().invoke(app, [*words, "--yes"])
    assert result.exception is None, result.output
    expected = {row[0]: row[1:3] for row in map(str.split, result.stderr.splitlines()) if len(row) > 2}
    took = json.loads((tmp_path / "run" / "figures.json").read_text())["cost"]
    for role in ("supporter", "seeker", "judge"):
        assert expected[role] == ["m", str(took["roles"][role]["calls"])]
    assert took["price"] > 0
    assert "USD, at most" in result.stderr
    assert "average" in result.stdout


def test_the_embedded_judge_is_asked_once_a_conversation(tmp_path: Path) -> None:
    words = [
        "evaluate",
        "esc-eval",
        "--endpoint",
        "m@http://127.0.0.1:9/v1",
        "--limit",
        "2",
        "--out",
        str(tmp_path / "o"),
    ]
    for more, calls in (([], 14), (["--one-call"], 2), (["--judge", "embedded"], 2)):
        result = CliRunner().invoke(app, [*words, *more])
        [row] = [line.split() for line in result.stderr.splitlines() if line.strip().startswith("judge")]
        assert row[2] == str(calls)


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["esc-eval", "--endpoint", "gpt"], "names no model behind a server"),
        (["esc-eval", "--supporter", "nowhere"], "there is no model 'nowhere'"),
        (["esc-eval", "--judge", "a@http://x/v1", "--judge", "a@http://y/v1"], "same name"),
        (["esc-eval", "--language", "fr"], "there is: en, zh"),
        (["esc-eval", "--cards", "nowhere"], "no such file"),
        (["esc-eval", "--price", "cheap"], "no price"),
        (["esc-eval", "--call", "speed=1"], "Known settings"),
        (["sage", "--rules", "own"], "sage-released"),
        (["sage", "--language", "zh"], "there is: en"),
        (["sage", "--profiles", "nowhere"], "no such file"),
    ],
)
def test_mistakes_are_named(words: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["evaluate", *words])
    assert isinstance(result.exception, InputError)
    assert named in str(result.exception)
    assert not list(tmp_path.iterdir())
