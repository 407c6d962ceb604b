"""Means of items that belong together, as the messages of a dialogue do; intervals resample what belongs together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compeer.statistics import Estimate, Numbers, Places, ratio

FEW_DIALOGUES = 5
"""With fewer dialogues than this no interval is given."""


def group_mean(
    values: Sequence[float] | Numbers, groups: Sequence[int] | Places, weights: Numbers, fewest: int
) -> Estimate:
    """The mean of values, each of the group with that index; `weights` are those of `statistics.group_weights`.

    Of fewer than `fewest` groups no interval is given.
    """
    indices = np.asarray(groups, dtype=np.int64)
    sums, counts = np.zeros((2, weights.shape[1]))
    np.add.at(sums, indices, values)
    np.add.at(counts, indices, 1)
    return Estimate.of_draws(ratio(weights @ sums, weights @ counts), int((counts > 0).sum()), fewest)
