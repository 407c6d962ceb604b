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

from compeer.chat.turn import Busy, Candidate, Done, Event, Reply, Retracted, StepDone, Wish
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
        self, *, sees: bool = False, guarded: bool = True, judges: bool = True, pause: float = 0.0, places: int = 50
    ) -> None:
        self.name, self.sees, self.guarded, self.judges = "scripted", sees, guarded, judges
        self.wishes: list[Wish] = []
        self.left, self.open, self.closed = 0, 0, False
        self.release = asyncio.Event()
        self._pause, self._places = pause, places

    def converse(self, wish: Wish) -> AsyncIterator[Event]:
        if self.open >= self._places:
            raise Busy(7)
        if wish.best_of > 1 and not self.judges:
            raise InputError("there is no judge to choose with.", field="best_of", do="Ask for one output.")
        self.wishes.append(wish)
        return self._events(wish)

    def close(self) -> None:
        self.closed = True

    async def _events(self, wish: Wish) -> AsyncIterator[Event]:
        self.open += 1
        ended = False
        try:
            async for event in _script(wish, self.guarded, self.release):
                await asyncio.sleep(0.1 if "slow" in wish.history[-1].text else self._pause)
                yield event
            ended = True
        finally:
            self.open -= 1
            self.left += not ended


async def _script(wish: Wish, guarded: bool, release: asyncio.Event) -> AsyncIterator[Event]:
    said = wish.history[-1].text
    if "hold on" in said:
        await release.wait()
    if guarded and "crisis" in said:
        state = GuardState((*wish.state.answered, "suicide"), concern_shown=True)
        risk = Risk("crisis", (Trigger("suicide", "crisis", "script", 0),))
        yield Reply(CRISIS_REPLY)
        turn = GuardedTurn(CRISIS_REPLY, risk, "crisis: suicide", hide_reasoning=True, state=state)
        yield Done(None, CRISIS_REPLY, turn)
        return
    if "broken" in said:
        yield Reply("I am here, and I am listening.")
        turn = GuardedTurn("I am here, and I am listening.", Risk("none"), "no reply", state=wish.state)
        yield Done(None, turn.reply, turn, problems=("response: missing",), tokens=9, prompt_tokens=40)
        return
    chosen = scripted_turn(wish)
    if wish.best_of > 1:
        for number in range(1, wish.best_of + 1):
            other = chosen.model_copy(update={"response": f"Another way to say it, number {number}."})
            given = Score(dict.fromkeys(STEPS, 1), None, 1, 5 - number)
            yield Candidate(number, chosen if number == 1 else other, given, place=number)
    for part in STEPS:
        yield StepDone(part, chosen.step(part))
    if "withdraw" in said:
        yield Reply("These words are taken back.")
        yield Retracted()
    for piece in _pieces(chosen.response):
        yield Reply(piece)
    concerned = guarded and "concern" in said
    reply = f"{chosen.response}\n\n{PASSAGE}" if concerned else chosen.response
    if concerned:
        yield Reply(f"\n\n{PASSAGE}")
    state = GuardState(wish.state.answered, concern_shown=True) if concerned else wish.state
    risk, passage = (Risk("concern"), PASSAGE) if concerned else (Risk("none"), "")
    turn = GuardedTurn(reply, risk, attempts=1, state=state, passage=passage)
    yield Done(chosen, reply, turn, tokens=60, prompt_tokens=100)


def scripted_turn(wish: Wish) -> SupportTurn:
    """The turn that answers a wish: what is asked for, or exploration, anxiety, Question."""
    emotion = wish.control.emotion or "anxiety"
    manner = f" in a {wish.control.persona} manner" if wish.control.persona else ""
    said = wish.history[-1]
    seen = f" I see {len(said.media)} picture." if said.media else ""
    return SupportTurn.model_validate(
        {
            "history": {"text": "Something weighs on them.", "stage": wish.control.stage or "exploration"},
            "emotion": {
                "text": "Tense and unsure.",
                "sentiment": sentiment_of(emotion),
                "emotion": emotion,
                "intensity": min(5, 1 + len(wish.history) // 2),
            },
            "strategy": {"text": "Ask first, advise later.", "strategy": wish.control.strategy or "Question"},
            "response": f"Message {len(wish.history)} had {len(said.text)} characters{manner}.{seen} What then?",
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
