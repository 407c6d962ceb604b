"""Agreement of annotators against values worked by hand."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from compeer.statistics import cohens_kappa, krippendorff, percent

FOUR_OBSERVERS = [
    [1, 1, 1],
    [2, 2, 3, 2],
    [3, 3, 3, 3],
    [3, 3, 3, 3],
    [2, 2, 2, 2],
    [1, 2, 3, 4],
    [4, 4, 4, 4],
    [1, 1, 2, 1],
    [2, 2, 2, 2],
    [5, 5, 5],
    [1, 1],
    [3],
]
"""Krippendorff's own example (Computing Krippendorff's Alpha-Reliability, 2011): twelve units, values missing."""


def test_alpha_of_two_observers_by_hand() -> None:
    one, other = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    found = krippendorff(list(zip(one, other, strict=True)), (0, 1))
    # Five units 0-0, one 1-1, four that differ: o_01 = 4, n_0 = 14, n_1 = 6; α = 1 - 19 · 4 / (14 · 6)
    assert found.value == pytest.approx(1 - 76 / 84)
    assert found.n == 10
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def test_alpha_of_four_observers_as_published() -> None:
    nominal = krippendorff(FOUR_OBSERVERS, (1, 2, 3, 4, 5))
    ordinal = krippendorff(FOUR_OBSERVERS, (1, 2, 3, 4, 5), ordered=True)
    assert nominal.value == pytest.approx(0.743, abs=5e-4)
    assert ordinal.value == pytest.approx(0.815, abs=5e-4)
    assert nominal.n == 11, "a unit with one value says nothing of agreement"


def test_alpha_of_three_ordered_values_by_hand() -> None:
    # Units 0-0, 1-1, 2-2, 0-1: margins 3, 3, 2; middle ranks 1.5, 4.5, 7; o_01 = 1 with distance 9.
    # D_o = 9; D_e = (3·3·9 + 3·2·30.25 + 3·2·6.25) / 7 = 300 / 7; α = 1 - 7 · 9 / 300
    found = krippendorff([(0, 0), (1, 1), (2, 2), (0, 1)], (0, 1, 2), ordered=True)
    assert found.value == pytest.approx(1 - 63 / 300)


def test_alpha_where_nothing_can_be_told() -> None:
    assert krippendorff([], (0, 1)).value is None
    assert krippendorff([(1,), (0,)], (0, 1)).n == 0
    assert krippendorff([(1, 1), (1, 1)], (0, 1)).value is None
    assert krippendorff([(1, 1), (0, 0)], (0, 1)).value == 1


def test_kappa_and_percent_by_hand() -> None:
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert percent(pairs) == pytest.approx(0.7)
    assert cohens_kappa(pairs) == pytest.approx(0.4)  # by chance 0.5 · 0.6 + 0.5 · 0.4
    assert cohens_kappa([(True, True)] * 4) is None
    assert cohens_kappa([]) is None
    assert percent([]) is None


def test_groups_that_belong_together_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    right = np.repeat(rng.random(30) < 0.7, 10)  # ten items of a dialogue agree or differ together
    units = [(bool(place % 2), bool(place % 2) == same) for place, same in enumerate(right)]
    alone = krippendorff(units, (True, False))
    together = krippendorff(units, (True, False), groups=[place // 10 for place in range(300)])
    assert alone.value == together.value
    widths = [math.dist([one.low or 0], [one.high or 0]) for one in (alone, together)]
    assert widths[1] > 1.8 * widths[0]


@given(some.lists(some.lists(some.sampled_from([0, 1, 2]), max_size=3), max_size=12), some.booleans())
def test_alpha_is_at_most_one_and_one_only_without_dispute(units: Sequence[Sequence[int]], ordered: bool) -> None:
    found = krippendorff(units, (0, 1, 2), ordered=ordered, repeats=5)
    if found.value is not None:
        assert found.value <= 1
        assert (found.value == pytest.approx(1)) == all(len(set(unit)) == 1 for unit in units if len(unit) > 1)
