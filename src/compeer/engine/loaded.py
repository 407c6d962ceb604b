"""A base that is loaded once for all who use it: supporter and judge share its weights, each with its own adapters."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import torch

from compeer.engine.batching import Batcher
from compeer.engine.llama import Llama
from compeer.engine.llama_table import LlamaTable
from compeer.engine.prepared import Prepared, engine_cache

_TOKENS, _LONGEST = 16384, 4096
"""Memory is set aside for so many tokens, which the rows share evenly; no row needs more than the second number."""
_LARGE, _ROWS, _FEW_ROWS = 512 << 20, 8, 2
"""Bases of more bytes than this write fewer rows at a time: on a CPU, eight together gain little over one after the
other, and memory is set aside for each."""


class _Shared:
    """A loaded base and its thread."""

    def __init__(self, base: Path, rows: int, end: int) -> None:
        self.llama = Llama(base, rows + 1, min(_LONGEST, _TOKENS // rows))
        self.table = LlamaTable(self.llama, engine_cache() / "states")
        self.batcher = Batcher(self.table, end)
        self.users = 0


_shared: dict[tuple[Path, int, int], _Shared] = {}
_loading = threading.Lock()


class CpuEngine:
    """A model on llama.cpp, which writes `rows` outputs at a time. `end` is the token that ends an output."""

    def __init__(self, prepared: Prepared, end: int, rows: int | None = None) -> None:
        self.rows = rows or (_ROWS if prepared.base.stat().st_size < _LARGE else _FEW_ROWS)
        self.adapter = prepared.adapter
        self._key = (prepared.base, self.rows, end)
        with _loading:
            if self._key not in _shared:
                _shared[self._key] = _Shared(*self._key)
            self._own: _Shared | None = _shared[self._key]
            self._own.users += 1
        self.batcher, self.table = self._own.batcher, self._own.table
        self.vocabulary, self.width = self._own.llama.vocabulary, self._own.llama.width

    def keep(self, ids: Sequence[int]) -> None:
        """Has the beginning of prompts at hand from now on, from disk if it was computed before."""
        self.batcher.ask(lambda: self.table.keep(ids, self.adapter)).result()

    def logits(self, ids: Sequence[int]) -> Future[torch.Tensor]:
        """The logits after a prompt; what it has in common with others is not computed again."""
        return self.batcher.ask(lambda: self.table.answer(ids, self.adapter))

    def close(self) -> None:
        """Ends its work; the last one to do so ends the base's."""
        with _loading:
            if self._own is None:
                return
            own, self._own = self._own, None
            own.users -= 1
            if own.users:
                return
            _shared.pop(self._key, None)
        own.batcher.close()
