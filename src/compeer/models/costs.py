"""What asking costs: paced and counted while a run goes on, and in a table at its end.

Each call over the wire ends in exactly one way, so that calls = successes + retried + failed; each request ends in
exactly one way too: from the cache, shared with the same request at the same time, a success, or a failure.

Tokens are guessed until an answer counts them: about four Latin characters to a token, one token to a Chinese, Japanese
or Korean character, two characters in other scripts, and a fixed number for an image. It may be a third off.
"""

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field

from rich.table import Column, Table

from compeer.models.base import Failure, Generation, Request

SLACK = 0.05  # seconds that the cap may be overdrawn by: sleeping always takes a little too long
MESSAGE_TOKENS = 4  # what a chat template puts around a message
IMAGE_TOKENS = 800
_EAST_ASIAN = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_LATIN = re.compile("[\u0000-\u024f\u2000-\u206f]")


@dataclass
class Counters:
    """What a model was asked, and how that ended. Failures are counted by their kind."""

    requests: int = 0
    calls: int = 0  # made over the wire, whatever came of them; for a model in this process: requests that it worked on
    cached: int = 0
    shared: int = 0
    successes: int = 0
    retried: Counter[str] = field(default_factory=Counter)  # calls that failed and would be tried again
    failed: Counter[str] = field(default_factory=Counter)  # calls that failed for good; `stopped` were broken off by us
    prompt_tokens: int = 0
    completion_tokens: int = 0
    held_by_cap: float = 0.0  # seconds in which the cap on requests let nothing through
    held_by_server: float = 0.0  # seconds in which nothing was sent because the server had asked for a pause

    def count(self, answer: Generation | Failure) -> None:
        if isinstance(answer, Failure):
            self.failed[answer.kind] += 1
        else:
            self.successes += 1
            self.prompt_tokens += answer.prompt_tokens
            self.completion_tokens += answer.tokens


class Gate:
    """Lets calls through one by one: each moves the next by its share of a minute; none comes in a server's pause."""

    def __init__(self, requests_per_minute: float | None = None) -> None:
        self._seconds_a_request = 60 / requests_per_minute if requests_per_minute else 0.0
        self._next_request = self._held_until = 0.0

    async def enter(self, counters: Counters) -> None:
        """Waits for a call's turn, and counts what it waited for. Callers line up themselves: one at a time."""
        while (wait := max(self._next_request, self._held_until) - (now := time.monotonic())) > 0:
            held_by_server = self._held_until > now
            await asyncio.sleep(wait)
            if held_by_server:
                counters.held_by_server += time.monotonic() - now
            else:
                counters.held_by_cap += time.monotonic() - now
        self._next_request = max(self._next_request, now - SLACK) + self._seconds_a_request

    def hold(self, seconds: float) -> None:
        """Lets nothing through for so long."""
        self._held_until = max(self._held_until, time.monotonic() + seconds)


def counters_table(counters: Counters) -> Table:
    """The numbers as a table: calls and how they ended, answers that needed none, tokens, and time lost to limits."""
    columns = Column(style="bold"), Column(justify="right")
    table = Table(*columns, title="Model calls", show_header=False, title_justify="left")
    table.add_row("requests", f"{counters.requests}")
    table.add_row("  from the cache", f"{counters.cached}")
    table.add_row("  same as another one under way", f"{counters.shared}", end_section=True)
    table.add_row("calls", f"{counters.calls}")
    table.add_row("  answered", f"{counters.successes}")
    for title, kinds in (("tried again", counters.retried), ("failed", counters.failed)):
        table.add_row(f"  {title}", f"{kinds.total()}")
        for kind, count in sorted(kinds.items()):
            table.add_row(f"    {kind}", f"{count}")
    table.add_section()
    table.add_row("prompt tokens", f"{counters.prompt_tokens}")
    table.add_row("completion tokens", f"{counters.completion_tokens}")
    table.add_row("seconds held back by the cap", f"{counters.held_by_cap:.1f}")
    table.add_row("seconds held back by the server", f"{counters.held_by_server:.1f}")
    return table


def prompt_tokens(request: Request) -> int:
    """About how many tokens a request's messages and prefix have."""
    found = text_tokens(request.prefix) + MESSAGE_TOKENS * len(request.messages)
    for content in (message["content"] for message in request.messages):
        blocks = [{"text": content}] if isinstance(content, str) else content
        found += sum(text_tokens(str(block["text"])) if "text" in block else IMAGE_TOKENS for block in blocks)
    return found


def text_tokens(text: str) -> int:
    """About how many tokens a text has."""
    wide, latin = len(_EAST_ASIAN.findall(text)), len(_LATIN.findall(text))
    return -(-(4 * wide + 2 * (len(text) - wide - latin) + latin) // 4)
