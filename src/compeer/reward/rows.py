"""What a judge at work keeps of each conversation: the tokens still to be fed, and what was said so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from compeer.engine.multimodal import Picture
from compeer.reasoning import Part
from compeer.reward.conversation import Question
from compeer.reward.score import Order
from compeer.ser.record import Preferred


@dataclass(eq=False)
class Row:
    """One branch of one case on the cache."""

    case: int
    rounds: list[Question]
    texts: list[str]
    """What is fed before each answer."""
    pictures: list[Picture]
    """What goes with the history, for a judge that sees."""
    candidate_first: bool
    branch: int = 0
    starts: int = 0
    """The round from which on it goes its own way, on a copy of its parent's cache."""
    parent: Row | None = None
    pieces: list[list[int]] = field(default_factory=list)
    """The texts as tokens."""
    unfed: list[int] = field(default_factory=list)
    """Tokens it has said that are not on the cache yet."""


@dataclass
class Said:
    """What was said about one case so far."""

    steps: dict[Part, float] = field(default_factory=dict)
    compared: dict[Order, dict[int, dict[Preferred, float]]] = field(default_factory=dict)
    """By order, the verdict on the responses of each branch that has one."""
    kinds: list[dict[str, float]] = field(default_factory=list)
    """How likely each strategy is that of the candidate's response, each time this was asked."""
    reasons: dict[Part, str] = field(default_factory=dict)


Hear = Callable[[Row, Question, list[float], list[int]], None]
"""Takes down an answer: the row, its question, the probabilities of the words and the tokens of the reason."""


def common_prefix(rows: Sequence[list[int]]) -> list[int]:
    """The tokens that all rows begin with."""
    first, last = min(rows), max(rows)  # what these two share, all share: they are the furthest apart
    for position, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:position]
    return first[: len(last)]
