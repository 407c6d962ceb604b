"""Whether a judge's probabilities mean what they say, and whether the order of two responses sways it.

A judge is calibrated if, of the steps it calls True with probability 0.7, seven in ten are True. Probabilities are put
in bins; in each the mean probability is held against the share that came true, and the expected calibration error is
the mean gap, weighted by the bins' sizes. As in Nixon et al. (2019, "Measuring Calibration in Deep Learning") all
probabilities of one class are used, of True for a step and of an acceptable response, not only those of the verdicts
given; and bins may hold equally many (their adaptive bins, which a judge that is always sure does not leave empty) or
be equally wide (the usual ones). Equal probabilities stand in one bin, so there may be fewer bins than asked for.

The error is never negative, and a perfectly calibrated judge shows some on a small set. Its interval is over the bins
of the whole sample and lies a little high for the same reason: compare judges on one test set, and do not read a
small error as one. The Brier score (the mean squared gap) has no bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from compeer.reasoning import STEPS, Part
from compeer.reward.metrics import REPEATS, part_verdicts, with_intervals
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import ACCEPTABLE, PREFERENCES, Preferred, SerRecord
from compeer.statistics import Numbers, Places, group_weights, ratio, reweighted

BINS = 10
Bins = Literal["equal mass", "equal width"]


@dataclass(frozen=True)
class ReliabilityPoint:
    """One bin: how many, what was said on average, and what came true."""

    count: int
    said: float
    came_true: float


def bins_of(chances: Numbers, how: Bins, count: int = BINS) -> Places:
    """The bin of each probability, numbered from 0; equal probabilities share one."""
    inner = np.linspace(0, 1, count + 1)[1:-1]
    edges = inner if how == "equal width" else np.unique(np.quantile(chances, inner, method="inverted_cdf"))
    return np.searchsorted(edges, chances, side="left").astype(np.int64)


def reliability(chances: Numbers, came_true: Numbers, how: Bins, count: int = BINS) -> list[ReliabilityPoint]:
    """The points of a reliability plot, from low probabilities to high; empty bins have none."""
    bins = bins_of(chances, how, count) if len(chances) else np.zeros(0, dtype=np.int64)
    rows = [bins == number for number in np.unique(bins)]
    return [ReliabilityPoint(int(r.sum()), float(chances[r].mean()), float(came_true[r].mean())) for r in rows]


def calibration_error(points: Sequence[ReliabilityPoint]) -> float:
    """The expected calibration error: the mean gap of the bins, weighted by their sizes (0 of nothing)."""
    total = sum(point.count for point in points)
    return sum(point.count * abs(point.said - point.came_true) for point in points) / max(1, total)


def brier_score(chances: Numbers, came_true: Numbers) -> float:
    """The mean squared gap between probability and outcome; 0.25 is what always saying one half gets."""
    return float(np.mean((chances - came_true) ** 2))


def calibration_figures(
    records: Sequence[SerRecord],
    judgments: Sequence[Judgment | Unscored],
    bins: int = BINS,
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Any]:
    """Errors with intervals and the points of the plots: of each step's True, and of an acceptable response."""
    weights = group_weights(len({record.dialogue for record in records}), repeats, seed)
    figures: dict[str, Any] = {}
    parts: tuple[Part, ...] = (*STEPS, "response")
    good = [PREFERENCES.index(value) for value in ACCEPTABLE]
    for part in parts:
        verdicts = part_verdicts(records, judgments, part)
        if not len(verdicts):
            continue
        came_true = np.isin(verdicts.truth, good if part == "response" else [1]).astype(np.float64)
        gaps = verdicts.chances - came_true
        mass, width = (
            _drawn_error(gaps, bins_of(verdicts.chances, how, bins), verdicts.dialogues, weights)
            for how in ("equal mass", "equal width")
        )
        squares = _drawn_mean(gaps**2, verdicts.dialogues, weights)
        figures[part] = {
            "judged": len(verdicts),
            **with_intervals({"ece_equal_mass": mass, "ece_equal_width": width, "brier": squares}),
            "points": [asdict(point) for point in reliability(verdicts.chances, came_true, "equal mass", bins)],
            "points_equal_width": [
                asdict(point) for point in reliability(verdicts.chances, came_true, "equal width", bins)
            ],
        }
    return figures


def _drawn_error(gaps: Numbers, bins: Places, dialogues: Places, weights: Numbers) -> Numbers:
    """The calibration error for each row of weights: a bin's size times its mean gap is the sum of its gaps."""
    sums = np.zeros((weights.shape[1], int(bins.max()) + 1))
    np.add.at(sums, (dialogues, bins), gaps)
    counts = np.bincount(dialogues, minlength=weights.shape[1]).astype(np.float64)
    return ratio(np.abs(reweighted(weights, sums)).sum(-1), reweighted(weights, counts))


def _drawn_mean(values: Numbers, dialogues: Places, weights: Numbers) -> Numbers:
    sums = np.zeros((weights.shape[1], 2))
    np.add.at(sums, dialogues, np.stack([values, np.ones_like(values)], axis=-1))
    total, count = reweighted(weights, sums).T
    return ratio(total, count)


# --- the order of the responses ---------------------------------------------------------------------------------------


def position_figures(
    records: Sequence[SerRecord],
    judgments: Sequence[Judgment | Unscored],
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Any]:
    """How the order sways a judge that was asked in both: 0 is best for both figures.

    `changed` is the share of pairs that get another verdict in the other order; `first_minus_second` the mean, over
    pairs and orders, of P(the first shown is better) − P(the second shown is better), which is positive for a judge
    that favours what comes first.
    """
    places = {name: place for place, name in enumerate(sorted({record.dialogue for record in records}))}
    weights = group_weights(len(places), repeats, seed)
    rows: list[tuple[int, float, float]] = []
    for record, judgment in zip(records, judgments, strict=True):
        if isinstance(judgment, Judgment) and len(judgment.orders) == 2:
            ahead, behind = judgment.orders["candidate first"], judgment.orders["reference first"]
            changed = max(ahead, key=ahead.__getitem__) != max(behind, key=behind.__getitem__)
            leaning = (_lead(ahead, "candidate", "reference") + _lead(behind, "reference", "candidate")) / 2
            rows.append((places[record.dialogue], float(changed), leaning))
    if not rows:
        return {"pairs": 0}
    dialogues = np.array([row[0] for row in rows], dtype=np.int64)
    changes, leanings = (np.array([row[column] for row in rows]) for column in (1, 2))
    drawn = {
        "changed": _drawn_mean(changes, dialogues, weights),
        "first_minus_second": _drawn_mean(leanings, dialogues, weights),
    }
    return {"pairs": len(rows), **with_intervals(drawn)}


def _lead(chances: Mapping[Preferred, float], first: Preferred, second: Preferred) -> float:
    return chances.get(first, 0.0) - chances.get(second, 0.0)
