"""A writer and a judge that follow a script, and how a supporter around them is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from compeer.chat import Event, ReplyPart, Retracted, TurnDone, TurnRequest
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.writing import Ending
from compeer.dialogue import Utterance
from compeer.models.base import Message, Request, Sampling
from compeer.reasoning import STEPS, SupportTurn, parse_turn
from compeer.reward.conversation import Case
from compeer.reward.score import Judgment, Unscored
from compeer.safety import Finding, Guard, Risk

TURN = """History: The job is gone and the rent is due. [exploration]
Emotion: Worry about the next weeks. [negative, anxiety, 4]
Strategy: First hear more of it. [Question]
Response: That is a lot at once. What worries you most?"""
WHOLE = SupportTurn.model_validate(parse_turn(TURN).parts)


def said(text: str) -> tuple[Utterance, ...]:
    return (Utterance(speaker="seeker", text=text),)


JOB = said("I lost my job and the rent is due on Friday.")


class ScriptedWriter:
    """Writes given outputs, a few characters at a time; an exception in their place is raised after half a text."""

    name, multimodal, constrained, continues = "scripted", False, False, True

    def __init__(
        self, *outputs: str | Exception, constrained: bool = True, size: int = 7, cut_off: bool = False
    ) -> None:
        self.outputs, self.constrained, self.size, self.cut_off = list(outputs), constrained, size, cut_off
        self.requests: list[Request] = []
        self.open = 0
        self.hold: asyncio.Event | None = None
        self.longest = 10**9

    def fits(self, messages: list[Message], max_tokens: int) -> bool:
        return sum(len(str(message["content"])) for message in messages) + max_tokens <= self.longest

    async def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[str | Ending, None]:
        self.requests.append(request)
        output = self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]
        self.open += 1
        try:
            if self.hold is not None:
                await self.hold.wait()
            if isinstance(output, Exception):
                yield "History: half"
                raise output
            text = output.removeprefix(request.prefix)
            for stop in sampling.stop:
                text = text.split(stop)[0]
            for start in range(0, len(text), self.size):
                await asyncio.sleep(0)
                yield text[start : start + self.size]
            yield Ending(self.cut_off, tokens=len(text), prompt_tokens=11)
        finally:
            self.open -= 1

    def close(self) -> None: ...


def events_of(supporter: GuardedSupporter, request: TurnRequest) -> list[Event]:
    async def collect() -> list[Event]:
        return [event async for event in supporter.converse(request)]

    return asyncio.run(collect())


def reply_of(events: Sequence[Event]) -> str:
    """What somebody sees who shows pieces and takes back what is retracted."""
    text = ""
    for event in events:
        if isinstance(event, Retracted):
            text = ""
        elif isinstance(event, ReplyPart):
            text += event.text
    return text


def done_of(events: Sequence[Event]) -> TurnDone:
    assert isinstance(events[-1], TurnDone)
    assert sum(isinstance(event, TurnDone) for event in events) == 1
    assert reply_of(events) == events[-1].reply
    return events[-1]


class NoDanger:
    def detect(self, messages: str | Sequence[str], /) -> Risk:
        return Risk("none")


def forbids(*words: str) -> Callable[[str, Sequence[str]], Finding | None]:
    return lambda reply, seeker: Finding("a rule", "contempt") if any(word in reply for word in words) else None


def guard(*forbidden: str) -> Guard:
    return Guard(NoDanger(), check=forbids(*forbidden))


class WordJudge:
    """Likes responses by how often they say "you"; a scripted judge."""

    name = "words"

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        if self._fails:
            raise RuntimeError
        found: list[Judgment | Unscored] = []
        for case in cases:
            mine = str(case.output.parts["response"]).count("you")
            other = (case.reference or "").count("you")
            better = 1.0 if mine > other else 0.0 if mine < other else 0.5
            found.append(Judgment(dict.fromkeys(STEPS, 0.9), {"candidate": better, "reference": 1 - better}))
        return found

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return self.judge(cases)
