"""What asking cost: calls and answers counted as they happen, shown while a run goes on and in a table at its end.

Each call over the wire ends in exactly one way, so that calls = successes + retried + failed; each request ends in
exactly one way too: from the cache, shared with the same request at the same time, a success, or a failure.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.live import Live
from rich.table import Table
from rich.text import Text

from compeer.progress import console

LINE_EVERY = 20.0


@dataclass
class Counters:
    """What a model was asked, and how that ended. Failures are counted by their kind."""

    requests: int = 0
    calls: int = 0
    """Made over the wire, whatever came of them; for a model in this process: requests that it worked on."""
    cached: int = 0
    shared: int = 0
    successes: int = 0
    retried: Counter[str] = field(default_factory=Counter)
    """Calls that failed and were followed by another try, or would have been if the run had not been stopped."""
    failed: Counter[str] = field(default_factory=Counter)
    """Calls that failed for good; `stopped` were broken off by us."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    held_by_caps: float = 0.0
    """Seconds in which the caps on requests and tokens let nothing through."""
    held_by_server: float = 0.0
    """Seconds in which nothing was sent because the server had asked for a pause."""

    def line(self) -> str:
        """The figures in one line, for a run that goes on."""
        parts = [f"{self.calls} calls", f"{self.cached} from the cache"]
        if retried := self.retried.total():
            parts.append(f"{retried} tried again")
        if failed := self.failed.total():
            parts.append(f"{failed} failed")
        return ", ".join([*parts, f"{self.prompt_tokens + self.completion_tokens} tokens"])


def counters_table(counters: Counters) -> Table:
    """The figures as a table: calls and how they ended, answers that needed none, tokens, and time lost to limits."""
    table = Table(title="Model calls", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("requests", f"{counters.requests}")
    table.add_row("  from the cache", f"{counters.cached}")
    table.add_row("  same as another one under way", f"{counters.shared}")
    table.add_section()
    table.add_row("calls", f"{counters.calls}")
    table.add_row("  answered", f"{counters.successes}")
    for title, kinds in (("tried again", counters.retried), ("failed", counters.failed)):
        table.add_row(f"  {title}", f"{kinds.total()}")
        for kind, count in sorted(kinds.items()):
            table.add_row(f"    {kind}", f"{count}")
    table.add_section()
    table.add_row("prompt tokens", f"{counters.prompt_tokens}")
    table.add_row("completion tokens", f"{counters.completion_tokens}")
    table.add_row("seconds held back by caps", f"{counters.held_by_caps:.1f}")
    table.add_row("seconds held back by the server", f"{counters.held_by_server:.1f}")
    return table


@contextmanager
def counters_shown(what: str, counters: Counters) -> Iterator[None]:
    """Shows the figures while the work inside goes on: a line that changes on a terminal, now and then one in a log."""
    if console.is_terminal:
        shown = Live(get_renderable=lambda: Text(f"{what}: {counters.line()}"), console=console, transient=True)
        with shown:
            yield
        return
    done = threading.Event()

    def speak() -> None:
        while not done.wait(LINE_EVERY):
            console.print(f"  {what}: {counters.line()}", highlight=False)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
