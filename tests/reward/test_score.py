"""Scores from verdicts, and the conversation in which a judge gives them."""

import dataclasses
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.dialogue import Utterance
from compeer.reasoning import (
    PARTS,
    STEPS,
    EmotionStep,
    HistoryStep,
    Part,
    StrategyStep,
    SupportTurn,
    parse_turn,
    render_step,
    render_turn,
)
from compeer.reward.conversation import (
    RESPONSE_WORDS,
    STEP_WORDS,
    Case,
    JudgeForm,
    JudgeQuestion,
    branches,
    chat,
    chats,
    preferred,
    record_case,
    response_word,
)
from compeer.reward.metrics import collapsed_verdicts, judge_metrics
from compeer.reward.score import Judgment, Score, Unscored, score
from compeer.ser.record import PREFERENCES, PreferenceLabel, Preferred, SerRecord, StepLabel, StepLabels

TURN = SupportTurn(
    history=HistoryStep(text="Lost her job on Friday.", stage="exploration"),
    emotion=EmotionStep(text="Afraid for the rent.", sentiment="negative", emotion="fear", intensity=4),
    strategy=StrategyStep(text="More has to be known.", strategy="Question"),
    response="What happened\non Friday?",
)
TEXT = render_turn(TURN)
WHOLE = parse_turn(TEXT)
HISTORY = (
    Utterance(speaker="seeker", text="they let me go"),
    Utterance(speaker="supporter", text="I am sorry."),
    Utterance(speaker="seeker", text="rent is due {soon}"),
)


def questions(case: Case, last: int | None = None) -> list[JudgeQuestion]:
    (rounds,) = branches(case, JudgeForm(history=last))
    return rounds


def verdicts_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "assistant"]


def judgment(step: float = 0.9, response: Preferred | None = "candidate") -> Judgment:
    probabilities: dict[Preferred, float] = {value: 0.7 if value == response else 0.1 for value in PREFERENCES}
    return Judgment(steps=dict.fromkeys(STEPS, step), response=probabilities if response else None)


# --- score ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "I am so sorry.", "   \n"])
def test_an_output_with_nothing_in_it_needs_no_judge(text: str) -> None:
    found = score(parse_turn(text), Unscored("the judge is away"))
    assert found == Score(steps=dict.fromkeys(STEPS, -1), response=-1, format=-1, total=-5)
    assert set(found.parts().values()) == {-1}


def test_all_good_is_five() -> None:
    found = score(WHOLE, judgment())
    assert found.parts() == {"history": 1, "emotion": 1, "strategy": 1, "response": 1, "format": 1}
    assert (found.total, found.unscored) == (5, None)


def test_all_bad_keeps_its_format() -> None:
    found = score(WHOLE, judgment(0.1, "reference"))
    assert found.parts() == {"history": -1, "emotion": -1, "strategy": -1, "response": -1, "format": 1}
    assert found.total == -3


@pytest.mark.parametrize(("value", "sign"), [("candidate", 1), ("both", 1), ("reference", -1), ("neither", -1)])
def test_as_good_as_the_reference_counts(value: Preferred, sign: int) -> None:
    found = score(WHOLE, judgment(response=value))
    assert found.response == sign
    assert found.total == 4 + sign


def test_each_step_has_its_own_sign() -> None:
    given_steps: dict[Part, float] = {"history": 0.5, "emotion": 0.49, "strategy": 1.0}
    found = score(WHOLE, Judgment(steps=given_steps))
    assert found.steps == {"history": 1, "emotion": -1, "strategy": 1}
    strict = score(WHOLE, Judgment(steps=given_steps, threshold=0.6))
    assert strict.steps == {"history": -1, "emotion": -1, "strategy": 1}


def test_without_a_reference_the_total_is_over_four() -> None:
    found = score(WHOLE, judgment(response=None))
    assert found.response is None
    assert found.total == 4
    assert score(WHOLE, judgment(0.0, None)).total == -2


def test_a_judge_that_failed_leaves_no_total() -> None:
    found = score(WHOLE, Unscored("out of memory"))
    assert (found.total, found.unscored, found.steps, found.response) == (None, "out of memory", {}, None)
    partly = score(parse_turn(TEXT.split("\n")[0]), Unscored("out of memory"))
    assert (partly.total, partly.unscored) == (None, "out of memory")


