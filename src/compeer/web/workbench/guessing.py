"""How fast somebody may guess a password or an invitation, so that guessing is slow and nobody is locked out by it.

Wrong guesses are counted for the address they come from, and after a few of them it is refused for some seconds. They
are counted for the account, too, wherever they come from; but an account is never refused: who tries it after too many
wrong guesses waits in a short line until its next guess is due, a few seconds, with one place for each address. And a
browser in which somebody has logged in as this person before has a count of its own: whatever strangers guess, its
owner comes in at once. Few guesses are looked at at a time, since each takes much memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import TypeVar

import anyio
from starlette.concurrency import run_in_threadpool

from compeer.annotate.store import Refused
from compeer.web.errors import Refusal, busy
from compeer.web.limits import Rate

WRONG_A_MINUTE = 10
LONGEST_LINE = 5
"""Addresses that wait for one account; a line is let through one by one, every few seconds."""
_HASHED_AT_ONCE = 2
_MOST_WAITING = 50
T = TypeVar("T")


class Guesses:
    """Counts wrong guesses, and lets a check be made when it is due. `sleep` waits for some seconds."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        self._sleep = sleep
        self._wrong = Rate(WRONG_A_MINUTE)
        self._hashing = anyio.CapacityLimiter(_HASHED_AT_ONCE)
        self._lines: defaultdict[str, list[str]] = defaultdict(list)
        self._turns: dict[str, anyio.Lock] = {}

    async def checked(self, address: str, account: str, device: str | None, check: Callable[[], T]) -> T:
        """The outcome of a check; a wrong guess is counted. `device` is a browser that knows the account."""
        own, name = f"device {device}" if device else f"from {address}", f"as {account}"
        if self._hashing.statistics().tasks_waiting >= _MOST_WAITING:
            raise busy(2)
        async with self._hashing:
            self._refuse_too_many(own)
            if device or not self._wait(name):
                return await self._check(check, own, name)
        async with self._in_line(account, address):
            await self._sleep(self._wait(name))
            async with self._hashing:
                self._refuse_too_many(own)
                return await self._check(check, own, name)

    async def _check(self, check: Callable[[], T], own: str, name: str) -> T:
        try:
            return await run_in_threadpool(check)
        except Refused as error:
            if error.why == "forbidden":
                for key in (own,) if own.startswith("device ") else (own, name):
                    self._wrong.wait(key, monotonic())
            raise

    @asynccontextmanager
    async def _in_line(self, account: str, address: str) -> AsyncIterator[None]:
        line = self._lines[account]
        if address in line or len(line) >= LONGEST_LINE:
            raise _too_many(60 / WRONG_A_MINUTE)
        line.append(address)
        turn = self._turns.setdefault(account, anyio.Lock())
        try:
            async with turn:
                yield
        finally:
            line.remove(address)
            if not line:
                del self._lines[account], self._turns[account]

    def _refuse_too_many(self, key: str) -> None:
        if wait := self._wait(key):
            raise _too_many(wait)

    def _wait(self, key: str) -> float:
        return self._wrong.look(key, monotonic())


def _too_many(wait: float) -> Refusal:
    what = "Too many wrong attempts. Try again after the seconds that Retry-After says."
    return Refusal(429, what, code="rate_limit_exceeded", retry_after=wait)
