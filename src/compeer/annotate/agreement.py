"""How far annotators agree: percent, Cohen's κ of a pair, and Krippendorff's α. Pure figures on plain lists.

α compares the disagreement that is there with the one that chance would bring, D_o and D_e of Krippendorff (2011):

    α = 1 − D_o / D_e = 1 − (n − 1) · Σ o_ck δ²_ck / Σ n_c n_k δ²_ck

o_ck counts pairs of values c, k within a unit, each unit's pairs weighing 1 / (its values − 1); n_c are its margins, n
their sum. δ² is 1 for any two different values (nominal), or the squared distance of their middle ranks (ordinal).
Intervals come from groups (dialogues) drawn anew; groups with equal counts are drawn together, which is the same draw
and costs little however many there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from compeer.statistics import Numbers, drawn_interval, generator, ratio


@dataclass(frozen=True)
class AgreementFigure:
    """A figure with its 95 % interval, and the units (items with two labels or more) it is of."""

    value: float | None
    low: float | None
    high: float | None
    units: int


def percent(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """The share of pairs that are equal; None of nothing."""
    return sum(one == other for one, other in pairs) / len(pairs) if pairs else None


def cohens_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Cohen's κ of two annotators; None of nothing, or where both always say the same one thing."""
    observed = percent(pairs)
    if observed is None:
        return None
    values = {value for pair in pairs for value in pair}
    by_chance = (
        sum(sum(one == value for one, _ in pairs) * sum(other == value for _, other in pairs) for value in values)
        / len(pairs) ** 2
    )
    return (observed - by_chance) / (1 - by_chance) if by_chance < 1 else None


def krippendorff(
    units: Sequence[Sequence[Hashable]],
    values: Sequence[Hashable],
    *,
    ordered: bool = False,
    groups: Sequence[Hashable] | None = None,
    repeats: int = 1000,
    seed: int = 0,
) -> AgreementFigure:
    """α of units, each the values that it was given; `values` are all there are, in order where they have one.

    `groups` names what belongs together (an item's dialogue); without it every unit stands alone.
    """
    places = {value: place for place, value in enumerate(values)}
    names = range(len(units)) if groups is None else groups
    pairable = [(unit, group) for unit, group in zip(units, names, strict=True) if len(unit) > 1]
    if not pairable:
        return AgreementFigure(None, None, None, 0)
    rows = {group: row for row, group in enumerate(dict.fromkeys(group for _, group in pairable))}
    counts = np.zeros((len(rows), len(places), len(places)))
    for unit, group in pairable:
        counts[rows[group]] += coincidences([places[value] for value in unit], len(places))
    patterns, often = np.unique(counts.reshape(len(rows), -1), axis=0, return_counts=True)
    drawn = generator(seed, "alpha").multinomial(len(rows), often / len(rows), size=repeats)
    weights = np.concatenate([often[None, :], drawn]).astype(float)
    draws = alpha_of((weights @ patterns).reshape(-1, len(places), len(places)), ordered)
    if not np.isfinite(draws[0]):
        return AgreementFigure(None, None, None, len(pairable))
    low, high = drawn_interval(draws[1:]) or (None, None)
    return AgreementFigure(float(draws[0]), low, high, len(pairable))


def coincidences(unit: Sequence[int], size: int) -> Numbers:
    """The coincidence matrix of one unit, whose values are given by their places."""
    counts = np.bincount(unit, minlength=size).astype(float)
    matrix: Numbers = (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    return matrix


def alpha_of(matrices: Numbers, ordered: bool) -> Numbers:
    """α of each coincidence matrix; NaN where only one value occurs, for then nothing can be told."""
    margins = matrices.sum(-1)
    if ordered:
        middles = np.cumsum(margins, axis=-1) - margins / 2
        distances = (middles[:, :, None] - middles[:, None, :]) ** 2
    else:
        distances = np.broadcast_to(1 - np.eye(matrices.shape[-1]), matrices.shape)
    observed = (matrices * distances).sum((-1, -2))
    expected = (margins[:, :, None] * margins[:, None, :] * distances).sum((-1, -2))
    alphas: Numbers = 1 - (margins.sum(-1) - 1) * ratio(observed, expected)
    return alphas
