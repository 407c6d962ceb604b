"""Rows on torch, for GPUs and for models that see: one table of keys and values, a place in it for each row.

Each row has its own place in the table, filled from the left, and its own column to write next; a row that leaves gives
its place to the last one, so that the rows at work always stand first. What prompts have in common, as the task, an
earlier turn or the steps of a first attempt, is not computed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache

from compeer.engine.rows import Row, common
from compeer.models.attention import use_grouped_attention
from compeer.models.vision import PictureReader

_COLUMNS = 256
"""The table of keys and values grows by so many columns."""
_KEPT = 1024
"""A table wider than this is given back when nobody is at work."""
_REMEMBERED, _LONGEST_REMEMBERED, _SHORTEST_SHARED = 4, 1024, 16
"""So many prompts of so many tokens at most are remembered; one that begins with as few as that again gains by it."""


class Slots(Cache):  # type: ignore[misc]
    """Keys and values of all layers in one place each; `rows` and `width` say which part of them a step uses."""

    def __init__(self, shapes: Sequence[tuple[torch.Size, torch.Size]], rows: int, width: int, **like: Any) -> None:
        super().__init__(layers=[])
        self.keys = [torch.zeros((rows, key[1], width, key[3]), **like) for key, _ in shapes]
        self.values = [torch.zeros((rows, value[1], width, value[3]), **like) for _, value in shapes]
        self.column = torch.zeros(1, dtype=torch.long, device=like["device"])
        self.rows, self.width = rows, width

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.keys[layer_idx][: self.rows], self.values[layer_idx][: self.rows]
        keys.index_copy_(2, self.column, key_states.to(keys.dtype))
        values.index_copy_(2, self.column, value_states.to(values.dtype))
        return keys[:, :, : self.width], values[:, :, : self.width]


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


class TorchTable:
    """Holds at most `most` rows of a network that transformers loaded."""

    at_once = 1

    def __init__(self, network: Any, most: int, reader: PictureReader | None = None) -> None:
        use_grouped_attention(network)
        self.rows: list[Row] = []
        self.most = most
        self.network, self._reader = network, reader
        self._table: _Places | None = None
        self._width = 0
        self._columns: list[int] = []
        self._positions: list[int] = []
        self._remembered: deque[tuple[tuple[int, ...], Any]] = deque(maxlen=_REMEMBERED)
        self.read = 0
        """Tokens of prompts that were computed so far."""

    def join(self, group: list[Row]) -> torch.Tensor:
        first = group[0]
        cache, logits, following = self._read(first.ids, first.pictures)
        table = self._room(len(first.ids) + 1, cache)
        start = len(self.rows)
        for layer, own in enumerate(cache.layers):
            table.keys[layer][start : start + len(group), :, : len(first.ids)] = own.keys
            table.values[layer][start : start + len(group), :, : len(first.ids)] = own.values
        self._columns += [len(first.ids)] * len(group)
        self._positions += [following] * len(group)
        self.rows += group
        return logits.expand(len(group), -1).clone()

    def step(self) -> torch.Tensor:
        device = self.network.device
        width = max(self._columns) + 1
        table = self._room(width)
        table.rows, table.width = len(self.rows), width
        table.columns = torch.tensor(self._columns, device=device)
        seen = torch.arange(width, device=device) <= table.columns[:, None]
        logits: torch.Tensor = self.network(
            input_ids=torch.tensor([row.said[-1:] for row in self.rows], device=device),
            attention_mask=seen[:, None, None],
            position_ids=torch.tensor(self._positions, device=device)[:, None],
            past_key_values=table,
            use_cache=True,
        ).logits[:, -1]
        self._columns = [column + 1 for column in self._columns]
        self._positions = [position + 1 for position in self._positions]
        return logits

    def leave(self, row: Row) -> None:
        place, last = self.rows.index(row), len(self.rows) - 1
        if place < last and self._table is not None:
            columns = self._columns[last]
            for own in (*self._table.keys, *self._table.values):
                own[place, :, :columns] = own[last, :, :columns]
        self.rows[place] = self.rows[last]
        for values in (self._columns, self._positions):
            values[place] = values[last]
        self._forget_after(last)

    def answer(self, ids: Sequence[int], adapter: Path | None) -> torch.Tensor:
        assert adapter is None, "torch holds one set of weights"
        return self._read(tuple(ids), ())[1][0]

    def rest(self) -> None:
        if self._width > _KEPT:
            self._table, self._width = None, 0

    def clear(self) -> None:
        self._table, self._width = None, 0
        self._remembered.clear()
        self._forget_after(0)

    def close(self) -> None:
        """Nothing is to be done: memory goes with the last reference."""

    def _forget_after(self, length: int) -> None:
        del self.rows[length:], self._columns[length:], self._positions[length:]

    def _read(self, ids: tuple[int, ...], pictures: Sequence[Any]) -> tuple[Any, torch.Tensor, int]:
        """Computes a prompt: its cache, the logits after it, and the position of what follows."""
        device = self.network.device
        cache, following = self._begun(ids, pictures), len(ids)
        shared = cache.get_seq_length()
        inputs: dict[str, Any] = {"position_ids": torch.arange(shared, following, device=device)[None]}
        if self._reader and pictures:
            positions, following = self._reader.positions(ids, [picture.grid for picture in pictures])
            seen = {name: values.to(device) for name, values in self._reader.inputs(pictures).items()}
            inputs = {"position_ids": positions[:, None].to(device), **seen}
        logits = self.network(
            input_ids=torch.tensor([ids[shared:]], device=device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            **inputs,
        ).logits[:, -1]
        self.read += len(ids) - shared
        if not pictures and len(ids) <= _LONGEST_REMEMBERED:
            self._remembered.append((ids, cache))
        return cache, logits, following

    def _begun(self, ids: tuple[int, ...], pictures: Sequence[Any]) -> Any:
        """A cache that holds what the prompt has in common with a remembered one; its last token is always left."""
        cache = DynamicCache()
        if pictures:
            return cache
        lengths = [common(known, ids[:-1]) for known, _ in self._remembered]
        longest = max(lengths, default=0)
        if longest >= _SHORTEST_SHARED:
            nearest = self._remembered[lengths.index(longest)][1]
            for number, layer in enumerate(nearest.layers):
                cache.update(layer.keys[:, :, :longest], layer.values[:, :, :longest], number)
        return cache

    def _room(self, width: int, cache: Any = None) -> _Places:
        """The table, made wider where it is too narrow; the first one is shaped like a cache."""
        old = self._table
        if old is not None and self._width >= width:
            return old
        pairs = (
            list(zip(old.keys, old.values, strict=True))
            if old is not None
            else [(one.keys, one.values) for one in cache.layers]
        )
        shapes = [(keys.shape, values.shape) for keys, values in pairs]
        wider = -(-width // _COLUMNS) * _COLUMNS
        new = _Places(shapes, self.most, wider, dtype=pairs[0][0].dtype, device=pairs[0][0].device)
        if old is not None:
            rows = len(self.rows)
            for after, before in zip((*new.keys, *new.values), (*old.keys, *old.values), strict=True):
                after[:rows, :, : self._width] = before[:rows]
        self._table, self._width = new, wider
        return new
