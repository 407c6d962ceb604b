"""Attention without copies: query heads that share keys are several queries on the same keys, whose cache has room.

For one new token a row (`GROUPED`), or for a few at a time after a long prefix (`FOLDED`, `roomy_cache`). transformers
would copy keys and values for every head that shares them, and the whole cache for every few tokens; on a GPU that
takes about as long as the attention itself.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED, FOLDED = "compeer_grouped", "compeer_folded"
_ROOM = 256  # so many more tokens than it must hold a cache has room for when it grows
_ALIGNED = 16
Attended = tuple[Tensor, None]  # as transformers wants it: what was found, and no weights


def grouped(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **others: Any) -> Attended:
    """Attention of one new token a row, without copying keys for the heads that share them; else the usual one."""
    if query.shape[2] > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)  # type: ignore[no-any-return]
    return _by_groups(query, key, value, attention_mask, others.get("scaling"))


def folded(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **others: Any) -> Attended:
    """The same for any number of tokens that have a mask; without one torch's own way needs no copies."""
    if attention_mask is None or attention_mask.dtype != torch.bool or others.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)  # type: ignore[no-any-return]
    bias = _bias(attention_mask, query.shape[1] // key.shape[1], query.dtype)
    return _by_groups(query, key, value, bias, others.get("scaling"))


def _by_groups(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float | None) -> Attended:
    rows, heads, length, size = query.shape
    asked = query.reshape(rows, key.shape[1], heads // key.shape[1] * length, size)
    answer = functional.scaled_dot_product_attention(asked, key, value, attn_mask=bias, scale=scaling)
    return answer.reshape(rows, heads, length, size).transpose(1, 2).contiguous(), None


def _bias(mask: Tensor, shared: int, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to the scores of all queries that share keys; made once, all layers have the same."""
    known: Tensor | None = getattr(mask, "_folded_bias", None)
    if known is None:
        rows, one, length, width = mask.shape
        aligned = -(-width // _ALIGNED) * _ALIGNED  # else torch would copy it into such a place in every layer
        known = mask.new_zeros((rows, one, shared * length, aligned), dtype=dtype)[..., :width]
        known.masked_fill_(~mask.repeat(1, 1, shared, 1), -torch.inf)
        mask._folded_bias = known  # type: ignore[attr-defined]
    return known


for _name, _attention in ((GROUPED, grouped), (FOLDED, folded)):
    AttentionInterface.register(_name, _attention)
    # without a mask of its own, tokens that follow others in a cache would attend to the wrong ones
    AttentionMaskInterface.register(_name, sdpa_mask)


def attend(network: Any, how: str) -> None:
    """Lets the language part of a network attend by groups, `GROUPED` or `FOLDED`; its vision tower stays as it is."""
    for module in network.modules():
        if hasattr(module, "layer_idx") and hasattr(module, "config"):
            module.config._attn_implementation = how


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A layer's keys and values in tensors that are larger than they need be: what is new is written, not joined."""

    keys: Tensor
    values: Tensor
    _room: tuple[Tensor, ...] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        used, new = self.get_seq_length(), (key_states, value_states)
        if not used:
            return super().update(key_states, value_states, *args, **kwargs)  # type: ignore[no-any-return]
        needed = used + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < needed:
            more = (0, 0, 0, needed + _ROOM - used)
            self._room = tuple(functional.pad(old, more) for old in (self.keys, self.values))
        for room, states in zip(self._room, new, strict=True):
            room[:, :, used:needed] = states
        self.keys, self.values = (room[:, :, :needed] for room in self._room)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._room = None


roomy_cache = partial(Cache, layer_class_to_replicate=_RoomyLayer)  # for prompts that go on piece by piece
