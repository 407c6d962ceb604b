"""Prompts read by blocks: what was read before is not read again, and it makes no difference to a single bit."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

from compeer.models import Generation, Request, Sampling, ask
from compeer.models.local import LocalModel
from compeer.models.prefixes import PromptMemory, can_share
from tests.support.clear import clear_requests


@pytest.fixture(scope="module")
def local(tiny_model: Path) -> LocalModel:
    return LocalModel(tiny_model, device=torch.device("cpu"), batch_size=4)


def tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 40_000), k=count)


def bits(cache: DynamicCache) -> list[bytes]:
    return [one.numpy().tobytes() for layer in cache.layers for one in (layer.keys, layer.values)]


@pytest.mark.parametrize("common", [0, 1, 63, 64, 65, 128, 199])
def test_what_was_read_before_changes_no_bit_and_is_not_read_again(local: LocalModel, common: int) -> None:
    before, after = tokens(200), tokens(common) + tokens(150, seed=1)
    cold = PromptMemory(local.network)
    expected = bits(cold.batch([after], 4))
    assert cold.read == len(after) - 1
    warm = PromptMemory(local.network)
    warm.batch([before, tokens(70, seed=2)], 4)
    read = warm.read
    assert bits(warm.batch([after], 4)) == expected
    assert warm.read - read == len(after) - 1 - common // 64 * 64


def test_keys_are_those_of_the_whole_prompt_read_at_once(local: LocalModel) -> None:
    prompts = [tokens(150), tokens(20, seed=1)]
    found = PromptMemory(local.network).batch(prompts, 4)
    for row, prompt in enumerate(prompts):
        with torch.inference_mode():
            whole = local.network(input_ids=torch.tensor([prompt[:-1]]), use_cache=True).past_key_values
        for own, other in zip(found.layers, whole.layers, strict=True):
            assert own.keys.shape[2] == 149
            torch.testing.assert_close(own.keys[row, :, -len(prompt) + 1 :], other.keys[0], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(own.values[row, :, -len(prompt) + 1 :], other.values[0], rtol=1e-4, atol=1e-4)
            assert not own.keys[row, :, : -len(prompt) + 1].any()


def test_memory_is_bounded_and_what_prompts_share_is_kept_longest(local: LocalModel) -> None:
    memory = PromptMemory(local.network)
    memory.batch([tokens(129)], 4)
    block = memory._bytes // 2
    small = PromptMemory(local.network, memory=3 * block)
    expected = bits(memory.batch([tokens(193)], 4))
    for seed in range(5):
        small.batch([tokens(64) + tokens(129, seed=seed + 9)], 4)
        assert small._bytes <= 3 * block
        assert len(small._blocks) == 3
    read = small.read
    assert bits(small.batch([tokens(193)], 4)) == expected
    assert small.read - read == 128  # its first block was there still, the oldest of all


def request(text: str, seed: int = 0) -> Request:
    return Request(messages=({"role": "user", "content": text},), seed=seed)


def test_answers_do_not_depend_on_what_was_asked_before(tiny_model: Path, local: LocalModel) -> None:
    talk = "I lost my job on Friday. " * 12
    last = [request(talk + "What now?", 1), request("Short.", 2), request(talk + talk + "And then?", 3)]
    sampling = Sampling(temperature=1.0, max_tokens=16)
    for earlier in (talk, talk + "What", talk + talk):
        ask(local, [request(earlier)], sampling)
    fresh = LocalModel(tiny_model, device=torch.device("cpu"), batch_size=4)
    assert ask(local, last, sampling) == ask(fresh, last, sampling)
    greedy = Sampling(temperature=0, max_tokens=16)
    assert list(clear_requests(local, last, greedy)) == last
    answers = [one.text for one in ask(local, last, greedy) if isinstance(one, Generation)]
    local_memory, local._memory = local._memory, None
    try:
        assert [one.text for one in ask(local, last, greedy) if isinstance(one, Generation)] == answers
    finally:
        local._memory = local_memory


def test_networks_that_forget_are_not_read_by_blocks(local: LocalModel) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 50}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    assert can_share(local.network)
    assert can_share(MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=None)))
    assert not can_share(MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=8)))
