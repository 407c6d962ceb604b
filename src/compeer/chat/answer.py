"""From the events of a turn to what a client reads: chunks of a stream, or one answer at the end.

A client that knows nothing of us reads `content` and perhaps `reasoning_content`, and gets a whole, sensible answer.
One that knows us reads `compeer` too: steps as they are decided, candidates, withdrawals, and at the end how the turn
came about.
"""

import time
import uuid
from collections.abc import Iterator
from typing import Any, Literal

from compeer.chat.history import state_text
from compeer.chat.schemas import AnswerMessage, CandidateAnswer, ChatAnswer, Choice, Decided, ScoreAnswer, Usage
from compeer.chat.turn import Event, JudgedCandidate, ReplyPart, Retracted, StepDone, TurnDone
from compeer.reward.score import Score

Chunk = dict[str, Any]


class AnswerBuilder:
    """Builds one answer, event by event; `reasoning` says whether the client wants the steps."""

    def __init__(self, model: str, reasoning: bool, ignored: list[str], dropped: list[str]) -> None:
        self.id, self.created, self.model = f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), model
        self._wants_reasoning, self._ignored, self.dropped = reasoning, ignored, dropped
        self._reply, self._reasoning = "", ""
        self._candidates: list[CandidateAnswer] = []

    def chunks(self, event: Event) -> Iterator[Chunk]:
        """The chunks of a stream for an event; none for what is hidden."""
        match event:
            case StepDone(part, step) if self._wants_reasoning:
                line = f"{chr(10) if self._reasoning else ''}{step.text} [{step.decision}]"
                self._reasoning += line
                yield self._chunk({"reasoning_content": line}, {"part": part})
                yield self._chunk({}, {"step": {"part": part, **step.model_dump()}})
            case JudgedCandidate(turn=turn, score=score):
                given = {"turn": turn if self._wants_reasoning else None, "score": score and score_answer(score)}
                found = CandidateAnswer(**vars(event) | given)
                self._candidates.append(found)
                yield self._chunk({}, {"candidate": found.model_dump()})
            case ReplyPart(text):
                self._reply += text
                yield self._chunk({"content": text})
            case Retracted():
                yield from self._withdraw()
            case TurnDone(reply=reply):
                if not reply.startswith(self._reply):
                    yield from self._withdraw()
                if left := reply[len(self._reply) :]:
                    yield self._chunk({"content": left})
                self._reply = reply
                yield self._chunk({}, self._decided(event).model_dump(exclude_defaults=True), _finish(event))

    def first(self) -> Chunk:
        return self._chunk({"role": "assistant", "content": ""})

    def usage(self, done: TurnDone) -> Chunk:
        """The chunk with the number of tokens, after the last one where it is wanted."""
        return {**self._head(), "choices": [], "usage": _usage(done).model_dump()}

    def answer(self, done: TurnDone) -> ChatAnswer:
        """The whole answer, after `chunks` has been asked for all events."""
        reasoning = None if done.guarded.hide_reasoning else self._reasoning.strip() or None
        message = AnswerMessage(content=done.reply, reasoning_content=reasoning)
        choices, own = [Choice(message=message, finish_reason=_finish(done))], self._decided(done)
        head = {"id": self.id, "created": self.created, "model": self.model}
        return ChatAnswer(choices=choices, usage=_usage(done), compeer=own, **head)

    def _withdraw(self) -> Iterator[Chunk]:
        """The reply so far is withdrawn. A client that cannot do so shows a new paragraph."""
        if self._reply:
            yield self._chunk({"content": "\n\n"}, {"retracted": True})
        self._reply = ""

    def _decided(self, done: TurnDone) -> Decided:
        guarded = done.guarded
        return Decided(
            turn=None if guarded.hide_reasoning or not self._wants_reasoning else done.turn,
            risk=guarded.risk.level,
            hide_reasoning=guarded.hide_reasoning,
            replaced=guarded.replaced,
            # the end of a reply that is the guard's own: a client may make links of its numbers
            passage=done.reply if guarded.replaced and done.turn is None else guarded.passage,
            state=state_text(guarded.state),
            problems=[*done.problems, *guarded.degraded],
            candidates=[] if guarded.hide_reasoning else self._candidates,
            ignored=self._ignored,
            dropped=self.dropped,
        )

    def _head(self) -> Chunk:
        return {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}

    def _chunk(self, delta: Chunk, own: Chunk | None = None, finish: str | None = None) -> Chunk:
        """One chunk of a stream; `own` is the field `compeer`."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**self._head(), "choices": [choice], **({} if own is None else {"compeer": own})}


def score_answer(score: Score) -> ScoreAnswer:
    return ScoreAnswer(parts=score.parts(), total=score.total, unscored=score.unscored)


def _finish(done: TurnDone) -> Literal["stop", "length"]:
    return "length" if done.cut_off else "stop"


def _usage(done: TurnDone) -> Usage:
    total = done.prompt_tokens + done.tokens
    return Usage(prompt_tokens=done.prompt_tokens, completion_tokens=done.tokens, total_tokens=total)
