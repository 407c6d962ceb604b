"""Rows on torch: one table of keys and values, and the one decode step by which everything on torch goes on.

Each row of the table has its own columns, from where it starts to the one that is written next. Chat and generation
fill rows from the left as they come (`TorchTable`); rollouts fill all rows up to the same column (`rollouts.py`). The
tensors of a table stay at their addresses, so a CUDA graph can repeat a step. What prompts begin with in common is
computed once (`PromptMemory`).
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache

from compeer.engine.attention import GROUPED, attend
from compeer.engine.multimodal import PictureReader, inputs_beside_tokens
from compeer.engine.network import last_logits
from compeer.engine.rows import Backend, Row

_COLUMNS = 256  # the table of keys and values grows by so many columns, and to twice as many rows
_KEPT = 1024  # a table wider than this is given back when nobody is at work
_BLOCK = {"cpu": 64, "cuda": 256}  # tokens of a block: smaller ones leave less to be read again, larger are faster
_BYTES = {"cpu": 2 << 30, "cuda": 256 << 20}  # memory for blocks; those not used for the longest time go first

Keys = tuple[Tensor, Tensor]  # keys and values of a layer, (rows, heads, columns, size)


class Slots(Cache):  # type: ignore[misc]
    """Keys and values of all layers for so many rows and columns; `like` are some of each layer."""

    def __init__(self, like: Sequence[Keys], rows: int, width: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(layers=[])
        self.most, self.width = rows, width
        self.dtype, self.device = dtype or like[0][0].dtype, like[0][0].device

        def empty(one: Tensor) -> Tensor:
            return torch.zeros((rows, one.shape[1], width, one.shape[3]), dtype=self.dtype, device=self.device)

        self.keys, self.values = (list(map(empty, tensors)) for tensors in zip(*like, strict=True))
        self.state = torch.zeros((3, rows), dtype=torch.long, device=self.device)
        self.starts, self.columns, self.positions = self.state
        """Of each row: its first column, the column to write next, and the position of what is written there."""
        self._numbers = torch.arange(max(rows, width), device=self.device)
        self._used = (rows, width)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        rows, width = self._used
        index, columns = self._numbers[:rows], self.columns[:rows]
        keys[index, :, columns] = key_states[:, :, 0].to(self.dtype)
        values[index, :, columns] = value_states[:, :, 0].to(self.dtype)
        return keys[:rows, :, :width], values[:rows, :, :width]

    def step(self, network: Any, tokens: Tensor, rows: int, width: int) -> Tensor:
        """Feeds each of the first rows its token, (rows, 1); the logits after it. Only `width` columns are attended."""
        self._used = (rows, width)
        columns = self._numbers[:width]
        attended = (columns >= self.starts[:rows, None]) & (columns <= self.columns[:rows, None])
        # filled by numbers, not by tensors: those would be copied from the host, which a CUDA graph cannot record
        bias = torch.zeros_like(attended, dtype=self.dtype).masked_fill_(~attended, torch.finfo(self.dtype).min)
        logits: Tensor = network(
            input_ids=tokens[:rows],
            attention_mask=bias[:, None, None],
            position_ids=self.positions[:rows, None],
            past_key_values=self,
            use_cache=True,
        ).logits[:, -1]
        self.columns[:rows].add_(1)
        self.positions[:rows].add_(1)
        return logits

    def fill(self, cache: Any, first: int, last: int, position: int) -> None:
        """Puts a prompt's keys and values into rows from `first` to before `last`, from the left."""
        length = cache.get_seq_length()
        for layer, own in enumerate(cache.layers):
            self.keys[layer][first:last, :, :length] = own.keys
            self.values[layer][first:last, :, :length] = own.values
        self.starts[first:last], self.columns[first:last], self.positions[first:last] = 0, length, position

    def move(self, indices: Any, to: Any, columns: int) -> None:
        """Copies rows to other rows, with so many of their columns."""
        self.state[:, to] = self.state[:, indices]
        for own in (*self.keys, *self.values):
            own[to, :, :columns] = own[indices, :, :columns]


