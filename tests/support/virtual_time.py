"""Time that passes only when everyone waits: an hour of pauses takes no time, and no machine is too slow for it."""

import asyncio
import time
from collections.abc import Coroutine
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as there is nothing else to do."""

    _now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_virtually(monkeypatch: pytest.MonkeyPatch, work: Coroutine[Any, Any, Any], *modules: ModuleType) -> float:
    """Does the work, in which no thread and no socket may be waited for; how many seconds passed by its own clock.

    The modules are those that look at the time.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, monkeypatch.context() as patch:
        loop = runner.get_loop()
        for module in modules:
            patch.setattr(module, "time", SimpleNamespace(monotonic=loop.time, time_ns=time.time_ns))
        runner.run(work)
        return loop.time()
