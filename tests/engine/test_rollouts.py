"""Fast rollouts: found from the distribution that training sees, whatever the batches, and in TRL's trainer."""

import inspect
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import TopPLogitsWarper
from trl import GRPOConfig, GRPOTrainer

import compeer
from compeer.engine import rollouts
from compeer.engine.multimodal import picture_reader
from compeer.engine.network import Mirror, load_tokenizer
from compeer.engine.rollouts import Decoder, Prompt, RolloutSampling, sample_tokens
from compeer.policy import fast_rollouts
from compeer.policy.fast_rollouts import FastRollouts
from compeer.statistics import generator
from tests.support.clear import decided

PROMPTS = [[5, 9, 200, 41], [7, 11], [212, 3, 5, 9, 14, 230, 77, 6], [7, 11], [5, 9, 200, 41], [5, 9, 201, 41]]
SEEDS = [3, 1, 4, 1, 5, 9]


@pytest.fixture(scope="module")
def network() -> Any:
    """A random Llama with few words, in which two query heads share their keys."""
    config = LlamaConfig(
        vocab_size=240,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return LlamaForCausalLM(config).eval()


def outputs(
    network: Any,
    sampling: RolloutSampling,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    seeds: Sequence[int] = SEEDS,
    **how: Any,
) -> list[list[int]]:
    return Decoder(Mirror(network).network, sampling, **how).sample([Prompt(tuple(ids)) for ids in prompts], seeds)


def shares(network: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> torch.Tensor:
    """The probabilities of all tokens for each of an output's, as training computes them: the whole row at once."""
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.softmax(logits.float() / temperature, -1).double()


def misses(probabilities: torch.Tensor, ids: Sequence[int], seed: int) -> torch.Tensor:
    """How far each number of a seed is from the share of the token that it has picked; 0 for one within it."""
    tokens = torch.tensor(ids)[:, None]
    above = probabilities.cumsum(-1).gather(1, tokens)[:, 0]
    below = above - probabilities.gather(1, tokens)[:, 0]
    numbers = torch.from_numpy(generator(seed, "tokens").random(len(ids))) * probabilities.sum(-1)
    return torch.maximum(below - numbers, numbers - above).clamp(min=0)


def test_greedy_decoding_is_that_of_transformers(network: Any) -> None:
    free = outputs(network, RolloutSampling(24, (), temperature=0))
    assert all(decided(network, prompt, output) for prompt, output in zip(PROMPTS, free, strict=True))
    ends = (free[2][17], free[0][3])  # tokens that do come up, so that rows end at different times
    for end in ((), ends):
        mine = outputs(network, RolloutSampling(24, end, temperature=0))
        for prompt, found in zip(PROMPTS[:3], mine, strict=False):
            wanted = network.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
                max_new_tokens=24,
                do_sample=False,
                eos_token_id=list(end) or None,
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
            assert found == wanted
    assert len({len(found) for found in mine}) > 1


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_are_sampled_from_what_the_training_forward_gives(network: Any, temperature: float) -> None:
    found = outputs(network, RolloutSampling(130, (), temperature))
    for prompt, seed, ids in zip(PROMPTS, SEEDS, found, strict=True):
        assert len(ids) == 130, "longer than one width of attention"
        assert misses(shares(network, prompt, ids, temperature), ids, seed).max() < 1e-4


def test_in_lower_precision_they_are_sampled_from_what_autocast_gives(network: Any) -> None:
    decoder = Decoder(Mirror(network, torch.bfloat16).network, RolloutSampling(12, ()), torch.bfloat16)
    found = decoder.sample([Prompt(tuple(ids)) for ids in PROMPTS], SEEDS)
    gaps = []
    for prompt, seed, ids in zip(PROMPTS, SEEDS, found, strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            gaps += misses(shares(network, prompt, ids, 1.0), ids, seed).tolist()
    assert np.mean(gaps) < 0.01, "rounding to eight bits, no more"


def test_frequencies_match_the_softmax(network: Any) -> None:
    count = 6000
    found = outputs(network, RolloutSampling(1, (), temperature=0.5), [PROMPTS[0]] * count, range(count), rows=1000)
    seen = Counter(output[0] for output in found)
    with torch.no_grad():
        probabilities = torch.softmax(network(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1] / 0.5, -1).double()
    likely = [int(token) for token in probabilities.argsort(descending=True)[:400] if probabilities[token] * count >= 5]
    assert len(likely) > 10
    expected = np.array([float(probabilities[token]) * count for token in likely])
    expected = np.append(expected, count - expected.sum())
    observed = np.array([seen[token] for token in likely])
    observed = np.append(observed, count - observed.sum())
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(likely)
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5, "chi-square, five standard deviations"


@given(
    st.lists(st.floats(-4, 4), min_size=2, max_size=12),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.2, 2),
    st.floats(0.1, 1),
)
def test_a_draw_inverts_the_distribution(logits: list[float], number: float, temperature: float, top_p: float) -> None:
    """The share of numbers for which a token is found is its probability, after top-p as `generate` cuts."""
    scores = torch.tensor([logits]) / temperature
    cuts = [TopPLogitsWarper(top_p)] if top_p < 1 else []
    for cut in cuts:
        scores = cut(None, scores)
    probabilities = torch.softmax(scores, -1)[0].double().numpy()
    uniform = torch.tensor([[number]], dtype=torch.float64)
    token = sample_tokens(torch.tensor([logits]), uniform, temperature, cuts)
    before = float(probabilities[: int(token)].sum())
    assert before - 1e-6 <= number * probabilities.sum() <= before + probabilities[int(token)] + 1e-6
    assert probabilities[int(token)] > 0


def test_batches_change_nothing(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    free = outputs(network, RolloutSampling(60, ()))
    for prompt, seed, output in zip(PROMPTS, SEEDS, free, strict=True):
        assert decided(network, prompt, output, 1.0, seed), "here and below: rounding changes no token"
    sampling = RolloutSampling(
        60, tuple(output[place] for output, place in zip(free, (2, 9, 20, 33, 50, 4), strict=True))
    )
    whole = outputs(network, sampling)
    assert len({len(output) for output in whole}) > 3
    for output in whole:
        assert not set(output[:-1]) & set(sampling.ends), "nothing after an end"
    order = [4, 2, 0, 5, 1, 3]
    parts = outputs(network, sampling, [PROMPTS[n] for n in order], [SEEDS[n] for n in order], rows=2)
    assert parts == [whole[n] for n in order]
    monkeypatch.setattr(rollouts, "_INTERVAL", 1000)  # no row is dropped early
    monkeypatch.setattr(rollouts, "_PREFILL", 1)  # each prompt by itself
    assert outputs(network, sampling) == whole
    assert whole[1] == whole[3], "the same prompt and seed"
    assert whole[0] != whole[4], "the same prompt, another seed"


def test_a_decoder_is_used_again(network: Any) -> None:
    sampling = RolloutSampling(20, ())
    decoder = Decoder(Mirror(network).network, sampling)
    for prompts, seeds in ((PROMPTS[:2], SEEDS[:2]), (PROMPTS * 3, SEEDS * 3), (PROMPTS, SEEDS)):
        again = decoder.sample([Prompt(tuple(ids)) for ids in prompts], seeds)
        assert again == outputs(network, sampling, prompts, seeds)


def test_where_no_graph_can_be_recorded_decoding_goes_on(network: Any, caplog: pytest.LogCaptureFixture) -> None:
    decoder = Decoder(Mirror(network).network, RolloutSampling(30, ()))
    decoder.stepper.graphs = True  # as on CUDA; recording fails on a CPU
    with caplog.at_level(logging.WARNING):
        found = decoder.sample([Prompt(tuple(ids)) for ids in PROMPTS], SEEDS)
    assert found == outputs(network, RolloutSampling(30, ()))
    assert len([record for record in caplog.records if "CUDA graph" in record.message]) == 1


def test_graphs_are_replayed_where_they_can_be(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of recording and replaying, with a stand-in that records a step by keeping how to take it."""
    decoder = Decoder(Mirror(network).network, RolloutSampling(40, ()))
    stepper, replayed = decoder.stepper, Counter[tuple[int, int]]()
    stepper.graphs = True

    class Graph:
        def __init__(self, batch: Any, rows: int, width: int) -> None:
            self.of = (batch, rows, width)

        def replay(self) -> None:
            replayed[self.of[1:]] += 1
            stepper._step(*self.of)

    monkeypatch.setattr(stepper, "_record", Graph)
    free = outputs(network, RolloutSampling(40, ()))
    for _ in range(2):  # rows are made up to eight, and what stands in the others disturbs nothing
        found = decoder.sample([Prompt(tuple(ids)) for ids in PROMPTS], SEEDS)
        assert found == free
    assert replayed == {(8, 128): 2 * 39 - 1}


def test_pictures_are_seen(tiny_seeing_model: Path, tmp_path: Path) -> None:
    network = AutoModelForImageTextToText.from_pretrained(tiny_seeing_model, dtype=torch.float32).eval()
    reader = picture_reader(tiny_seeing_model)
    assert reader is not None
    rows = []
    for number, size in enumerate([(84, 56), (56, 112)]):
        Image.effect_noise(size, 90 + number).convert("RGB").save(tmp_path / f"{number}.png")
        picture = reader.read(str(tmp_path / f"{number}.png"))
        ids = reader.expand([10, 11, reader.token, 30, 31 + number], [picture.grid])
        rows.append(Prompt(tuple(ids), picture.patches, torch.tensor([picture.grid])))
    rows += [Prompt((40, 41, 42)), rows[0], Prompt(rows[0].ids, rows[0].pixels.flip(0), rows[0].grids)]  # type: ignore[union-attr]
    found = Decoder(Mirror(network).network, RolloutSampling(20, (), temperature=0)).sample(rows, range(5))
    for prompt, output in zip(rows, found, strict=True):
        ids = torch.tensor([prompt.ids])
        seen = {"pixel_values": prompt.pixels, "image_grid_thw": prompt.grids} if prompt.grids is not None else {}
        wanted = network.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == reader.token).int(),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **seen,
        )
        wanted = wanted[0, ids.shape[1] :].tolist()
        assert decided(network, prompt.ids, wanted, mm_token_type_ids=(ids == reader.token).int(), **seen)
        assert output == wanted
    assert found[0] == found[3] != found[4], "the picture matters"


class Trainer(FastRollouts, GRPOTrainer):  # type: ignore[misc]
    """Keeps what was generated, and the log-probabilities that training gives it."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._generate_single_turn(*args, **kwargs)
        self.generated = (args[0], found[0])
        return found


def grpo_trainer(tiny_learner: Path, folder: Path, kind: type = Trainer, **settings: Any) -> Any:
    from datasets import Dataset

    adapters = settings.pop("peft_config", None)
    usual = {"max_completion_length": 12, "num_generations": 2, "per_device_train_batch_size": 4, "max_steps": 2}
    network = AutoModelForCausalLM.from_pretrained(tiny_learner, dtype=torch.float32)
    return kind(
        model=network,
        reward_funcs=[lambda completion_ids, **_: [float(ids[0] % 7) for ids in completion_ids]],
        args=GRPOConfig(
            output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True,
            learning_rate=1e-2, seed=3, temperature=0.8, **{**usual, **settings},
        ),
        train_dataset=Dataset.from_list([{"prompt": text} for text in ["Good morning", "I am so tired", "Hello"] * 4]),
        processing_class=load_tokenizer(tiny_learner),
        peft_config=adapters,
    )  # fmt: skip


def test_the_method_of_trl_that_is_replaced_is_as_expected() -> None:
    theirs = inspect.signature(GRPOTrainer._generate_single_turn)
    assert list(theirs.parameters) == list(inspect.signature(FastRollouts._generate_single_turn).parameters)


@pytest.mark.parametrize("adapters", [False, True])
def test_a_trainer_draws_from_its_present_weights(tiny_learner: Path, tmp_path: Path, adapters: bool) -> None:
    from peft import LoraConfig

    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if adapters else None
    trainer = grpo_trainer(tiny_learner, tmp_path, peft_config=config)
    trainer.train()
    start = AutoModelForCausalLM.from_pretrained(tiny_learner, dtype=torch.float32)
    trained = trainer.model.eval()
    prompt_ids = [*trainer.generated[0][:2], trainer.generated[0][2]]
    trainer._generate_single_turn(prompt_ids, None, {}, 2)
    found = trainer._decoder.sample([Prompt(tuple(ids)) for ids in prompt_ids], [1, 2, 3])
    moved = 0.0
    for prompt, seed, output in zip(prompt_ids, (1, 2, 3), found, strict=True):
        wanted = shares(trained, prompt, output, 0.8)
        assert misses(wanted, output, seed).max() < 1e-4
        moved = max(moved, float((wanted / shares(start, prompt, output, 0.8)).log().abs().max()))
    assert moved > 1e-3, "training changed the weights, so an old copy would be seen"
    ends = set(trainer.eos_token_ids)
    assert all(len(ids) == 12 or ids[-1] in ends for ids in trainer.generated[1])


def test_rows_are_seeded_by_their_number_among_all(tiny_learner: Path, tmp_path: Path) -> None:
    """The seeds are compared: with the same ones, rows of another batch sample the same but for rounding."""
    trainer = grpo_trainer(tiny_learner, tmp_path)
    prompts = [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2
    first = trainer._generate_single_turn(prompts, None, {}, 2)[0]
    assert first[0] != first[1]
    decoder, seen = trainer._decoder, []

    def sample(prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[list[int]]:
        seen.append(list(seeds))
        return decoder.sample(prompts, seeds)

    trainer._decoder = SimpleNamespace(sample=sample, stepper=decoder.stepper)
    assert trainer._generate_single_turn(prompts, None, {}, 2)[0] == first, "the same batch: the same bytes"
    whole = seen.pop()
    assert len(set(whole)) == 4
    for process in (0, 1):
        accelerator = trainer.accelerator
        trainer.accelerator = type("Other", (), {
            "process_index": process, "distributed_type": accelerator.distributed_type,
            "mixed_precision": accelerator.mixed_precision,
        })  # fmt: skip
        trainer._generate_single_turn(prompts[2 * process : 2 * process + 2], None, {}, 2)
        trainer.accelerator = accelerator
    assert seen[0] + seen[1] == whole
    trainer.state.global_step = 1
    assert trainer._generate_single_turn(prompts, None, {}, 2)[0] != first
    assert not set(seen[-1]) & set(whole)


def test_what_cannot_be_done_fast_is_left_to_trl(
    tiny_learner: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = grpo_trainer(tiny_learner, tmp_path, repetition_penalty=1.2, max_steps=1)
    with caplog.at_level(logging.WARNING, logger=fast_rollouts.__name__):
        trainer.train()
        trainer._generate_single_turn([[5, 9]], None, {}, 2)
    assert trainer._decoder is None
    assert [record.message for record in caplog.records if record.name == fast_rollouts.__name__] == [
        "rollouts are sampled by TRL's own generation: repetition_penalty is 1.2"
    ]
    assert len(trainer.generated[1]) == 1


@pytest.mark.parametrize(("name", "kind"), [("ddp", "MULTI_GPU"), ("fsdp2", "FSDP"), ("zero3", "DEEPSPEED")])
def test_configs_for_many_gpus_are_read_by_accelerate(name: str, kind: str) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(Path(compeer.__file__).parent / "configs" / f"{name}.yaml"))
    assert (config.distributed_type.value, config.mixed_precision) == (kind, "bf16")
