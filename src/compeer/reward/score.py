"""From a judge's verdicts to a score: five parts of +1 or −1 each, a total in −5 … +5. Pure functions.

A part that is missing, unreadable, over-long or cut off scores −1 whatever the judge might say, and the parser decides
whether the format is complete: a broken output is never better off than a bad one. A response that copies the reference
or the history scores −1 too. Only a failure of the judge leaves a score without a total: `unscored`, with the reason.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

from pydantic import Field

from compeer.reasoning import STEPS, ParsedTurn, Part
from compeer.reward.anti_gaming import COPIED_REFERENCE, quoted
from compeer.reward.conversation import Case, JudgeForm, JudgeQuestion, carried_out, preferred
from compeer.reward.second_pass import PassWeights, weighed
from compeer.ser.record import ACCEPTABLE, Preferred

Sign = Literal[-1, 1]
Order = Literal["candidate first", "reference first"]

# checked where a judgment is read from a file; a sum of probabilities may miss 1 by rounding
Probability = Annotated[float, Field(ge=0, le=1 + 1e-6, allow_inf_nan=False)]


@dataclass(frozen=True)
class Judgment:
    """The probability of True for each step asked about, and of each preference, if the responses were compared."""

    steps: Mapping[Part, Probability]
    response: Mapping[Preferred, Probability] | None = None
    threshold: Probability = 0.5
    orders: Mapping[Order, Mapping[Preferred, Probability]] = field(default_factory=dict)  # by what was asked first
    reasons: Mapping[Part, str] = field(default_factory=dict)  # the judge's own words, where it gives reasons
    looks: tuple[Mapping[Preferred, Probability], ...] = ()  # those of two passes: after the steps, and without them
    carried: Probability | None = None  # that the response carries out step 3, if the judge named its strategy
    void: str | None = None  # why the response counts for nothing whatever the verdict: a copy, say, or nothing visible

    def step(self, part: Part) -> bool:
        return self.steps[part] >= self.threshold

    def preferred(self) -> Preferred | None:
        return max(self.response, key=lambda value: self.response[value]) if self.response else None  # type: ignore[index]

    def acceptable(self) -> float | None:
        """The probability that the response is as good as the reference or better; None if not compared."""
        return sum(self.response.get(value, 0.0) for value in ACCEPTABLE) if self.response else None


@dataclass(frozen=True)
class Unscored:
    """The judge failed, and why."""

    reason: str


class Judge(Protocol):
    """Anything that can judge outputs. It never raises on one: where it fails, it says why."""

    name: str

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """A judgment for each case, in their order."""

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """The same for async callers."""


@dataclass
class Answers:
    """A judge's answers about one case, as they come in; `judgment` puts them together."""

    steps: dict[Part, float] = field(default_factory=dict)
    compared: dict[Order, dict[int, Mapping[Preferred, float]]] = field(default_factory=dict)  # by order and branch
    kinds: list[Mapping[str, float]] = field(default_factory=list)  # of each strategy, each time this was asked
    reasons: dict[Part, str] = field(default_factory=dict)

    def add(
        self, question: JudgeQuestion, probabilities: Sequence[float], branch: int, first: bool, reason: str | None
    ) -> None:
        """Takes the probabilities of the words that may answer a question; `first`: the candidate comes first."""
        answer = dict(zip(question.words, probabilities, strict=True))
        if reason is not None and question.part != "kind":
            self.reasons.setdefault(question.part, quoted(reason, len(reason)))
        if question.part == "response":
            order: Order = "candidate first" if first else "reference first"
            named = {preferred(word, first): value for word, value in answer.items()}
            self.compared.setdefault(order, {})[branch] = named
        elif question.part == "kind":
            self.kinds.append(answer)
        else:
            self.steps[question.part] = answer["True"]

    def judgment(
        self,
        case: Case,
        form: JudgeForm,
        void: str | None,
        threshold: float = 0.5,
        weights: PassWeights | None = None,
        read: Case | None = None,
    ) -> Judgment | Unscored:
        """One judgment of all orders and passes; `read` is the case as the judge read it, where parts were too long."""
        steps, plan = self.steps, carried_out(read or case, self.kinds)
        if form.kind != "outcome":  # a step that is there, but in which nothing is visible, is False
            steps = {part: self.steps.get(part, 0.0) for part in STEPS if part in case.output.parts}
        orders = {order: weighed([*found.values()]) for order, found in self.compared.items()}
        branches = sorted({branch for found in self.compared.values() for branch in found})
        passes = [weighed([one[branch] for one in self.compared.values() if branch in one]) for branch in branches]
        values = [*steps.values(), *(value for order in orders.values() for value in order.values()), plan or 0.0]
        if not all(map(math.isfinite, values)):
            return Unscored("the judge's probabilities are not numbers")
        response: dict[Preferred, float] | None = None
        if orders:
            response = weighed(passes, plan, steps, weights)
            if void == COPIED_REFERENCE:
                same = response["candidate"] + response["reference"] + response["both"]
                response = {"candidate": 0.0, "reference": 0.0, "both": same, "neither": response["neither"]}
        by_pass = tuple(passes) if len(passes) > 1 else ()
        return Judgment(steps, response, threshold, orders, self.reasons, by_pass, plan, void)


@dataclass(frozen=True)
class Score:
    """What an output earned, and the only thing that carries it to an advantage; a judge gives five parts."""

    steps: Mapping[Part, Sign] = field(default_factory=dict)
    response: Sign | None = None  # only where there was a reference
    format: Sign | None = None
    total: float | None = None
    unscored: str | None = None  # why there is no total
    more: Mapping[str, float | None] = field(default_factory=dict)  # the parts that other sources give
    sources: Mapping[str, float | None] = field(default_factory=dict)  # the totals that were added up

    def parts(self) -> dict[str, int | None]:
        """The five parts of a judge by name, None where there is none."""
        return {**{str(part): self.steps.get(part) for part in STEPS}, "response": self.response, "format": self.format}

    def given(self) -> dict[str, float | None]:
        """The parts that the source gave: a judge's five, and others."""
        return {**(self.parts() if self.format else {}), **self.more}


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
    elif judgment.response and any(map(math.isnan, judgment.response.values())):
        return Score(format=complete, unscored="the judge gave no verdict on the response")
    elif judgment.response:
        response = 1 if judgment.preferred() in ACCEPTABLE else -1
    total = sum(steps.values()) + (response or 0) + complete
    return Score(steps=steps, response=response, format=complete, total=total)
