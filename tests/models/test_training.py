"""Supervised training: what is learnt, what is left out, where the figures go."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.engine.network import load_tokenizer
from compeer.errors import InputError
from compeer.models.local import LocalModel
from compeer.models.training import SftSettings, model_card, reading_order, train_sft

CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Say the word."},
    {"role": "assistant", "content": "marmalade"},
]


def settings(**changes: Any) -> SftSettings:
    return SftSettings.model_validate({"steps": 2, "learning_rate": 0.01, "lora_rank": 0, "batch": 2, **changes})


def test_it_learns_what_the_assistant_says(tiny_learner: Path, tmp_path: Path) -> None:
    card = {"role": "supporter", "history": 3}
    metrics = train_sft(tiny_learner, [CHAT] * 8, settings(steps=30), tmp_path, 0, "test", card)
    assert metrics["loss_last"] < 0.1 < metrics["loss_first"]
    assert model_card(tmp_path / "model") == card
    model = LocalModel(tmp_path / "model")
    import asyncio

    from compeer.models import Request, Sampling

    request = Request(({"role": "user", "content": "Say the word."},))
    (answer,) = asyncio.run(model.generate([request], Sampling(temperature=0, max_tokens=8)))
    assert getattr(answer, "text", "") == "marmalade"


def test_the_loss_is_on_the_assistant_alone(tiny_learner: Path, tmp_path: Path) -> None:
    """A chat whose user part cannot be predicted still reaches a loss near zero."""
    chats = [[{"role": "user", "content": f"{n * 7919} {n * 104729}"}, CHAT[1]] for n in range(1, 9)]
    metrics = train_sft(tiny_learner, chats, settings(steps=40), tmp_path, 0, "test", {})
    assert metrics["loss_last"] < 0.1


def test_chats_that_are_too_long_are_left_out_and_counted(tiny_learner: Path, tmp_path: Path) -> None:
    long = [{"role": "user", "content": "word " * 100}, CHAT[1]]
    metrics = train_sft(tiny_learner, [CHAT, CHAT, long], settings(max_length=64), tmp_path, 0, "test", {})
    assert (metrics["chats"], metrics["too_long"]) == (2, 1)


@pytest.mark.parametrize(("rank", "layers"), [(4, 0), (4, 1), (0, 1)])
def test_adapters_and_upper_layers(tiny_learner: Path, tmp_path: Path, rank: int, layers: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    train_sft(tiny_learner, [CHAT] * 4, settings(lora_rank=rank, top_layers=layers), tmp_path, 0, "test", {})
    before = AutoModelForCausalLM.from_pretrained(tiny_learner).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert set(after) == set(before)
    assert not any("embed" in name or "lm_head" in name for name in moved)
    if layers:
        assert all(".layers.1." in name for name in moved)
    else:
        assert any(".layers.0." in name for name in moved)


def test_metrics_go_to_json_lines_and_to_tensorboard_if_asked(tiny_learner: Path, tmp_path: Path) -> None:
    train_sft(tiny_learner, [CHAT] * 4, settings(log="tensorboard"), tmp_path, 0, "test", {})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(not any(word in key for word in ("time", "second")) for row in rows for key in row)
    assert len((tmp_path / "times.jsonl").read_text().splitlines()) == 2
    assert list((tmp_path / "tensorboard").rglob("events.out.tfevents.*"))


def test_a_saved_tokenizer_still_ends_and_pads(tiny_learner: Path, tmp_path: Path) -> None:
    train_sft(tiny_learner, [CHAT] * 2, settings(steps=1), tmp_path, 0, "test", {})
    tokenizer = load_tokenizer(tmp_path / "model")
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token not in (None, tokenizer.eos_token)
    assert "generation" in tokenizer.chat_template


def test_nothing_short_enough_is_an_error(tiny_learner: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_length"):
        train_sft(
            tiny_learner,
            [[CHAT[0], {"role": "assistant", "content": "x " * 400}]],
            settings(max_length=64),
            tmp_path,
            0,
            "t",
            {},
        )


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 120), st.integers(0, 9))
def test_every_chat_is_read_once_an_epoch(lengths: list[int], batch: int, count: int, seed: int) -> None:
    order = reading_order(lengths, batch, count, seed)
    assert len(order) == count
    for start in range(0, count, len(lengths)):
        epoch = order[start : start + len(lengths)]
        assert len(set(epoch)) == len(epoch)
    assert reading_order(lengths, batch, count + 7, seed)[:count] == order


def test_a_run_stopped_in_its_second_epoch_goes_on_the_same(
    tiny_learner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [
        [{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"word {n * 7}"}] for n in range(12)
    ]
    wanted = settings(steps=9, batch=4, save_every=4)
    train_sft(tiny_learner, chats, wanted, tmp_path / "whole", 0, "t", {})
    from compeer.models import training

    class Stop(Exception):
        pass

    end = training._Record.on_step_end

    def dying(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        end(self, args, state, control, **kwargs)
        if state.global_step == 7:
            raise Stop

    monkeypatch.setattr(training._Record, "on_step_end", dying)
    with pytest.raises(Stop):
        train_sft(tiny_learner, chats, wanted, tmp_path / "stopped", 0, "t", {})
    monkeypatch.undo()
    train_sft(tiny_learner, chats, wanted, tmp_path / "stopped", 0, "t", {})
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_batch_in_parts_trains_the_same(tiny_learner: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    chats = [[{"role": "user", "content": "word " * n}, CHAT[1]] for n in range(1, 9)]
    weights = []
    for at_once in (0, 2):
        folder = tmp_path / str(at_once)
        train_sft(tiny_learner, chats, settings(batch=4, at_once=at_once, learning_rate=1e-3), folder, 0, "test", {})
        weights.append(AutoModelForCausalLM.from_pretrained(folder / "model").state_dict())
    start = AutoModelForCausalLM.from_pretrained(tiny_learner).state_dict()
    assert any(not torch.equal(start[name], weights[0][name]) for name in start)
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], atol=2e-4, rtol=0)
    with pytest.raises(ValueError, match="must divide"):
        settings(batch=4, at_once=3)


def test_an_answer_without_weight_is_not_learnt(tiny_learner: Path, tmp_path: Path) -> None:
    from functools import partial

    from compeer.reward.train import round_weights

    second = [{"role": "user", "content": "And again."}, {"role": "assistant", "content": "xylophone"}]
    losses = {}
    for weight in (1.0, 0.0, 2.0):
        weigh = partial(round_weights, number=2, weight=weight)
        folder = tmp_path / str(weight)
        done = train_sft(tiny_learner, [[*CHAT, *second]] * 4, settings(steps=1), folder, 0, "test", {}, weigh=weigh)
        losses[weight] = done["loss_first"]
    plain = train_sft(tiny_learner, [[*CHAT, *second]] * 4, settings(steps=1), tmp_path / "plain", 0, "test", {})
    assert losses[1.0] == pytest.approx(plain["loss_first"], rel=1e-5)
    assert losses[2.0] - losses[1.0] == pytest.approx(losses[1.0] - losses[0.0], rel=1e-4)
    assert losses[0.0] < losses[1.0]
