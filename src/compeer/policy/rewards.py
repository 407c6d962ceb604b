"""Where rewards come from: one or several sources, each a number for an output, added up with weights.

A source is anything that scores outputs for their histories: UnifiReward, a process and an outcome judge together, a
model behind a server that is asked in words, a simulated seeker (`seeker_reward.py`), the corpus' own decisions. A
source that fails to score an output says why; an output that any source with a weight above 0 left unscored has no
total at all, and so no advantage and no part in its group's baseline. A source of weight 0 is logged and counts for
nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from compeer.policy.control import decisions
from compeer.policy.patience import JudgeAway
from compeer.reasoning import PARTS, STRATEGIES, ParsedTurn, StrategyStep
from compeer.reward import Case, Judge, Judgment, Unscored, score
from compeer.reward.contradiction import StrategyClassifier
from compeer.ser.record import SerRecord
from compeer.statistics import generator

JUDGED = (*PARTS, "format")
"""The five parts of a judge's score."""
DECISIONS = ("stage", "emotion", "strategy")


@dataclass(frozen=True)
class SourceScore:
    """What one source gave an output: a number, and the parts that it is made of."""

    total: float
    parts: Mapping[str, float | None] = field(default_factory=dict)


class RewardSource(Protocol):
    """Anything that scores outputs. It never raises on an output: where it fails, it says why.

    One that cannot work at all for the time being waits, and raises `JudgeAway` when it has waited long enough.
    """

    @property
    def name(self) -> str:
        """What to call it in figures and tables."""

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[SourceScore | Unscored]:
        """A score for each output, given the record whose history it answers, in their order."""


@dataclass(frozen=True)
class Weighted:
    """A source and what it counts."""

    source: RewardSource
    weight: float = 1.0


@dataclass(frozen=True)
class RawScore:
    """An output's score before reweighting: the weighted sum of its sources, or why there is none."""

    total: float | None = None
    unscored: str | None = None
    sources: Mapping[str, float | None] = field(default_factory=dict)
    """What each source gave, unweighted."""
    by_part: Mapping[str, float | None] = field(default_factory=dict)

    def parts(self) -> dict[str, float | None]:
        """The parts by name, unweighted: the five of a judge, and whatever the sources give."""
        return {**dict.fromkeys(JUDGED), **self.by_part}


def combine(sources: Sequence[Weighted], scores: Sequence[Sequence[SourceScore | Unscored]]) -> list[RawScore]:
    """The outputs' raw scores, of each source's scores; parts of all but the first source carry the source's name."""
    return [_combined(sources, row) for row in zip(*scores, strict=True)]


def _combined(sources: Sequence[Weighted], row: Sequence[SourceScore | Unscored]) -> RawScore:
    total: float | None = 0
    unscored: str | None = None
    given: dict[str, float | None] = {}
    parts: dict[str, float | None] = {}
    for number, (weighted, found) in enumerate(zip(sources, row, strict=True)):
        name = weighted.source.name
        given[name] = found.total if isinstance(found, SourceScore) else None
        if isinstance(found, SourceScore):
            parts |= {f"{name}/{part}" if number else part: value for part, value in found.parts.items()}
            if weighted.weight and total is not None:
                total += found.total if weighted.weight == 1 else weighted.weight * found.total
        elif weighted.weight and unscored is None:
            total, unscored = None, found.reason if len(sources) == 1 else f"{name}: {found.reason}"
    return RawScore(total, unscored, given, parts)


