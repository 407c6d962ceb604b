"""Supervised training of a language model on chats, for judge and supporter alike: TRL's `SFTTrainer`, made resumable.

A checkpoint counts only once it is marked complete, so a run that is killed goes on from the last whole one, with the
same batches and random numbers. Metrics go to `metrics.jsonl`, wall-clock times apart from them to `times.jsonl`.
Chats of multimodal models may hold pictures; a vision tower is never trained.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import unset_hf_deepspeed_config

from compeer.engine import multimodal
from compeer.engine.network import best_device, defuse, load_tokenizer, steady_attention
from compeer.errors import InputError
from compeer.io import Frozen, atomic_folder, write_text
from compeer.models.resolve import merged_weights
from compeer.pipeline import in_blocks
from compeer.progress import progress
from compeer.statistics import generator

Weigh = Callable[[torch.Tensor], torch.Tensor]
Card = dict[str, Any]
CARD = "compeer.json"
_MARK = "complete"
_NOT_REPEATED = ("step_time", "runtime", "per_second", "profiling/", "num_tokens")  # and so left out of the metrics


class WeightSettings(Frozen, use_attribute_docstrings=True):
    """Which weights are trained, and how."""

    steps: int = Field(ge=1, description="optimiser steps")
    learning_rate: float = Field(gt=0, description="peak learning rate")
    warmup: float = Field(default=0.1, ge=0, lt=1, description="share of the steps in which the rate rises")
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    """how the learning rate falls"""
    lora_rank: int = Field(default=16, ge=0, description="rank of the LoRA adapters; 0 trains the weights themselves")
    top_layers: int = Field(default=0, ge=0, description="train only this many layers from the top; 0 trains all")
    save_every: int = Field(default=10, ge=1, description="steps between checkpoints")
    log: Literal["jsonl", "tensorboard"] = "jsonl"
    """metrics as JSON lines, or as those and TensorBoard files"""


class SftSettings(WeightSettings):
    """Supervised training."""

    steps: int = Field(ge=0, description="optimiser steps; 0 takes the model as it is")
    batch: int = Field(default=4, ge=1, description="chats an optimiser step")
    at_once: int = Field(default=0, ge=0, description="chats computed at a time, to save memory; 0: the whole batch")
    max_length: int = Field(default=1024, ge=16, description="tokens of a chat; longer ones are left out and counted")

    @model_validator(mode="after")
    def _divides(self) -> SftSettings:
        if self.at_once and self.batch % self.at_once:
            raise ValueError(f"at_once ({self.at_once}) must divide the batch ({self.batch})")
        return self


def train_sft(
    model: Path,
    chats: Sequence[list[dict[str, Any]]],
    settings: SftSettings,
    folder: Path,
    seed: int,
    title: str,
    card: Card,
    callbacks: Sequence[TrainerCallback] = (),
    weigh: Weigh | None = None,
) -> dict[str, Any]:
    """Trains on what the assistant says, into `folder/model`; `weigh` weighs a batch's labels (-100: not learnt)."""
    tokenizer, reader = load_tokenizer(model), multimodal.picture_reader(model)
    encoded = multimodal.encode_chats(tokenizer, reader, [defuse(tokenizer, chat) for chat in chats])
    lengths = [len(chat.ids) for chat in encoded]
    kept = [number for number, length in enumerate(lengths) if length <= settings.max_length]
    if not kept:
        what = f"none of {len(chats)} chats is at most {settings.max_length} tokens long."
        raise InputError(what, field="max_length", do="Raise it.")
    metrics: dict[str, Any] = {"chats": len(kept), "too_long": len(chats) - len(kept)}
    metrics |= {"tokens_a_chat": sum(lengths) / max(1, len(lengths))}
    if not settings.steps:
        with _new_model(folder, model_card(model) | card) as unfinished:
            shutil.copytree(model, unfinished, dirs_exist_ok=True)
        return {**metrics, "steps": 0, "loss_first": None, "loss_last": None}
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    batch = settings.batch * int(os.environ.get("WORLD_SIZE", "1"))
    order = reading_order([lengths[number] for number in kept], batch, settings.steps * batch, seed)
    network = trainable_network(model, settings)
    trainer = SFTTrainer(
        model=network,
        args=SFTConfig(
            **trainer_arguments(settings, folder, seed),
            per_device_train_batch_size=settings.at_once or settings.batch,
            gradient_accumulation_steps=settings.batch // (settings.at_once or settings.batch),
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_dict({"chat": [kept[index] for index in order]}),
        data_collator=partial(multimodal.chat_batch, reader, encoded, tokenizer.pad_token_id),
        processing_class=tokenizer,
        peft_config=lora_config(network, settings),
        callbacks=list(callbacks),
    )
    if weigh:
        trainer.model.register_forward_hook(partial(_weighed, weigh), with_kwargs=True)
    run_trainer(trainer, folder, settings, title)
    save_trained(trainer, tokenizer, folder, card, model)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row] or [None]
    return {**metrics, "steps": trainer.state.global_step, "loss_first": losses[0], "loss_last": losses[-1]}


