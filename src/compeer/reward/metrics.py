"""How good a judge is: its verdicts against a test set's labels, beside one that always says True.

Every part is measured on the records that have both a label and a verdict for it, and again by source of labels and
kind of mistake; what a judge failed on is counted by reason and left out. Intervals are 95 % percentile bootstrap
intervals of dialogues, for records of one dialogue share their texts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import compeer.statistics as stats
from compeer.io import text_hash, value_hash
from compeer.reasoning import PARTS, STEPS, Part, render_turn
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import ACCEPTABLE, PREFERENCES, Preferred, SerRecord
from compeer.statistics import Estimate, Numbers, group_weights, ratio, reweighted

Judgments = Sequence[Judgment | Unscored]
Records = Sequence[SerRecord]
Indices = npt.NDArray[np.int64]

REPEATS = 1000
BINS = 10
Bins = Literal["equal mass", "equal width"]
_GOOD = [PREFERENCES.index(value) for value in ACCEPTABLE]
_TO_DECISIONS = np.eye(2)[[int(value in ACCEPTABLE) for value in PREFERENCES]]  # from preferences to bad and good


def test_set_hash(records: Sequence[SerRecord]) -> str:
    """A hash of ids, texts, labels and the order of the two responses, whatever the order of the records."""
    return text_hash("\n".join(sorted(map(_record_digest, records))))


def text_digest(record: SerRecord) -> str:
    """A digest of history, candidate, reference and their order; labels may be corrected after a judge was asked."""
    return value_hash(_texts(record))[:16]


def _record_digest(record: SerRecord) -> str:
    labels = [getattr(record.labels, part) for part in STEPS] if record.labels else []
    steps = [[label.value, label.source, label.kind] for label in labels]
    preference = [record.preference.value, record.preference.source] if record.preference else None
    return value_hash([record.id, record.dialogue, *_texts(record), steps, preference])


def _texts(record: SerRecord) -> list[Any]:
    history = [[utterance.speaker, utterance.text] for utterance in record.history]
    return [history, render_turn(record.candidate), record.reference, record.candidate_first]


@dataclass(frozen=True)
class Verdicts:
    """One part's labels beside a judge's verdicts on it, an entry a record that has both."""

    part: Part
    size: tuple[int, int]  # how many dialogues the test set has, and how many classes the part
    dialogues: Indices
    truth: Indices  # 0 and 1 for False and True of a step; a response's label by its index among `PREFERENCES`
    verdicts: Indices
    probabilities: Numbers  # of True, or of an acceptable response
    sources: npt.NDArray[np.object_]
    kinds: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.truth)

    def only(self, chosen: npt.NDArray[np.bool_]) -> Verdicts:
        names = ("dialogues", "truth", "verdicts", "probabilities", "sources", "kinds")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


def part_verdicts(records: Sequence[SerRecord], judgments: Judgments, part: Part) -> Verdicts:
    """The labels and verdicts of one part, for the records that have both."""
    indices = dialogue_indices(records)
    rows: list[tuple[int, int, int, float, str, str | None]] = []
    for record, judgment in zip(records, judgments, strict=True):
        if isinstance(judgment, Unscored):
            continue
        dialogue, label = indices[record.dialogue], record.preference
        if part == "response":
            choice, probability = judgment.preferred(), judgment.acceptable()
            if label and choice and probability is not None and not math.isnan(probability):
                truth, verdict = PREFERENCES.index(label.value), PREFERENCES.index(choice)
                rows.append((dialogue, truth, verdict, probability, label.source, None))
        elif record.labels is not None and not math.isnan(judgment.steps.get(part, math.nan)):
            step, verdict = getattr(record.labels, part), int(judgment.step(part))
            rows.append((dialogue, int(step.value), verdict, judgment.steps[part], step.source, step.kind))
    types: list[Any] = [np.int64, np.int64, np.int64, np.float64, object, object]
    arrays = (np.array([row[column] for row in rows], dtype=kind) for column, kind in enumerate(types))
    size = (len(indices), len(PREFERENCES) if part == "response" else 2)
    return Verdicts(part, size, *arrays)


def dialogue_indices(records: Sequence[SerRecord]) -> dict[str, int]:
    return {name: index for index, name in enumerate(sorted({record.dialogue for record in records}))}


def sampled_metrics(verdicts: Verdicts, weights: Numbers) -> dict[str, Numbers]:
    """Each metric of a part for each row of dialogue weights (`group_weights`: the first row is the sample itself)."""
    confusions = _confusions(verdicts, weights)
    found = {"weighted_f1": stats.weighted_f1_of(confusions)}
    if verdicts.part != "response":
        return {
            **found,
            "weighted_f1_always_true": stats.weighted_f1_of(_always(confusions, 1)),
            "recall_false": stats.recall_of(confusions, 0),
            "precision_false": stats.precision_of(confusions, 0),
            "balanced_accuracy": stats.balanced_accuracy_of(confusions),
            "auc": stats.auc_by_group(verdicts.dialogues, verdicts.truth == 1, verdicts.probabilities, weights),
            "false_share": ratio(confusions[:, 0].sum(-1), confusions.sum((-2, -1))),
            "said_false": ratio(confusions[:, :, 0].sum(-1), confusions.sum((-2, -1))),
        }
    most_frequent = _always(confusions, int(confusions[0].sum(-1).argmax()))
    is_good = np.isin(verdicts.truth, _GOOD)
    decisions: Numbers = _TO_DECISIONS.T @ confusions @ _TO_DECISIONS
    return {
        **found,
        "accuracy": stats.accuracy_of(confusions),
        "acceptable_accuracy": stats.accuracy_of(decisions),
        "acceptable_balanced_accuracy": stats.balanced_accuracy_of(decisions),
        "acceptable_auc": stats.auc_by_group(verdicts.dialogues, is_good, verdicts.probabilities, weights),
        "acceptable_share": ratio(decisions[:, 1].sum(-1), decisions.sum((-2, -1))),
        "weighted_f1_majority": stats.weighted_f1_of(most_frequent),
        "majority_share": stats.accuracy_of(most_frequent),
    }


def _confusions(verdicts: Verdicts, weights: Numbers) -> Numbers:
    by_dialogue = stats.confusion_by_group(verdicts.dialogues, verdicts.truth, verdicts.verdicts, verdicts.size)
    return reweighted(weights, by_dialogue)


def _always(confusions: Numbers, index: int) -> Numbers:
    """The confusions of a judge that gives the answer with that index to everything."""
    lazy = np.zeros_like(confusions)
    lazy[..., index] = confusions.sum(-1)
    return lazy


def with_intervals(metrics: Mapping[str, Numbers]) -> dict[str, Any]:
    """Sampled metrics as plain data: each value (None where it has none), and under `intervals` each interval."""
    found = {name: Estimate.of_resamples(values, len(values) - 1, fewest=0) for name, values in metrics.items()}
    intervals = {name: None if one.low is None else (one.low, one.high) for name, one in found.items()}
    return {**{name: one.value for name, one in found.items()}, "intervals": intervals}


def group_means(groups: Indices, columns: Sequence[npt.ArrayLike], weights: Numbers) -> list[Numbers]:
    """The mean of each column for each row of group weights."""
    sums = [np.bincount(groups, column, minlength=weights.shape[1]) for column in (np.ones(len(groups)), *columns)]
    totals = reweighted(weights, np.stack(sums, axis=-1))
    return [ratio(totals[:, number], totals[:, 0]) for number in range(1, len(sums))]


def judge_metrics(records: Records, judgments: Judgments, repeats: int = REPEATS, seed: int = 0) -> dict[str, Any]:
    """All metrics of given judgments as plain data; a part that was never judged has none, and no key."""
    failures = [judgment.reason for judgment in judgments if isinstance(judgment, Unscored)]
    found: dict[str, Any] = {
        "records": len(records),
        "scored": len(judgments) - len(failures),
        "unscored": dict(Counter(failures).most_common()),
        "dialogues": len({record.dialogue for record in records}),
        "test_set": test_set_hash(records),
    }
    weights = group_weights(found["dialogues"], repeats, seed)

    def summary(verdicts: Verdicts) -> dict[str, Any]:
        return {"judged": len(verdicts), **with_intervals(sampled_metrics(verdicts, weights))}

    for part in PARTS:
        verdicts = part_verdicts(records, judgments, part)
        if len(verdicts):
            details = _response_details(verdicts) if part == "response" else _step_details(verdicts, weights)
            sources = {one: summary(verdicts.only(verdicts.sources == one)) for one in sorted(set(verdicts.sources))}
            found[part] = {**summary(verdicts), **details, "sources": sources}
    return found


def _step_details(verdicts: Verdicts, weights: Numbers) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in sorted({kind for kind in verdicts.kinds if kind is not None}):
        wrong = verdicts.only(verdicts.kinds == kind)
        recalls = stats.recall_of(_confusions(wrong, weights), 0)
        found[kind] = {"labels": len(wrong), **with_intervals({"recall_false": recalls})}
    return {"kinds": found}


def _response_details(verdicts: Verdicts) -> dict[str, Any]:
    confusion = _confusions(verdicts, np.ones((1, verdicts.size[0])))[0]
    given = {PREFERENCES[index]: int(count) for index, count in enumerate(confusion.sum(0)) if count}
    return {"said": given, "classes": list(PREFERENCES), "confusion": confusion.astype(int).tolist()}


def collapsed_verdicts(metrics: Mapping[str, Any]) -> list[str]:
    """The parts on which the judge says the same to everything, so that it can teach nothing there."""
    found = [str(part) for part in STEPS if part in metrics and metrics[part]["said_false"] in (0.0, 1.0)]
    return [*found, "response"] if len(metrics.get("response", {}).get("said", ())) == 1 else found


# --- calibration ------------------------------------------------------------------------------------------------------
#
# A judge is calibrated if, of the steps it calls True with probability 0.7, seven in ten are True. In each bin of
# probabilities the mean is held against the share that came true; the expected calibration error is the mean gap,
# weighted by the bins' sizes. As in Nixon et al. (2019) all probabilities of True, or of an acceptable response, are
# used, and bins hold equally many or are equally wide; equal probabilities share a bin. The error is never negative,
# and a perfectly calibrated judge has some on a small set, as has its interval: compare judges on one test set only.


def bins_of(probabilities: Numbers, how: Bins, count: int = BINS) -> Indices:
    """The bin of each probability, numbered from 0; equal probabilities share one."""
    inner = np.linspace(0, 1, count + 1)[1:-1]
    edges = inner if how == "equal width" else np.unique(np.quantile(probabilities, inner, method="inverted_cdf"))
    return np.searchsorted(edges, probabilities, side="left").astype(np.int64)


def reliability(probabilities: Numbers, came_true: Numbers, bins: Indices) -> list[dict[str, float]]:
    """The points of a reliability plot: the size of each bin that is not empty, its mean, and what came true."""
    return [
        {"count": int(own.sum()), "said": float(probabilities[own].mean()), "came_true": float(came_true[own].mean())}
        for own in (bins == number for number in np.unique(bins))
    ]


def calibration_metrics(
    records: Sequence[SerRecord], judgments: Judgments, bins: int = BINS, repeats: int = REPEATS, seed: int = 0
) -> dict[str, Any]:
    """Errors with intervals and the points of the plots, by part; always saying one half gets a Brier score of 0.25."""
    weights = group_weights(len({record.dialogue for record in records}), repeats, seed)
    found: dict[str, Any] = {}
    for part in PARTS:
        verdicts = part_verdicts(records, judgments, part)
        if not len(verdicts):
            continue
        came_true = np.isin(verdicts.truth, _GOOD if part == "response" else [1]).astype(np.float64)
        values = verdicts.probabilities
        gaps = values - came_true
        mass, width = (bins_of(values, how, bins) for how in ("equal mass", "equal width"))
        by_mass, by_width = (_sampled_error(gaps, own, verdicts.dialogues, weights) for own in (mass, width))
        (squares,) = group_means(verdicts.dialogues, [gaps**2], weights)
        found[part] = {
            "judged": len(verdicts),
            **with_intervals({"ece_equal_mass": by_mass, "ece_equal_width": by_width, "brier": squares}),
            "points": reliability(values, came_true, mass),
            "points_equal_width": reliability(values, came_true, width),
        }
    return found


def _sampled_error(gaps: Numbers, bins: Indices, dialogues: Indices, weights: Numbers) -> Numbers:
    """The calibration error for each row of weights: a bin's size times its mean gap is the sum of its gaps."""
    sums = np.zeros((weights.shape[1], int(bins.max()) + 1))
    np.add.at(sums, (dialogues, bins), gaps)
    counts = np.bincount(dialogues, minlength=weights.shape[1]).astype(np.float64)
    return ratio(np.abs(reweighted(weights, sums)).sum(-1), reweighted(weights, counts))


