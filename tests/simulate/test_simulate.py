"""The conversation engine: order, views, limits, failures, and the same bytes after a kill anywhere."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.errors import InputError
from compeer.models import Failure, Generation, Message, Request, Sampling
from compeer.simulate import (
    Agent,
    AgentTurn,
    Ask,
    Complaint,
    Conversation,
    DialogueSettings,
    Scenario,
    SeekerAgent,
    SupporterAgent,
    Turn,
    View,
    chat,
    read_conversations,
    run_dialogues,
)
from compeer.simulate.agents import Turning, read_plain, read_structured, split_thinking
from compeer.simulate.conversation import view_of
from compeer.simulate.runner import LoggedDialogue
from tests.support.scripted_agent import ScriptedAgent
from tests.support.scripted_model import ScriptedModel

STRUCTURED = (
    "History: They lost a job and say so for the first time. [exploration]\n"
    "Emotion: Low, and ashamed to tell. [negative, shame, 4]\n"
    "Strategy: Name the feeling before anything else. [Reflection of feelings]\n"
    "Response: It sounds as if this is hard to say aloud."
)


class Answering:
    """A model whose answers are a function of each request, and that keeps what it was asked, call by call."""

    def __init__(
        self,
        answer: Callable[[Request], str | Failure],
        batch_size: int = 1,
        at_once: int = 8,
        name: str = "answering",
    ) -> None:
        self._answer, self.name, self.batch_size, self.at_once = answer, name, batch_size, at_once
        self.asked: list[list[Request]] = []
        self.under_way = self.most_under_way = 0

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        self.asked.append(list(requests))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return [self._of(request) for request in requests]

    def _of(self, request: Request) -> Generation | Failure:
        answer = self._answer(request)
        return answer if isinstance(answer, Failure) else Generation(answer, prompt_tokens=10, tokens=5)


class Padded(Answering):
    """Its answers depend on all requests of a batch, as a local model's last bits do on the padding."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        await super().generate(requests, sampling)
        whole = repr([(request.messages, request.seed) for request in requests])
        return [
            Generation(hashlib.sha256(f"{whole}{place}".encode()).hexdigest()[:12], prompt_tokens=9, tokens=3)
            for place in range(len(requests))
        ]


class Card(SeekerAgent):
    """A seeker that knows its card and leaves when it says so."""

    def messages(self, view: View) -> list[Message]:
        return chat(view, f"You are {view.facts['card']}.", cue="(begin)")

    def turn(self, view: View) -> Turning:
        message: AgentTurn = yield Ask(self.messages(view), lambda answer: self.read(view, answer))
        return message

    def read(self, view: View, answer: Generation) -> AgentTurn | Complaint:
        message = read_plain(answer)
        if isinstance(message, AgentTurn) and message.text.startswith("As an AI"):
            return Complaint("out of role", "a seeker does not say that")
        if isinstance(message, AgentTurn) and message.text.endswith("[bye]"):
            text = message.text.removesuffix("[bye]").strip()
            return AgentTurn(text, message.reasoning, message.extra, stop="goodbye")
        return message


class Feeling(SeekerAgent):
    """Two calls a turn: a number that it adds to its feeling, then words; and a last look."""

    wants_closing_turn = True

    def messages(self, view: View) -> list[Message]:
        return chat(view, "words", cue="(begin)")

    def turn(self, view: View) -> Any:
        feeling = view.own[-1].extra["feeling"] if view.own else 40
        if view.turns:
            feeling += yield Ask(chat(view, "change"), _number, sampling=Sampling(temperature=0, max_tokens=8))
        if feeling >= 100:
            return AgentTurn("", extra={"feeling": feeling}, stop="success")
        if view.over:
            return AgentTurn("", extra={"feeling": feeling})
        message: AgentTurn = yield Ask(self.messages(view), read_plain)
        return AgentTurn(message.text, "felt it", {"feeling": feeling})


