"""What detection answers: a level of risk, what raised it, what did not work; and what is wrong with a reply.

A trigger names a rule and the message it was found in, and never holds the seeker's words: it may be logged.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["none", "concern", "crisis"]
Kind = Literal["suicide", "self-harm", "harm to others", "abuse", "medical emergency"]

Category = Literal[
    "diagnosis",
    "dosage",
    "legal verdict",
    "harmful method",
    "contempt",
    "encouragement of harm",
    "claims to be human",
    "promise of secrecy",
    "dependence",
    "pushing away",
]

LEVELS: tuple[Level, ...] = get_args(Level)  # from the lowest to the highest
KINDS: tuple[Kind, ...] = get_args(Kind)
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True)
class Trigger:
    kind: Kind
    level: Level
    by: str  # a rule's name, a reader's or "failure"
    message: int  # its index among the seeker's messages


@dataclass(frozen=True)
class Risk:
    """How great the danger is, why, and what could not be looked at."""

    level: Level
    reasons: tuple[Trigger, ...] = ()
    degraded: tuple[str, ...] = ()  # the parts that failed, in words


@dataclass(frozen=True)
class Finding:
    """Why a reply must not be shown: the rule that found something, and its category."""

    rule: str
    category: Category


def higher(first: Level, second: Level) -> Level:
    return max(first, second, key=LEVELS.index)