def position_metrics(records: Records, judgments: Judgments, repeats: int = REPEATS, seed: int = 0) -> dict[str, Any]:
    """How the order sways a judge that was asked in both: 0 is best for both metrics.

    `changed` is the share of pairs that get another verdict in the other order; `first_minus_second` the mean, over
    pairs and orders, of P(the first is better) − P(the second is better), positive for a judge that favours the first.
    """
    indices = dialogue_indices(records)
    rows: list[tuple[int, float, float]] = []
    for record, judgment in zip(records, judgments, strict=True):
        if isinstance(judgment, Judgment) and len(judgment.orders) == 2:
            ahead, behind = judgment.orders["candidate first"], judgment.orders["reference first"]
            changed = max(ahead, key=ahead.__getitem__) != max(behind, key=behind.__getitem__)
            leaning = (_lead(ahead, "candidate", "reference") + _lead(behind, "reference", "candidate")) / 2
            rows.append((indices[record.dialogue], float(changed), leaning))
    if not rows:
        return {"pairs": 0}
    dialogues, changes, leanings = zip(*rows, strict=True)
    weights = group_weights(len(indices), repeats, seed)
    means = group_means(np.array(dialogues, dtype=np.int64), [changes, leanings], weights)
    return {"pairs": len(rows), **with_intervals(dict(zip(("changed", "first_minus_second"), means, strict=True)))}


def _lead(order: Mapping[Preferred, float], first: Preferred, second: Preferred) -> float:
    return order.get(first, 0.0) - order.get(second, 0.0)
