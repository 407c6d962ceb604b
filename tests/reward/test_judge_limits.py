"""What is too long for a judge: an output pays for its own length; only history and reference leave it unscored."""

from dataclasses import replace
from pathlib import Path

import pytest

from compeer.dialogue import Utterance
from compeer.reasoning import STEPS, Part, parse_turn, render_turn
from compeer.reward import Case, JudgeForm, Judgment, LocalJudge, PairJudge, Unscored, score
from tests.support.judging import CPU, FORMS, HISTORY, IDS, REFERENCE, case, turn

USUAL = "That is a lot at once."


def rare(count: int) -> str:
    """Letters that few tokenizers know: each is three tokens."""
    return "".join(chr(0x3400 + number * 7 % 6000) for number in range(count))


def judge_of(model: Path, form: JudgeForm) -> LocalJudge:
    return LocalJudge(model, device=CPU, form=form, both_orders=True, reason_tokens=3)


def answer(response: str = USUAL, note: str = "Lost a job.", reference: str | None = REFERENCE) -> Case:
    return Case(HISTORY, parse_turn(render_turn(turn(response, note))), reference)


@pytest.mark.parametrize("form", FORMS, ids=IDS)
def test_an_overlong_response_loses_and_the_steps_are_still_judged(tiny_learner: Path, form: JudgeForm) -> None:
    judge = judge_of(tiny_learner, form)
    usual, long = judge.judge([case(), answer(rare(3000))])
    assert isinstance(usual, Judgment)
    assert isinstance(long, Judgment)
    assert long.steps == pytest.approx(usual.steps, abs=1e-5)
    if form.kind == "process":
        assert long.void is None, "who is not shown the response has nothing to say about it"
    else:
        assert long.response is None
        assert long.void == "the response is too long for the judge"
    if form.kind == "unified":
        given = score(answer(rare(3000)).output, long)
        assert given.response == -1
        assert given.total is not None


@pytest.mark.parametrize("form", [form for form in FORMS if form.kind != "outcome"], ids=str)
def test_an_overlong_step_is_false_and_the_others_are_still_judged(tiny_learner: Path, form: JudgeForm) -> None:
    judge = judge_of(tiny_learner, form)
    output = answer(note=rare(900)).output
    cut = replace(output, parts={part: value for part, value in output.parts.items() if part != "history"})
    long, missing = judge.judge([Case(HISTORY, output, REFERENCE), Case(HISTORY, cut, REFERENCE)])
    assert isinstance(long, Judgment)
    assert isinstance(missing, Judgment)
    assert long.steps["history"] == 0.0
    others = {part: probability for part, probability in long.steps.items() if part != "history"}
    assert others == pytest.approx(missing.steps, abs=1e-5), "they are judged as if it were not there"
    assert (long.response is None) == (form.kind == "process")
    assert long.response == pytest.approx(missing.response, abs=1e-5)


def test_the_longest_in_tokens_goes_first(tiny_learner: Path) -> None:
    """The response has more characters than the step, and fewer tokens."""
    response = "It is a lot to take in at once, and you need not. " * 8
    found = judge_of(tiny_learner, JudgeForm()).judge([answer(response, rare(300))])[0]
    assert isinstance(found, Judgment)
    assert found.response is not None
    assert found.steps["history"] == 0.0


@pytest.mark.parametrize("form", FORMS, ids=IDS)
def test_whatever_is_too_long_is_no_better_than_missing(tiny_learner: Path, form: JudgeForm) -> None:
    text = "\n".join(
        f"{part.capitalize()}: {rare(990)} [{decision}]"
        for part, decision in zip(STEPS, ("comforting", "negative, fear, 4", "Question"), strict=True)
    )
    output = parse_turn(f"{text}\nResponse: {rare(3900)}")
    assert output.complete
    (found,) = judge_of(tiny_learner, form).judge([Case(HISTORY, output, REFERENCE)])
    assert isinstance(found, Judgment)
    nothing: dict[Part, float] = {} if form.kind == "outcome" else dict.fromkeys(STEPS, 0.0)
    assert found.steps == nothing
    assert found.response is None
    if form.kind == "unified":
        assert score(output, found).parts() == {**dict.fromkeys(STEPS, -1), "response": -1, "format": 1}


def test_prm_and_orm_give_the_lowest_score_together(tiny_learner: Path) -> None:
    pair = PairJudge(*(judge_of(tiny_learner, JudgeForm(kind=kind)) for kind in ("process", "outcome")))
    asked = answer(rare(3000), rare(900))
    given = score(asked.output, pair.judge([asked])[0])
    assert given.unscored is None
    assert (given.steps["history"], given.response) == (-1, -1)


@pytest.mark.parametrize("form", FORMS, ids=IDS)
@pytest.mark.parametrize("response", [USUAL, rare(3000)], ids=["short", "long"])
def test_an_overlong_history_leaves_no_score(tiny_learner: Path, form: JudgeForm, response: str) -> None:
    asked = replace(answer(response), history=(*HISTORY, Utterance(speaker="seeker", text=rare(500))))
    (found,) = judge_of(tiny_learner, form).judge([asked])
    assert isinstance(found, Unscored)
    assert "the judge takes 1024" in found.reason


@pytest.mark.parametrize("kind", ["unified", "outcome"])
@pytest.mark.parametrize("response", [USUAL, rare(3000)], ids=["short", "long"])
def test_an_overlong_reference_leaves_no_score(tiny_learner: Path, kind: str, response: str) -> None:
    judge = judge_of(tiny_learner, JudgeForm.model_validate({"kind": kind}))
    assert isinstance(judge.judge([answer(response, reference=rare(500))])[0], Unscored)


def test_a_process_judge_does_not_mind_the_reference(tiny_learner: Path) -> None:
    (found,) = judge_of(tiny_learner, JudgeForm(kind="process")).judge([answer(reference=rare(500))])
    assert isinstance(found, Judgment)


def test_a_response_that_is_not_compared_is_not_blamed_for_a_long_step(tiny_learner: Path) -> None:
    asked = answer(rare(3000), rare(900), reference=None)
    (found,) = judge_of(tiny_learner, JudgeForm()).judge([asked])
    assert isinstance(found, Judgment)
    assert found.steps["history"] == 0.0
    assert (found.response, found.void) == (None, None)


def test_a_long_output_does_not_disturb_the_others_of_its_batch(tiny_learner: Path) -> None:
    judge = judge_of(tiny_learner, JudgeForm(alone=True))
    alone = judge.judge([case()])[0]
    long, beside = judge.judge([answer(rare(3000)), case()])
    assert isinstance(alone, Judgment)
    assert isinstance(beside, Judgment)
    assert isinstance(long, Judgment)
    assert beside.steps == pytest.approx(alone.steps, abs=1e-5)
    assert beside.response == pytest.approx(alone.response, abs=1e-5)
