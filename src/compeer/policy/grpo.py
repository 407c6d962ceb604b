"""GRPO with redundancy-aware rewards, on TRL's trainer.

For each history the supporter writes a group of outputs; UnifiReward, or whatever sources the recipe names, scores
each; rewards are reweighted by how redundant a response is within its group and against its history; a response that
the safety guard rejects gets the floor, whatever it earned; outputs that did better than their group become likelier.

TRL calls a reward function with one process's rows only, and a group may straddle processes. So the one method that
gathers rewards, `_calculate_rewards`, is overridden: every process scores and embeds its own rows, all rows are
gathered, and whole groups are reweighted on every process alike. It is a private method: `trl` is pinned, and a test
holds the contract.

A judge that stays away stops all processes, after a checkpoint from which training goes on as if nothing had been.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from trl import GRPOConfig, GRPOTrainer

from compeer.errors import InputError
from compeer.models.embedder import Embeds
from compeer.models.local import defuse, load_tokenizer
from compeer.models.training import (
    WeightSettings,
    last_checkpoint,
    lora_config,
    run_trainer,
    save_model,
    trainable_network,
    trainer_arguments,
)
from compeer.models.vision import picture_reader, restore_renamed
from compeer.policy.collapse import CollapseRule
from compeer.policy.fast_rollouts import FastRollouts
from compeer.policy.figures import STILL_STEPS, group_figures, sample_rows, still_parts
from compeer.policy.outage import RandomKeeper
from compeer.policy.patience import JudgeAway
from compeer.policy.prompt import supporter_prompt, with_whole_paths
from compeer.policy.redundancy import Negatives
from compeer.policy.rewards import SourceSettings, Weighted
from compeer.policy.scoring import Group, Rollout, Scorer, weigh
from compeer.policy.seeing import SeeingProcessor, blocks, drop_nothing_seen
from compeer.progress import console
from compeer.reward import Judge
from compeer.ser.record import SerRecord
from compeer.statistics import mean

__all__ = ["GrpoSettings", "RedundancyGRPOTrainer", "Rollout", "Scorer", "grpo_trainer", "train_grpo"]


class GrpoSettings(WeightSettings):
    """How the supporter is trained by reward."""

    group: int = Field(default=4, ge=2, description="outputs for one history (G)")
    prompts: int = Field(default=8, ge=1, description="histories an optimiser step")
    max_tokens: int = Field(default=256, ge=1, description="longest output, in tokens; a longer one is cut off")
    temperature: float = Field(default=1.0, gt=0, description="of the rollouts")
    epsilon: float = Field(default=0.2, gt=0, description="clip range of the probability ratio")
    alpha: float = Field(default=0.5, description="steepness of the length gate (equation 7)")
    beta: float = Field(default=5.0, description="length, in words, at which the gate is half open (equation 7)")
    negatives: Negatives = Field(default="mirrored", description="how negative rewards are reweighted")
    history: int | None = Field(default=None, ge=1, description="utterances of the history it sees; none: all")
    media: str = Field(default="", description="the folder from which paths of pictures count, for a model that sees")
    guard: bool = Field(default=True, description="whether a response that the safety guard rejects gets the floor")
    rewards: dict[str, SourceSettings] = Field(
        default={"judge": SourceSettings()}, min_length=1, description="the sources of rewards by name"
    )
    outage: float = Field(
        default=600.0, ge=0, description="seconds that a judge behind a server may stay away before training stops"
    )
    stop_entropy: float | None = Field(
        default=None,
        gt=0,
        description="training stops when the entropy, in nats a token, stays under this; none: never",
    )
    stop_distinct_2: float | None = Field(
        default=None, gt=0, le=1, description="training stops when distinct-2 of a step stays under this; none: never"
    )
    patience: int = Field(default=5, ge=1, description="steps on end under a floor after which training stops")

    def floors(self) -> dict[str, float]:
        """The floors that are set, by the name of the figure."""
        found = {"entropy": self.stop_entropy, "response/distinct_2": self.stop_distinct_2}
        return {name: floor for name, floor in found.items() if floor is not None}


Scores = Callable[[Sequence[str], Sequence[str], Sequence[bool]], list[Rollout]]
"""Rollouts of records' ids, the outputs that answer them, and whether these were cut off."""


