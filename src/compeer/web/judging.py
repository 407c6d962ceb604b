"""Judging turns over HTTP: one batch at a time, and only so many waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from compeer.reasoning import STEPS, ParsedTurn, parse_turn, render_turn
from compeer.reward.conversation import Case
from compeer.reward.form import Judge
from compeer.reward.score import Judgment, Unscored, score
from compeer.web.answers import JudgeAnswer, ResponseVerdict, StepVerdict
from compeer.web.errors import Refusal, busy, readable
from compeer.web.history import read_history
from compeer.web.metrics import Metrics
from compeer.web.requests import JudgeRequest
from compeer.web.telling import scored

_MOST_WAITING = 16
_RETRY_AFTER = 5.0


class Judging:
    """Answers requests for a judgment."""

    def __init__(self, judge: Judge | None, metrics: Metrics) -> None:
        self._judge, self._metrics = judge, metrics
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def name(self) -> str:
        """What the judge is called."""
        return self._present().name

    def _present(self) -> Judge:
        if self._judge is None:
            raise Refusal(404, "This server has no judge. Start it with one: compeer serve --judge.", code="no_judge")
        return self._judge

    async def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """The judge's verdicts on cases, one batch after the other."""
        judge = self._present()
        if self._waiting >= _MOST_WAITING:
            raise busy(_RETRY_AFTER)
        self._waiting += 1
        try:
            async with self._turn:
                found = await judge.ajudge(cases)
        finally:
            self._waiting -= 1
        for case, said in zip(cases, found, strict=True):
            self._metrics.add("compeer_judgments_total", scored="no" if score(case.output, said).unscored else "yes")
        return found

    async def answer(self, request: JudgeRequest) -> JudgeAnswer:
        """The verdicts on a turn and its score."""
        judge = self._present()
        output = _output(request)
        sent = read_history(request.messages, sees=False)
        if sent.dropped:  # nobody waits for help here, and half a conversation is not what was to be judged
            raise sent.dropped[0]
        reference = readable(request.reference) if request.reference is not None else None
        (said,) = await self.judge([Case(sent.history, output, reference)])
        given = score(output, said)
        found = said if isinstance(said, Judgment) else Judgment({})
        preferred = found.preferred()
        return JudgeAnswer(
            judge=judge.name,
            steps={
                part: StepVerdict(right=found.step(part), probability=found.steps[part], reason=found.reasons.get(part))
                for part in STEPS
                if part in found.steps
            },
            response=ResponseVerdict(
                preferred=preferred,
                probabilities={str(value): chance for value, chance in (found.response or {}).items()},
                reason=found.reasons.get("response"),
            )
            if preferred
            else None,
            score=scored(given),
            missing=output.missing,
            problems=list(output.problems),
        )


def _output(request: JudgeRequest) -> ParsedTurn:
    if (request.turn is None) == (request.output is None):
        raise Refusal(400, "Give either 'turn' or 'output'.", field="turn", code="turn_or_output")
    return parse_turn(render_turn(request.turn) if request.turn else readable(request.output or ""))
