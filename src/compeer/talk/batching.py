"""Many outputs written together, token by token: rows join when they come and leave when they have ended.

A step of a small model on a CPU is mostly reading its weights, and on a GPU mostly starting kernels: both cost the same
for one row as for many. So one thread takes a step for all rows at work, then lets new ones in, as in every serving
engine since Orca. Each row has its own place in one table of keys and values, filled from the left, and its own
column to write next; a row that leaves gives its place to the last one, so that the rows at work always stand first.
What prompts have in common, as the task, an earlier turn or the steps of a first attempt, is not computed again.
Every row draws with the numbers of its own seed, so what it says depends on its company by no more than rounding does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from compeer.models.attention import use_grouped_attention
from compeer.models.vision import PictureReader
from compeer.policy.graphs import Slots
from compeer.policy.repeats import told_once
from compeer.statistics import generator
from compeer.talk.drawing import Row, next_tokens
from compeer.talk.writing import Ending, NotWritten

_COLUMNS = 256
"""The table of keys and values grows by so many columns."""
_KEPT = 1024
"""A table wider than this is given back when nobody is at work."""
_REMEMBERED, _LONGEST_REMEMBERED, _SHORTEST_SHARED = 4, 1024, 16
"""So many prompts of so many tokens at most are remembered; one that begins with as few as that again gains by it."""
_JOINING = 2
"""So many prompts are read between two steps at most: those at work must not wait long for newcomers."""


class _Places(Slots):
    """Keys and values of all rows; each writes in its own column."""

    columns: torch.Tensor

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        rows = torch.arange(self.rows, device=keys.device)
        keys[rows, :, self.columns] = key_states[:, :, 0]
        values[rows, :, self.columns] = value_states[:, :, 0]
        return keys[: self.rows, :, : self.width], values[: self.rows, :, : self.width]


class Batcher:
    """Writes outputs with a network, at most `rows` at a time; others wait in line."""

    def __init__(self, network: Any, tokenizer: Any, rows: int, reader: PictureReader | None = None) -> None:
        use_grouped_attention(network)
        self._network, self._tokenizer, self._most, self._reader = network, tokenizer, rows, reader
        self._ends = {tokenizer.eos_token_id}
        self._waiting: deque[Row] = deque()
        self._active: list[Row] = []
        self._table: _Places | None = None
        self._table_width = 0
        self._remembered: deque[tuple[tuple[int, ...], Any]] = deque(maxlen=_REMEMBERED)
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="compeer-batcher", daemon=True)
        self._thread.start()

    def submit(self, row: Row) -> None:
        """Puts a row in the line."""
        with self._changed:
            if self._closed:
                raise NotWritten("the supporter has been closed", passing=False)
            self._waiting.append(row)
            self._changed.notify()

    def cancel(self, row: Row) -> None:
        """Lets a row go, whether it waits or is at work."""
        row.cancelled = True

    def close(self) -> None:
        """Ends the thread; rows that are still here are told so."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the thread -----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._active and not self._waiting and self._table_width > _KEPT:
                    self._table, self._table_width = None, 0
                while not (self._active or self._waiting or self._closed):
                    self._changed.wait()
                closed = self._closed
            if closed:
                self._fail(NotWritten("the supporter has been closed", passing=False))
                return
            try:
                self._leave([row for row in self._active if row.cancelled])
                self._join()
                self._step()
            except Exception as error:  # memory that ran out, say: the rows of now fail, the next ones need not
                self._fail(NotWritten(f"the model failed: {type(error).__name__}"))

    def _fail(self, why: NotWritten) -> None:
        with self._changed:
            rows = [*self._active, *self._waiting]
            self._active, self._table, self._table_width = [], None, 0
            self._waiting.clear()
            self._remembered.clear()
        for row in rows:
            if not row.cancelled:
                row.tell(why)

    def _join(self) -> None:
        """Lets waiting rows in as long as there are places; rows with the same prompt share its reading."""
        for _ in range(_JOINING if self._active else self._most):
            group: list[Row] = []
            with self._changed:
                while self._waiting and len(self._active) + len(group) < self._most:
                    if not self._waiting[0].cancelled:
                        if group and not group[0].same_prompt(self._waiting[0]):
                            break
                        group.append(self._waiting[0])
                    self._waiting.popleft()
            if not group:
                return
            self._read(group)

    def _read(self, group: list[Row]) -> None:
        """Computes a prompt and puts its keys and values in the places of its rows; each draws its first token."""
        first, device = group[0], self._network.device
        cache, following = self._begun(first), len(first.ids)
        shared = cache.get_seq_length()
        inputs: dict[str, Any] = {"position_ids": torch.arange(shared, following, device=device)[None]}
        if self._reader and first.pictures:
            grids = [picture.grid for picture in first.pictures]
            positions, following = self._reader.positions(first.ids, grids)
            seen = {name: values.to(device) for name, values in self._reader.inputs(first.pictures).items()}
            inputs = {"position_ids": positions[:, None].to(device), **seen}
        try:
            logits = self._network(
                input_ids=torch.tensor([first.ids[shared:]], device=device),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
                **inputs,
            ).logits[:, -1]
        except Exception as error:  # what is wrong with one prompt does not concern the others
            for row in group:
                row.tell(NotWritten(f"the model failed: {type(error).__name__}"))
            return
        if not first.pictures and len(first.ids) <= _LONGEST_REMEMBERED:
            self._remembered.append((first.ids, cache))
        table = self._room(len(first.ids) + 1, cache)
        start = len(self._active)
        for layer, own in enumerate(cache.layers):
            table.keys[layer][start : start + len(group), :, : len(first.ids)] = own.keys
            table.values[layer][start : start + len(group), :, : len(first.ids)] = own.values
        for row in group:
            row.column, row.position = len(row.ids), following
            row.uniform = generator(row.seed, "tokens")
        self._active += group
        self._take(group, logits.expand(len(group), -1).clone())

    def _begun(self, row: Row) -> Any:
        """A cache that holds what the prompt has in common with a remembered one; its last token is always left."""
        cache = DynamicCache()
        if row.pictures:
            return cache
        lengths = [_common(ids, row.ids[:-1]) for ids, _ in self._remembered]
        longest = max(lengths, default=0)
        if longest >= _SHORTEST_SHARED:
            nearest = self._remembered[lengths.index(longest)][1]
            for number, layer in enumerate(nearest.layers):
                cache.update(layer.keys[:, :, :longest], layer.values[:, :, :longest], number)
        return cache

    def _room(self, width: int, cache: Any = None) -> _Places:
        """The table, made wider where it is too narrow; the first one is shaped like a cache."""
        old = self._table
        if old is not None and self._table_width >= width:
            return old
        pairs = (
            list(zip(old.keys, old.values, strict=True))
            if old is not None
            else [(one.keys, one.values) for one in cache.layers]
        )
        shapes = [(keys.shape, values.shape) for keys, values in pairs]
        wider = -(-width // _COLUMNS) * _COLUMNS
        new = _Places(shapes, self._most, wider, dtype=pairs[0][0].dtype, device=pairs[0][0].device)
        if old is not None:
            rows = len(self._active)
            for after, before in zip((*new.keys, *new.values), (*old.keys, *old.values), strict=True):
                after[:rows, :, : self._table_width] = before[:rows]
        self._table, self._table_width = new, wider
        return new

    def _step(self) -> None:
        """Feeds each row at work its last token, and draws the next."""
        if not self._active:
            return
        rows, device = list(self._active), self._network.device
        width = max(row.column for row in rows) + 1
        table = self._room(width)
        table.rows, table.width = len(rows), width
        table.columns = torch.tensor([row.column for row in rows], device=device)
        seen = torch.arange(width, device=device) <= table.columns[:, None]
        logits = self._network(
            input_ids=torch.tensor([row.said[-1:] for row in rows], device=device),
            attention_mask=seen[:, None, None],
            position_ids=torch.tensor([[row.position] for row in rows], device=device),
            past_key_values=table,
            use_cache=True,
        ).logits[:, -1]
        for row in rows:
            row.column, row.position = row.column + 1, row.position + 1
        self._take(rows, logits)

    def _take(self, rows: Sequence[Row], logits: torch.Tensor) -> None:
        """Draws a token for each row, tells what it adds to the text, and lets go of rows that have ended."""
        gone = []
        for row, token in zip(rows, next_tokens(logits, rows, self._tokenizer.eos_token_id), strict=True):
            ended = token in self._ends
            if not ended:
                row.said.append(token)
                if row.matcher is not None:
                    row.matcher.consume_token(token)
            cut_off = not ended and len(row.said) >= row.sampling.max_tokens
            ended = self._tell(row, ended or cut_off) or ended
            if ended or cut_off:
                gone.append(row)
                if not row.cancelled:
                    row.tell(Ending(cut_off and not ended, len(row.said), len(row.ids)))
        self._leave(gone)

    def _tell(self, row: Row, last: bool) -> bool:
        """Tells what is new in a row's text, half characters and what may begin a stop or a repetition held back.

        Returns whether the row is over.
        """
        text = self._tokenizer.decode(row.said, skip_special_tokens=True)
        stops = [place for stop in row.sampling.stop if (place := text.find(stop)) >= 0]
        if stops:
            text = text[: min(stops)]
        elif not last:
            text = text[: len(text) - max((len(stop) - 1 for stop in row.sampling.stop), default=0)]
            text = text.rstrip("\ufffd")
        text, over = told_once(text, row.begun, last or bool(stops))
        if len(text) > row.told and not row.cancelled:
            row.tell(text[row.told :])
            row.told = len(text)
        return over or bool(stops)

    def _leave(self, gone: Sequence[Row]) -> None:
        """Gives the places of these rows to the last ones."""
        for row in gone:
            place, last = self._active.index(row), len(self._active) - 1
            if place < last and self._table is not None:
                columns = self._active[last].column
                for own in (*self._table.keys, *self._table.values):
                    own[place, :, :columns] = own[last, :, :columns]
                self._active[place] = self._active[last]
            self._active.pop()


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two prompts begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