def _number(answer: Generation) -> int | Complaint:
    text = answer.text.strip()
    return int(text) if text.lstrip("-").isdigit() else Complaint("unparsable", "it is no number")


def scenarios(count: int) -> list[Scenario]:
    return [Scenario(id=f"s{number}", facts={"card": f"card {number}"}) for number in range(count)]


def run(
    folder: Path,
    given: Sequence[Scenario],
    seeker: Agent,
    supporter: Agent,
    seed: int = 0,
    **limits: Any,
) -> list[Conversation]:
    return asyncio.run(run_dialogues(given, seeker, supporter, DialogueSettings(**limits), folder, seed))


def ends(found: Sequence[Conversation]) -> dict[tuple[str, str], int]:
    """How many conversations ended how: the status, and whose fault it was or why."""
    outcomes = [one.outcome for one in found]
    return Counter((one.status, one.why if one.status == "ended" else f"{one.who}: {one.why}") for one in outcomes)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def first_line(request: Request) -> str:
    return str(request.messages[0]["content"])


# --- order and views --------------------------------------------------------------------------------------------------


def test_batched_models_advance_in_lock_step_in_the_order_of_the_scenarios(tmp_path: Path) -> None:
    log: list[tuple[str, list[str], int]] = []

    def model(name: str, batch_size: int) -> Answering:
        def answer(request: Request) -> str:
            return f"{name} after {len(request.messages)}"

        found = Answering(answer, batch_size=batch_size, at_once=1, name=name)
        plain = found.generate

        async def generate(requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
            log.append((name, [first_line(request) for request in requests], len(requests[0].messages)))
            return await plain(requests, sampling)

        found.generate = generate  # type: ignore[method-assign]
        return found

    seeker, supporter = model("seeker", 2), model("supporter", 4)
    found = run(tmp_path, scenarios(5), Card(seeker), SupporterAgent(supporter), rounds=2)
    who = [f"You are card {number}." for number in range(5)]
    assert [(name, len(asked)) for name, asked, _ in log] == [
        *[("seeker", 2), ("seeker", 2), ("seeker", 1), ("supporter", 4), ("supporter", 1)],
        *[("seeker", 2), ("seeker", 2), ("seeker", 1), ("supporter", 4), ("supporter", 1)],
    ]
    for first in (0, 5):
        assert [line for _, asked, _ in log[first : first + 3] for line in asked] == who
    assert [len(one.turns) for one in found] == [4] * 5
    assert seeker.most_under_way == supporter.most_under_way == 1


def test_behind_endpoints_a_dialogue_waits_for_no_other_and_places_are_kept(tmp_path: Path) -> None:
    slow = asyncio.Event()
    order: list[str] = []

    class Endpoint(Answering):
        async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
            (request,) = requests
            if first_line(request) == "You are card 0.":
                await slow.wait()
            order.append(first_line(request))
            if order.count("You are card 3.") == 3:
                slow.set()
            return await super().generate(requests, sampling)

    model = Endpoint(lambda _: "words", at_once=3)
    found = run(tmp_path, scenarios(4), Card(model), ScriptedAgent(["mm"] * 3), rounds=3)
    assert order[-3:] == ["You are card 0."] * 3
    assert ends(found) == {("ended", "turns reached"): 4}
    assert 1 < model.most_under_way <= 3


def test_a_model_never_gets_more_calls_than_it_has_places(tmp_path: Path) -> None:
    model = Answering(lambda _: "words", at_once=2)
    run(tmp_path, scenarios(20), Card(model), SupporterAgent(model), rounds=2)
    assert model.most_under_way == 2
    assert len(model.asked) == 80


def test_nobody_sees_what_it_must_not(tmp_path: Path) -> None:
    seeker = Answering(lambda _: "<think>seeker secret</think>I am sad.")
    supporter = Answering(lambda _: STRUCTURED)
    prompted: list[str] = []

    def prompt(history: Sequence[Any]) -> list[Message]:
        prompted.append(repr(history))
        return [{"role": "user", "content": "\n".join(f"{one.speaker}: {one.text}" for one in history)}]

    agent = SupporterAgent(supporter, prompt=prompt)
    found = run(tmp_path, [Scenario(id="s", facts={"card": "hidden card"})], Card(seeker), agent, rounds=3)
    to_supporter = repr([request.messages for asked in supporter.asked for request in asked]) + repr(prompted)
    to_seeker = repr([request.messages for asked in seeker.asked for request in asked])
    assert "hidden card" in to_seeker
    assert "hidden card" not in to_supporter
    assert "secret" not in to_supporter + to_seeker
    for step in ("lost a job", "ashamed", "Name the feeling", "exploration"):
        assert step not in to_seeker + to_supporter
    assert to_seeker.count("hard to say aloud") == 3  # after one reply, and after two
    kept = found[0].turns
    assert kept[0].reasoning == "seeker secret"
    assert kept[1].reasoning == STRUCTURED.rpartition("\n")[0]
    assert kept[1].text == "It sounds as if this is hard to say aloud."


def test_a_view_holds_copies_and_the_others_words_alone() -> None:
    scenario = Scenario(id="s", opening="Hello.", facts={"card": {"name": "A"}})
    turns = [
        Turn(speaker="seeker", text="Hello.", reasoning="r", extra={"feeling": 40}),
        Turn(speaker="supporter", text="Hi.", reasoning="q", extra={"missing": {}}),
    ]
    seeker = view_of(scenario, turns, "seeker")
    supporter = view_of(scenario, turns, "supporter")
    assert seeker.turns[0].extra == {"feeling": 40}
    assert seeker.turns[0].reasoning is None
    assert seeker.turns[1] == Turn(speaker="supporter", text="Hi.")
    assert supporter.turns[0] == Turn(speaker="seeker", text="Hello.")
    assert supporter.turns[1] == Turn(speaker="supporter", text="Hi.", extra={"missing": {}})
    assert supporter.facts == {}
    seeker.facts["card"]["name"] = seeker.turns[0].extra["feeling"] = "changed"
    assert scenario.facts["card"]["name"] == "A"
    assert turns[0].extra == {"feeling": 40}


def test_the_trace_holds_every_request_and_answer(tmp_path: Path) -> None:
    answers = iter(["", "  ", "Well."])
    model = Answering(lambda _: next(answers))
    run(tmp_path, scenarios(1), ScriptedAgent(["a"]), SupporterAgent(model), rounds=1)
    (path,) = (tmp_path / "dialogues").iterdir()
    head, seeker, supporter = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    assert head["supporter"]["mode"] == "plain"
    assert "calls" not in seeker
    calls = supporter["calls"]
    assert [call.get("complaint", "").partition(":")[0] for call in calls] == ["empty", "empty", ""]
    assert [tuple(call["messages"]) for call in calls] == [asked[0].messages for asked in model.asked]
    assert len({call["seed"] for call in calls}) == 3
    assert "cannot be used" in calls[1]["messages"][-1]["content"]


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_the_limit_of_turns_is_exact(tmp_path: Path, rounds: int) -> None:
    found = run(tmp_path, scenarios(2), ScriptedAgent(lambda _: "a"), ScriptedAgent(lambda _: "b"), rounds=rounds)
    assert [turn.text for turn in found[0].turns] == ["a", "b"] * rounds
    assert ends(found) == {("ended", "turns reached"): 2}


@pytest.mark.parametrize(("tokens", "turns", "why"), [(29, 2, "tokens"), (30, 2, "tokens"), (31, 4, "tokens")])
def test_the_limit_of_tokens_ends_after_a_whole_round(tmp_path: Path, tokens: int, turns: int, why: str) -> None:
    model = Answering(lambda _: "words")  # 15 tokens a call, 30 a round
    found = run(tmp_path, scenarios(1), Card(model), SupporterAgent(model), rounds=9, tokens=tokens)
    (one,) = found
    assert len(one.turns) == turns
    assert one.outcome.why == f"{why} reached"
    assert (one.prompt_tokens, one.tokens) == (10 * turns, 5 * turns)


def test_tokens_are_estimated_where_a_model_does_not_count_them(tmp_path: Path) -> None:
    found = run(tmp_path, scenarios(1), Card(ScriptedModel(lambda _: "four")), ScriptedAgent(["b"]), rounds=1)
    assert found[0].tokens == 1
    assert found[0].prompt_tokens > 5


@pytest.mark.parametrize(("bad", "ends"), [(2, "ended"), (3, "model failed")])
def test_the_limit_of_retries_is_exact(tmp_path: Path, bad: int, ends: str) -> None:
    answers = iter(["As an AI I cannot."] * bad + ["Fine, so I am sad."])
    model = Answering(lambda _: next(answers))
    found = run(tmp_path, scenarios(1), Card(model), ScriptedAgent(["b"]), rounds=1, retries=2)
    outcome = found[0].outcome
    assert (outcome.status, len(model.asked)) == (ends, 3)
    if ends == "model failed":
        assert (outcome.who, outcome.why, outcome.may_pass) == ("seeker", "out of role", False)


def test_a_goodbye_ends_it_with_its_words_and_an_opening_is_given(tmp_path: Path) -> None:
    model = Answering(lambda request: "Thanks. [bye]" if len(request.messages) > 3 else "More.")
    given = [Scenario(id="s", opening="Hello.", facts={"card": "c"})]
    found = run(tmp_path, given, Card(model), ScriptedAgent(lambda _: "mm"), rounds=9)
    assert [turn.text for turn in found[0].turns] == ["Hello.", "mm", "Thanks."]
    outcome = found[0].outcome
    assert (outcome.status, outcome.why, outcome.who) == ("ended", "goodbye", "seeker")


@pytest.mark.parametrize(
    ("change", "turns", "why", "closing"),
    [(5, 4, "turns reached", 50), (30, 4, "success", 100), (60, 2, "success", 100), (29, 4, "turns reached", 98)],
)
def test_notes_without_words_close_a_conversation(
    tmp_path: Path, change: int, turns: int, why: str, closing: int
) -> None:
    def answer(request: Request) -> str:
        return str(change) if first_line(request) == "change" else "words"

    model = Answering(answer, batch_size=4, at_once=1)
    found = run(tmp_path, scenarios(3), Feeling(model), ScriptedAgent(lambda _: "mm"), rounds=2)
    for one in found:
        assert (len(one.turns), one.outcome.why, one.closing) == (turns, why, {"feeling": closing})
        assert one.outcome.who == ("seeker" if why == "success" else None)
        assert [turn.extra.get("feeling") for turn in one.turns[::2]] == [40, 40 + change][: turns // 2]


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["connection", "timeout", "rate limit", "server", "access", "refused", "answer"])
@pytest.mark.parametrize("who", ["seeker", "supporter"])
def test_a_model_that_cannot_be_asked_is_told_apart_and_tried_again(tmp_path: Path, kind: Any, who: str) -> None:
    broken = Answering(lambda _: Failure(kind, "no luck"))
    well = Answering(lambda _: "words")
    seeker, supporter = (broken, well) if who == "seeker" else (well, broken)
    found = run(tmp_path, scenarios(1), Card(seeker), SupporterAgent(supporter), rounds=1)
    assert ends(found) == {("infrastructure failed", f"{who}: {kind}"): 1}
    assert len(broken.asked) == 1  # the client has its own retries
    again = run(tmp_path, scenarios(1), Card(well), SupporterAgent(well), rounds=1)
    assert ends(again) == (ends(found) if kind == "refused" else {("ended", "turns reached"): 1})


@pytest.mark.parametrize(("text", "why"), [("", "empty"), ("<think>on and on", "empty"), ("No form.", "unparsable")])
def test_a_model_that_gives_nothing_of_use_has_failed_and_is_not_asked_again(
    tmp_path: Path, text: str, why: str
) -> None:
    model = Answering(lambda _: text)
    agent = SupporterAgent(model, prompt=lambda _: [{"role": "user", "content": "q"}])
    found = run(tmp_path, scenarios(1), ScriptedAgent(["a"]), agent, rounds=1, retries=0)
    assert ends(found) == {("model failed", f"supporter: {why}"): 1}
    assert run(tmp_path, scenarios(1), ScriptedAgent(["a"]), agent, rounds=1, retries=0) == found
    assert len(model.asked) == 1


def test_an_agent_that_says_nothing_has_failed_and_a_script_that_ends_has_not(tmp_path: Path) -> None:
    silent = run(tmp_path / "a", scenarios(1), ScriptedAgent(["  "]), ScriptedAgent(["b"]))
    assert ends(silent) == {("model failed", "seeker: empty"): 1}
    ended = run(tmp_path / "b", scenarios(1), ScriptedAgent(["a"]), ScriptedAgent(["b"]))
    assert ends(ended) == {("ended", "script ended"): 1}
    assert len(ended[0].turns) == 2


@pytest.mark.parametrize("batch_size", [1, 16])
def test_two_hundred_dialogues_with_errors_are_all_accounted_for_and_none_twice(
    tmp_path: Path, batch_size: int
) -> None:
    """Each request fails by what it is, not by when it comes; a second run mends what may pass."""
    mended = False

    def answer(request: Request) -> str | Failure:
        draw = request.seed % 40
        if draw < 3:
            return Failure("server", "broken") if not mended else "words again"
        return "" if draw < 8 else "I must go. [bye]" if draw == 8 else f"words {request.seed}"

    model = Answering(answer, batch_size=batch_size, at_once=64 // batch_size)
    given = scenarios(200)
    found = run(tmp_path, given, Card(model), SupporterAgent(model), rounds=3, retries=1)
    counted = Counter(one.outcome.status for one in found)
    assert [one.scenario for one in found] == [one.id for one in given]
    assert sum(counted.values()) == 200
    assert min(counted.values()) > 2
    assert len(counted) == 3
    assert len(list((tmp_path / "dialogues").iterdir())) == 200
    for one in found:
        assert len(one.turns) == 6 or one.outcome.why != "turns reached"
    asked = Counter(repr((request.messages, request.seed)) for call in model.asked for request in call)
    assert batch_size > 1 or max(asked.values()) == 1
    mended = True
    again = run(tmp_path, given, Card(model), SupporterAgent(model), rounds=3, retries=1)
    assert "infrastructure failed" not in {one.outcome.status for one in again}
    for before, after in zip(found, again, strict=True):
        if before.outcome.status != "infrastructure failed":
            assert after == before
        else:
            assert after.turns[: len(before.turns)] == before.turns
    assert read_conversations(tmp_path / "conversations.jsonl") == again
    fresh = run(tmp_path / "fresh", given, Card(model), SupporterAgent(model), rounds=3, retries=1)
    assert fresh == again


# --- the same bytes ---------------------------------------------------------------------------------------------------


def stage(folder: Path, kind: str, seed: int = 3, count: int = 7) -> list[Conversation]:
    """Dialogues of uneven lengths: of batches that answer as a whole, of single requests, or of two calls a turn."""
    model = Padded(lambda _: "", batch_size=2 if kind == "batched" else 1, at_once=1 if kind == "batched" else 8)

    class Uneven(Card):
        def read(self, view: View, answer: Generation) -> AgentTurn | Complaint:
            if answer.text[0] in "01":
                return Complaint("unparsable", "it begins with a 0 or 1")
            return AgentTurn(answer.text, "why", {"n": len(view.own)}, "goodbye" if answer.text[0] in "234" else None)

    class Two(Uneven):
        wants_closing_turn = True

        def turn(self, view: View) -> Any:
            plan: str = yield Ask(chat(view, "plan"), lambda answer: answer.text)
            if view.over:
                return AgentTurn("", extra={"plan": plan})
            return (yield Ask([*self.messages(view), {"role": "user", "content": plan}], lambda a: self.read(view, a)))

    seeker = Two(model) if kind == "two calls" else Uneven(model)
    return run(folder, scenarios(count), seeker, SupporterAgent(model), seed, rounds=3, retries=1)


@pytest.mark.parametrize("kind", ["batched", "single", "two calls"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path, kind: str) -> None:
    assert stage(tmp_path / "a", kind) == stage(tmp_path / "b", kind)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert stage(tmp_path / "c", kind, seed=4) != stage(tmp_path / "a", kind)
    lengths = {len(one.turns) for one in stage(tmp_path / "a", kind)}
    assert len(lengths) > 1  # or lock-step would not be tried


class Killed(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("kind", ["batched", "single", "two calls"])
@pytest.mark.parametrize("half_a_line", [False, True])
def test_a_run_killed_at_any_turn_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, half_a_line: bool
) -> None:
    stage(tmp_path / "whole", kind)
    wanted = files_of(tmp_path / "whole")
    entries = sum(text.count(b"\n") - 1 for name, text in wanted.items() if name.startswith("dialogues"))
    assert entries > 15
    add = LoggedDialogue.add
    for last in range(entries):
        written = 0

        def add_or_die(dialogue: LoggedDialogue, taking: Any, last: int = last) -> None:
            nonlocal written
            if written == last:
                if half_a_line:
                    with dialogue.path.open("ab") as file:
                        file.write(b'{"turn": {"speaker": "se')
                written += 1
                raise Killed
            if written > last:
                raise Killed
            written += 1
            add(dialogue, taking)

        folder = tmp_path / f"killed at {last}"
        monkeypatch.setattr(LoggedDialogue, "add", add_or_die)
        with pytest.raises(Killed):
            stage(folder, kind)
        monkeypatch.setattr(LoggedDialogue, "add", add)
        saved = sum(path.read_bytes().count(b"\n") - 1 for path in (folder / "dialogues").iterdir())
        assert saved == last
        stage(folder, kind)
        assert files_of(folder) == wanted


def test_a_finished_run_asks_nothing_more_and_can_be_made_longer(tmp_path: Path) -> None:
    model = Answering(lambda _: "words")
    run(tmp_path, scenarios(2), Card(model), SupporterAgent(model), rounds=1)
    before = files_of(tmp_path)
    run(tmp_path, scenarios(2), Card(model), SupporterAgent(model), rounds=1)
    assert files_of(tmp_path) == before
    assert len(model.asked) == 4
    advanced: list[int] = []
    work = run_dialogues(
        scenarios(3),
        Card(model),
        SupporterAgent(model),
        DialogueSettings(rounds=1),
        tmp_path,
        0,
        advanced.append,
    )
    assert len(asyncio.run(work)) == sum(advanced) == 3
    assert len(model.asked) == 6


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    model = Answering(lambda _: "words")
    run(tmp_path, scenarios(1), Card(model), SupporterAgent(model), rounds=1)
    with pytest.raises(InputError, match="another seed"):
        run(tmp_path, scenarios(1), Card(model), SupporterAgent(model), seed=1, rounds=1)
    with pytest.raises(InputError, match="another limits"):
        run(tmp_path, scenarios(1), Card(model), SupporterAgent(model), rounds=2)
    other = SupporterAgent(model, prompt=lambda _: [])
    with pytest.raises(InputError, match="another supporter"):
        run(tmp_path, scenarios(1), Card(model), other, rounds=1)
    (path,) = (tmp_path / "dialogues").iterdir()
    path.write_bytes(path.read_bytes() + b'{"turn": 3}\n')
    with pytest.raises(InputError, match="line 4"):
        run(tmp_path, scenarios(1), Card(model), SupporterAgent(model), rounds=1)
    with pytest.raises(InputError, match="twice"):
        run(tmp_path, scenarios(1) * 2, Card(model), SupporterAgent(model), rounds=1)


def test_ids_that_no_file_system_would_take_and_that_look_alike(tmp_path: Path) -> None:
    given = [Scenario(id=name) for name in ("a/b", "a:b", "../x", "失恋", "失业", "x" * 300)]
    found = run(tmp_path, given, ScriptedAgent(["a"]), ScriptedAgent(["b"]), rounds=1)
    assert ends(found) == {("ended", "turns reached"): 6}
    assert len(list((tmp_path / "dialogues").iterdir())) == 6


def test_a_local_model_gives_the_same_bytes_killed_or_not(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compeer.models.local import LocalModel

    model = LocalModel(tiny_model, batch_size=2)
    sampling = Sampling(max_tokens=6)

    def talk(folder: Path) -> None:
        run(folder, scenarios(3), Card(model, sampling), SupporterAgent(model, sampling=sampling), rounds=2)

    add, calls = LoggedDialogue.add, iter(range(100))

    def add_or_die(dialogue: LoggedDialogue, taking: Any) -> None:
        if next(calls) == 4:  # between the two of a batch
            raise Killed
        add(dialogue, taking)

    talk(tmp_path / "a")
    monkeypatch.setattr(LoggedDialogue, "add", add_or_die)
    with pytest.raises(Killed):
        talk(tmp_path / "b")
    monkeypatch.setattr(LoggedDialogue, "add", add)
    talk(tmp_path / "b")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert len(read_conversations(tmp_path / "a" / "conversations.jsonl")) == 3


# --- reading answers --------------------------------------------------------------------------------------------------


def test_a_structured_answer_needs_a_response_and_names_what_else_is_missing() -> None:
    whole = read_structured(Generation("<think>History: a draft [action]</think>\n" + STRUCTURED))
    assert isinstance(whole, AgentTurn)
    assert (whole.text, whole.extra) == ("It sounds as if this is hard to say aloud.", {})
    bare = read_structured(Generation("Response: I hear you."))
    assert isinstance(bare, AgentTurn)
    assert (bare.text, bare.reasoning, set(bare.extra["missing"])) == (
        "I hear you.",
        None,
        {"history", "emotion", "strategy"},
    )
    cut = read_structured(Generation(STRUCTURED, cut_off=True))
    assert isinstance(cut, AgentTurn)
    assert cut.extra["cut_off"] is True
    assert set(cut.extra["missing"]) == {"response"}
    assert isinstance(read_structured(Generation(STRUCTURED.rpartition("\n")[0])), Complaint)


@given(st.text(max_size=40), st.text(max_size=40))
def test_thinking_never_reaches_the_other_side(thought: str, message: str) -> None:
    message = message.replace("</think>", "").strip()
    for text in (
        f"<think>{thought}</think>{message}",
        f"{thought}</think>\n{message}",
        f"<think>a</think>{thought}</think>{message}",
    ):
        assert split_thinking(text)[1] == message
    if "</think>" not in thought:
        assert split_thinking(f"<think>{thought}")[1] == ""
        assert split_thinking("plain words") == (None, "plain words")


@given(st.text(max_size=60), st.booleans())
def test_any_answer_is_read_or_complained_about(text: str, cut_off: bool) -> None:
    for read in (read_plain, read_structured):
        found = read(Generation(text, cut_off))
        assert isinstance(found, Complaint) or found.text.strip()
