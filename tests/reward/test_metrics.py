"""How good a judge is: metrics, calibration, position bias, contradictions; against values by hand."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from compeer.dialogue import Utterance
from compeer.errors import InputError
from compeer.reasoning import STEPS
from compeer.reward import metrics
from compeer.reward.contradiction import contradictions
from compeer.reward.judgments import read_judgments, write_judgments
from compeer.reward.metrics import (
    bins_of,
    calibration_metrics,
    collapsed_verdicts,
    judge_metrics,
    part_verdicts,
    position_metrics,
    reliability,
)
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import (
    PREFERENCES,
    Preferred,
)
from tests.support.judged_records import random_set, record, said, turn

# --- metrics --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(2, 40), st.sampled_from([0.0, 0.5, 2.0]))
@pytest.mark.filterwarnings("ignore")
def test_metrics_agree_with_scikit_learn(seed: int, count: int, skill: float) -> None:
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, roc_auc_score

    records, judgments = random_set(count, 5, skill, seed)
    found = judge_metrics(records, judgments, repeats=5)
    for part in STEPS:
        truth = [getattr(one.labels, part).value for one in records]
        verdicts = [one.step(part) for one in judgments if isinstance(one, Judgment)]
        assert found[part]["weighted_f1"] == pytest.approx(f1_score(truth, verdicts, average="weighted"))
        always = f1_score(truth, [True] * count, average="weighted")
        assert found[part]["weighted_f1_always_true"] == pytest.approx(always)
        if len(set(truth)) == 2:
            probabilities = [one.steps[part] for one in judgments if isinstance(one, Judgment)]
            assert found[part]["auc"] == pytest.approx(roc_auc_score(truth, probabilities))
    truths = [one.preference.value for one in records if one.preference]
    choices = [one.preferred() for one in judgments if isinstance(one, Judgment)]
    response = found["response"]
    assert response["weighted_f1"] == pytest.approx(f1_score(truths, choices, average="weighted"))
    assert response["accuracy"] == pytest.approx(accuracy_score(truths, choices))
    assert response["confusion"] == confusion_matrix(truths, choices, labels=list(PREFERENCES)).tolist()
    good = [[value in ("candidate", "both") for value in values] for values in (truths, choices)]
    assert response["acceptable_accuracy"] == pytest.approx(accuracy_score(*good))


def test_metrics_by_hand() -> None:
    records = [
        record(0, "a", ("history",), "candidate", kind="stage"),
        record(1, "a", ("history",), "both", "silver", kind="swapped"),
        record(2, "b", (), "reference"),
        record(3, "c", (), "neither"),
        record(4, "c", (), None),
    ]
    judgments: list[Judgment | Unscored] = [
        said(history=0.2, response="both"),
        said(history=0.6, response="both"),
        said(history=0.4, response="neither"),
        said(history=0.9, response="candidate"),
        Unscored("too long"),
    ]
    found = judge_metrics(records, judgments, repeats=50)
    assert (found["records"], found["scored"], found["unscored"], found["dialogues"]) == (5, 4, {"too long": 1}, 3)
    step = found["history"]
    # labels F F T T, said F T F T
    assert step["recall_false"] == step["precision_false"] == step["balanced_accuracy"] == step["weighted_f1"] == 0.5
    assert (step["false_share"], step["said_false"]) == (0.5, 0.5)
    # of the pairs True against False (0.4, 0.9) against (0.2, 0.6) three of four are in order
    assert step["auc"] == 0.75
    assert step["kinds"]["stage"]["recall_false"] == 1.0
    assert step["kinds"]["swapped"]["recall_false"] == 0.0
    assert (step["sources"]["human"]["judged"], step["sources"]["silver"]["judged"]) == (3, 1)
    response = found["response"]
    assert response["accuracy"] == 0.25
    # acceptable: labels 1 1 0 0, said 1 1 0 1
    assert (response["acceptable_accuracy"], response["acceptable_share"]) == (0.75, 0.5)
    assert response["majority_share"] == 0.25
    assert response["said"] == {"candidate": 1, "both": 2, "neither": 1}
    assert found["emotion"]["recall_false"] is None
    assert found["emotion"]["intervals"]["recall_false"] is None
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found, allow_nan=False))


def test_a_judge_has_metrics_only_for_what_it_judges() -> None:
    records, judgments = random_set(12, 4, 1.0, 0)
    whole = [one for one in judgments if isinstance(one, Judgment)]
    process = judge_metrics(records, [Judgment(steps=one.steps) for one in whole], repeats=5)
    outcome = judge_metrics(records, [Judgment(steps={}, response=one.response) for one in whole], repeats=5)
    assert "response" not in process
    assert not set(STEPS) & set(outcome)
    both = judge_metrics(records, judgments, repeats=5)
    assert process["history"] == both["history"]
    assert outcome["response"] == both["response"]
    nothing = judge_metrics(records, [Unscored("away")] * 12, repeats=5)
    assert (nothing["scored"], collapsed_verdicts(nothing)) == (0, [])
    assert judge_metrics([], [])["records"] == 0


def test_a_step_without_a_number_is_not_judged() -> None:
    records = [record(0), record(1)]
    found = part_verdicts(records, [said(history=float("nan")), said()], "history")
    assert len(found) == 1


def test_intervals_are_by_dialogue() -> None:
    # a hundred records of one dialogue are one observation: drawn anew they are always the same
    records = [record(number, "one", ("history",) if number % 2 else ()) for number in range(100)]
    judgments: list[Judgment | Unscored] = [said(0.9 if number % 3 else 0.1) for number in range(100)]
    low, high = judge_metrics(records, judgments, repeats=100)["history"]["intervals"]["weighted_f1"]
    assert low == high
    apart = [one.model_copy(update={"dialogue": one.id}) for one in records]
    found = judge_metrics(apart, judgments, repeats=300)["history"]
    low, high = found["intervals"]["weighted_f1"]
    assert low < found["weighted_f1"] < high
    # as wide as the normal approximation of a share of a hundred, roughly
    low, high = found["intervals"]["said_false"]
    assert high - low == pytest.approx(2 * 1.96 * (0.34 * 0.66 / 100) ** 0.5, rel=0.25)


def test_a_thousand_samples_of_two_thousand_records_are_quick() -> None:
    records, judgments = random_set(2000, 500, 1.0, 1)
    start = time.process_time()
    judge_metrics(records, judgments)
    assert time.process_time() - start < 2


def test_the_hash_of_a_test_set() -> None:
    records = [record(0), record(1, false=("emotion",))]
    known = metrics.test_set_hash(records)
    assert metrics.test_set_hash(records[::-1]) == known
    others: list[dict[str, Any]] = [
        {"id": "r9"},
        {"reference": "And now?"},
        {"candidate": turn(response="Why?")},
        {"labels": records[1].labels},
        {"preference": None},
        {"history": (Utterance(speaker="supporter", text="they let me go"),)},
        {"candidate_first": False},
    ]
    hashes = {metrics.test_set_hash([records[0].model_copy(update=change), records[1]]) for change in others}
    assert len(hashes | {known}) == len(others) + 1
    assert metrics.test_set_hash([*records, records[0]]) != known
    assert metrics.test_set_hash([records[0].model_copy(update={"round": 5}), records[1]]) == known


def calibration_error(points: Sequence[Mapping[str, float]]) -> float:
    """The expected calibration error: the mean gap of the bins, weighted by their sizes (0 of nothing)."""
    total = sum(point["count"] for point in points)
    return sum(point["count"] * abs(point["said"] - point["came_true"]) for point in points) / max(1, total)


# --- calibration ----------------------------------------------------------------------------------------------------


def test_calibration_by_hand() -> None:
    probabilities = np.array([0.1, 0.1, 0.9, 0.9])
    came_true = np.array([0.0, 1.0, 1.0, 1.0])
    points = reliability(probabilities, came_true, bins_of(probabilities, "equal width"))
    assert points == [{"count": 2, "said": 0.1, "came_true": 0.5}, {"count": 2, "said": 0.9, "came_true": 1.0}]
    assert calibration_error(points) == pytest.approx((0.4 + 0.1) / 2)
    # edges belong to the bin below them; 0 to the first
    assert bins_of(np.array([0.0, 0.1, 0.1001, 1.0]), "equal width").tolist() == [0, 0, 1, 9]
    assert bins_of(np.arange(6.0), "equal mass", 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert calibration_error(reliability(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50), st.integers(1, 12))
def test_bins_keep_equal_probabilities_together_and_lose_nothing(rows: list[tuple[float, bool]], count: int) -> None:
    probabilities, came_true = np.array([row[0] for row in rows]), np.array([float(row[1]) for row in rows])
    for how in ("equal mass", "equal width"):
        bins = bins_of(probabilities, how, count)
        points = reliability(probabilities, came_true, bins)
        assert sum(point["count"] for point in points) == len(rows)
        assert len(points) <= count
        assert [point["said"] for point in points] == sorted(point["said"] for point in points)
        gap = abs(float(probabilities.mean() - came_true.mean()))
        assert gap - 1e-9 <= calibration_error(points) <= 1
        assert all(len(set(bins[probabilities == value])) == 1 for value in probabilities)


def test_calibration_metrics_are_those_of_the_points() -> None:
    records, judgments = random_set(300, 60, 1.0, 2)
    found = calibration_metrics(records, judgments, bins=5, repeats=100)
    for part in (*STEPS, "response"):
        for key, points in (("ece_equal_mass", "points"), ("ece_equal_width", "points_equal_width")):
            assert found[part][key] == pytest.approx(calibration_error(found[part][points]))
        low, high = found[part]["intervals"]["brier"]
        assert low < found[part]["brier"] < high
    probabilities = np.array([one.steps["history"] for one in judgments if isinstance(one, Judgment)])
    came_true = np.array([float(one.labels.history.value) for one in records if one.labels])
    assert found["history"]["brier"] == pytest.approx(brier_score_loss(came_true, probabilities))
    assert calibration_metrics(records, [Unscored("away")] * 300, repeats=5) == {}


def test_position_bias() -> None:
    def asked(ahead: tuple[float, ...], behind: tuple[float, ...]) -> Judgment:
        orders: list[dict[Preferred, float]] = [dict(zip(PREFERENCES, row, strict=True)) for row in (ahead, behind)]
        return Judgment(
            steps={}, response=orders[0], orders={"candidate first": orders[0], "reference first": orders[1]}
        )

    records = [record(number, f"d{number}") for number in range(4)]
    judgments: list[Judgment | Unscored] = [
        asked((0.6, 0.2, 0.1, 0.1), (0.2, 0.6, 0.1, 0.1)),  # whatever is first: +0.4 and +0.4, changes
        asked((0.7, 0.1, 0.1, 0.1), (0.7, 0.1, 0.1, 0.1)),  # the candidate in both: +0.6 and −0.6
        said(),
        Unscored("away"),
    ]
    found = position_metrics(records, judgments, repeats=20)
    assert (found["pairs"], found["changed"]) == (2, 0.5)
    assert found["first_minus_second"] == pytest.approx(0.2)
    assert position_metrics(records, [said()] * 4) == {"pairs": 0}


# --- judgments in a file --------------------------------------------------------------------------------------------


def test_judgments_are_read_as_they_were_written(tmp_path: Path) -> None:
    records = [record(number) for number in range(4)]
    orders: dict[Any, dict[Preferred, float]] = {"candidate first": {"both": 1.0}, "reference first": {"neither": 1.0}}
    judgments: list[Judgment | Unscored] = [
        said(0.123456789012345),
        Judgment(steps={"emotion": 0.25}, threshold=0.3),
        Unscored("zu lang – 太长"),
        Judgment(steps={}, response={"both": 1.0}, orders=orders, reasons={"response": "So."}, void="a copy"),
    ]
    path = tmp_path / "judgments.jsonl"
    assert write_judgments(path, records, judgments) == 4
    assert read_judgments(path, records) == judgments
    assert read_judgments(path, [records[2], record(9)]) == [judgments[2], Unscored("not in the file of judgments")]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_judgments_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "judgments.jsonl"
    with pytest.raises(ValueError, match="zip"):
        write_judgments(path, [record(0), record(1)], [said()])
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"id": "a"}', "either a judgment or why"),
        (
            '{"id": "a", "unscored": "x"}\n{"id": "a", "unscored": "x"}',
            "line 2, field 'id': record 'a' is judged twice",
        ),
        ('{"id": "a", "judgment": {"steps": {"history": "often"}}}', "judgment.steps.history"),
        ('{"id": "a", "judgment": {"steps": {}}, "extra": 1}', "unknown key"),
        ("[", "line 1"),
    ],
)
def test_a_bad_file_of_judgments_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "judgments.jsonl"
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=complaint):
        read_judgments(path, [record(0)])
    with pytest.raises(InputError, match="no such file"):
        read_judgments(tmp_path / "nowhere", [])


# --- contradictions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("judgment", "follows", "against", "despite"),
    [
        (said(), False, True, False),
        (said(response="both"), False, True, False),
        (said(), True, False, False),
        (said(response="reference"), False, False, False),
        (said(response="neither"), True, False, False),
        (said(strategy=0.1), False, False, False),
        (said(history=0.1), False, False, False),
        (said(history=0.1), True, False, False),
        (said(strategy=0.1), True, False, True),
        (said(0.1, "both"), True, False, True),
        (replace(said(), void="a copy"), False, False, False),
        (replace(said(strategy=0.1), void="a copy"), True, False, False),
        (said(strategy=0.1, response="reference"), True, False, False),
    ],
)
def test_what_contradicts_itself(judgment: Judgment, follows: bool, against: bool, despite: bool) -> None:
    found = contradictions(judgment, follows)
    assert (found["against_the_steps"], found["despite_the_steps"]) == (against, despite)
