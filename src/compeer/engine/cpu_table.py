"""Rows on a CPU: a sequence each, and what was read once is not read again; a base is loaded once for all users.

Two engines with the same calls compute them: torch in eight bits (`int8.py`) where the processor and the model allow
it, else llama.cpp (`llama.py`). A sequence that a row has left keeps its prompt until it is needed; then the keys and
values are put aside in memory, as many as there is room for. A prompt begins with what it has most in common with any
of them. What all prompts of a model begin with (its task) is computed once for good: its keys and values are kept on
disk, beside a hash of themselves, under a name made of all that they depend on.

Both engines round otherwise when they compute one token or many. So prompts are read in blocks that always end at the
same tokens, and only whole blocks are used again: what a prompt comes to does not depend on what was read before.
"""

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from compeer.engine.batching import Batcher
from compeer.engine.gguf import file_mark
from compeer.engine.int8 import Int8, is_supported
from compeer.engine.llama import BATCH, Llama
from compeer.engine.rows import Backend, ModelFiles, Row, common
from compeer.io import atomic, text_hash
from compeer.pipeline import in_blocks

_REMEMBERED = 256  # answers by prompt: ranking asks about the steps of an output once for each other output
_SHORTEST_SHARED = 16  # a prompt that has fewer tokens in common with another is read from its start
_PUT_ASIDE = 256 << 20  # bytes of keys and values that are put aside; those not used for the longest time go first

_TOKENS, _LONGEST = 16384, 4096  # llama.cpp has memory for so many, shared evenly; no row needs more than the second
_LARGE, _ROWS, _FEW_ROWS = 512 << 20, 8, 2
"""Bases of more bytes than this write fewer rows at a time on llama.cpp: eight together gain little over one after the
other there, and memory is set aside for each."""

Known = tuple[Path | None, tuple[int, ...]]  # tokens, and the adapters that they were read with


@dataclass(eq=False)
class _Sequence:
    """A slot for a row: the tokens whose keys and values it holds, `clean` of them in whole blocks."""

    number: int
    tokens: list[int] = field(default_factory=list)
    clean: int = 0
    adapter: Path | None = None
    row: Row | None = None


