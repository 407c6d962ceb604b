"""Where rewards come from, and what becomes of them: sources score outputs, groups of scores become rewards.

Scores of several sources are added up with weights. An output that any source with a weight above 0 left unscored has
no total, and so no advantage and no part in its group's baseline. A source of weight 0 is only logged. A group's totals
are reweighted (`redundancy.reweight`), and what the safety guard rejects gets the floor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from compeer.models.base import in_background
from compeer.models.embedder import Embeds, Matrix
from compeer.policy import redundancy
from compeer.policy.control import PART_OF, decisions, decisions_of
from compeer.policy.redundancy import reweight
from compeer.reasoning import STRATEGIES, ParsedTurn, StrategyStep, parse_turn
from compeer.reward import Case, Judge, Judgment, Score, Unscored, score
from compeer.reward.strategies import StrategyClassifier
from compeer.safety.output import check_reply, floored
from compeer.ser.record import SerRecord
from compeer.statistics import generator, words

if TYPE_CHECKING:
    from compeer.policy.grpo_settings import GrpoSettings


class JudgeAway(Exception):
    """A source that cannot be asked, for how long, and why."""


class RewardSource(Protocol):
    """Anything that scores outputs, with a reason where it fails; it raises only `JudgeAway`, after a long wait."""

    name: str  # what to call it in metrics and tables

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        """A score for each output, given the record whose history it answers, in their order."""


@dataclass(frozen=True)
class Weighted:
    """A source and what it counts."""

    source: RewardSource
    weight: float = 1.0


def weighted_sum(sources: Sequence[Weighted], row: Sequence[Score]) -> Score:
    """The sum of an output's scores by each source; parts of all but the first source carry the source's name."""
    total: float | None = 0
    unscored: str | None = None
    parts: dict[str, float | None] = {}
    for number, (weighted, found) in enumerate(zip(sources, row, strict=True)):
        name, weight = weighted.source.name, weighted.weight
        if found.total is not None:
            parts |= {f"{name}/{part}" if number else part: value for part, value in found.given().items()}
            if weight and total is not None:
                total += found.total if weight == 1 else weight * found.total
        elif weight and unscored is None:
            reason = found.unscored or "no reason was given"
            total, unscored = None, reason if len(sources) == 1 else f"{name}: {reason}"
    given = {weighted.source.name: found.total for weighted, found in zip(sources, row, strict=True)}
    return Score(total=total, unscored=unscored, more=parts, sources=given)


def case_of(record: SerRecord, turn: ParsedTurn, seed: int) -> Case:
    """An output beside the corpus' reply; seed, record and response sample which response comes first."""
    first = bool(generator(seed, "order", record.id, str(turn.parts.get("response"))).random() < 0.5)
    return Case(record.history, turn, record.reference, candidate_first=first)