class JudgeSource:
    """A judge as a source: five parts of +1 or −1, the total in −5 … +5.

    The order in which a response and the reference are shown is drawn by the seed, the record and the response.
    """

    def __init__(self, judge: Judge, seed: int, name: str = "judge") -> None:
        self._judge, self._seed, self._name = judge, seed, name

    @property
    def name(self) -> str:
        return self._name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[SourceScore | Unscored]:
        """A score for each output; one in which nothing can be read needs no judge."""
        readable = [index for index, turn in enumerate(outputs) if turn.parts]
        cases = [self._case(records[index], outputs[index]) for index in readable]
        judgments: list[Judgment | Unscored] = [Unscored("nothing could be read")] * len(outputs)
        for index, judgment in zip(readable, self._judged(cases), strict=True):
            judgments[index] = judgment
        return [_score(turn, judgment) for turn, judgment in zip(outputs, judgments, strict=True)]

    def _judged(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        try:
            return self._judge.judge(cases)
        except BaseExceptionGroup as group:  # what was asked at the same time fails as a group
            away, _ = group.split(JudgeAway)
            while isinstance(away, BaseExceptionGroup):
                away = away.exceptions[0]  # type: ignore[assignment]
            raise away or group from None

    def _case(self, record: SerRecord, turn: ParsedTurn) -> Case:
        first = bool(generator(self._seed, "order", record.id, str(turn.parts.get("response"))).random() < 0.5)
        return Case(record.history, turn, record.reference, candidate_first=first)


class DecisionSource:
    """The corpus' own decisions as a source: stage, emotion and strategy, +1 each if they are the same, else −1.

    A judge that is taught by matched pairs cannot say that a decision is unlikely by itself, and training by its
    verdicts alone drifts to whatever it lets pass. Other decisions than the human's can be right too, so this is a
    counterweight and no verdict: what it counts is a matter of its weight.

    With `shares`, by decision how common each value is, it is twice what is beyond chance: whether they are the same,
    less the value's own share. Then to say the same of every history earns nothing, however common it is.
    """

    def __init__(self, name: str = "decisions", shares: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._name, self._shares = name, shares

    @property
    def name(self) -> str:
        return self._name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[SourceScore | Unscored]:
        """A score for each output; a decision that cannot be read is not the same."""
        found: list[SourceScore | Unscored] = []
        for record, output in zip(records, outputs, strict=True):
            own = decisions(output)
            parts = {name: self._worth(name, own.get(name), value) for name, value in gold_decisions(record).items()}
            found.append(SourceScore(sum(parts.values()), parts))
        return found

    def _worth(self, name: str, own: str | int | None, wanted: str) -> float:
        if self._shares is None:
            return 1.0 if own == wanted else -1.0
        return -2.0 if own is None else 2 * ((own == wanted) - self._shares[name].get(str(own), 0.0))


def gold_decisions(record: SerRecord) -> dict[str, str]:
    """Stage, emotion and strategy as a record has them."""
    turn = record.candidate
    return {"stage": turn.history.stage, "emotion": turn.emotion.emotion, "strategy": turn.strategy.strategy}


def shares_of(records: Sequence[SerRecord]) -> dict[str, dict[str, float]]:
    """By decision how common each of its values is among records."""
    found = [gold_decisions(record) for record in records]
    counts = {name: Counter(one[name] for one in found) for name in DECISIONS}
    return {name: {value: n / len(found) for value, n in values.items()} for name, values in counts.items()}


class PlanSource:
    """Whether a response does what its own step 3 says, by its words: from −1 over 0, no telling, to 1.

    The score is log(8p) / log 8, no less than −1, of the probability p that the response carries out the strategy, all
    eight being equally common. A judge may accept plan and response each for itself; that they belong together is
    another question, and outputs that name a strategy and then do anything are the first thing that training finds.
    """

    def __init__(self, classifier: StrategyClassifier, name: str = "plan") -> None:
        self._classifier, self._name = classifier, name

    @property
    def name(self) -> str:
        return self._name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[SourceScore | Unscored]:
        """A score for each output; one without a plan or a response has −1."""
        plans = [(str(turn.parts.get("response", "")), turn.parts.get("strategy")) for turn in outputs]
        whole = {
            place: (response, step.strategy)
            for place, (response, step) in enumerate(plans)
            if response and isinstance(step, StrategyStep)
        }
        chances = dict(zip(whole, self._classifier.carried_out(list(whole.values())), strict=True))
        return [SourceScore(_beyond_chance(chances.get(place, 0.0))) for place in range(len(outputs))]


def _beyond_chance(chance: float) -> float:
    return max(-1.0, math.log(len(STRATEGIES) * chance) / math.log(len(STRATEGIES))) if chance > 0 else -1.0


def _score(turn: ParsedTurn, judgment: Judgment | Unscored) -> SourceScore | Unscored:
    found = score(turn, judgment)
    if found.total is None:
        return Unscored(found.unscored or "no reason was given")
    return SourceScore(found.total, found.parts())
