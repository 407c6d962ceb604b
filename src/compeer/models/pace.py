"""A gate that lets calls through one after another, no faster than requests and tokens a minute allow.

Each call pushes the moment of the next one back by its share of a minute, so calls are spread evenly; there are no
bursts at the turn of a minute. How many tokens a call takes is guessed before, and put right when the answer says it.
"""

from __future__ import annotations

import asyncio
import time

from compeer.models.counters import Counters

SLACK = 0.05
"""Seconds that may be caught up: sleeping always takes a little too long."""
LONGEST_SLEEP = 0.1
"""Seconds after which a waiting call looks again, since a correction may have let it through."""


class Gate:
    """Where calls wait for their turn."""

    def __init__(self, requests_per_minute: float | None = None, tokens_per_minute: float | None = None) -> None:
        self._seconds_a_request = 60 / requests_per_minute if requests_per_minute else 0.0
        self._seconds_a_token = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._next_request = self._next_token = self._held_until = 0.0

    async def enter(self, tokens: int, counters: Counters) -> None:
        """Waits for a call's turn, and counts what it waited for. Callers line up themselves: one at a time."""
        while (wait := self._open_at() - (now := time.monotonic())) > 0:
            held_by_server = self._held_until > now
            await asyncio.sleep(min(wait, LONGEST_SLEEP))
            if held_by_server:
                counters.held_by_server += time.monotonic() - now
            else:
                counters.held_by_caps += time.monotonic() - now
        self._next_request = max(self._next_request, now - SLACK) + self._seconds_a_request
        self._next_token = max(self._next_token, now - SLACK) + tokens * self._seconds_a_token

    def correct(self, tokens: int) -> None:
        """Takes into account that a call took more tokens than guessed, or fewer."""
        self._next_token += tokens * self._seconds_a_token

    def hold(self, seconds: float) -> None:
        """Lets nothing through for so long."""
        self._held_until = max(self._held_until, time.monotonic() + seconds)

    def _open_at(self) -> float:
        return max(self._next_request, self._next_token, self._held_until)
