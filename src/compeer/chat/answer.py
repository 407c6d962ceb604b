"""From the events of a turn to what a client is told: chunks of a stream, or one answer at the end.

A client that knows nothing of us reads `content` and perhaps `reasoning_content`, and gets a whole, sensible answer.
One that knows us reads `compeer` too: steps as they are decided, candidates, words that are withdrawn, and at the end
how the turn came about.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any, Literal

from compeer.chat.answers import (
    AnswerMessage,
    CandidateAnswer,
    ChatAnswer,
    Choice,
    Decided,
    Scored,
    Usage,
    chunk,
)
from compeer.chat.state import state_text
from compeer.chat.turn import Candidate, Done, Event, Reply, Retracted, StepDone
from compeer.reward.score import Score

Delta = dict[str, Any]


class Telling:
    """One answer as it comes about; `show` says whether the reasoning is wanted."""

    def __init__(self, model: str, show: bool, ignored: list[str], dropped: list[str]) -> None:
        self.id, self.created, self.model = f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), model
        self._show, self._ignored, self.dropped = show, ignored, dropped
        self._said, self._reasoning = "", ""
        self._candidates: list[CandidateAnswer] = []

    def chunks(self, event: Event) -> Iterator[dict[str, Any]]:
        """What a stream tells of an event; nothing for what is hidden."""
        for delta, own in self._told(event):
            yield self._chunk(delta, None, own)
        if isinstance(event, Done):
            yield self._chunk({}, _finish(event), self._decided(event).model_dump(exclude_defaults=True))

    def opening(self) -> dict[str, Any]:
        """The first chunk of a stream."""
        return self._chunk({"role": "assistant", "content": ""}, None, None)

    def usage(self, done: Done) -> dict[str, Any]:
        """The chunk with the number of tokens, which stands after the last one where it is wanted."""
        return {**self._head(), "choices": [], "usage": _usage(done).model_dump()}

    def answer(self, done: Done) -> ChatAnswer:
        """The whole answer, after all events have been told."""
        hidden = not self._show or done.guarded.hide_reasoning
        message = AnswerMessage(
            content=done.reply, reasoning_content=None if hidden else self._reasoning.strip() or None
        )
        choice = Choice(message=message, finish_reason=_finish(done))
        return ChatAnswer(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[choice],
            usage=_usage(done),
            compeer=self._decided(done),
        )

    def _told(self, event: Event) -> Iterator[tuple[Delta, dict[str, Any] | None]]:
        match event:
            case StepDone(part, step) if self._show:
                line = f"{chr(10) if self._reasoning else ''}{step.text} [{step.decision}]"
                self._reasoning += line
                yield {"reasoning_content": line}, {"part": part}
                yield {}, {"step": {"part": part, **step.model_dump()}}
            case Candidate():
                found = self._candidate(event)
                self._candidates.append(found)
                yield {}, {"candidate": found.model_dump()}
            case Reply(text):
                self._said += text
                yield {"content": text}, None
            case Retracted():
                yield from self._withdraw()
            case Done(reply=reply) if reply != self._said:
                if not reply.startswith(self._said):
                    yield from self._withdraw()
                yield {"content": reply[len(self._said) :]}, None
                self._said = reply
            case _:
                return

    def _withdraw(self) -> Iterator[tuple[Delta, dict[str, Any]]]:
        """What was said is taken back. A client that cannot do so sees a new paragraph."""
        if self._said:
            yield {"content": "\n\n"}, {"retracted": True}
        self._said = ""

    def _candidate(self, event: Candidate) -> CandidateAnswer:
        return CandidateAnswer(
            number=event.number,
            place=event.place,
            turn=event.turn if self._show else None,
            score=scored(event.score) if event.score else None,
            problem=event.problem,
        )

    def _decided(self, done: Done) -> Decided:
        guarded = done.guarded
        hidden = guarded.hide_reasoning or not self._show
        return Decided(
            turn=None if hidden else done.turn,
            risk=guarded.risk.level,
            hide_reasoning=guarded.hide_reasoning,
            replaced=guarded.replaced,
            passage=_fixed(done),
            state=state_text(guarded.state),
            problems=[*done.problems, *guarded.degraded],
            candidates=[] if guarded.hide_reasoning else self._candidates,
            ignored=self._ignored,
            dropped=self.dropped,
        )

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}

    def _chunk(self, delta: Delta, finish: str | None, own: dict[str, Any] | None) -> dict[str, Any]:
        found: dict[str, Any] = chunk(self._head(), delta, finish, own)
        return found


def scored(score: Score) -> Scored:
    """A score as it is told."""
    return Scored(parts=score.parts(), total=score.total, unscored=score.unscored)


def _fixed(done: Done) -> str:
    """The end of a reply that is the guard's and not the supporter's: a client may make links of its numbers."""
    return done.reply if done.guarded.replaced and done.turn is None else done.guarded.passage


def _finish(done: Done) -> Literal["stop", "length"]:
    return "length" if done.cut_off else "stop"


def _usage(done: Done) -> Usage:
    total = done.prompt_tokens + done.tokens
    return Usage(prompt_tokens=done.prompt_tokens, completion_tokens=done.tokens, total_tokens=total)
