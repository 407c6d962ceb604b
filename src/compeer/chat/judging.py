"""Judging a turn over HTTP: one case at a time, and a limit on how many wait."""

from __future__ import annotations

import asyncio

from compeer.chat.answer import score_answer
from compeer.chat.history import read_history
from compeer.chat.schemas import JudgeAnswer, JudgeRequest, ResponseVerdict, StepVerdict
from compeer.reasoning import STEPS, ParsedTurn, parse_turn, render_turn
from compeer.reward.conversation import Case
from compeer.reward.form import Judge
from compeer.reward.score import Judgment, score
from compeer.web.errors import Refusal, busy, readable
from compeer.web.metrics import Metrics

_MOST_WAITING = 16
_RETRY_AFTER = 5.0


class Judging:
    """Answers requests for a judgment."""

    def __init__(self, judge: Judge | None, metrics: Metrics) -> None:
        self._judge, self._metrics = judge, metrics
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def answer(self, request: JudgeRequest) -> JudgeAnswer:
        """The verdicts on a turn and its score."""
        if self._judge is None:
            raise Refusal(404, "This server has no judge. Start it with one: compeer serve --judge.", code="no_judge")
        output = _output(request)
        sent = read_history(request.messages, multimodal=False)
        if sent.dropped:  # nobody waits for help here, and half a conversation is not what was to be judged
            raise sent.dropped[0]
        if self._waiting >= _MOST_WAITING:
            raise busy(_RETRY_AFTER)
        reference = readable(request.reference) if request.reference is not None else None
        self._waiting += 1
        try:
            async with self._turn:
                verdicts = (await self._judge.ajudge([Case(sent.utterances, output, reference)]))[0]
        finally:
            self._waiting -= 1
        result = score(output, verdicts)
        self._metrics.add("compeer_judgments_total", scored="no" if result.unscored else "yes")
        found = verdicts if isinstance(verdicts, Judgment) else Judgment({})
        preferred = found.preferred()
        return JudgeAnswer(
            judge=self._judge.name,
            steps={
                part: StepVerdict(right=found.step(part), probability=found.steps[part], reason=found.reasons.get(part))
                for part in STEPS
                if part in found.steps
            },
            response=ResponseVerdict(
                preferred=preferred,
                probabilities={str(value): one for value, one in (found.response or {}).items()},
                reason=found.reasons.get("response"),
            )
            if preferred
            else None,
            score=score_answer(result),
            missing=output.missing,
            problems=list(output.problems),
        )


def _output(request: JudgeRequest) -> ParsedTurn:
    if (request.turn is None) == (request.output is None):
        raise Refusal(400, "Give either 'turn' or 'output'.", field="turn", code="turn_or_output")
    return parse_turn(render_turn(request.turn) if request.turn else readable(request.output or ""))
