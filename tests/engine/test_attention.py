"""Attention by groups and a cache with room say what transformers' own say."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from compeer.engine import attention
from compeer.engine.attention import FOLDED, attend, roomy_cache


def pieces(network: Any, cache: Any, rounds: int = 3, width: int = 5) -> list[torch.Tensor]:
    """The logits after a prefix, and after each further piece of rows that began with it, all with padding."""

    def fed(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        found: torch.Tensor = network(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        ).logits[:, -1]
        return found

    draw = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        mask = torch.ones((3, 7), dtype=torch.long)
        mask[0, :3] = 0
        found = [fed(torch.randint(0, 100, (3, 7), generator=draw), mask)]
        keep = torch.tensor([0, 0, 1, 2, 2])
        cache.batch_select_indices(keep)
        mask = mask[keep]
        for _ in range(rounds):
            new = torch.ones((5, width), dtype=torch.long)
            new[1, :2] = 0
            mask = torch.cat([mask, new], 1)
            found.append(fed(torch.randint(0, 100, (5, width), generator=draw), mask))
    return found


@pytest.mark.parametrize("heads", [8, 2])
def test_folded_attention_and_a_cache_with_room_change_nothing(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_ROOM", 8)  # outgrown by the third piece
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=heads, num_key_value_heads=2)
    network = LlamaForCausalLM(config).eval()
    usual = pieces(network, DynamicCache())
    asked: list[int] = []
    own = attention.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        attention.functional,
        "scaled_dot_product_attention",
        lambda query, *others, **named: (asked.append(query.shape[1]), own(query, *others, **named))[1],
    )
    attend(network, FOLDED)
    for one, other in zip(pieces(network, roomy_cache()), usual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert asked == [2] * 8  # two heads of keys, two layers, four pieces: no head's keys were copied
