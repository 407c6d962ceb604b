"""Whether the work that a text makes grows with its length and not with its square, on a machine of any speed."""

import time
from collections.abc import Callable

TIMES = 8
"""How much longer the long text is than the short one; its square would make 64 times the work."""


def grows_with_length(work: Callable[[str], object], text: str) -> bool:
    """Compares the processor time for the text with that for its first eighth; other programs do not count."""
    short = text[: len(text) // TIMES]
    work(short)  # what is made on the first call
    least = min(_seconds(work, short) for _ in range(3))
    return any(_seconds(work, text) < 3 * TIMES * max(least, 1e-3) for _ in range(3))


def _seconds(work: Callable[[str], object], text: str) -> float:
    start = time.thread_time()
    work(text)
    return time.thread_time() - start
