"""What detection answers: a level of risk, what raised it, and which parts did not work.

A trigger names a rule and the message it was found in, and never holds the seeker's words: it may be logged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["none", "concern", "crisis"]
Kind = Literal["suicide", "self-harm", "harm to others", "abuse", "medical emergency"]

LEVELS: tuple[Level, ...] = ("none", "concern", "crisis")
"""From the lowest to the highest."""
KINDS: tuple[Kind, ...] = ("suicide", "self-harm", "harm to others", "abuse", "medical emergency")


@dataclass(frozen=True)
class Trigger:
    """One sign that was found."""

    kind: Kind
    level: Level
    by: str
    """A rule's name, "classifier" or "failure"."""
    message: int
    """Its place among the seeker's messages, from 0."""


@dataclass(frozen=True)
class Risk:
    """How great the danger is, why, and what could not be looked at."""

    level: Level
    reasons: tuple[Trigger, ...] = ()
    degraded: tuple[str, ...] = ()
    """The parts that failed, in words; empty when all worked."""


def higher(first: Level, second: Level) -> Level:
    """The graver of two levels."""
    return max(first, second, key=LEVELS.index)