class JudgeSource:
    """A judge as a source: five parts of +1 or −1."""

    def __init__(self, judge: Judge, seed: int, name: str = "judge") -> None:
        self._judge, self._seed, self.name = judge, seed, name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        # an output in which nothing can be read needs no judge
        readable = [index for index, turn in enumerate(outputs) if turn.parts]
        cases = [case_of(records[index], outputs[index], self._seed) for index in readable]
        judgments: list[Judgment | Unscored] = [Unscored("nothing could be read")] * len(outputs)
        for index, judgment in zip(readable, self._judged(cases), strict=True):
            judgments[index] = judgment
        return [score(turn, judgment) for turn, judgment in zip(outputs, judgments, strict=True)]

    def _judged(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        try:
            return self._judge.judge(cases)
        except BaseExceptionGroup as group:  # what was asked at the same time fails as a group
            away, _ = group.split(JudgeAway)
            while isinstance(away, BaseExceptionGroup):
                away = away.exceptions[0]  # type: ignore[assignment]
            raise away or group from None


class DecisionSource:
    """The corpus' own decisions as a source: stage, emotion and strategy, +1 each if they are the same, else −1.

    Other decisions than the human's can be right too, so this is a counterweight and no verdict. With `shares`, how
    common each value is, it is twice what is beyond chance: whether they are the same, less the value's own share.
    """

    def __init__(self, name: str = "decisions", shares: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self.name, self._shares = name, shares

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        found = []
        for record, output in zip(records, outputs, strict=True):
            own, gold = decisions(output), decisions_of(record.candidate)
            parts = {name: self._worth(name, own.get(name), value) for name, value in gold.items()}
            found.append(Score(total=sum(parts.values()), more=parts))
        return found

    def _worth(self, name: str, own: str | int | None, wanted: str) -> float:
        if self._shares is None:
            return 1.0 if own == wanted else -1.0
        return -2.0 if own is None else 2 * ((own == wanted) - self._shares[name].get(str(own), 0.0))


def shares_of(records: Sequence[SerRecord]) -> dict[str, dict[str, float]]:
    """By decision how common each of its values is among records."""
    found = [decisions_of(record.candidate) for record in records]
    counts = {name: Counter(one[name] for one in found) for name in PART_OF}
    return {name: {value: n / len(found) for value, n in values.items()} for name, values in counts.items()}


class PlanSource:
    """Whether a response does what its own step 3 says, by its words: from −1 over 0, undecided, to 1.

    The score is log(8p) / log 8, no less than −1, of the probability p that the response carries out the strategy, all
    eight being equally common; −1 without a plan or a response. A judge may accept plan and response each for itself.
    """

    def __init__(self, classifier: StrategyClassifier, name: str = "plan") -> None:
        self._classifier, self.name = classifier, name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        whole = {}
        for index, turn in enumerate(outputs):
            response, step = turn.parts.get("response"), turn.parts.get("strategy")
            if response and isinstance(step, StrategyStep):
                whole[index] = (str(response), step.strategy)
        found = dict(zip(whole, self._classifier.carried_out(list(whole.values())), strict=True))
        return [Score(total=_log_score(found.get(index, 0.0))) for index in range(len(outputs))]


def _log_score(probability: float | None) -> float:
    """The score of a probability; nothing can be said of a strategy that was not learnt, which has none."""
    if not probability:
        return 0.0 if probability is None else -1.0
    return max(-1.0, math.log(len(STRATEGIES) * probability) / math.log(len(STRATEGIES)))


def completion_text(completion: Any) -> str:
    """The text of a completion as TRL has it: plain, or a message in a list."""
    return completion if isinstance(completion, str) else str(completion[0]["content"])


@dataclass(frozen=True)
class Rollout:
    """One output with all that a group's rewards need; travels between processes."""

    record: str
    text: str
    score: Score
    length: int
    response: Matrix
    history: Matrix
    rejected: str | None = None  # the rule of the safety guard that the response breaks

    @property
    def raw(self) -> float:
        """The total, or NaN where a source failed."""
        return math.nan if self.score.total is None else float(self.score.total)


class Scorer:
    """Scores outputs with a judge, or several weighted sources, and embeds their responses, all at the same time."""

    def __init__(
        self, sources: Judge | Sequence[Weighted], embedder: Embeds, records: Mapping[str, SerRecord], seed: int
    ) -> None:
        self._sources = sources if isinstance(sources, Sequence) else [Weighted(JudgeSource(sources, seed))]
        self._embedder, self._records = embedder, records

    def __call__(self, ids: Sequence[str], texts: Sequence[str], cut_off: Sequence[bool]) -> list[Rollout]:
        """A rollout for each output, given the ids of the records that they answer."""
        parsed = [parse_turn(text, cut_off=cut) for text, cut in zip(texts, cut_off, strict=True)]
        records = [self._records[key] for key in ids]
        responses = [str(turn.parts.get("response", "")) for turn in parsed]
        histories = {record.id: [utterance.text for utterance in record.history] for record in records}
        works: list[Callable[[], Any]] = [partial(one.source.score, records, parsed) for one in self._sources]
        works.append(partial(embed_together, self._embedder, responses, histories))
        begun = [in_background(work) for work in works]  # by daemons, so that nobody waits for an absent judge
        *scores, (rows, history_rows) = [one.result() for one in begun]
        found = []
        totals = [weighted_sum(self._sources, row) for row in zip(*scores, strict=True)]
        for record, text, total, response, row in zip(records, texts, totals, responses, rows, strict=True):
            finding = check_reply(response, [one.text for one in record.history if one.speaker == "seeker"])
            rejected = finding.rule if finding else None
            found.append(Rollout(record.id, text, total, len(words(response)), row, history_rows[record.id], rejected))
        return found


def embed_together(
    embedder: Embeds, responses: Sequence[str], histories: Mapping[str, Sequence[str]]
) -> tuple[Matrix, dict[str, Matrix]]:
    """The responses' rows, and those of each history by its key, embedded in one go."""
    rows = embedder.embed([*responses, *(text for texts in histories.values() for text in texts)])
    found, start = {}, len(responses)
    for key, texts in histories.items():
        found[key] = rows[start : start + len(texts)]
        start += len(texts)
    return rows[: len(responses)], found


@dataclass(frozen=True)
class RewardedGroup:
    """The rollouts of one history and what became of their scores, output by output."""

    rollouts: Sequence[Rollout]
    rewards: Sequence[float]
    factors: Sequence[float]  # what reweighting multiplied the scores with (equation 5)
    s_in: Sequence[float]
    s_hi: Sequence[float]
    tau: float


def reward_group(rollouts: Sequence[Rollout], settings: GrpoSettings) -> RewardedGroup:
    """The rewards of one group: equation 5 unless the raw ones tie, then the floor. The same on every process."""
    raw, lengths = [one.raw for one in rollouts], [one.length for one in rollouts]
    responses, history = np.stack([one.response for one in rollouts]), rollouts[0].history
    negatives: redundancy.Negatives = "off" if redundancy.tied(raw) else settings.negatives
    group = (raw, responses, history, lengths, settings.alpha, settings.beta, negatives)
    rewards = raw if redundancy.tied(raw) else reweight(*group)
    if settings.guard:
        rewards = floored(rewards, [one.rejected is not None for one in rollouts])
    gate, within = redundancy.length_gate(lengths, *group[4:6]), redundancy.in_group_similarity(responses)
    before = redundancy.history_similarity(responses, history)
    return RewardedGroup(rollouts, rewards, redundancy.factors(*group), within, before, gate)
