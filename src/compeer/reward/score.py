"""From a judge's verdicts to a score: five parts of +1 or −1 each, a total in −5 … +5. Pure functions.

A part that is missing, unreadable, over-long or cut off scores −1 whatever the judge might say, and whether the format
is complete the parser decides: a broken output is never better off than a bad one. A response that copies the
reference or the history scores −1 too. Only a failure of the judge itself leaves a score without a total: that is
`unscored`, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from compeer.reasoning import STEPS, ParsedTurn, Part
from compeer.reward.guards import COPIED_REFERENCE
from compeer.reward.looks import LookWeights, weighed
from compeer.ser.record import ACCEPTABLE, Preferred

Sign = Literal[-1, 1]
Order = Literal["candidate first", "reference first"]


@dataclass(frozen=True)
class Judgment:
    """What a judge said. `steps` holds the probability of True for each step asked about; `response` that of each
    preference, or None if the responses were not compared."""

    steps: Mapping[Part, float]
    response: Mapping[Preferred, float] | None = None
    threshold: float = 0.5
    orders: Mapping[Order, Mapping[Preferred, float]] = field(default_factory=dict)
    """The preferences by the order in which the responses were shown; both, if both were asked."""
    reasons: Mapping[Part, str] = field(default_factory=dict)
    """The judge's own words, where it gives reasons."""
    looks: tuple[Mapping[Preferred, float], ...] = ()
    """The preferences by the chat in which the responses were compared, where there are two: with the steps, alone."""
    carried: float | None = None
    """The probability that the response carries out step 3, where the judge was asked what kind of help it is."""
    void: str | None = None
    """Why the response counts for nothing whatever was said about it: a copy, or nothing that can be seen."""

    def step(self, part: Part) -> bool:
        return self.steps[part] >= self.threshold

    def preferred(self) -> Preferred | None:
        return max(self.response, key=lambda value: self.response[value]) if self.response else None  # type: ignore[index]


@dataclass(frozen=True)
class Unscored:
    """The judge failed, and why."""

    reason: str


def judgment(
    steps: Mapping[Part, float],
    compared: Mapping[Order, Mapping[int, Mapping[Preferred, float]]],
    threshold: float,
    reasons: Mapping[Part, str],
    void: str | None,
    carried: float | None = None,
    weights: LookWeights | None = None,
) -> Judgment | Unscored:
    """What a judge said, put together; `compared` has by order the verdict on the responses of each branch.

    Orders are averaged, branches are weighed, and a copy of the reference is at most as good as it.
    """
    orders = {order: weighed([*said.values()]) for order, said in compared.items()}
    branches = sorted({branch for said in compared.values() for branch in said})
    looks = [weighed([said[branch] for said in compared.values() if branch in said]) for branch in branches]
    chances = [*steps.values(), *(chance for order in orders.values() for chance in order.values()), carried or 0.0]
    if not all(math.isfinite(chance) for chance in chances):
        return Unscored("the judge's probabilities are not numbers")
    response: dict[Preferred, float] | None = None
    if orders:
        response = weighed(looks, carried, steps, weights)
        if void == COPIED_REFERENCE:
            same = response["candidate"] + response["reference"] + response["both"]
            response = {"candidate": 0.0, "reference": 0.0, "both": same, "neither": response["neither"]}
    return Judgment(steps, response, threshold, orders, reasons, tuple(looks) if len(looks) > 1 else (), carried, void)


@dataclass(frozen=True)
class Score:
    """Five parts and their total; `response` is None where there was no reference to compare with."""

    steps: dict[Part, Sign] = field(default_factory=dict)
    response: Sign | None = None
    format: Sign | None = None
    total: int | None = None
    unscored: str | None = None

    def parts(self) -> dict[str, int | None]:
        """The five parts by name."""
        return {**{str(part): self.steps.get(part) for part in STEPS}, "response": self.response, "format": self.format}


def score(parsed_turn: ParsedTurn, judgment: Judgment | Unscored) -> Score:
    """The score of one output: steps +1 / −1, response +1 if as good as the reference or better, format +1 if whole."""
    complete: Sign = 1 if parsed_turn.complete else -1
    if isinstance(judgment, Unscored):
        if parsed_turn.parts:
            return Score(format=complete, unscored=judgment.reason)
        judgment = Judgment(steps={}, response={})  # nothing was there to be judged
    steps: dict[Part, Sign] = {}
    for part in STEPS:
        if part in parsed_turn.missing:
            steps[part] = -1
        elif part in judgment.steps and not math.isnan(judgment.steps[part]):
            steps[part] = 1 if judgment.step(part) else -1
        else:
            return Score(format=complete, unscored=f"the judge gave no verdict on {part}")
    response: Sign | None = None
    if "response" in parsed_turn.missing or judgment.void:
        response = -1
    elif judgment.response and any(math.isnan(chance) for chance in judgment.response.values()):
        return Score(format=complete, unscored="the judge gave no verdict on the response")
    elif judgment.response:
        response = 1 if judgment.preferred() in ACCEPTABLE else -1
    total = sum(steps.values()) + (response or 0) + complete
    return Score(steps=steps, response=response, format=complete, total=total)
