"""Prompts read by blocks: what was read before is not read again, and it makes no difference to a single bit."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

from compeer.engine.network import decoding_limit, position_limit
from compeer.engine.torch_table import PromptMemory
from compeer.models import Generation, Request, Sampling, ask
from compeer.models.local import LocalModel
from tests.support.clear import clear_requests


@pytest.fixture(scope="module")
def local(tiny_model: Path) -> LocalModel:
    return LocalModel(tiny_model, device=torch.device("cpu"), batch_size=4)


def tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 40_000), k=count)


def bits(found: tuple[DynamicCache, torch.Tensor]) -> list[bytes]:
    cache, logits = found
    return [one.numpy().tobytes() for layer in cache.layers for one in (layer.keys, layer.values)] + [
        logits.numpy().tobytes()
    ]


@pytest.mark.parametrize("common", [0, 1, 63, 64, 65, 128, 199])
def test_what_was_read_before_changes_no_bit_and_is_not_read_again(local: LocalModel, common: int) -> None:
    before, after = tokens(200), tokens(common) + tokens(150, seed=1)
    cold = PromptMemory(local.network)
    expected = bits(cold.prompt(after))
    assert cold.read == len(after)
    warm = PromptMemory(local.network)
    warm.prompt(before)
    warm.prompt(tokens(70, seed=2))
    read = warm.read
    assert bits(warm.prompt(after)) == expected
    assert warm.read - read == len(after) - common // 64 * 64


def test_a_prompt_that_is_known_whole_is_computed_from_its_last_block(local: LocalModel) -> None:
    memory = PromptMemory(local.network)
    for length in (128, 129):
        found = bits(memory.prompt(tokens(length)))
        read = memory.read
        assert bits(memory.prompt(tokens(length))) == found
        assert memory.read - read == (64 if length == 128 else 1)


@pytest.mark.parametrize("length", [1, 20, 150])
def test_keys_and_logits_are_those_of_the_whole_prompt_read_at_once(local: LocalModel, length: int) -> None:
    ids = tokens(length, seed=1)
    cache, logits = PromptMemory(local.network).prompt(ids)
    with torch.inference_mode():
        whole = local.network(input_ids=torch.tensor([ids]), use_cache=True)
    torch.testing.assert_close(logits, whole.logits[:, -1], rtol=1e-4, atol=1e-4)
    for own, other in zip(cache.layers, whole.past_key_values.layers, strict=True):
        torch.testing.assert_close(own.keys, other.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(own.values, other.values, rtol=1e-4, atol=1e-4)


def test_memory_is_bounded_and_what_prompts_share_is_kept_longest(local: LocalModel) -> None:
    memory = PromptMemory(local.network)
    memory.prompt(tokens(129))
    block = memory._bytes // 2
    small = PromptMemory(local.network, memory=3 * block)
    expected = bits(memory.prompt(tokens(193)))
    for seed in range(5):
        small.prompt(tokens(64) + tokens(129, seed=seed + 9))
        assert small._bytes <= 3 * block
        assert len(small._blocks) == 3
    read = small.read
    assert bits(small.prompt(tokens(193))) == expected
    assert small.read - read == 129  # its first block was there still, the oldest of all


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
    for one, answer in zip(last, ask(local, last, greedy), strict=True):
        assert isinstance(answer, Generation)
        ids = local.tokenizer(local.rows.text(one.messages), add_special_tokens=False, return_tensors="pt")
        theirs = local.network.generate(
            **ids, max_new_tokens=16, do_sample=False, eos_token_id=local.tokenizer.eos_token_id, pad_token_id=0
        )[0, ids["input_ids"].shape[1] :]
        assert answer.text == local.tokenizer.decode(theirs, skip_special_tokens=True)


def test_networks_that_forget_are_asked_for_no_more_than_they_hold(local: LocalModel) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 50}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    assert decoding_limit(local.network) == position_limit(local.network)
    assert decoding_limit(MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=None))) == 64
    assert decoding_limit(MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=8))) == 8
