"""A row, one output being written; how its next token is drawn; and what a backend does for rows.

A backend, `Table`, holds the keys and values of the rows at work. It reads the prompts of rows that join, takes a step
for all of them, and lets them go; it knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from compeer.models.base import Sampling
from compeer.models.drawing import allowed, drawn
from compeer.models.vision import Picture


@dataclass(frozen=True)
class Ending:
    """An output has ended. `cut_off`: it had reached the longest allowed length."""

    cut_off: bool = False
    tokens: int = 0
    prompt_tokens: int = 0


class NotWritten(Exception):
    """An output could not be written, or not to its end; `reason` quotes nobody. `passing`: it may work next time."""

    def __init__(self, reason: str, passing: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.passing = reason, passing


@dataclass(eq=False)
class Row:
    """One output: what it answers and how it is drawn. All calls come from the batcher's thread."""

    ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    hear: Callable[[list[int], bool], bool]
    """Is given all tokens so far, and whether they are the last; says whether the output is over."""
    end: Callable[[Ending | NotWritten], None]
    """Is told how it ended."""
    matcher: Any = None
    """Follows the grammar, if there is one."""
    adapter: Path | None = None
    """What is laid over the base's weights, on backends that can."""
    pictures: Sequence[Picture] = ()
    cancelled: bool = False
    said: list[int] = field(default_factory=list)
    uniform: Any = None

    def same_prompt(self, other: Row) -> bool:
        """Whether both are to be read alike: their prompts, what they say already, and the weights."""
        alike = (self.ids, self.said, self.adapter) == (other.ids, other.said, other.adapter)
        return alike and not self.pictures and not other.pictures


class Table(Protocol):
    """Keys and values of the rows at work, which stand in `rows`."""

    rows: list[Row]
    most: int
    """So many rows have room at a time."""
    at_once: int
    """So many tokens of a row can be fed in one step."""

    def join(self, group: list[Row]) -> torch.Tensor:
        """Reads what all rows of the group share, and takes them in; the logits after it, a row each."""

    def step(self) -> torch.Tensor:
        """Feeds each row what it said since; the logits after it, a row each."""

    def leave(self, row: Row) -> None:
        """Lets a row go."""

    def answer(self, ids: Sequence[int], adapter: Path | None) -> torch.Tensor:
        """The logits after a prompt of which nothing is to be written."""

    def rest(self) -> None:
        """Nobody is at work: what takes much room may be given back."""

    def clear(self) -> None:
        """Forgets everything, after a failure."""

    def close(self) -> None:
        """Gives all memory back."""


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
    least = [row.sampling.min_p for row in rows]
    if max(least) > 0:
        floor = torch.tensor(least, device=scores.device) * chances.max(-1).values
        chances = chances.masked_fill(chances < floor[:, None], 0.0)
    uniform = torch.tensor([[row.uniform.random()] for row in rows], dtype=torch.float64, device=scores.device)
    tokens = drawn(chances, uniform)[:, 0]
    greedy = torch.tensor([row.sampling.temperature == 0 for row in rows], device=scores.device)
    found: list[int] = torch.where(greedy, best, tokens).tolist()
    return found


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two prompts begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
