"""A model that is waited for: a server that goes away for a while costs time, and no answers.

What a server could not answer because it was away (no connection, no answer in time, an error of its own, too many
calls) is asked again once it answers anything: a tiny question is put to it after growing pauses. What fails although
the server is there fails for good after a few tries. A server that stays away longer than it may, or that refuses its
key, raises `JudgeAway`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.progress import console

_PASSING = ("connection", "timeout", "rate limit", "server")
_TRIES = 3
"""How often a question is asked again that fails though the server is there."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class JudgeAway(Exception):
    """A judge that cannot be asked, for how long, and why."""


class Patient:
    """Asks another model, and waits up to `outage` seconds for a server that is away."""

    def __init__(self, model: TextModel, outage: float = 600.0, first_pause: float = FIRST_PAUSE) -> None:
        self._model, self._outage, self._first_pause = model, outage, first_pause
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._there = 0.0
        """When the server last answered a tiny question."""

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def batch_size(self) -> int:
        return self._model.batch_size

    @property
    def at_once(self) -> int:
        return self._model.at_once

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        """One answer or failure for each request, in their order."""
        began = time.monotonic()
        found = await self._model.generate(requests, sampling)
        for _ in range(_TRIES):
            away = [number for number, answer in enumerate(found) if isinstance(answer, Failure) and _is_away(answer)]
            if not away:
                break
            await self._wait(began, found[away[0]])
            began = time.monotonic()
            again = await self._model.generate([requests[number] for number in away], sampling)
            for number, answer in zip(away, again, strict=True):
                found[number] = answer
        return found

    async def _wait(self, began: float, failure: Generation | Failure) -> None:
        """Comes back when the server has answered something since `began`; one caller asks for all."""
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:
            if self._there > began:
                return
            start, pause, told = time.monotonic(), self._first_pause, False
            while True:
                if isinstance(failure, Failure):
                    away = time.monotonic() - start
                    if failure.kind == "access" or away + pause > self._outage:
                        raise JudgeAway(f"{self.name} cannot be asked ({away:.0f} s by now): {failure.reason}")
                    if not told:
                        console.print(f"  {self.name} is away, waiting: {failure.reason}", highlight=False)
                        told = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                failure = await self._tiny(start + self._outage - time.monotonic())
                if not (isinstance(failure, Failure) and _is_away(failure)):
                    self._there = time.monotonic()
                    return

    async def _tiny(self, seconds: float) -> Generation | Failure:
        """The answer to a tiny question, no two of which are alike, so that no cache has it."""
        asked = Request(({"role": "user", "content": f"Say True. ({time.time_ns()})"},))
        try:
            async with asyncio.timeout(max(seconds, 1.0)):
                return (await self._model.generate([asked], Sampling(temperature=0, max_tokens=4)))[0]
        except TimeoutError:
            return Failure("timeout", "it did not answer in time")


def _is_away(failure: Failure) -> bool:
    """Whether the failure is about the server, not about what it was asked."""
    return failure.kind in _PASSING or failure.kind == "access"