class PromptMemory:
    """Reads prompts with a network, block by block, and what it remembers of them not again.

    What a block holds follows from the tokens up to its end and from nothing else: it is always computed in the same
    shape, after the same blocks. So the bits of an answer are the same whether its blocks were there before or not, and
    a run that was killed and taken up comes to the same bytes.
    """

    def __init__(self, network: Any, memory: int | None = None) -> None:
        self._network = network
        self._block = _BLOCK[network.device.type]
        self._memory = memory or _BYTES[network.device.type]
        self._blocks: OrderedDict[tuple[int, ...], list[Keys]] = OrderedDict()
        self._bytes = 0
        self.read = 0  # tokens that were computed so far

    def clear(self) -> None:
        self._blocks.clear()
        self._bytes = 0

    @torch.inference_mode()
    def prompt(self, ids: Sequence[int]) -> tuple[DynamicCache, Tensor]:
        """Keys and values of a prompt, and the logits after it, (1, tokens). The last token is always computed."""
        names = [tuple(ids[:end]) for end in range(self._block, len(ids), self._block)]
        known = next((n for n, name in enumerate(names) if name not in self._blocks), len(names))
        cache = DynamicCache()
        remembered = [self._blocks[name] for name in names[:known]]
        for layer, parts in enumerate(zip(*remembered, strict=True)):
            keys, values = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
            cache.update(keys, values, layer)
        for name in names[known:]:
            self.feed(cache, name[-self._block :])
            new = slice(-self._block, None)
            self._blocks[name] = [(one.keys[:, :, new].clone(), one.values[:, :, new].clone()) for one in cache.layers]
            self._bytes += _size(self._blocks[name])
        logits = self.feed(cache, ids[len(names) * self._block :])
        for name in reversed(names):  # of two blocks of a prompt the later one goes first: it is of no use by itself
            self._blocks.move_to_end(name)
        while self._bytes > self._memory:
            self._bytes -= _size(self._blocks.popitem(last=False)[1])
        return cache, logits

    def feed(self, cache: DynamicCache, ids: Sequence[int], **inputs: Any) -> Tensor:
        """Computes tokens; the logits after them. `inputs` are what the network takes beside them, if not positions."""
        start, device = cache.get_seq_length(), self._network.device
        self.read += len(ids)
        inputs = inputs or {"position_ids": torch.arange(start, start + len(ids), device=device)[None]}
        return last_logits(self._network, torch.tensor([list(ids)], device=device), cache, **inputs)


def _size(block: Sequence[Keys]) -> int:
    return sum(one.nbytes for pair in block for one in pair)


class TorchTable(Backend):
    """Holds at most `most` rows of a network that transformers loaded."""

    at_once = 1

    def __init__(self, network: Any, most: int, reader: PictureReader | None = None) -> None:
        attend(network, GROUPED)
        self.rows: list[Row] = []
        self.most = most
        self.network, self._reader = network, reader
        self._slots: Slots | None = None
        self._memory = PromptMemory(network)

    def join(self, group: list[Row]) -> Tensor:
        first = group[0]
        cache, logits, following = self._read(first.ids, first.pictures)
        start, end = len(self.rows), len(self.rows) + len(group)
        self._room(end, len(first.ids) + 1, cache).fill(cache, start, end, following)
        self.rows += group
        return logits.expand(len(group), -1).clone()

    def step(self) -> Tensor:
        width = max(len(row.ids) + len(row.tokens) for row in self.rows)
        tokens = torch.tensor([row.tokens[-1:] for row in self.rows], device=self.network.device)
        return self._room(len(self.rows), width).step(self.network, tokens, len(self.rows), width)

    def leave(self, row: Row) -> None:
        index, last = self.rows.index(row), len(self.rows) - 1
        if index < last and self._slots is not None:
            self._slots.move(last, index, len(self.rows[last].ids) + len(self.rows[last].tokens))
        self.rows[index] = self.rows[last]
        del self.rows[last]

    def rest(self) -> None:
        if self._slots is not None and self._slots.width > _KEPT:
            self._slots = None

    def clear(self) -> None:
        self._slots = None
        self._memory.clear()
        self.rows.clear()

    def _read(self, ids: tuple[int, ...], pictures: Sequence[Any]) -> tuple[Any, Tensor, int]:
        """Computes a prompt: its cache, the logits after it, and the position of what follows."""
        if self._reader is None or not pictures:
            return *self._memory.prompt(ids), len(ids)
        cache, given = DynamicCache(), self._reader.inputs(pictures)
        tokens = torch.tensor([ids], device=self.network.device)
        inputs, following = inputs_beside_tokens(self.network, tokens, torch.ones_like(tokens), given)
        return cache, self._memory.feed(cache, ids, **inputs), int(following)

    def _room(self, rows: int, width: int, cache: Any = None) -> Slots:
        """The table, made larger where it is too small; the first one is shaped like a cache."""
        old = self._slots
        if old and old.most >= rows and old.width >= width:
            return old
        rows, width = min(self.most, 1 << (rows - 1).bit_length()), -(-width // _COLUMNS) * _COLUMNS
        if old is None:
            self._slots = Slots([(layer.keys, layer.values) for layer in cache.layers], rows, width)
            return self._slots
        like = list(zip(old.keys, old.values, strict=True))
        self._slots = new = Slots(like, max(rows, old.most), max(width, old.width))
        for after, before in zip((*new.keys, *new.values), (*old.keys, *old.values), strict=True):
            after[: old.most, :, : old.width] = before
        new.state[:, : old.most] = old.state
        return new
