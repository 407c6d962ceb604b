"""Candidate turns: what models are asked, how answers are read and asked for again, and the stage around it."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from compeer.dialogue import Media, Utterance
from compeer.errors import InputError
from compeer.io import read_lines
from compeer.models import Failure, Generation, Request, Sampling
from compeer.reasoning import EMOTIONS, LABELS, STAGES, STRATEGIES, parse_turn, render_turn
from compeer.ser.asking import prompt
from compeer.ser.reason import CandidateTurn, ReasonSettings, candidate_turns, reason_stage
from compeer.ser.sampling import Context
from tests.support.scripted_model import ScriptedModel

GOOD = (
    "History: The boiler has been broken for a week. [comforting]\n"
    "Emotion: Worn out and cold. [negative, frustration, 4]\n"
    "Strategy: Show that the feeling is understood. [Reflection of feelings]\n"
    "Response: A week without heat would wear anyone down."
)
NO_STAGE = GOOD.replace("[comforting]", "[healing]")
SETTINGS = ReasonSettings(temperature=0.5)
EXAMPLE = parse_turn(prompt("example")).turn


def context(number: int = 1, language: str = "en", last: str = "", media: tuple[Media, ...] = ()) -> Context:
    return Context(
        id=f"d{number}:2",
        dialogue=f"d{number}",
        round=2,
        language=language,
        source="test",
        split="reward",
        history=(
            Utterance(speaker="seeker", text=f"Number {number}. The boiler broke {{again}}."),
            Utterance(speaker="supporter", text="Since when?"),
            Utterance(speaker="seeker", text=last or "A week now.", media=media),
        ),
        reply=Utterance(speaker="supporter", text="That is long."),
    )


def number(request: Request) -> int:
    return int(str(request.messages[1]["content"]).split("Number ")[1].split(".")[0])


def turns(model: Any, *contexts: Context, settings: ReasonSettings = SETTINGS, seed: int = 0) -> list[Any]:
    return asyncio.run(candidate_turns(model, contexts, settings, seed))


def write(path: Path, count: int = 5) -> Path:
    lines = [context(index).model_dump_json(exclude_defaults=True) for index in range(1, count + 1)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def stage(
    contexts: Path, out: Path, *models: Any, settings: ReasonSettings = SETTINGS, seed: int = 0
) -> dict[str, Any]:
    out.parent.mkdir(exist_ok=True)
    return asyncio.run(reason_stage(contexts, out, models, settings, seed))


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- one model --------------------------------------------------------------------------------------------------------


def test_a_turn_is_read_and_says_who_wrote_it() -> None:
    (found,) = turns(ScriptedModel([GOOD], name="one"), context())
    assert found == CandidateTurn(context="d1:2", model="one", number=1, turn=parse_turn(GOOD).turn)


def test_what_is_asked_names_the_form_and_the_vocabularies() -> None:
    model = ScriptedModel([GOOD])
    turns(model, context())
    (request,) = model.requests
    task, shown = (str(message["content"]) for message in request.messages)
    for word in (*STAGES, *EMOTIONS, *STRATEGIES, *(f"{label}: " for label in LABELS.values())):
        assert word in task
    assert "language" not in task
    assert "{" not in task
    assert shown == "Seeker: Number 1. The boiler broke {again}.\nSupporter: Since when?\nSeeker: A week now."
    assert request.grammar is not None
    assert parse_turn(prompt("example")).problems == ()
    assert EXAMPLE is not None
    assert render_turn(EXAMPLE) in task


def test_other_languages_are_answered_in_their_own() -> None:
    model = ScriptedModel([GOOD, GOOD])
    turns(model, context(language="zh"))
    assert "in the language of the conversation" in str(model.requests[0].messages[0]["content"])


def test_only_the_last_utterances_are_shown_if_so_wanted() -> None:
    model = ScriptedModel([GOOD])
    turns(model, context(), settings=ReasonSettings(history=1))
    assert model.requests[0].messages[1]["content"] == "Seeker: A week now."


def test_an_unreadable_turn_is_asked_for_again_with_the_complaint() -> None:
    model = ScriptedModel([NO_STAGE, "Hm.", GOOD])
    (found,) = turns(model, context())
    assert found.turn == parse_turn(GOOD).turn
    assert found.tries == 3
    assert found.missing == {}
    first, second = (request.messages[2:] for request in model.requests[1:])
    assert first[0]["content"] == NO_STAGE
    assert "History line" in str(first[1]["content"])
    assert "'healing' is not one of exploration, comforting, action" in str(first[1]["content"])
    assert "Emotion line" not in str(first[1]["content"])
    assert all(f"{label} line" in str(second[1]["content"]) for label in LABELS.values())
    assert len({request.seed for request in model.requests}) == 3


def test_after_the_last_try_it_is_kept_unparsed() -> None:
    (found,) = turns(ScriptedModel(["Hm."] + [NO_STAGE] * 5), context(), settings=ReasonSettings(retries=1))
    assert found.turn is None
    assert found.text == NO_STAGE
    assert list(found.missing) == ["history"]
    assert found.tries == 2
    (found,) = turns(ScriptedModel([NO_STAGE]), context(), settings=ReasonSettings(retries=0))
    assert found.tries == 1


def test_a_copy_of_the_example_is_no_turn() -> None:
    assert EXAMPLE is not None
    copy = GOOD.replace("A week without heat would wear anyone down.", EXAMPLE.response)
    model = ScriptedModel([render_turn(EXAMPLE), copy])
    (found,) = turns(model, context(), settings=ReasonSettings(retries=1))
    assert found.turn is None
    assert found.missing == {"response": "copied from the task"}
    assert str(model.requests[1].messages[-1]["content"]).count("copied from the task") == 4


class CutOff(ScriptedModel):
    """Is stopped before it has ended, the first `cut` times."""

    cut = 1

    def _answer(self, request: Request, sampling: Sampling) -> Any:
        found = super()._answer(request, sampling)
        cut = len(self.requests) <= self.cut and isinstance(found, Generation)
        return Generation(found.text, cut_off=True) if cut else found  # type: ignore[union-attr]


def test_an_answer_that_was_cut_off_is_not_whole() -> None:
    model = CutOff([GOOD, GOOD])
    (found,) = turns(model, context())
    assert found.tries == 2
    assert "cut off" in str(model.requests[1].messages[-1]["content"])
    model = CutOff([GOOD])
    (found,) = turns(model, context(), settings=ReasonSettings(retries=0))
    assert found.turn is None
    assert list(found.missing) == ["response"]


def test_each_candidate_draws_from_its_own_seed() -> None:
    def seeds(name: str, *contexts: Context, seed: int = 0) -> dict[tuple[int, int], int]:
        model = ScriptedModel(lambda _: GOOD, name=name)
        found = turns(model, *contexts, settings=ReasonSettings(candidates=3), seed=seed)
        assert [(turn.context, turn.number) for turn in found] == [
            (one.id, candidate) for one in contexts for candidate in (1, 2, 3)
        ]
        return {(number(r), i % 3): r.seed for i, r in enumerate(model.requests)}

    both = seeds("one", context(1), context(2))
    assert len(set(both.values())) == 6
    assert seeds("one", context(2)).items() <= both.items()
    assert not set(seeds("two", context(1), context(2)).values()) & set(both.values())
    assert not set(seeds("one", context(1), context(2), seed=1).values()) & set(both.values())


def test_several_candidates_need_a_temperature() -> None:
    with pytest.raises(ValidationError, match="temperature"):
        ReasonSettings(candidates=2, temperature=0)
    assert ReasonSettings(temperature=0).candidates == 1


def test_a_model_that_plays_on_is_stopped() -> None:
    (found,) = turns(ScriptedModel([f"{GOOD}\nSeeker: Yes, it does."]), context())
    assert found.turn is not None
    assert found.turn.response == "A week without heat would wear anyone down."


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_are_given_where_they_are_wanted(tmp_path: Path) -> None:
    picture = tmp_path / "boiler.jpg"
    picture.write_bytes(b"\xff\xd8 not really")
    media = (Media(kind="image", path=str(picture)), Media(kind="audio", path="sigh.wav"))
    model = ScriptedModel([GOOD, GOOD, GOOD])
    turns(model, context(media=media))
    assert isinstance(model.requests[0].messages[1]["content"], str)
    turns(model, context(media=media), settings=ReasonSettings(images=True))
    text, image = model.requests[1].messages[1]["content"]
    assert text["text"].endswith("Seeker: A week now.")  # type: ignore[index]
    url = "data:image/jpeg;base64," + base64.b64encode(picture.read_bytes()).decode()
    assert image == {"type": "image_url", "image_url": {"url": url}}
    turns(model, context(), settings=ReasonSettings(images=True))
    assert isinstance(model.requests[2].messages[1]["content"], str)


def test_a_picture_that_is_not_there_is_named(tmp_path: Path) -> None:
    gone = context(media=(Media(kind="image", path=str(tmp_path / "gone.png")),))
    with pytest.raises(InputError, match=r"gone\.png"):
        turns(ScriptedModel([GOOD]), gone, settings=ReasonSettings(images=True))


# --- the stage --------------------------------------------------------------------------------------------------------


def test_the_stage_writes_all_candidates_of_a_context_together(tmp_path: Path) -> None:
    source, out = write(tmp_path / "contexts.jsonl", 3), tmp_path / "out" / "turns.jsonl"
    one, two = ScriptedModel(lambda _: GOOD, name="one", batch_size=4), ScriptedModel(lambda _: "Hm.", name="two")
    manifest = stage(source, out, one, two, settings=ReasonSettings(candidates=2, retries=1))
    found = list(read_lines(out, CandidateTurn))
    assert [(turn.context, turn.model, turn.number) for turn in found] == [
        (f"d{index}:2", name, candidate) for index in (1, 2, 3) for name in ("one", "two") for candidate in (1, 2)
    ]
    assert {turn.model for turn in found if turn.turn} == {"one"}
    assert manifest["counts"]["reason"] == {"asked": 12, "written": 12, "asked again": 6}
    assert manifest["counts"]["parsed"] == {"one": 6}
    assert manifest["counts"]["unparsed"] == {"two": 6}
    assert manifest["counts"]["missing"] == dict.fromkeys(("history", "emotion", "strategy", "response"), 6)
    assert len(two.requests) == 12
    asked = len(one.requests)
    assert stage(source, out, one, two, settings=ReasonSettings(candidates=2, retries=1)) == manifest
    assert len(one.requests) == asked


def test_models_need_names_of_their_own(tmp_path: Path) -> None:
    source = write(tmp_path / "contexts.jsonl")
    for models in ([], [ScriptedModel([]), ScriptedModel([])]):
        with pytest.raises(InputError, match="name"):
            stage(source, tmp_path / "turns.jsonl", *models)


class Slow(ScriptedModel):
    """Answers after a while, the first ones latest, and knows how many calls were under way at once."""

    under_way = most = 0

    async def generate(self, requests: Any, sampling: Sampling) -> list[Generation | Failure]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.03 / (1 + number(requests[0])))
        self.under_way -= 1
        return await super().generate(requests, sampling)


def test_each_model_is_asked_as_much_at_once_as_it_likes(tmp_path: Path) -> None:
    source = write(tmp_path / "contexts.jsonl", 12)
    one, two = Slow(lambda _: GOOD, name="one", at_once=4), Slow(lambda _: GOOD, name="two", at_once=1)
    stage(source, tmp_path / "quick" / "turns.jsonl", one, two)
    assert one.most == 4
    assert two.most == 1
    models = [ScriptedModel(lambda _: GOOD, name=name) for name in ("one", "two")]
    stage(source, tmp_path / "calm" / "turns.jsonl", *models)
    assert outputs(tmp_path / "quick") == outputs(tmp_path / "calm")


@pytest.mark.parametrize("calls", [1, 4, 8])
def test_a_killed_stage_goes_on_to_the_same_bytes(tmp_path: Path, calls: int) -> None:
    source = write(tmp_path / "contexts.jsonl", 7)

    def answer(request: Request) -> str:
        return NO_STAGE if number(request) % 3 == 0 else GOOD.replace("week", f"week {request.seed}")

    def pair(first: Any) -> list[ScriptedModel]:
        return [ScriptedModel(first, name="one", batch_size=2), ScriptedModel(answer, name="two", batch_size=2)]

    stage(source, tmp_path / "whole" / "turns.jsonl", *pair(answer))
    asked = 0

    def dying(request: Request) -> str:
        nonlocal asked
        asked += 1
        if asked > calls:
            raise RuntimeError("killed")
        return answer(request)

    with pytest.raises(RuntimeError):
        stage(source, tmp_path / "killed" / "turns.jsonl", *pair(dying))
    assert not (tmp_path / "killed" / "turns.jsonl").exists()
    again = pair(answer)
    stage(source, tmp_path / "killed" / "turns.jsonl", *again)
    assert outputs(tmp_path / "killed") == outputs(tmp_path / "whole")
    if calls > 1:
        assert 1 not in {number(request) for request in again[0].requests}


class Failing(ScriptedModel):
    """Fails for the second context as it is told to."""

    failure: Failure | None = None

    def _answer(self, request: Request, sampling: Sampling) -> Any:
        return self.failure if self.failure and number(request) == 2 else super()._answer(request, sampling)


def test_a_failure_leaves_the_stage_unfinished_and_it_is_tried_again(tmp_path: Path) -> None:
    source, out = write(tmp_path / "contexts.jsonl", 3), tmp_path / "out" / "turns.jsonl"
    model = Failing(lambda _: GOOD)
    model.failure = Failure("rate limit", "429")
    manifest = stage(source, out, model)
    assert manifest["failed"] == 1
    assert manifest["counts"]["failed"] == {"rate limit": 1}
    assert [turn.context for turn in read_lines(out, CandidateTurn)] == ["d1:2", "d3:2"]
    model.failure = None
    assert stage(source, out, model)["failed"] == 0
    assert len(list(read_lines(out, CandidateTurn))) == 3


def test_a_request_that_is_impossible_is_dropped(tmp_path: Path) -> None:
    model = Failing(lambda _: GOOD)
    model.failure = Failure("refused", "too long")
    manifest = stage(write(tmp_path / "contexts.jsonl", 3), tmp_path / "turns.jsonl", model)
    assert manifest["failed"] == 0
    assert manifest["counts"]["dropped"] == {"refused": 1}
    assert manifest["counts"]["reason"] == {"asked": 3, "written": 2, "asked again": 0}


def test_bad_turns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    with pytest.raises(InputError, match="no such file"):
        list(read_lines(path, CandidateTurn))
    good = CandidateTurn(context="a", model="m", number=1, turn=EXAMPLE).model_dump(mode="json")
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, "number": 0}) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2.*number"):
        list(read_lines(path, CandidateTurn))


def test_under_the_grammar_turns_are_parsed_at_once(tiny_learner: Path, tmp_path: Path) -> None:
    import torch

    from compeer.models.local import LocalModel

    model = LocalModel(tiny_learner, device=torch.device("cpu"), batch_size=2, name="tiny")
    short = context().model_copy(update={"history": context().history[-1:]})
    source = tmp_path / "contexts.jsonl"
    source.write_text(short.model_dump_json(exclude_defaults=True) + "\n", encoding="utf-8")
    settings = ReasonSettings(candidates=2, retries=0, max_tokens=120)
    stage(source, tmp_path / "turns.jsonl", model, settings=settings)
    found = list(read_lines(tmp_path / "turns.jsonl", CandidateTurn))
    assert len(found) == 2
    assert found[0] != found[1]
    for turn in found:  # a random model may well babble on to the last token, but what is there is in form
        written = render_turn(turn.turn) if turn.turn else str(turn.text)
        assert written.startswith("History: ")
        assert all(why in ("not there", "cut off before the output ended") for why in turn.missing.values())
