"""What prompts begin with in common is computed once: keys and values of earlier prompts, kept in blocks of tokens.

On a CPU, reading a conversation's thousand tokens takes longer than writing the answer, and the next prompt of the same
conversation begins with all of them. So a prompt is read by itself, block by block from its first token on, and whole
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

_BLOCK = {"cpu": 64, "cuda": 256}
"""Tokens of a block. Smaller ones leave less to be read again, larger ones are read faster."""
_BYTES = {"cpu": 2 << 30, "cuda": 256 << 20}
"""Memory for blocks; those that were not used for the longest time go first."""

Keys = tuple[torch.Tensor, torch.Tensor]


class PromptMemory:
    """Reads prompts with a network, and what it remembers of them not again."""

    def __init__(self, network: Any, memory: int | None = None) -> None:
        self._network = network
        self._block = _BLOCK[network.device.type]
        self._memory = memory or _BYTES[network.device.type]
        self._blocks: OrderedDict[tuple[int, ...], list[Keys]] = OrderedDict()
        self._bytes = 0
        self.read = 0
        """Tokens that were computed so far."""

    def clear(self) -> None:
        """Forgets all blocks."""
        self._blocks.clear()
        self._bytes = 0

    @torch.inference_mode()
    def prompt(self, ids: Sequence[int]) -> tuple[DynamicCache, torch.Tensor]:
        """Keys and values of a prompt, and the logits after it, (1, tokens). The last token is always computed."""
        names = [tuple(ids[:end]) for end in range(self._block, len(ids), self._block)]
        known = next((n for n, name in enumerate(names) if name not in self._blocks), len(names))
        cache = DynamicCache()
        remembered = [self._blocks[name] for name in names[:known]]
        for layer, parts in enumerate(zip(*remembered, strict=True)):
            keys, values = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
            cache.update(keys, values, layer)
        for name in names[known:]:
            self._read(cache, name[-self._block :])
            block = [
                (one.keys[:, :, -self._block :].clone(), one.values[:, :, -self._block :].clone())
                for one in cache.layers
            ]
            self._blocks[name] = block
            self._bytes += _size(block)
        logits = self._read(cache, ids[len(names) * self._block :])
        for name in reversed(names):  # of two blocks of a prompt the later one goes first: it is of no use by itself
            self._blocks.move_to_end(name)
        while self._bytes > self._memory:
            self._bytes -= _size(self._blocks.popitem(last=False)[1])
        return cache, logits

    def _read(self, cache: DynamicCache, ids: Sequence[int]) -> torch.Tensor:
        start, device = cache.get_seq_length(), self._network.device
        self.read += len(ids)
        logits: torch.Tensor = self._network(
            input_ids=torch.tensor([list(ids)], device=device),
            position_ids=torch.arange(start, start + len(ids), device=device)[None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        return logits


def _size(block: Sequence[Keys]) -> int:
    return sum(one.nbytes for pair in block for one in pair)
