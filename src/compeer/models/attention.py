"""Attention of one new token a row without copies: query heads that share keys are several queries on the same keys."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_GROUPED = "compeer_grouped"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one new token a row, without copying keys for the heads that share them; else the usual one."""
    rows, heads, length, size = query.shape
    if length > 1:
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return found
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], size)
    answer = functional.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return answer.reshape(rows, 1, heads, size), None


AttentionInterface.register(_GROUPED, grouped_attention)
# without a mask of its own, tokens that follow others in a cache would attend to the wrong ones
AttentionMaskInterface.register(_GROUPED, sdpa_mask)


def use_grouped_attention(network: Any) -> None:
    """Lets the language part of a network attend by groups; what sees is left alone."""
    for module in network.modules():
        if hasattr(module, "layer_idx") and hasattr(module, "config"):
            module.config._attn_implementation = _GROUPED
