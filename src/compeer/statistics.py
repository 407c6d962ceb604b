"""Pure metrics that many rooms need: distinct-n, F1, bootstrap and Wilson intervals. Plain lists in, numbers out."""

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from compeer.io import Frozen

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff"
_WORD = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+(?:['’][^\W_{_HAN}]+)*")


class Estimate(Frozen):
    """A measured value with its 95 % interval and what it was measured on; None where there is nothing to say."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0

    @classmethod
    def of_mean(cls, values: Sequence[float]) -> Self:
        """A mean, with its bootstrap interval."""
        low, high = mean_interval(values) if len(values) else (None, None)
        return cls(value=mean(values), low=low, high=high, n=len(values))

    @classmethod
    def of_share(cls, successes: int, count: int) -> Self:
        """A share, with its Wilson interval."""
        low, high = wilson(successes, count)
        return cls(value=successes / count if count else None, low=low, high=high, n=count)

    @classmethod
    def of_resamples(cls, resamples: Numbers, n: int, fewest: int = 2) -> Self:
        """The first of the resamples with the interval of the others; no interval of fewer than `fewest` groups."""
        value = float(resamples[0]) if np.isfinite(resamples[0]) else None
        low, high = (percentile_interval(resamples[1:]) if value is not None and n >= fewest else None) or (None, None)
        return cls(value=value, low=low, high=high, n=n)

    @classmethod
    def of_groups(cls, values: Sequence[float] | Numbers, groups: Sequence[int], weights: Numbers, fewest: int) -> Self:
        """The mean of values, each of the group with that index; `weights` are those of `group_weights`."""
        indices = np.asarray(groups, dtype=np.int64)
        sums, counts = (np.bincount(indices, of, minlength=weights.shape[1]) for of in (values, None))
        return cls.of_resamples(ratio(weights @ sums, weights @ counts), int((counts > 0).sum()), fewest)


def words(text: str) -> list[str]:
    """Lower-case words; every Chinese or Japanese character is a word of its own."""
    return _WORD.findall(text.lower())


def distinct(texts: Sequence[str], n: int) -> float:
    """Distinct-n: different n-grams divided by all n-grams (0 where there are none)."""
    grams: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        tokens = words(text)
        grams.update(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
    total = sum(grams.values())
    return len(grams) / total if total else 0.0


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return float(np.mean(values)) if len(values) else None


def weighted_f1(truth: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """F1 of each class of the truth, weighted by its share; what was predicted outside it counts as wrong."""
    hits = Counter(a for a, b in zip(truth, predicted, strict=True) if a == b)
    guesses = Counter(predicted)
    total = 0.0
    for value, count in Counter(truth).items():
        total += count * (2 * hits[value] / (guesses[value] + count))
    return total / len(truth) if truth else 0.0


def mean_interval(values: Sequence[float], repeats: int = 1000) -> tuple[float, float]:
    """The bootstrap interval of a mean; 0 to 0 of nothing."""
    rng, count = np.random.default_rng(0), len(values)
    samples = (rng.integers(0, count, count).tolist() for _ in range(repeats if count else 0))
    means = [sum(values[index] for index in sample) / count for sample in samples]
    return percentile_interval(np.array(means)) or (0.0, 0.0)


def wilson(successes: int, count: int) -> tuple[float, float]:
    """The Wilson score interval of a share: where it may truly lie, also when it is 0 or 1; 0 to 1 of nothing."""
    if not count:
        return 0.0, 1.0
    z = 1.96
    share, correction = successes / count, z * z / count
    middle = (share + correction / 2) / (1 + correction)
    half = z / (1 + correction) * (share * (1 - share) / count + correction / (4 * count)) ** 0.5
    # Rounding must not keep the ends from 0 and 1, where they belong exactly.
    low, high = middle - half if successes else 0.0, middle + half if successes < count else 1.0
    return max(0.0, low), min(1.0, high)


def generator(seed: int, *names: str) -> np.random.Generator:
    """A random generator for one purpose: the same seed and names give the same numbers, whatever came before."""
    digest = hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16]))


# --- many resamples at once -------------------------------------------------------------------------------------------
#
# What belongs together (the records of a dialogue) is sampled together. Counts are kept by group, and a resample is a
# row of weights, how often each group was sampled. The first row is the sample itself, every group once, so that one
# computation gives the metric and all its resamples.

FEW_GROUPS = 5  # with fewer dialogues, or whatever else is sampled as a whole, evaluations give no interval


def group_weights(groups: int, repeats: int = 1000, seed: int = 0) -> Numbers:
    """How often each group counts: first once each, then as sampled with replacement, a row a repeat."""
    if not groups:
        return np.ones((repeats + 1, 0))
    sampled = generator(seed, "bootstrap").multinomial(groups, np.full(groups, 1 / groups), size=repeats)
    return np.concatenate([np.ones((1, groups)), sampled])


def percentile_interval(resamples: Numbers, share: float = 0.95) -> tuple[float, float] | None:
    """The percentile interval of a metric's resamples; those without a value are left out, None if none has one."""
    known = resamples[np.isfinite(resamples)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def confusion_by_group(groups: Indices, truth: Indices, predicted: Indices, size: tuple[int, int]) -> Numbers:
    """Counts by group, true class and predicted class, all given by their indices; `size`: groups and classes."""
    counts = np.zeros((size[0], size[1], size[1]))
    np.add.at(counts, (groups, truth, predicted), 1)
    return counts


def reweighted(weights: Numbers, by_group: Numbers) -> Numbers:
    """The sums over groups for each row of weights."""
    sums: Numbers = np.tensordot(weights, by_group, axes=1)
    return sums


def ratio(part: Numbers, whole: Numbers) -> Numbers:
    """The quotient, or NaN where there is nothing to divide by."""
    nothing = np.full(np.broadcast(part, whole).shape, np.nan)
    quotient: Numbers = np.divide(part, whole, out=nothing, where=whole != 0)
    return quotient


def weighted_f1_of(confusions: Numbers) -> Numbers:
    """`weighted_f1` of each confusion matrix (true classes in rows); NaN of an empty one."""
    hits, true, predicted = _margins(confusions)
    return ratio((true * np.nan_to_num(ratio(2 * hits, true + predicted))).sum(-1), true.sum(-1))


def recall_of(confusions: Numbers, index: int) -> Numbers:
    """The share of a class, the one of that index, that was found; NaN where a matrix has none of it."""
    hits, true, _ = _margins(confusions)
    return ratio(hits[..., index], true[..., index])


def precision_of(confusions: Numbers, index: int) -> Numbers:
    """The share of what was called the class of that index that is of it; NaN where nothing was."""
    hits, _, predicted = _margins(confusions)
    return ratio(hits[..., index], predicted[..., index])


def balanced_accuracy_of(confusions: Numbers) -> Numbers:
    """The mean recall over the classes of the truth, of each confusion matrix; 1 / classes is chance, NaN of none."""
    hits, true, _ = _margins(confusions)
    return ratio(np.nan_to_num(ratio(hits, true)).sum(-1), (true > 0).sum(-1))


def accuracy_of(confusions: Numbers) -> Numbers:
    """The share that was predicted right; NaN of an empty matrix."""
    hits, true, _ = _margins(confusions)
    return ratio(hits.sum(-1), true.sum(-1))


def _margins(confusions: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return np.diagonal(confusions, axis1=-2, axis2=-1), confusions.sum(-1), confusions.sum(-2)


def auc_by_group(groups: Indices, truth: npt.NDArray[np.bool_], scores: Numbers, weights: Numbers) -> Numbers:
    """How often a True item has a higher score than a False one, ties half; one value a row of group weights.

    This is the area under the ROC curve; NaN where one of the two classes is not there. What items of one group win
    over those of another is counted once, so that a resample costs two small products.
    """
    count = weights.shape[1]
    order = np.argsort(scores, kind="stable")
    groups, truth, scores = groups[order], truth[order], scores[order]
    false = np.zeros((len(scores) + 1, count))  # False items of each group among the first so many
    false[np.arange(1, len(scores) + 1)[~truth], groups[~truth]] = 1
    false = np.cumsum(false, axis=0)
    positives = scores[truth]
    below, up_to = (false[np.searchsorted(scores, positives, side=side)] for side in ("left", "right"))
    wins = np.zeros((count, count))
    np.add.at(wins, groups[truth], (below + up_to) / 2)
    true = np.bincount(groups[truth], minlength=count).astype(np.float64)
    return ratio(((weights @ wins) * weights).sum(1), (weights @ true) * (weights @ false[-1]))


# --- agreement of annotators ------------------------------------------------------------------------------------------
#
# Krippendorff's α compares the disagreement there is with the one that chance would bring, D_o and D_e (2011):
#
#     α = 1 − D_o / D_e = 1 − (n − 1) · Σ o_ck δ²_ck / Σ n_c n_k δ²_ck
#
# o_ck counts pairs of values c, k within a unit, each unit's pairs weighing 1 / (its values − 1); n_c are its margins,
# n their sum. δ² is 1 for any two different values (nominal), or the squared distance of their middle ranks (ordinal).
# Intervals resample groups (dialogues); groups with equal counts are sampled together, which has the same distribution
# and costs little however many there are.


def percent(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """The share of pairs that are equal; None of nothing."""
    return sum(one == other for one, other in pairs) / len(pairs) if pairs else None


def cohens_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Cohen's κ of two annotators; None of nothing, or where both always give the same one answer."""
    observed, (ones, others) = percent(pairs), (Counter(pair[side] for pair in pairs) for side in (0, 1))
    if observed is None or len(ones | others) < 2:
        return None
    expected = sum(ones[value] * others[value] for value in ones) / len(pairs) ** 2
    return (observed - expected) / (1 - expected)


def krippendorff(
    units: Sequence[Sequence[Hashable]],
    values: Sequence[Hashable],
    *,
    ordered: bool = False,
    groups: Sequence[Hashable] | None = None,
    repeats: int = 1000,
) -> Estimate:
    """α of units, each a list of `values`, in order where they have one; `groups` are sampled as a whole."""
    indices = {value: index for index, value in enumerate(values)}
    names = range(len(units)) if groups is None else groups
    pairable = [(unit, group) for unit, group in zip(units, names, strict=True) if len(unit) > 1]
    if not pairable:
        return Estimate(value=None)
    rows = {group: row for row, group in enumerate(dict.fromkeys(group for _, group in pairable))}
    matrices = np.zeros((len(rows), len(values), len(values)))
    for unit, group in pairable:
        counts = np.bincount([indices[value] for value in unit], minlength=len(values)).astype(float)
        matrices[rows[group]] += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    patterns, often = np.unique(matrices.reshape(len(rows), -1), axis=0, return_counts=True)
    resampled = generator(0, "alpha").multinomial(len(rows), often / len(rows), size=repeats)
    weights = np.concatenate([often[None, :], resampled]).astype(float)
    resamples = _alphas((weights @ patterns).reshape(-1, len(values), len(values)), ordered)
    return Estimate.of_resamples(resamples, len(pairable), fewest=1)


def _alphas(matrices: Numbers, ordered: bool) -> Numbers:
    """α of each coincidence matrix; NaN where only one value occurs, for then it is undefined."""
    margins = matrices.sum(-1)
    distances = np.broadcast_to(1 - np.eye(matrices.shape[-1]), matrices.shape)
    if ordered:
        middles = np.cumsum(margins, axis=-1) - margins / 2
        distances = (middles[:, :, None] - middles[:, None, :]) ** 2
    observed = (matrices * distances).sum((-1, -2))
    expected = (margins[:, :, None] * margins[:, None, :] * distances).sum((-1, -2))
    alphas: Numbers = 1 - (margins.sum(-1) - 1) * ratio(observed, expected)
    return alphas