@pytest.mark.parametrize("part", STEPS)
def test_a_verdict_that_is_lacking_leaves_no_total(part: Part) -> None:
    steps: dict[Part, float] = {other: 0.9 for other in STEPS if other != part}
    found = score(WHOLE, Judgment(steps=steps, response={"candidate": 1.0}))
    assert found.total is None
    assert found.unscored == f"the judge gave no verdict on {part}"


def test_the_parser_decides_on_the_format() -> None:
    assert score(WHOLE, judgment()).format == 1
    assert score(parse_turn(TEXT, cut_off=True), judgment()).format == -1
    assert score(parse_turn(TEXT.replace("[Question]", "[Ask]")), judgment()).format == -1


def test_a_cut_off_response_is_bad_whatever_the_judge_says() -> None:
    found = score(parse_turn(TEXT, cut_off=True), judgment())
    assert (found.response, found.total) == (-1, 3 - 1 - 1)


def test_an_unreadable_step_is_bad_whatever_the_judge_says() -> None:
    found = score(parse_turn(TEXT.replace("fear", "dread")), judgment())
    assert found.steps == {"history": 1, "emotion": -1, "strategy": 1}
    assert found.total == 1


BREAKS = {
    "history": [("[exploration]", ""), ("[exploration]", "[start]"), ("History:", "Well,")],
    "emotion": [("fear", "dread"), (", 4]", ", 9]"), ("Emotion:", "Oh,")],
    "strategy": [("[Question]", "[Ask]"), ("Strategy:", "So")],
    "response": [("What happened\non Friday?", ""), ("Response:", "I say")],
}


@given(
    st.sets(st.sampled_from([change for changes in BREAKS.values() for change in changes])),
    st.booleans(),
    st.tuples(*[st.floats(0, 1)] * 3),
    st.none() | st.tuples(*[st.floats(0, 1)] * 4),
    st.booleans(),
)
def test_a_broken_output_never_scores_above_the_whole_one(
    changes: set[tuple[str, str]],
    cut_off: bool,
    steps: tuple[float, ...],
    response: tuple[float, ...] | None,
    only_asked: bool,
) -> None:
    text = TEXT
    for old, new in sorted(changes):
        text = text.replace(old, new)
    broken = parse_turn(text, cut_off=cut_off)
    probabilities = dict(zip(PREFERENCES, response, strict=True)) if response else None
    said = Judgment(steps=dict(zip(STEPS, steps, strict=True)), response=probabilities)
    about_broken = said
    if only_asked:
        about_broken = dataclasses.replace(said, steps={p: v for p, v in said.steps.items() if p in broken.parts})
    best, found = score(WHOLE, said), score(broken, about_broken)
    assert best.total is not None
    assert found.total is not None
    assert -5 <= found.total <= best.total <= 5
    assert (found.total < best.total) == (not broken.complete)


# --- the conversation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidate_first", [True, False])
def test_words_and_preferences_map_back_and_forth(candidate_first: bool) -> None:
    assert get_args(Preferred) == PREFERENCES
    assert {response_word(value, candidate_first) for value in PREFERENCES} == set(RESPONSE_WORDS)
    for value in PREFERENCES:
        assert preferred(response_word(value, candidate_first), candidate_first) == value
    assert response_word("candidate", candidate_first) == ("A" if candidate_first else "B")


def test_four_rounds_each_with_its_own_part() -> None:
    rounds = questions(Case(HISTORY, WHOLE, "And then?"))
    assert [question.part for question in rounds] == list(PARTS)
    assert [question.words for question in rounds] == [STEP_WORDS] * 3 + [RESPONSE_WORDS]
    assert all(question.asked for question in rounds)
    assert "Seeker: they let me go\nSupporter: I am sorry.\nSeeker: rent is due {soon}" in rounds[0].text
    for part, question in zip(STEPS, rounds, strict=False):
        assert render_step(part, TURN.step(part)) in question.text
        assert ("they let me go" in question.text) == (part == "history")
    assert (
        "Reply A (after these notes, meant as Question): What happened on Friday?\nReply B: And then?" in rounds[3].text
    )


def test_the_order_of_the_responses_is_the_one_recorded() -> None:
    rounds = questions(Case(HISTORY, WHOLE, "And then?", candidate_first=False))
    assert (
        "Reply A: And then?\nReply B (after these notes, meant as Question): What happened on Friday?" in rounds[3].text
    )


