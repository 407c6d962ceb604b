"""A process judge and an outcome judge behind the face of one: the steps from the one, the responses from the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from compeer.reward.conversation import Case
from compeer.reward.form import Judge
from compeer.reward.score import Judgment, Unscored


class PairJudge:
    """PRM and ORM together: whole judgments, as UnifiReward gives them."""

    def __init__(self, process: Judge, outcome: Judge, name: str | None = None) -> None:
        self._process, self._outcome = process, outcome
        self._name = name or f"{process.name} + {outcome.name}"

    @property
    def name(self) -> str:
        return self._name

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """A judgment for each case, in their order."""
        return _joined(self._process.judge(cases), self._outcome.judge(cases))

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """The same for callers that are async, both judges at the same time."""
        return _joined(*await asyncio.gather(self._process.ajudge(cases), self._outcome.ajudge(cases)))


def _joined(
    steps: Sequence[Judgment | Unscored], responses: Sequence[Judgment | Unscored]
) -> list[Judgment | Unscored]:
    return [join(step, response) for step, response in zip(steps, responses, strict=True)]


def join(steps: Judgment | Unscored, response: Judgment | Unscored) -> Judgment | Unscored:
    """One judgment of two: the steps of the first, the response of the second; where either failed, its failure."""
    if isinstance(steps, Unscored):
        return steps
    if isinstance(response, Unscored):
        return response
    reasons = {**steps.reasons, **response.reasons}
    return Judgment(steps.steps, response.response, steps.threshold, response.orders, reasons, void=response.void)
