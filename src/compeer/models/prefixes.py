"""What prompts begin with in common is read once: keys and values of earlier prompts, kept in blocks of tokens.

On a CPU, reading a conversation's thousand tokens takes longer than writing the answer, and the next prompt of the same
conversation begins with all of them. So a prompt is read by itself, block by block from its first token on, and the
blocks are kept. What a block holds follows from the tokens up to its end and from nothing else: it is always computed
in the same shape, after the same blocks. So the bits of an answer are the same whether its blocks were there before or
not, and a run that was killed and taken up comes to the same bytes as one that was not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_BLOCK = 64
"""Tokens of a block. Smaller ones leave less to be read again, larger ones are read faster."""
_BYTES = 2 << 30
"""Memory for blocks; those that were not used for the longest time go first."""

Keys = tuple[torch.Tensor, torch.Tensor]


def can_share(network: Any) -> bool:
    """Whether reading by blocks is worth it (on a CPU) and possible (every layer attends to all that was read)."""
    layers = DynamicCache(config=network.config.get_text_config()).layers
    return network.device.type == "cpu" and all(type(layer) is DynamicLayer for layer in layers)


class PromptMemory:
    """Reads prompts with a network, and what it remembers of them not again."""

    def __init__(self, network: Any, memory: int = _BYTES) -> None:
        self._network, self._memory = network, memory
        self._blocks: OrderedDict[tuple[int, ...], list[Keys]] = OrderedDict()
        self._bytes = 0
        self.read = 0
        """Tokens that were computed so far."""

    @torch.inference_mode()
    def batch(self, prompts: Sequence[Sequence[int]], answer: int) -> DynamicCache:
        """Keys and values of all tokens of the prompts but the last, each prompt a row, padded on the left.

        There is room for an answer of so many tokens.
        """
        width = max(map(len, prompts)) - 1
        found = DynamicCache()
        for number, prompt in enumerate(prompts):
            read = self._prompt(prompt[:-1])
            if not found.layers:
                found.layers = [_Layer(keys, values, len(prompts), width, width + answer) for keys, values in read]
            for layer, (keys, values) in zip(found.layers, read, strict=True):
                layer.keys[number, :, width - keys.shape[2] :] = keys[0]
                layer.values[number, :, width - values.shape[2] :] = values[0]
        return found

    def _prompt(self, ids: Sequence[int]) -> list[Keys]:
        """Keys and values of a prompt, by layer."""
        ends = range(_BLOCK, len(ids) + 1, _BLOCK)
        names = [tuple(ids[:end]) for end in ends]
        known = 0
        while known < len(names) and names[known] in self._blocks:
            known += 1
        cache = DynamicCache()
        remembered = [self._blocks[name] for name in names[:known]]
        for layer, parts in enumerate(zip(*remembered, strict=True)):
            keys, values = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
            cache.update(keys, values, layer)
        for name in names[known:]:
            self._read(cache, name[-_BLOCK:])
            block = [(one.keys[:, :, -_BLOCK:].clone(), one.values[:, :, -_BLOCK:].clone()) for one in cache.layers]
            self._blocks[name] = block
            self._bytes += _size(block)
        if rest := ids[len(names) * _BLOCK :]:
            self._read(cache, rest)
        for name in reversed(names):  # of two blocks of a prompt the later one goes first: it is of no use alone
            self._blocks.move_to_end(name)
        while self._bytes > self._memory:
            _, gone = self._blocks.popitem(last=False)
            self._bytes -= _size(gone)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _read(self, cache: DynamicCache, ids: Sequence[int]) -> None:
        self._network(input_ids=torch.tensor([list(ids)]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        self.read += len(ids)


class _Layer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of a layer with room for more: where a token is added, those before it are not copied."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, rows: int, width: int, most: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self._room = [one.new_zeros((rows, one.shape[1], most, one.shape[3])) for one in (keys, values)]
        self._use(width)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start = self.keys.shape[2]
        self._use(start + key_states.shape[2])
        self.keys[:, :, start:], self.values[:, :, start:] = key_states, value_states
        return self.keys, self.values

    def _use(self, width: int) -> None:
        self.keys, self.values = (room[:, :, :width] for room in self._room)


def _size(block: Sequence[Keys]) -> int:
    return sum(one.nbytes for pair in block for one in pair)
