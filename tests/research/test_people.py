"""A judge beside people's ratings: which replies were rated, the figures against hand-worked values, the records."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from research.judge.feedback import feedback_records, matched
from research.judge.people import (
    ANCHORS,
    Rated,
    agreement,
    anchor_cases,
    as_good,
    held_out,
    preferences,
    rated_replies,
    spearman,
    within_groups,
)

from compeer.dialogue import Dialogue, Intensity, Utterance
from compeer.reward.conversation import Case, JudgeForm
from compeer.reward.score import Judgment, Unscored
from compeer.reward.train import is_usable
from compeer.ser.record import SerRecord
from tests.support.judging import CaseJudge

ESCONV = Path(__file__).parents[3] / "shared" / "data" / "esconv"
LONG = "I can see why that hurts so much. It was your garden after all those years."


def dialogue(
    number: int, ratings: Sequence[int | None], situation: str | None = None, source: str = "made"
) -> Dialogue:
    """A dialogue whose replies got these ratings."""
    utterances = []
    for place, rating in enumerate(ratings):
        utterances.append(Utterance(speaker="seeker", text=f"The hedge of garden {number} lost branch {place} again."))
        text = f"Which branch of garden {number} was it, say number {place}? {LONG if place % 2 else ''}"
        utterances.append(Utterance(speaker="supporter", text=text.strip(), strategy="Question", feedback=rating))
    return Dialogue(
        id=f"{source}-{number}",
        language="en",
        source=source,
        situation=situation,
        emotion="anger",
        intensity=Intensity(initial=4, final=4),
        utterances=tuple(utterances),
    )


class Judge(CaseJudge):
    """Says of each case what a function of its response says, and more for what is shown first."""

    name = "made"

    def __init__(self, better: float = 0.5, place: float = 0.0, fails: str | None = None) -> None:
        self.better, self.place, self.fails = better, place, fails
        super().__init__()

    def one(self, case: Case) -> Judgment | Unscored:
        if self.fails and self.fails in str(case.output.parts["response"]):
            return Unscored("asleep")
        better = self.better + (self.place if case.candidate_first else -self.place)
        return Judgment({}, {"candidate": better, "reference": 0.8 - better, "both": 0.2, "neither": 0.0})


# --- which replies ----------------------------------------------------------------------------------------------------


def test_rated_replies_are_those_with_a_rating_and_know_their_moment() -> None:
    found = rated_replies([dialogue(1, [5, None, 2])])
    assert [(entry.round, entry.rating) for entry in found] == [(1, 5), (3, 2)]
    assert [len(entry.history) for entry in found] == [1, 5]
    assert found[0].response.startswith("Which branch of garden 1")
    assert all(utterance.feedback is None for utterance in found[1].history)  # ratings are not known to a judge


def test_dialogues_that_trained_a_judge_can_be_left_out_by_id_and_by_situation() -> None:
    made = [dialogue(1, [5], "I lost my hedge."), dialogue(2, [4]), dialogue(3, [1], "A storm came."), dialogue(4, [2])]
    left = held_out(rated_replies(made), ids=["made-2"], situations=["i lost my hedge !", ""])
    assert [entry.dialogue for entry in left] == ["made-3", "made-4"]


# --- opinions ---------------------------------------------------------------------------------------------------------


def test_both_orders_are_asked_after_the_same_steps() -> None:
    rated = rated_replies([dialogue(1, [5, 2])])
    cases = anchor_cases(rated, "Go on.")
    assert [(case.candidate_first, case.reference) for case in cases] == [(True, "Go on."), (False, "Go on.")] * 2
    assert cases[0].output == cases[1].output
    assert all(case.output.complete for case in cases)
    (first, second) = preferences(Judge(0.5, place=0.2), rated)
    assert not isinstance(first, Unscored)
    assert first["candidate"] == pytest.approx(0.5)
    assert as_good(first) == pytest.approx(0.7)
    assert second == first


def test_failures_and_replies_without_steps_have_no_opinion() -> None:
    plain = dialogue(2, [3])
    unlabelled = plain.model_copy(
        update={"utterances": tuple(u.model_copy(update={"strategy": None}) for u in plain.utterances)}
    )
    rated = rated_replies([dialogue(1, [5, 2]), unlabelled])
    found = preferences(Judge(fails="number 1"), rated)
    assert [as_good(entry) is None for entry in found] == [False, True, True]
    assert found[1] == Unscored("asleep")
    assert isinstance(found[2], Unscored)
    rows = agreement(rated, [as_good(entry) for entry in found], seed=1, repeats=10)
    assert (rows[0].replies, rows[0].left_out) == (1, 2)
    assert rows[0].auc.value is None


# --- figures ----------------------------------------------------------------------------------------------------------


def test_spearman_worked_by_hand_and_with_ties() -> None:
    assert spearman(np.array([1.0, 2, 3]), np.array([10.0, 30, 20]))[0] == pytest.approx(0.5)
    from scipy.stats import spearmanr

    one, other = np.array([1.0, 1, 2, 5, 5, 5]), np.array([3.0, 1, 2, 5, 4, 5])
    assert spearman(one, other)[0] == pytest.approx(spearmanr(one, other).statistic)
    assert np.isnan(spearman(np.ones(3), other[:3])[0])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(0, 3)), min_size=2, max_size=12))
def test_weights_stand_for_repeated_items(items: list[tuple[int, int, int]]) -> None:
    one, other, weight = (np.array(column, dtype=float) for column in zip(*items, strict=True))
    times = weight.astype(int)
    weighted = spearman(one, other, weight[None, :])[0] if times.sum() else np.nan
    repeated = spearman(np.repeat(one, times), np.repeat(other, times))[0]
    assert weighted == pytest.approx(repeated, nan_ok=True)


def test_pairs_within_groups_worked_by_hand() -> None:
    truth = np.array([True, False, True, False, False])
    scores = np.array([0.9, 0.1, 0.2, 0.2, 0.8])
    groups = np.array([0, 0, 1, 1, 1])
    weights = np.array([[1.0, 1.0], [0.0, 2.0], [2.0, 0.0]])
    # group 0: 1 of 1; group 1: a tie and a loss, 0.5 of 2
    assert within_groups(truth, scores, groups, weights).tolist() == pytest.approx([0.5, 0.25, 1.0])


def test_agreement_finds_a_judge_that_knows_and_one_that_does_not() -> None:
    rng = np.random.default_rng(1)
    made = [dialogue(n, rng.integers(1, 6, 6).tolist(), source="a" if n % 2 else "b") for n in range(40)]
    rated = rated_replies(made)
    rows = agreement(rated, [entry.rating / 5 for entry in rated], seed=3, repeats=200)
    assert [(row.corpus, row.by) for row in rows[:3]] == [
        ("b", "judge"),
        ("b", "length of the reply"),
        ("b", "round of the dialogue"),
    ]
    assert Counter(row.corpus for row in rows) == {"a": 3, "b": 3, "together": 3}
    knows = rows[6]
    assert (knows.auc.value, knows.within.value) == (1.0, 1.0)
    assert knows.spearman.value == pytest.approx(1.0)
    assert knows.replies == 240
    guesses = agreement(rated, rng.random(len(rated)).tolist(), seed=3, repeats=200)[6].auc
    assert guesses.low is not None
    assert guesses.high is not None
    assert guesses.low < 0.5 < guesses.high
    assert 0.05 < guesses.high - guesses.low < 0.3


def test_a_seeker_who_rates_all_alike_says_nothing_within_dialogues() -> None:
    rated = rated_replies([dialogue(1, [5, 5, 5]), dialogue(2, [1, 1, 1])])
    row = agreement(rated, [float(entry.rating > 3) for entry in rated], seed=1, repeats=20)[0]
    assert row.auc.value == 1.0
    assert row.within.value is None


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rated() -> list[Rated]:
    rng = np.random.default_rng(2)
    return rated_replies([dialogue(n, rng.integers(1, 6, 8).tolist(), f"Story {n // 2}") for n in range(60)])


def test_records_teach_good_and_bad_replies_equally_often(rated: list[Rated]) -> None:
    records = feedback_records(rated, seed=5)
    counts = Counter(record.preference.value for record in records if record.preference)
    assert counts["both"] == counts["neither"] > 10
    by_id = {entry.context.id: entry for entry in rated}
    for record in records:
        own = by_id[record.id.removesuffix(":feedback")]
        assert record.preference is not None
        assert record.preference.source == "human"
        assert record.labels is None
        assert is_usable(record, JudgeForm(kind="outcome"))
        assert _says(record, own) == (own.rating >= 4)
    assert sum(by_id[r.id.removesuffix(":feedback")].rating >= 4 for r in records) * 2 == len(records)
    places = Counter((r.preference.value, r.candidate_first) for r in records if r.preference)
    assert min(places[value, True] for value in ("candidate", "reference")) > 10


def _says(record: SerRecord, own: Rated) -> bool:
    """Whether a record calls the rated reply good."""
    assert record.preference is not None
    value = record.preference.value
    if value in ("both", "neither"):
        assert record.candidate.response in " ".join(own.response.split())
        return value == "both"
    is_candidate = record.candidate.response == own.response
    assert {record.candidate.response, record.reference} == {
        own.response,
        next(a for a in ANCHORS if a in (record.candidate.response, record.reference)),
    }
    return (value == "candidate") == is_candidate


def test_dialogues_with_the_same_situation_share_a_split(rated: list[Rated]) -> None:
    split_of: dict[int, set[str]] = {}
    for record in feedback_records(rated, seed=5, test_share=0.4):
        split_of.setdefault(int(record.dialogue.split("-")[1]) // 2, set()).add(record.split)
    assert {len(splits) for splits in split_of.values()} == {1}
    assert set().union(*split_of.values()) == {"reward", "test"}


def test_records_do_not_depend_on_anything_but_the_seed(rated: list[Rated]) -> None:
    assert feedback_records(rated, seed=5) == feedback_records(rated, seed=5)
    assert feedback_records(rated, seed=5) != feedback_records(rated, seed=6)


def test_replies_of_one_dialogue_are_matched_with_each_other() -> None:
    rated = rated_replies([dialogue(1, [5, 5, 1, 1]), dialogue(2, [1, 1, 4, 4])])
    pairs = matched([e for e in rated if e.rating >= 4], [e for e in rated if e.rating <= 2])
    assert len(pairs) == 4
    assert all(good.dialogue == bad.dialogue for good, bad in pairs)
    assert matched([], rated) == []


@pytest.mark.skipif(not ESCONV.is_dir(), reason="the public corpora are not at hand")
def test_ratings_of_the_public_corpora() -> None:
    from compeer.corpora import read_corpus

    failed = rated_replies(read_corpus(ESCONV / "FailedESConv.json"))
    assert Counter(entry.rating for entry in failed) == {1: 310, 2: 305, 3: 455, 4: 351, 5: 282}
    assert all(entry.has_steps for entry in failed)
    again = rated_replies(read_corpus(ESCONV / "multiesc_valid_with_feedback.txt"))
    assert Counter(entry.rating for entry in again) == {1: 15, 2: 48, 3: 314, 4: 553, 5: 983}
    situations = [dialogue.situation or "" for dialogue in read_corpus(ESCONV / "valid.jsonl")]
    assert held_out(again, [], situations) == []
    assert held_out(failed, [], situations) == failed