class CpuTable(Backend):
    """Holds a row for each of the model's sequences but one, which is there for questions. `kept` is a folder."""

    at_once = 64

    def __init__(self, model: Llama | Int8, kept: Path | None = None) -> None:
        self.rows: list[Row] = []
        self.most = model.sequences - 1
        self._model, self._kept = model, kept
        self._sequences = [_Sequence(number) for number in range(model.sequences)]  # the last one was read into last
        self._aside: OrderedDict[Known, bytes] = OrderedDict()
        self._fixed: dict[Known, bytes] = {}
        self.read = 0  # tokens of prompts that were computed so far

    # --- what the batcher calls -----------------------------------------------------------------------------------

    def join(self, group: list[Row]) -> torch.Tensor:
        first = group[0]
        slot, logits = self._reading([*first.ids, *first.tokens], first.adapter, group)
        slot.row = first
        state = self._model.state(slot.number) if len(group) > 1 else b""
        for row in group[1:]:
            other = self._free()
            if not self._put(other, (slot.adapter, tuple(slot.tokens)), slot.clean, state):
                raise RuntimeError("the engine does not take its own state back")
            other.row = row
        self.rows += group
        return logits.expand(len(group), -1).clone()

    def step(self) -> torch.Tensor:
        found: dict[int, torch.Tensor] = {}
        for adapter in dict.fromkeys(row.adapter for row in self.rows):
            self._model.use(adapter)
            own = [row for row in self.rows if row.adapter == adapter]
            found |= zip(map(id, own), self._fed(own), strict=True)
        return torch.stack([found[id(row)] for row in self.rows])

    def leave(self, row: Row) -> None:
        self.rows.remove(row)
        for slot in self._sequences:
            if slot.row is row:
                slot.row = None
                self._cut(slot, slot.clean)

    def answer(self, ids: Sequence[int], adapter: Path | None) -> torch.Tensor:
        """The logits after a prompt of which nothing is to be written."""
        return self._reading(list(ids), adapter, [])[1][0]

    def clear(self) -> None:
        self.rows.clear()
        self._aside.clear()
        self._model.clear()
        for slot in self._sequences:
            slot.tokens, slot.clean, slot.row = [], 0, None

    def close(self) -> None:
        self._model.close()

    # --- reading --------------------------------------------------------------------------------------------------

    def keep(self, ids: Sequence[int], adapter: Path | None = None) -> None:
        """Computes how prompts begin, or takes it from disk, and has it at hand from now on."""
        known = (adapter, tuple(ids))
        if len(ids) < _SHORTEST_SHARED or known in self._fixed:
            return
        path = self._kept / f"{self._mark(known)}.state" if self._kept else None
        state = _read_state(path) if path else None
        if state and self._put(self._free(), known, len(ids), state):
            self._fixed[known] = state
            return
        slot, _ = self._reading(list(ids), adapter, [])
        slot.clean = len(ids)
        self._fixed[known] = self._model.state(slot.number)
        if path:
            _write_state(path, self._fixed[known])

    def _reading(self, ids: list[int], adapter: Path | None, group: Sequence[Row]) -> tuple[_Sequence, torch.Tensor]:
        """A free sequence that holds these tokens, and the logits after them."""
        kept = [len(known) for own, known in self._fixed if own == adapter and tuple(ids[: len(known)]) == known]
        # blocks begin after what is kept, if the prompt begins with it
        first, block = max((length for length in kept if length < len(ids)), default=0), self._model.block
        slot = self._begun(ids, adapter, first)
        self._model.use(adapter)
        try:
            while True:
                start = len(slot.tokens)
                part = ids[start : start + block if start >= first else min(first, start + block)]
                last = start + len(part) == len(ids)
                wanted = [False] * (len(part) - 1) + [last]
                positions = range(start, start + len(part))
                found = self._model.decode([slot.number] * len(part), positions, part, wanted)
                slot.tokens += part
                slot.clean = len(slot.tokens) if len(part) == block else slot.clean
                self.read += len(part)
                if last:
                    return slot, torch.from_numpy(found)
                if group and all(row.cancelled for row in group):
                    raise RuntimeError("called off")
        except Exception:
            self._cut(slot, 0)
            raise

    def _begun(self, ids: list[int], adapter: Path | None, first: int) -> _Sequence:
        """A free sequence that holds what a prompt has in common with what is known; its last token is always left."""
        fresh = ids[:-1]

        def shared(tokens: Sequence[int]) -> int:
            length = common(tokens, fresh)
            return first + (length - first) // self._model.block * self._model.block if length >= first else 0

        held = [(shared(one.tokens[: one.clean]), one) for one in self._sequences if one.adapter == adapter]
        aside = [(shared(known[1]), known) for known in (*self._fixed, *self._aside) if known[0] == adapter]
        length, nearest = max(held, key=lambda one: one[0], default=(0, None))
        other, known = max(aside, key=lambda one: one[0], default=(0, None))
        slot = self._free()
        if nearest and nearest.row is None and length >= other and length > nearest.clean // 2:
            slot = nearest  # the same conversation goes on
        elif max(length, other) < _SHORTEST_SHARED:
            self._make_room(slot)
        elif nearest and length > other:
            self._put(slot, (adapter, tuple(nearest.tokens)), nearest.clean, self._model.state(nearest.number))
        elif known:
            if known in self._aside:
                self._aside.move_to_end(known)
            self._put(slot, known, len(known[1]), self._fixed.get(known) or self._aside[known])
        self._cut(slot, shared(slot.tokens[: slot.clean]))
        slot.adapter = adapter
        self._sequences.remove(slot)
        self._sequences.append(slot)
        return slot

    def _put(self, slot: _Sequence, known: Known, clean: int, state: bytes) -> bool:
        """Puts keys and values into a sequence, its own aside; False where they do not fit."""
        self._make_room(slot)
        if fits := self._model.restore(slot.number, state):
            slot.adapter, slot.tokens, slot.clean = known[0], list(known[1]), clean
        return fits

    def _free(self) -> _Sequence:
        """The sequence that nobody has used for the longest time."""
        return next(slot for slot in self._sequences if slot.row is None)

    def _make_room(self, slot: _Sequence) -> None:
        """Puts what a sequence holds aside, unless it is at hand elsewhere, and empties it."""
        self._cut(slot, slot.clean)
        known = (slot.adapter, tuple(slot.tokens))
        if len(slot.tokens) >= 2 * _SHORTEST_SHARED and known not in self._fixed and known not in self._aside:
            self._aside[known] = self._model.state(slot.number)
            while sum(map(len, self._aside.values())) > _PUT_ASIDE:
                self._aside.popitem(last=False)
        self._cut(slot, 0)

    def _cut(self, slot: _Sequence, length: int) -> None:
        self._model.cut(slot.number, length)
        del slot.tokens[length:]
        slot.clean = min(slot.clean, length)

    def _fed(self, rows: Sequence[Row]) -> torch.Tensor:
        """Feeds the sequences of rows their new tokens; the logits after it."""
        slots = {id(slot.row): slot for slot in self._sequences}
        fed: list[tuple[int, int, int, bool]] = []
        for row in rows:
            slot, start = slots[id(row)], len(slots[id(row)].tokens)
            new = [*row.ids, *row.tokens][start:]
            last = start + len(new) - 1
            fed += [(slot.number, position, token, position == last) for position, token in enumerate(new, start)]
            slot.tokens += new
        batches = [self._model.decode(*zip(*batch, strict=True)) for batch in in_blocks(fed, BATCH)]
        return torch.from_numpy(np.concatenate(batches))

    # --- on disk --------------------------------------------------------------------------------------------------

    def _mark(self, known: Known) -> str:
        """A name for keys and values that changes with everything that they depend on."""
        adapter, ids = known
        files = [file_mark(path) for path in (self._model.path, adapter) if path]
        return text_hash(repr((self._model.mark, files, ids)))[:32]


