"""How a token a row is drawn: what its grammar does not allow is left out, and one number a row picks by inverse CDF.

Both are cheap on any device. The number comes from the row's own generator, so what is drawn does not depend on which
other rows share the batch, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

_WORD = 32
"""So many tokens' bits come in a number, the first in its lowest."""


def allowed(scores: torch.Tensor, matchers: Sequence[Any], end: int) -> torch.Tensor:
    """The scores, (rows, tokens), with what each row's grammar does not allow next at -inf; None allows everything.

    A row whose grammar has come to its end may only end.
    """
    if not any(matchers):
        return scores
    width = scores.shape[1]
    words = np.full((len(matchers), -(-width // _WORD)), -1, dtype=np.int32)  # a bit a token: a GPU gets little to copy
    for row, matcher in enumerate(matchers):
        if matcher is None:
            continue
        if matcher.is_stopped() or matcher.is_error():
            words[row] = 0
            words[row].view(np.uint32)[end // _WORD] = 1 << end % _WORD
        else:
            words[row] = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[: words.shape[1]]
    packed = torch.from_numpy(words).to(scores.device)
    bits = packed[:, :, None] >> torch.arange(_WORD, device=scores.device, dtype=torch.int32)
    return scores.masked_fill((bits & 1).flatten(1)[:, :width] == 0, -torch.inf)


def drawn(chances: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """A token for each row of probabilities, (rows, 1); `uniform` holds a number in [0, 1) a row, (rows, 1)."""
    sums = chances.cumsum(-1, dtype=torch.float64)
    # `right`: the first token whose sum is above the number, so that one without probability is never drawn
    return torch.searchsorted(sums, uniform * sums[:, -1:], right=True).clamp_(max=sums.shape[1] - 1)
