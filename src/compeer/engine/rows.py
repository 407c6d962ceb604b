"""A row, one output being written; how its tokens are sampled; and what a backend does for rows.

A `Backend` holds the keys and values of the rows at work. It reads the prompts of rows that join, takes a step for all
of them, and lets them go; it knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from compeer.io import Frozen

if TYPE_CHECKING:
    import torch

    from compeer.engine.multimodal import Picture


class Sampling(Frozen):
    """How answers are sampled."""

    temperature: float = Field(default=0.8, ge=0, description="0 takes the most probable token")
    top_p: float = Field(default=1.0, gt=0, le=1, description="share of probability kept")
    min_p: float = Field(
        default=0.0, ge=0, lt=1, description="tokens below this share of the likeliest are left out; not by servers"
    )
    max_tokens: int = Field(default=192, ge=1, description="longest answer, in tokens")
    stop: tuple[str, ...] = Field(default=(), description="strings that end an answer; they are left out of it")


@dataclass(frozen=True)
class ModelFiles:
    """What llama.cpp needs of a model. `card` is the folder in which its `compeer.json` may lie."""

    base: Path
    adapter: Path | None
    tokenizer: Path
    card: Path | None = None
    states: Path | None = None  # the folder for computed beginnings of prompts; None keeps none
    exact: bool = False  # a judge's: in eight bits, all that a matrix is given comes in two parts


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
    """One output: what it answers and how it is sampled. All calls come from the thread that writes it."""

    ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    hear: Callable[[list[int], bool], bool]  # is given the tokens so far, and if they are the last; whether it is over
    end: Callable[[Ending | NotWritten], None] = lambda ending: None  # is given how it ended
    matcher: Any = None  # follows the grammar, if there is one
    adapter: Path | None = None  # what is laid over the base's weights, on backends that can
    pictures: Sequence[Picture] = ()
    cancelled: bool = False  # set to let it go, whether it waits or is at work
    tokens: list[int] = field(default_factory=list)  # what it consists of so far
    ending: Ending | NotWritten | None = None  # how it ended, if it has
    uniform: Any = None

    def finish(self, ending: Ending | NotWritten) -> None:
        """Notes how it ended, and passes it on unless nobody listens any more."""
        self.ending = ending
        if not self.cancelled:
            self.end(ending)

    def prompt(self) -> tuple[Any, ...]:
        """Equal for rows that are read alike: by prompt, forced tokens and weights; with pictures each is read."""
        return self.ids, tuple(self.tokens), self.adapter, id(self) if self.pictures else None


class Backend(Protocol):
    """Keys and values of the rows at work, which stand in `rows`."""

    rows: list[Row]
    most: int  # so many rows have room at a time
    at_once: int  # so many tokens of a row can be fed in one step

    def join(self, group: list[Row]) -> torch.Tensor:
        """Reads what all rows of the group share, and takes them in; the logits after it, a row each."""

    def step(self) -> torch.Tensor:
        """Feeds each row its new tokens; the logits after it, a row each."""

    def leave(self, row: Row) -> None:
        """Lets a row go."""

    def rest(self) -> None:
        """Nobody is at work: what takes much room, and makes no next turn quicker, may be given back."""
        return

    def clear(self) -> None:
        """Forgets everything, after a failure."""

    def close(self) -> None:
        """Gives all memory back that does not go with the last reference."""
        return


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two prompts begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