def test_the_history_is_cut_from_its_start() -> None:
    first = questions(Case(HISTORY, WHOLE, None), last=1)[0].text
    assert "rent is due {soon}" in first
    assert "I am sorry." not in first


def test_missing_steps_are_not_asked() -> None:
    output = parse_turn(TEXT.replace("fear", "dread"))
    rounds = questions(Case(HISTORY, output, "And then?"))
    assert [question.asked for question in rounds] == [True, False, True, True]
    assert "(missing)" in rounds[1].text
    assert "Afraid for the rent" not in rounds[1].text


def test_a_missing_response_or_reference_is_not_compared() -> None:
    assert [q.part for q in questions(Case(HISTORY, WHOLE, None))] == list(STEPS)
    assert [q.part for q in questions(Case(HISTORY, parse_turn(TEXT, cut_off=True), "And then?"))] == list(STEPS)


def test_a_chat_needs_a_verdict_for_each_question() -> None:
    with pytest.raises(ValueError, match="zip"):
        chat(Case(HISTORY, WHOLE, "And then?"), ["True"] * 3)


def record(value: Preferred | None = "reference", candidate_first: bool = True, **false: bool) -> SerRecord:
    def label(part: str) -> StepLabel:
        return StepLabel(value=not false.get(part, False), source="human", how="test")

    return SerRecord(
        id="r",
        dialogue="d",
        round=2,
        language="en",
        source="test",
        split="test",
        history=HISTORY,
        candidate=TURN,
        author="test",
        reference="And then?",
        labels=StepLabels(history=label("history"), emotion=label("emotion"), strategy=label("strategy")),
        preference=PreferenceLabel(value=value, source="human", how="test") if value else None,
        candidate_first=candidate_first,
    )


def test_the_chat_of_a_record_has_four_verdicts() -> None:
    one = record("reference", candidate_first=True, emotion=True)
    (messages,) = chats(one, JudgeForm())
    assert [message["role"] for message in messages] == ["system"] + ["user", "assistant"] * 4
    assert verdicts_of(messages) == ["True", "False", "True", "B"]
    assert verdicts_of(chats(record("reference", candidate_first=False), JudgeForm())[0])[3] == "A"
    assert messages == chat(record_case(one), ["True", "False", "True", "B"])


def test_a_record_without_a_preference_has_three() -> None:
    one = record(None)
    assert record_case(one).reference is None
    (messages,) = chats(one, JudgeForm())
    assert len(messages) == 1 + 2 * 3


# --- how good a judge is --------------------------------------------------------------------------------------------


def verdicts(one: SerRecord) -> Judgment:
    """What a judge says that is always right."""
    value = one.preference.value if one.preference else None
    steps: dict[Part, float] = {part: float(getattr(one.labels, part).value) for part in STEPS}
    return Judgment(steps=steps, response={value: 1.0} if value else None)


def test_metrics_of_a_judge_that_is_right_and_of_one_that_always_says_true() -> None:
    tested = [record("candidate", history=True), record("both"), record("neither"), record("candidate")]
    right: dict[str, Any] = judge_metrics(tested, [verdicts(one) for one in tested])
    assert right["history"]["weighted_f1"] == right["history"]["recall_false"] == 1.0
    assert right["response"]["accuracy"] == 1.0
    assert right["emotion"]["recall_false"] is None
    # always True on T, T, T, F: F1 of True = 2·3 / (4 + 3) = 6/7, weighted by 3/4
    assert right["history"]["weighted_f1_always_true"] == pytest.approx(0.75 * 6 / 7)
    assert collapsed_verdicts(right) == ["emotion", "strategy"]
    lazy: dict[str, Any] = judge_metrics(tested, [judgment()] * 4)
    assert lazy["history"]["recall_false"] == 0.0
    assert lazy["history"]["balanced_accuracy"] == 0.5
    assert lazy["response"]["accuracy"] == lazy["response"]["majority_share"] == 0.5
    assert collapsed_verdicts(lazy) == [*STEPS, "response"]


def test_what_a_judge_failed_on_is_counted_apart() -> None:
    tested = [record("candidate"), record("both")]
    measured = judge_metrics(tested, [verdicts(tested[0]), Unscored("too long")])
    assert (measured["records"], measured["scored"]) == (2, 1)
    assert measured["response"]["accuracy"] == 1.0
