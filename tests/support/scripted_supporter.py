"""A supporter and a judge from a script, for tests of the API and the page: no model, and every event there is.

What the seeker's last message holds decides what happens:

    crisis      the guard's fixed reply, reasoning hidden, as in a real crisis
    concern     a reply with a passage that tells where help is to be had
    withdraw    the first words of a reply are taken back and others follow
    broken      no whole turn could be written: a safe reply and a problem
    slow        the pieces come a tenth of a second apart
    hold on     nothing is said until `release` is set

Anything else gets a whole turn that holds what was asked for. The reply names the last message's number and length,
so that mixed-up replies would be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from compeer.chat.turn import Busy, Event, JudgedCandidate, ReplyPart, Retracted, StepDone, TurnDone, TurnRequest
from compeer.errors import InputError
from compeer.reasoning import STEPS, SupportTurn, sentiment_of
from compeer.reward.conversation import Case
from compeer.reward.score import Judgment, Score, Unscored
from compeer.safety.guard import GuardedTurn, GuardState
from compeer.safety.risk import Risk, Trigger
from compeer.ser.record import Preferred

CRISIS_REPLY = "I am glad you told me. Please call 988 now, or 911 if you are in danger. I am still here."
PASSAGE = "If it gets heavier, 988 is there day and night."


class ScriptedSupporter:
    """Says what the script says; `pause` seconds lie between two pieces."""

    language = "en"

    def __init__(
        self,
        *,
        multimodal: bool = False,
        guarded: bool = True,
        judges: bool = True,
        pause: float = 0.0,
        capacity: int = 50,
    ) -> None:
        self.name, self.multimodal, self.guarded, self.judges = "scripted", multimodal, guarded, judges
        self.requests: list[TurnRequest] = []
        self.left, self.open, self.closed = 0, 0, False
        self.release = asyncio.Event()
        self._pause, self._capacity = pause, capacity

    def converse(self, request: TurnRequest) -> AsyncIterator[Event]:
        if request.refusal:
            raise request.refusal
        if self.open >= self._capacity:
            raise Busy(7)
        if request.best_of > 1 and not self.judges:
            raise InputError("there is no judge to choose with.", field="best_of", do="Ask for one output.")
        self.requests.append(request)
        return self._events(request)

    def close(self) -> None:
        self.closed = True

    async def _events(self, request: TurnRequest) -> AsyncIterator[Event]:
        self.open += 1
        ended = False
        try:
            async for event in _script(request, self.guarded, self.release):
                await asyncio.sleep(0.1 if "slow" in request.history[-1].text else self._pause)
                yield event
            ended = True
        finally:
            self.open -= 1
            self.left += not ended


async def _script(request: TurnRequest, guarded: bool, release: asyncio.Event) -> AsyncIterator[Event]:
    said = request.history[-1].text
    if "hold on" in said:
        await release.wait()
    if guarded and "crisis" in said:
        state = GuardState((*request.state.answered, "suicide"), concern_shown=True)
        risk = Risk("crisis", (Trigger("suicide", "crisis", "script", 0),))
        yield ReplyPart(CRISIS_REPLY)
        turn = GuardedTurn(CRISIS_REPLY, risk, "crisis: suicide", hide_reasoning=True, state=state)
        yield TurnDone(None, CRISIS_REPLY, turn)
        return
    if "broken" in said:
        yield ReplyPart("I am here, and I am listening.")
        turn = GuardedTurn("I am here, and I am listening.", Risk("none"), "no reply", state=request.state)
        yield TurnDone(None, turn.reply, turn, problems=("response: missing",), tokens=9, prompt_tokens=40)
        return
    chosen = scripted_turn(request)
    if request.best_of > 1:
        for number in range(1, request.best_of + 1):
            other = chosen.model_copy(update={"response": f"Another way to say it, number {number}."})
            given = Score(dict.fromkeys(STEPS, 1), None, 1, 5 - number)
            yield JudgedCandidate(number, chosen if number == 1 else other, given, place=number)
    for part in STEPS:
        yield StepDone(part, chosen.step(part))
    if "withdraw" in said:
        yield ReplyPart("These words are taken back.")
        yield Retracted()
    for piece in _pieces(chosen.response):
        yield ReplyPart(piece)
    concerned = guarded and "concern" in said
    reply = f"{chosen.response}\n\n{PASSAGE}" if concerned else chosen.response
    if concerned:
        yield ReplyPart(f"\n\n{PASSAGE}")
    state = GuardState(request.state.answered, concern_shown=True) if concerned else request.state
    risk, passage = (Risk("concern"), PASSAGE) if concerned else (Risk("none"), "")
    turn = GuardedTurn(reply, risk, attempts=1, state=state, passage=passage)
    yield TurnDone(chosen, reply, turn, tokens=60, prompt_tokens=100)


def scripted_turn(request: TurnRequest) -> SupportTurn:
    """The turn that answers a request: what is asked for, or exploration, anxiety, Question."""
    emotion = request.control.emotion or "anxiety"
    manner = f" in a {request.control.persona} manner" if request.control.persona else ""
    said = request.history[-1]
    seen = f" I see {len(said.media)} picture." if said.media else ""
    return SupportTurn.model_validate(
        {
            "history": {"text": "Something weighs on them.", "stage": request.control.stage or "exploration"},
            "emotion": {
                "text": "Tense and unsure.",
                "sentiment": sentiment_of(emotion),
                "emotion": emotion,
                "intensity": min(5, 1 + len(request.history) // 2),
            },
            "strategy": {"text": "Ask first, advise later.", "strategy": request.control.strategy or "Question"},
            "response": f"Message {len(request.history)} had {len(said.text)} characters{manner}.{seen} What then?",
        }
    )


def _pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [word if number == 0 else f" {word}" for number, word in enumerate(words)]


class ScriptedJudge:
    """Finds every step right with probability 0.9, and the candidate better than any reference."""

    name = "scripted judge"

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return [self._one(case) for case in cases]

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return self.judge(cases)

    def _one(self, case: Case) -> Judgment | Unscored:
        if "unscored" in case.history[-1].text:
            return Unscored("the script says so")
        better: dict[Preferred, float] = {"candidate": 0.7, "reference": 0.1, "both": 0.1, "neither": 0.1}
        steps = {part: 0.9 for part in STEPS if part in case.output.parts}
        return Judgment(steps, better if case.reference is not None else None)
