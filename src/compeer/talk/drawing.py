"""A row of a batch, one output being written, and how its next token is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from compeer.models.base import Sampling
from compeer.models.drawing import allowed, drawn
from compeer.models.vision import Picture
from compeer.talk.writing import Ending, NotWritten


@dataclass(eq=False)
class Row:
    """One output: what it answers, how it is drawn, and whom to tell. `tell` is called in the batcher's thread."""

    ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    tell: Callable[[str | Ending | NotWritten], None]
    matcher: Any = None
    """Follows the grammar, if there is one."""
    begun: str = ""
    """How the output began before it; it ends before it repeats itself (`told_once`)."""
    pictures: Sequence[Picture] = ()
    cancelled: bool = False
    said: list[int] = field(default_factory=list)
    column: int = 0
    position: int = 0
    told: int = 0
    uniform: Any = None

    def same_prompt(self, other: Row) -> bool:
        return self.ids == other.ids and not self.pictures and not other.pictures


def next_tokens(logits: torch.Tensor, rows: Sequence[Row], end: int) -> list[int]:
    """A token for each row, by its own grammar, temperature, share of probability and numbers."""
    scores = allowed(logits.float(), [row.matcher for row in rows], end)
    best = scores.argmax(-1)
    heat = torch.tensor([row.sampling.temperature or 1.0 for row in rows], device=scores.device)
    chances = torch.softmax(scores / heat[:, None], -1)
    share = [row.sampling.top_p for row in rows]
    if min(share) < 1:
        ordered, order = chances.sort(-1, descending=True)
        # a token is kept while those before it have not reached the share, so that the first always is
        cut = ordered.cumsum(-1) - ordered >= torch.tensor(share, device=scores.device)[:, None]
        chances = chances.masked_fill(cut.gather(1, order.argsort(-1)), 0.0)
    uniform = torch.tensor([[row.uniform.random()] for row in rows], dtype=torch.float64, device=scores.device)
    tokens = drawn(chances, uniform)[:, 0]
    greedy = torch.tensor([row.sampling.temperature == 0 for row in rows], device=scores.device)
    found: list[int] = torch.where(greedy, best, tokens).tolist()
    return found
