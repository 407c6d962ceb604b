"""From outputs to a group's rewards: scored by all sources, embedded, reweighted, and floored by the safety guard.

Sources work at the same time as the embedder, each on all outputs together: a judge on a GPU or behind a server need
not wait for the embedder on the CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from compeer.models.embedder import Embeds, Matrix
from compeer.policy.redundancy import Negatives, group_factors, history_similarity, in_group_similarity, length_gate
from compeer.policy.rewards import JudgeSource, RawScore, SourceScore, Weighted, combine
from compeer.reasoning import parse_turn
from compeer.reward import Judge, Unscored
from compeer.safety.output import check_reply, floored
from compeer.ser.record import SerRecord
from compeer.statistics import words


@dataclass(frozen=True)
class Rollout:
    """One output with all that a group's rewards need; travels between processes."""

    record: str
    text: str
    score: RawScore
    length: int
    response: Matrix
    history: Matrix
    rejected: str | None = None
    """The rule of the safety guard that the response breaks."""

    @property
    def raw(self) -> float:
        """The total, or NaN where a source failed."""
        return float("nan") if self.score.total is None else float(self.score.total)


class Scorer:
    """Scores outputs with a judge, or with several weighted sources, and embeds their responses."""

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

        def scored(weighted: Weighted) -> list[SourceScore | Unscored]:
            return weighted.source.score(records, parsed)

        *scores, (rows, histories) = _together(
            [
                *(lambda source=source: scored(source) for source in self._sources),
                lambda: self._embed(responses, records),
            ]
        )
        return [
            Rollout(record.id, text, raw, len(words(response)), row, histories[record.id], _rejection(response, record))
            for record, text, raw, response, row in zip(
                records, texts, combine(self._sources, scores), responses, rows, strict=True
            )
        ]

    def _embed(self, responses: Sequence[str], records: Sequence[SerRecord]) -> tuple[Matrix, dict[str, Matrix]]:
        """The responses' rows, and those of each record's history, embedded in one go."""
        said = {record.id: [utterance.text for utterance in record.history] for record in records}
        rows = self._embedder.embed([*responses, *(text for texts in said.values() for text in texts)])
        histories, start = {}, len(responses)
        for key, texts in said.items():
            histories[key] = rows[start : start + len(texts)]
            start += len(texts)
        return rows[: len(responses)], histories


def _together(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of all works, done at the same time; the first one's error, if any fails.

    The threads are daemons, so that a run which is interrupted does not wait for a judge that is away.
    """
    futures: list[Future[Any]] = [Future() for _ in works]

    def do(work: Callable[[], Any], future: Future[Any]) -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    for work, future in zip(works, futures, strict=True):
        threading.Thread(target=do, args=(work, future), daemon=True).start()
    return [future.result() for future in futures]


def _rejection(response: str, record: SerRecord) -> str | None:
    """The rule that a response breaks, given what the seeker had said; None if it may be shown."""
    said = [utterance.text for utterance in record.history if utterance.speaker == "seeker"]
    finding = check_reply(response, said)
    return finding.rule if finding else None


# --- groups -----------------------------------------------------------------------------------------------------------


class Reweighting(Protocol):
    """The settings that a group's rewards depend on."""

    @property
    def alpha(self) -> float: ...
    @property
    def beta(self) -> float: ...
    @property
    def negatives(self) -> Negatives: ...
    @property
    def guard(self) -> bool: ...


@dataclass(frozen=True)
class Group:
    """The outputs for one history, and what became of their scores."""

    rollouts: Sequence[Rollout]
    factors: Sequence[float]
    """What reweighting multiplies each score with."""
    rewards: Sequence[float]
    """After reweighting and the safety floor; NaN where there is no score."""
    within: Sequence[float]
    """s_in of each."""
    said: Sequence[float]
    """s_hi of each."""
    gate: float
    """τ."""


def weigh(rollouts: Sequence[Rollout], settings: Reweighting) -> Group:
    """The rewards of one group: equation 5, then the floor. The same on every process."""
    responses, history = np.stack([rollout.response for rollout in rollouts]), rollouts[0].history
    raw, lengths = [rollout.raw for rollout in rollouts], [rollout.length for rollout in rollouts]
    factors = group_factors(raw, responses, history, lengths, settings.alpha, settings.beta, settings.negatives)
    rewards = [total * factor for total, factor in zip(raw, factors, strict=True)]
    if settings.guard:
        rewards = floored(rewards, [rollout.rejected is not None for rollout in rollouts])
    gate = length_gate(lengths, settings.alpha, settings.beta)
    return Group(
        rollouts, factors, rewards, in_group_similarity(responses), history_similarity(responses, history), gate
    )
