"""SAGE's rules: how a seeker's emotion moves, when a conversation ends, and what counts as a success.

A sentient seeker carries one number, its emotion, from 0 to 100. After each reply of the supporter it says by how much
the reply changed it; `update` applies that change, held to the largest one allowed and to the scale, and tells whether
the conversation has been won or lost by it. The rest of the rules are the number of turns and whether the reply to the
seeker's last message is scored too. Published variants are presets:

    sage             start 40, changes of at most 10, won at 100, lost below 10, 10 seeker turns, last reply scored
    sage-released    the same, but as the released code does it: the last reply is not scored
    sage-paper       the same as sage with 20 seeker turns
    rlver            start 30, changes of any size, won at 100, lost at 0, 8 seeker turns
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from compeer.errors import InputError

Outcome = Literal["success", "failure"]
LOWEST, HIGHEST = 0, 100
"""The scale of emotion; it is the same in every preset."""


class Rules(BaseModel):
    """How emotion moves and when a conversation ends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int = Field(default=40, ge=LOWEST, le=HIGHEST, description="emotion before the first reply")
    largest_change: int | None = Field(default=10, ge=1, description="most that one reply can change; none: any size")
    success_at: int = Field(default=100, ge=LOWEST, le=HIGHEST, description="emotion from which a dialogue is won")
    failure_at: int = Field(default=10, ge=LOWEST, le=HIGHEST, description="where a dialogue is lost")
    failure_when: Literal["below", "at or below"] = Field(
        default="below", description="whether an emotion of exactly `failure_at` is still in play or lost already"
    )
    turns: int = Field(default=10, ge=1, description="most messages of the seeker, its opening included")
    score_last_reply: bool = Field(
        default=True, description="score the reply to the seeker's last message; the released code does not"
    )

    @model_validator(mode="after")
    def _start_is_in_play(self) -> Rules:
        if outcome_of(self.start, self) is not None:
            raise ValueError("a dialogue would be over before it begins: start must lie between failure and success")
        return self

    @property
    def scored_replies(self) -> int:
        """How many replies of the supporter are scored in a conversation that goes on to its last turn."""
        return self.turns if self.score_last_reply else self.turns - 1


def outcome_of(emotion: float, rules: Rules) -> Outcome | None:
    """Whether a dialogue that stands at this emotion is won, lost, or neither."""
    if emotion >= rules.success_at:
        return "success"
    if emotion < rules.failure_at or (rules.failure_when == "at or below" and emotion == rules.failure_at):
        return "failure"
    return None


def allowed_change(change: float, rules: Rules) -> float:
    """The change held to the largest one that the rules allow in either direction."""
    if rules.largest_change is None:
        return change
    return max(-rules.largest_change, min(rules.largest_change, change))


SAGE = Rules()
SAGE_RELEASED = Rules(score_last_reply=False)
SAGE_PAPER = Rules(turns=20)
RLVER = Rules(start=30, largest_change=None, failure_at=0, failure_when="at or below", turns=8)
PRESETS: Mapping[str, Rules] = MappingProxyType(
    {"sage": SAGE, "sage-released": SAGE_RELEASED, "sage-paper": SAGE_PAPER, "rlver": RLVER}
)


def update(emotion: float, change: float, rules: Rules = SAGE) -> tuple[float, Outcome | None]:
    """The emotion after a change, and whether the dialogue ends there: `update(95, 7)` gives `(100, "success")`.

    The change is held to the rules' largest one and the emotion to 0 … 100. A number that is none (NaN, infinity) or
    an emotion outside the scale is a mistake of the caller and raises `ValueError`: it must not become a score.
    """
    if not math.isfinite(change):
        raise ValueError(f"a change of emotion must be a finite number, not {change}")
    if not LOWEST <= emotion <= HIGHEST:
        raise ValueError(f"emotion must lie between {LOWEST} and {HIGHEST}, not {emotion}")
    after = max(LOWEST, min(HIGHEST, emotion + allowed_change(change, rules)))
    return after, outcome_of(after, rules)


def preset(name: str) -> Rules:
    """The rules of that name; see the module's text."""
    if name not in PRESETS:
        raise InputError(f"there are no rules '{name}'.", field="rules", do=f"Give one of: {', '.join(PRESETS)}.")
    return PRESETS[name]
