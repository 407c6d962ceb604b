"""Progress of long work: a bar with the time left on a terminal, a line now and then in a log."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(stderr=True)
_LINE_EVERY = 20.0


def first_process() -> bool:
    """Whether this is the process that writes and prints, where several train together."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes how much more has been done."""
    if console.is_terminal:
        done_so_far = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        time_left = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        with Progress(*done_so_far, *time_left, console=console, transient=True) as bars:
            task = bars.add_task(what, total=total)
            yield lambda count: bars.advance(task, count)
        return
    done, start, spoken = 0, time.monotonic(), time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, spoken
        done += count
        now = time.monotonic()
        if now - spoken >= _LINE_EVERY and done:
            spoken = now
            left = (now - start) / done * (total - done)
            console.print(f"  {what}: {done}/{total}, about {left:.0f} s left", highlight=False)

    yield advance
