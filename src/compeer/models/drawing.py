"""Draws a token a row from probabilities with one number a row, by inverse CDF: cheap on any device, and a row's own.

The number comes from the row's own generator, so what is drawn does not depend on which other rows share the batch, but
for rounding.
"""

from __future__ import annotations

import torch


def drawn(chances: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """A token for each row of probabilities, (rows, 1); `uniform` holds a number in [0, 1) a row, (rows, 1)."""
    sums = chances.cumsum(-1, dtype=torch.float64)
    # `right`: the first token whose sum is above the number, so that one without probability is never drawn
    return torch.searchsorted(sums, uniform * sums[:, -1:], right=True).clamp_(max=sums.shape[1] - 1)
