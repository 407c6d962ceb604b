"""Outputs ranked against each other: hand-worked cases, and what must hold whatever the judge says."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.dialogue import Utterance
from compeer.reasoning import STEPS, ParsedTurn, Part, parse_turn
from compeer.reward.conversation import Case
from compeer.reward.rank import Ask, Ranked, anchors_of, comparisons, rank, ranking, shares_of, won
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import Preferred
from tests.support.judging import CaseJudge

HISTORY = (Utterance(speaker="seeker", text="My boat will not start and the season begins tomorrow."),)


def output(response: str) -> ParsedTurn:
    return parse_turn(
        f"History: A boat that will not start. [exploration]\nEmotion: On edge. [negative, stress, 3]\n"
        f"Strategy: Ask. [Question]\nResponse: {response}"
    )


def text_of(case: Case) -> str:
    response = case.output.parts["response"]
    assert isinstance(response, str)
    return response


class Judge(CaseJudge):
    """Prefers the response with the greater number in it, with some weight for whatever is shown first."""

    name = "by number"

    def __init__(self, place: float = 0.0, broken: str | None = None, compares: bool = True) -> None:
        self.place, self.broken, self.compares = place, broken, compares
        super().__init__()

    def one(self, case: Case) -> Judgment | Unscored:
        mine = _number(text_of(case))
        if self.broken and self.broken in (text_of(case), case.reference):
            return Unscored("the judge fell asleep")
        steps: dict[Part, float] = dict.fromkeys(STEPS, 0.5)
        if case.reference is None or not self.compares:
            return Judgment(steps)
        gap = mine - _number(case.reference)
        better = min(1.0, max(0.0, 0.5 + gap / 20 + (self.place if case.candidate_first else -self.place)))
        return Judgment(steps, {"candidate": better, "reference": 1 - better, "both": 0.0, "neither": 0.0})


def _number(text: str) -> int:
    return int(text.rsplit(" ", 1)[1])


# --- worked by hand ---------------------------------------------------------------------------------------------------


def test_ties_are_shared() -> None:
    assert won({"candidate": 0.5, "reference": 0.1, "both": 0.3, "neither": 0.1}) == pytest.approx(0.7)


def test_a_score_worked_by_hand() -> None:
    steps: dict[int, Mapping[Part, float]] = {
        0: {"history": 1.0, "emotion": 0.5, "strategy": 0.75},
        1: {"history": 0.5, "emotion": 0.5, "strategy": 0.5},
    }
    shares = {(0, 0): 0.5, (1, 1): 0.5, (0, 1): 0.2, (1, 0): 0.8}
    first, second = ranking(steps, shares, [0, 1], {})
    # 0 has the better steps, and wins (0.5 + 0.2) / 2 = 0.35; 1 wins 0.65: the responses decide
    assert first.index == 1
    assert [first.score, first.wins] == pytest.approx([0.3, 0.65])
    assert [second.score, second.wins] == pytest.approx([-0.3, 0.35])


def test_steps_decide_among_equals_and_alone() -> None:
    steps: dict[int, Mapping[Part, float]] = {0: {"history": 0.5}, 1: {"history": 1.0}}
    even = {(0, 0): 0.5, (1, 1): 0.5, (0, 1): 0.5, (1, 0): 0.5}
    assert [entry.index for entry in ranking(steps, even, [0, 1], {})] == [1, 0]
    assert [(entry.index, entry.score) for entry in ranking(steps, {}, [], {})] == [(1, 1.0), (0, 0.0)]


def test_both_orders_cancel_a_place_that_is_favoured() -> None:
    said: Mapping[Preferred, float] = {"candidate": 0.9, "reference": 0.1}  # whoever is shown first
    assert shares_of({(0, 1): Judgment({}, said), (1, 0): Judgment({}, said)}) == pytest.approx(
        {(0, 1): 0.5, (1, 0): 0.5}
    )
    worse: Mapping[Preferred, float] = {"candidate": 0.5, "reference": 0.5}
    shares = shares_of({(0, 1): Judgment({}, said), (1, 0): Judgment({}, worse)})
    assert shares[0, 1] == pytest.approx(0.7)  # (0.9 + 1 - 0.5) / 2


def test_one_order_alone_does_not_count() -> None:
    assert shares_of({(0, 1): Judgment({}, {"candidate": 1.0}), (1, 0): Unscored("no")}) == {}


def test_a_response_that_counts_for_nothing_loses() -> None:
    said: Mapping[Preferred, float] = {"candidate": 1.0}
    found: dict[Ask, Judgment | Unscored] = {
        (0, 1): Judgment({}, said, void="the response repeats the history"),
        (1, 0): Judgment({}, {"reference": 1.0}),
    }
    assert shares_of(found) == {(0, 1): 0.0, (1, 0): 1.0}


# --- with a judge -----------------------------------------------------------------------------------------------------


def test_the_best_output_comes_first_whatever_place_the_judge_favours() -> None:
    outputs = [output(f"Reply number {number}") for number in (3, 9, 1, 5)]
    for place in (0.0, 0.3, -0.3):
        judge = Judge(place)
        assert [entry.index for entry in rank(judge, HISTORY, outputs)] == [1, 3, 0, 2]
        assert len(judge.cases) == 12
        assert all(case.candidate_first for case in judge.cases)


def test_broken_outputs_come_last_and_are_not_judged() -> None:
    outputs = [parse_turn("mumble"), output("Reply number 2"), parse_turn("Response: Only 7"), output("Reply number 4")]
    judge = Judge()
    found = rank(judge, HISTORY, outputs)
    assert [entry.index for entry in found] == [3, 1, 2, 0]
    assert [entry.score is None for entry in found] == [False, False, True, True]
    assert "history: not there" in str(found[2].problem)
    assert {text_of(case) for case in judge.cases} == {"Reply number 2", "Reply number 4"}


def test_a_failure_of_the_judge_is_named() -> None:
    outputs = [output(f"Reply number {number}") for number in (3, 9, 1)]
    found = rank(Judge(broken="Reply number 9"), HISTORY, outputs)
    assert [entry.index for entry in found] == [0, 2, 1]
    assert found[2] == Ranked(1, None, problem="the judge fell asleep")
    assert found[0].problem == "the judge fell asleep"  # it lost a comparison by that, but has others
    assert found[0].score is not None
    nothing = rank(Judge(broken="Reply number 9"), HISTORY, outputs[1:2])
    assert nothing == [Ranked(0, None, problem="the judge fell asleep")]


@pytest.mark.parametrize("others", [[4], [4, 2]])
def test_an_output_that_is_too_long_for_others_to_be_compared_with_loses(others: list[int]) -> None:
    class Short(Judge):
        def one(self, case: Case) -> Judgment | Unscored:
            if case.reference and len(case.reference) > 500:
                return Unscored("history and reference need 9000 tokens")
            if len(text_of(case)) > 500:
                return Judgment(dict.fromkeys(STEPS, 0.5), void="the response is longer than the judge takes")
            return super().one(case)

    long = output("long " * 200 + "99")
    found = rank(Short(), HISTORY, [long, *(output(f"Reply number {number}") for number in others)])
    first, last = found[0], found[-1]
    assert (first.index, first.score is None) == (1, False)
    assert first.wins is not None
    assert last.index == 0
    assert last.wins == pytest.approx(0.5 / (1 + len(others)))  # against itself


def test_a_single_output_and_a_judge_of_steps_have_no_wins() -> None:
    (alone,) = rank(Judge(), HISTORY, [output("Reply number 3")])
    assert (alone.score, alone.wins) == (0.0, None)
    found = rank(Judge(compares=False), HISTORY, [output("Reply number 3"), output("Reply number 4")])
    assert [(entry.index, entry.score, entry.wins) for entry in found] == [(0, 0.0, None), (1, 0.0, None)]
    assert rank(Judge(), HISTORY, []) == []


def test_outputs_that_say_the_same_are_not_compared() -> None:
    outputs = [output("Reply number 3"), output("reply  number 3"), output("Reply number 4")]
    judge = Judge()
    found = rank(judge, HISTORY, outputs)
    assert len(judge.cases) == 4
    assert [entry.index for entry in found] == [2, 0, 1]
    assert found[1].score == pytest.approx(found[2].score)


def test_many_outputs_are_compared_with_a_few() -> None:
    outputs = [output(f"Reply number {number}") for number in range(32)]
    judge = Judge()
    found = rank(judge, HISTORY, outputs)
    assert len(judge.cases) <= 2 * 32 * 6  # ⌈log₂ 32⌉ + 1 anchors
    assert found[0].index >= 30


# --- what must always hold --------------------------------------------------------------------------------------------

CHANCE = st.floats(0, 1)


@st.composite
def _tournament(draw: st.DrawFn) -> tuple[dict[int, Mapping[Part, float]], dict[tuple[int, int], float]]:
    count = draw(st.integers(2, 5))
    steps: dict[int, Mapping[Part, float]] = {i: {part: draw(CHANCE) for part in STEPS} for i in range(count)}
    shares = {(i, i): 0.5 for i in range(count)}
    for i in range(count):
        for j in range(i):
            shares[i, j] = draw(CHANCE)
            shares[j, i] = 1 - shares[i, j]
    return steps, shares


@given(_tournament(), st.randoms(use_true_random=False))
def test_the_order_in_which_outputs_are_given_changes_nothing(tournament, random) -> None:  # type: ignore[no-untyped-def]
    steps, shares = tournament
    new = list(steps)
    random.shuffle(new)
    renamed = ranking(
        {new[i]: steps[i] for i in reversed(list(steps))},
        {(new[i], new[j]): share for (i, j), share in shares.items()},
        sorted(new),
        {},
    )
    scores = {entry.index: entry.score for entry in renamed}
    for entry in ranking(steps, shares, list(steps), {}):
        assert scores[new[entry.index]] == pytest.approx(entry.score)


@given(_tournament())
def test_a_dominated_output_is_never_first(tournament) -> None:  # type: ignore[no-untyped-def]
    steps, shares = tournament
    steps[0] = {part: min(probabilities[part] for probabilities in steps.values()) / 2 for part in STEPS}
    for other in list(steps)[1:]:
        shares[0, other], shares[other, 0] = 0.0, 1.0
    found = ranking(steps, shares, list(steps), {})
    assert found[0].index != 0
    assert found[-1].score == pytest.approx(next(entry.score for entry in found if entry.index == 0))
    for anchors in ([0], [1], [0, 1]):
        assert ranking(steps, shares, anchors, {})[0].index != 0


@given(_tournament())
def test_scores_lie_between_minus_and_plus_one(tournament) -> None:  # type: ignore[no-untyped-def]
    steps, shares = tournament
    for entry in ranking(steps, shares, list(steps), {}):
        assert entry.score is not None
        assert -1 <= entry.score <= 1


@given(
    st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=40, unique=True), st.randoms(use_true_random=False)
)
def test_anchors_are_chosen_by_what_they_say(texts: list[str], random) -> None:  # type: ignore[no-untyped-def]
    turned = list(texts)
    random.shuffle(turned)
    chosen = {texts[i] for i in anchors_of(dict(enumerate(texts)), 7)}
    assert chosen == {turned[i] for i in anchors_of(dict(enumerate(turned)), 7)}
    asked = comparisons(dict(enumerate(texts)), anchors_of(dict(enumerate(texts)), 7))
    assert {one for one, _ in asked} == set(range(len(texts)))
    assert len(asked) == len(set(asked)) <= 2 * len(texts) * len(chosen)


def test_probabilities_that_are_no_numbers_give_no_score() -> None:
    (found,) = ranking({0: {"history": float("nan")}}, {}, [], {})
    assert found.score is None
    assert "not numbers" in str(found.problem)