def _read_state(path: Path) -> bytes | None:
    """What was kept, if it is whole."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    return found[32:] if hashlib.sha256(found[32:]).digest() == found[:32] else None


def _write_state(path: Path, state: bytes) -> None:
    """Keeps it, whole or not at all; a disk that is full or may not be written costs time, nothing else."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as unfinished:
            unfinished.write_bytes(hashlib.sha256(state).digest() + state)


_loaded: dict[tuple[Path, int, int], tuple[Llama | Int8, CpuTable, Batcher]] = {}
_users: Counter[tuple[Path, int, int]] = Counter()
_loading = threading.Lock()


class CpuEngine:
    """A model on a CPU, which writes `rows` outputs at a time, each to its `end`; engines on the same base share it."""

    def __init__(self, files: ModelFiles, end: int, rows: int | None = None) -> None:
        eight_bits = is_supported(files.base)
        self.rows = rows or (_ROWS if eight_bits or files.base.stat().st_size < _LARGE else _FEW_ROWS)
        self.adapter = files.adapter
        self._key = (files.base, self.rows, end)
        self._closed = False
        with _loading:
            if self._key not in _loaded:
                width = _LONGEST if eight_bits else min(_LONGEST, _TOKENS // self.rows)
                model = (Int8 if eight_bits else Llama)(files.base, self.rows + 1, width)
                table = CpuTable(model, files.states)
                _loaded[self._key] = model, table, Batcher(table, end)
            model, self.table, self.batcher = _loaded[self._key]
            _users[self._key] += 1
            if files.exact and isinstance(model, Int8):
                model.exact.add(files.adapter)
        self.vocabulary, self.width = model.vocabulary, model.width
        self._probabilities = lru_cache(_REMEMBERED)(self._asked)

    def keep(self, ids: Sequence[int]) -> None:
        """Has the beginning of prompts at hand from now on, from disk if it was computed before."""
        self.batcher.ask(lambda: self.table.keep(ids, self.adapter)).result()

    def logits(self, ids: Sequence[int]) -> Future[torch.Tensor]:
        """The logits after a prompt; what it has in common with others is not computed again."""
        return self.batcher.ask(lambda: self.table.answer(ids, self.adapter))

    def probabilities(self, ids: Sequence[int], answers: Sequence[int]) -> list[float]:
        """How probable each of these tokens is after a prompt, given that it is one of them."""
        return list(self._probabilities(tuple(ids), tuple(answers)))

    def _asked(self, ids: tuple[int, ...], answers: tuple[int, ...]) -> list[float]:
        found: list[float] = self.logits(ids).result()[list(answers)].float().softmax(0).tolist()
        return found

    def close(self) -> None:
        """Ends its work; the last one to do so ends the base's."""
        with _loading:
            if self._closed:
                return
            self._closed = True
            _users[self._key] -= 1
            if _users[self._key]:
                return
            del _loaded[self._key]
        self.batcher.close()