def _weighed(weigh: Weigh, _network: Any, _args: Any, inputs: dict[str, Any], outputs: Any) -> None:
    """Multiplies the labels' log-probabilities with their weights, before TRL's trainer takes the mean."""
    if outputs.get("log_probs") is not None:  # a label is predicted from the token before it
        outputs["log_probs"] = outputs["log_probs"] * weigh(inputs["labels"])[:, 1:]


def reading_order(lengths: Sequence[int], batch: int, count: int, seed: int) -> list[int]:
    """Which chats are read: shuffled epochs, batches of like lengths; only by the arguments, so that runs resume."""
    order: list[int] = []
    epoch = 0
    while len(order) < count:
        rng = generator(seed, "reading", str(epoch))
        blocks = in_blocks(rng.permutation(len(lengths)).tolist(), 50 * batch)
        by_length = [index for block in blocks for index in sorted(block, key=lambda index: (lengths[index], index))]
        whole = list(in_blocks(by_length, batch))
        last = whole.pop() if len(whole[-1]) < batch else []
        order += [index for number in rng.permutation(len(whole)).tolist() for index in whole[number]] + last
        epoch += 1
    return order[:count]


def trainer_arguments(settings: WeightSettings, folder: Path, seed: int) -> dict[str, Any]:
    if settings.log == "tensorboard":
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "tensorboard")
    cuda = best_device().type == "cuda"
    return {
        "output_dir": str(folder / "checkpoints"),
        "max_steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "warmup_steps": round(settings.warmup * settings.steps),
        "lr_scheduler_type": settings.schedule,
        "save_steps": settings.save_every,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": ["tensorboard"] if settings.log == "tensorboard" else [],
        "disable_tqdm": True,
        "seed": seed,
        "bf16": cuda,
        "use_cpu": not cuda,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": cuda,
    }


def run_trainer(trainer: Any, folder: Path, settings: WeightSettings, title: str) -> None:
    """Trains from the last whole checkpoint if there is one, with a progress bar and metrics as they come."""
    checkpoint = last_checkpoint(folder / "checkpoints")
    if checkpoint:
        multimodal.restore_renamed(trainer.model, checkpoint)
    with progress(title, settings.steps) as advance:
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(_Record(folder, advance))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written whole; others are removed."""
    found = {int(n): path for path in folder.glob("checkpoint-*") if (n := path.name.split("-")[1]).isdigit()}
    whole = {number: path for number, path in found.items() if (path / _MARK).is_file()}
    for number in found.keys() - whole.keys():
        shutil.rmtree(found[number], ignore_errors=True)  # another process may be at it
    return whole[max(whole)] if whole else None


def last_step(folder: Path) -> int:
    """The step of a training's last whole checkpoint; 0 without one."""
    checkpoint = last_checkpoint(folder / "checkpoints")
    return int(checkpoint.name.split("-")[1]) if checkpoint else 0


def rows_until(step: int, log: Path) -> list[dict[str, Any]]:
    """The rows of a log of JSON lines up to a step, which are then all it holds: later steps are taken anew."""
    lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.is_file() else []
    rows = {number: row for number, line in enumerate(lines) if (row := json.loads(line))["step"] <= step}
    log.parent.mkdir(parents=True, exist_ok=True)
    write_text(log, "".join(f"{lines[number]}\n" for number in rows))
    return list(rows.values())