class RedundancyGRPOTrainer(FastRollouts, GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO with our own rollouts, its rewards replaced by reweighted scores of whole groups."""

    def __init__(self, scorer: Scores, settings: GrpoSettings, samples: Path, **kwargs: Any) -> None:
        self._scorer, self._settings, self._samples = scorer, settings, samples
        super().__init__(reward_funcs=[_never_called], **kwargs)
        self._random = RandomKeeper()
        self.add_callback(self._random)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        texts = [_completion_text(completion) for completion in completions]
        ends = set(self.eos_token_ids)
        cut_off = [not ids or ids[-1] not in ends for ids in completion_ids_list]
        rollouts = self._all_rollouts([row["record"] for row in inputs], texts, cut_off)
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups = [weigh(rollouts[start : start + size], self._settings) for start in range(0, len(rollouts), size)]
        self._log_figures(groups)
        flat = [reward for group in groups for reward in group.rewards]
        return torch.tensor(flat, dtype=torch.float32, device=self.accelerator.device).unsqueeze(1)

    def _all_rollouts(self, ids: Sequence[str], texts: Sequence[str], cut_off: Sequence[bool]) -> list[Rollout]:
        """The rollouts of all processes; if the judge of one is away, all stop."""
        from accelerate.utils import gather_object

        mine: list[Rollout] = []
        away: str | None = None
        try:
            mine = self._scorer(ids, texts, cut_off)
        except JudgeAway as error:
            away = str(error)
        if reasons := [reason for reason in gather_object([away]) if reason]:
            self._stop_for_outage(reasons[0])
        found: list[Rollout] = gather_object(mine)
        return found

    def _stop_for_outage(self, reason: str) -> None:
        """Writes a checkpoint of where the last step ended, unless there is one, and raises."""
        step = self.state.global_step
        newest = last_checkpoint(Path(self.args.output_dir))
        if step and (newest is None or newest.name != f"checkpoint-{step}"):
            self._random.restore()  # as it was before this step's rollouts were drawn
            self._save_checkpoint(self.model, trial=None)
            self.callback_handler.on_save(self.args, self.state, self.control)
        raise InputError(
            f"training stopped after step {step}, since a judge is away: {reason}",
            do="The step is kept. See to the judge and start again: training goes on from there.",
        )

    def _log_figures(self, groups: Sequence[Group]) -> None:
        mode = "train" if self.model.training else "eval"
        figures = group_figures(groups)
        rows = [row for row in self.state.log_history if "raw/total" in row]
        still = still_parts([*rows, figures], STILL_STEPS)
        for name, value in {**figures, "variance/still": float(len(still))}.items():
            self._metrics[mode][name].append(value)
        if mode == "train" and self.accelerator.is_main_process:
            if still and len(still) != (rows[-1].get("variance/still") if rows else 0):
                told = f"{', '.join(still)} varied within no group for {STILL_STEPS} steps and taught nothing"
                console.print(f"[yellow]![/] step {self.state.global_step}: {told}", highlight=False)
            with self._samples.open("a", encoding="utf-8") as file:
                for row in sample_rows(self.state.global_step, groups):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _never_called(**_: Any) -> list[float]:
    raise AssertionError("rewards are computed in _calculate_rewards")


_never_called.__name__ = "reweighted"


def _completion_text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def train_grpo(
    model: Path,
    rewards: Judge | Sequence[Weighted],
    embedder: Embeds,
    records: Sequence[SerRecord],
    settings: GrpoSettings,
    folder: Path,
    seed: int,
) -> dict[str, Any]:
    """Trains the supporter on the histories of the corpus' own turns; leaves it in `folder/model`.

    `rewards` is a judge, or sources with their weights. After a collapse the last good checkpoint becomes the model,
    or the model that training started from where there is none; `stopped` and `kept_step` say so.
    """
    chosen = {
        record.id: record.model_copy(update={"history": with_whole_paths(record.history, settings.media)})
        for record in records
        if record.author == "corpus"
    }
    trainer = grpo_trainer(model, Scorer(rewards, embedder, chosen, seed), chosen, settings, folder, seed)
    rule = CollapseRule(settings.floors(), settings.patience, folder / "checkpoints")
    if settings.floors():
        trainer.add_callback(rule)
    run_trainer(trainer, folder, settings, "Training the supporter by reward")
    step = trainer.state.global_step
    network, kept = (trainer.model, step) if rule.stopped is None else _last_good(trainer, rule, model, settings)
    card: dict[str, Any] = {"role": "supporter", "history": settings.history}
    card |= {"media": settings.media} if settings.media else {}
    if trainer.accelerator.is_main_process:
        save_model(network, load_tokenizer(model), folder, card, model)
    trainer.accelerator.wait_for_everyone()
    rows = [row for row in trainer.state.log_history if "raw/total" in row]
    return {
        "histories": len(chosen),
        "steps": step,
        "outputs": len(rows) * settings.group * settings.prompts,
        "raw_total_first": rows[0]["raw/total"] if rows else None,
        "raw_total_last": rows[-1]["raw/total"] if rows else None,
        "tied_groups": mean([row["raw/tied_groups"] for row in rows]),
        "unscored_share": mean([row["raw/unscored_share"] for row in rows]),
        "rejected_share": mean([row["guard/rejected_share"] for row in rows]),
        "parts_that_never_varied": still_parts(rows, len(rows)),
        "stopped": rule.stopped,
        "kept_step": kept,
    }


def _last_good(trainer: Any, rule: CollapseRule, model: Path, settings: GrpoSettings) -> tuple[Any, int]:
    """The network as it was before the collapse, and after which step."""
    trainer.accelerator.wait_for_everyone()
    found = rule.good()
    if found is None:
        return trainable_network(model, settings), 0
    step, checkpoint = found
    trainer._load_from_checkpoint(str(checkpoint))
    restore_renamed(trainer.model, checkpoint)
    return trainer.model, step


def grpo_trainer(
    model: Path,
    scorer: Scores,
    records: Mapping[str, SerRecord],
    settings: GrpoSettings,
    folder: Path,
    seed: int,
    kind: type[RedundancyGRPOTrainer] = RedundancyGRPOTrainer,
) -> RedundancyGRPOTrainer:
    """The trainer, ready to run; a step generates `prompts` groups, spread over all processes.

    Paths of pictures in the records count from here, for a model that sees.
    """
    from datasets import Dataset

    tokenizer = load_tokenizer(model)
    reader = picture_reader(model)
    network = trainable_network(model, settings)
    if reader:
        network.register_forward_pre_hook(drop_nothing_seen, with_kwargs=True)
    if os.environ.get("RANK", "0") == "0":
        _drop_lost_samples(folder / "samples.jsonl", folder)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    outputs = settings.group * settings.prompts
    if outputs % processes:
        raise InputError(f"{outputs} outputs a step cannot be spread evenly over {processes} processes.", field="grpo")
    here = outputs // processes
    micro = max(size for size in range(1, min(settings.group, here) + 1) if here % size == 0)
    prompts = {key: supporter_prompt(r.history, settings.history, images=bool(reader)) for key, r in records.items()}
    return kind(
        scorer=scorer,
        settings=settings,
        samples=folder / "samples.jsonl",
        model=network,
        args=GRPOConfig(
            **trainer_arguments(settings, folder, seed),
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=here // micro,
            num_generations=settings.group,
            max_completion_length=settings.max_tokens,
            temperature=settings.temperature,
            epsilon=settings.epsilon,
            loss_type="grpo",
            beta=0.0,
        ),
        train_dataset=Dataset.from_list(
            [
                {"prompt": blocks(tokenizer, prompt) if reader else defuse(tokenizer, prompt), "record": key}
                for key, prompt in prompts.items()
            ]
        ),
        processing_class=SeeingProcessor(tokenizer, reader) if reader else tokenizer,
        peft_config=lora_config(network, settings),
    )


def _drop_lost_samples(samples: Path, folder: Path) -> None:
    """Keeps the samples of steps that the last whole checkpoint has seen; later ones will be drawn again."""
    checkpoint = last_checkpoint(folder / "checkpoints")
    done = int(checkpoint.name.split("-")[1]) if checkpoint else 0
    lines = samples.read_text(encoding="utf-8").splitlines(keepends=True) if samples.is_file() else []
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] < done]
    samples.parent.mkdir(parents=True, exist_ok=True)
    samples.write_text("".join(kept), encoding="utf-8")