def save_trained(trainer: Any, tokenizer: Any, folder: Path, card: Card, start: Path) -> None:
    """Called by every process: leaves `folder/model`, weights gathered from all (FSDP2, ZeRO-3), adapters merged."""
    weights, network = trainer.accelerator.get_state_dict(trainer.model_wrapped), trainer.model
    if trainer.accelerator.is_main_process:
        if configs := getattr(network, "peft_config", None):
            plain = {
                name.removeprefix("base_model.model.").replace(".base_layer.", "."): value
                for name, value in weights.items()
                if ".lora_" not in name
            }
            weights = merged_weights(plain, weights, configs["default"].lora_alpha / configs["default"].r)
            network = network.get_base_model()
        save_model(network, tokenizer, folder, card, start, weights)
    trainer.accelerator.wait_for_everyone()


def save_model(network: Any, tokenizer: Any, folder: Path, card: Card, start: Path, weights: Any = None) -> None:
    """Leaves a plain model folder in `folder/model`, whole or not at all, with these weights or the network's own."""
    network.config.use_cache = True
    with _new_model(folder, card) as unfinished:
        network.save_pretrained(unfinished, state_dict=weights)
        tokenizer.save_pretrained(unfinished)
        for name in multimodal.PROCESSOR_FILES:
            if (start / name).is_file():
                shutil.copyfile(start / name, unfinished / name)


@contextmanager
def _new_model(folder: Path, card: Card) -> Iterator[Path]:
    """An empty folder to fill, which becomes `folder/model` with its card, whole or not at all."""
    with atomic_folder(folder / "model") as unfinished:
        yield unfinished
        (unfinished / CARD).write_text(json.dumps(card, sort_keys=True) + "\n", encoding="utf-8")
        shutil.rmtree(folder / "model", ignore_errors=True)


def model_card(folder: Path) -> Card:
    """What a model of ours says about its prompts; nothing for other models."""
    path = folder / CARD
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


class _Record(TrainerCallback):  # type: ignore[misc]
    """Marks whole checkpoints, moves the bar, and writes metrics; on resume the metrics of lost steps are dropped."""

    def __init__(self, folder: Path, advance: Callable[[int], None]) -> None:
        self._folder, self._advance, self._last = folder, advance, time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if state.is_world_process_zero:
            with (self._folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(_line(row) for row in state.log_history if "loss" in row)
        self._advance(state.global_step)
        self._last = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not state.log_history or "loss" not in state.log_history[-1]:
            return
        before, self._last = self._last, time.monotonic()
        times = {"step": state.global_step, "seconds": round(self._last - before, 3)}
        for name, line in (("metrics", _line(state.log_history[-1])), ("times", json.dumps(times) + "\n")):
            with (self._folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                file.write(line)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._advance(1)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # each process writes a part
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _MARK).touch()


def _line(row: dict[str, Any]) -> str:
    kept = {key: value for key, value in row.items() if not any(word in key for word in _NOT_REPEATED)}
    endless = {key: None for key, value in kept.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps(kept | endless, sort_keys=True) + "\n"


def trainable_network(model: Path, settings: WeightSettings) -> Any:
    """The model in float32, whole in every process, its lower layers frozen if so set, and its vision tower always."""
    steady_attention()
    unset_hf_deepspeed_config()  # an earlier training by ZeRO-3 would make this one load a part of each weight
    network = multimodal.network_class(model).from_pretrained(model, dtype=torch.float32)
    network.config.use_cache = False
    layers = network.config.get_text_config().num_hidden_layers
    lowest = max(0, layers - settings.top_layers) if settings.top_layers else -1
    for name, parameter in network.named_parameters():
        if "visual" in name or "vision" in name or _layer(name) < lowest:
            parameter.requires_grad = False
    return network


def lora_config(network: Any, settings: WeightSettings) -> Any:
    """The adapters to train, beside the matrices of all layers that are not frozen; None to train the weights."""
    if not settings.lora_rank:
        return None
    from peft import LoraConfig

    linear = [(name, one) for name, one in network.named_modules() if isinstance(one, torch.nn.Linear)]
    targets = [name for name, one in linear if one.weight.requires_grad and _layer(name) >= 0]
    rank = settings.lora_rank
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM")


def _layer(name: str) -> int:
    """The number of the layer that a parameter or module belongs to; -1 outside all of them."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)
