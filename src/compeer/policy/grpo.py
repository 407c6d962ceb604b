"""GRPO with redundancy-aware rewards, on TRL's trainer.

For each history the supporter writes a group of outputs; UnifiReward, or whatever sources the recipe names, scores
each; rewards are reweighted by how redundant a response is within its group and against its history; a response that
the safety guard rejects gets the floor.

TRL calls a reward function with one process's rows only, and a group may straddle processes. So the one method that
gathers rewards, `_calculate_rewards`, is overridden: every process scores and embeds its own rows, all rows are
gathered, and whole groups are reweighted on every process alike. It is a private method: `trl` is pinned, and a test
holds the contract. A judge that stays away stops all processes, after a checkpoint from which training goes on.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from compeer.engine.multimodal import picture_reader
from compeer.engine.network import defuse, load_tokenizer
from compeer.errors import InputError
from compeer.models.embedder import Embeds
from compeer.models.training import last_step, lora_config, rows_until, run_trainer, save_trained, trainable_network
from compeer.pipeline import in_blocks
from compeer.policy.fast_rollouts import FastRollouts
from compeer.policy.grpo_settings import GrpoSettings, check_vllm, grpo_config
from compeer.policy.metrics import STILL_STEPS, group_metrics, sample_rows, still_parts
from compeer.policy.multimodal import MultimodalProcessor, blocks, drop_empty_patches
from compeer.policy.prompt import refuse_direct, supporter_prompt
from compeer.policy.rewards import JudgeAway, RewardedGroup, Rollout, Scorer, Weighted, completion_text, reward_group
from compeer.progress import console, first_process
from compeer.reward import Judge
from compeer.reward.conversation import with_whole_paths
from compeer.ser.record import SerRecord
from compeer.statistics import mean

__all__ = ["GrpoSettings", "RedundancyGRPOTrainer", "Rollout", "Scorer", "grpo_trainer", "train_grpo"]

Scores = Callable[[Sequence[str], Sequence[str], Sequence[bool]], list[Rollout]]  # as `Scorer` is called


class RedundancyGRPOTrainer(FastRollouts, GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO with our own rollouts, its rewards replaced by reweighted scores of whole groups."""

    def __init__(self, scorer: Scores, settings: GrpoSettings, samples: Path, **kwargs: Any) -> None:
        self._scorer, self._settings, self._samples = scorer, settings, samples
        super().__init__(reward_funcs=[reweighted], **kwargs)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        texts = [completion_text(completion) for completion in completions]
        ends = set(self.eos_token_ids)
        cut_off = [not ids or ids[-1] not in ends for ids in completion_ids_list]
        rollouts = self._all_rollouts([row["record"] for row in inputs], texts, cut_off)
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups = [reward_group(group, self._settings) for group in in_blocks(rollouts, size)]
        self._log_metrics(groups)
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
        kept = last_step(self._samples.parent)
        self.accelerator.wait_for_everyone()  # or one process may take what another begins to write for a broken one
        if step != kept:
            self._save_checkpoint(self.model, trial=None)
            self.callback_handler.on_save(self.args, self.state, self.control)
        do = "The step is kept. See to the judge and start again: training goes on from there."
        raise InputError(f"training stopped after step {step}, since a judge is away: {reason}", do=do)

    def _log_metrics(self, groups: Sequence[RewardedGroup]) -> None:
        mode = "train" if self.model.training else "eval"
        metrics = group_metrics(groups)
        rows = [row for row in self.state.log_history if "raw/total" in row]
        still = still_parts([*rows, metrics], STILL_STEPS)
        for name, value in {**metrics, "variance/still": float(len(still))}.items():
            self._metrics[mode][name].append(value)
        if mode == "train" and self.accelerator.is_main_process:
            if still and len(still) != (rows[-1].get("variance/still") if rows else 0):
                what = f"{', '.join(still)} varied within no group for {STILL_STEPS} steps and taught nothing"
                console.print(f"[yellow]![/] step {self.state.global_step}: {what}", highlight=False)
            with self._samples.open("a", encoding="utf-8") as file:
                for row in sample_rows(self.state.global_step, groups):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")


def reweighted(**_: Any) -> list[float]:
    """The name under which TRL logs our rewards; it is never called."""
    raise AssertionError("rewards are computed in _calculate_rewards")


def train_grpo(
    model: Path,
    rewards: Judge | Sequence[Weighted],
    embedder: Embeds,
    records: Sequence[SerRecord],
    settings: GrpoSettings,
    folder: Path,
    seed: int,
) -> dict[str, Any]:
    """Trains the supporter on histories of the corpus' turns, by a judge or weighted sources, into `folder/model`."""
    refuse_direct(model)
    chosen = {
        record.id: record.model_copy(update={"history": with_whole_paths(record.history, settings.media)})
        for record in records
        if record.author == "corpus"
    }
    trainer = grpo_trainer(model, Scorer(rewards, embedder, chosen, seed), chosen, settings, folder, seed)
    run_trainer(trainer, folder, settings, "Training the supporter by reward")
    card: dict[str, Any] = {"role": "supporter", "history": settings.history}
    card |= {"media": settings.media} if settings.media else {}
    save_trained(trainer, load_tokenizer(model), folder, card, model)
    rows = [row for row in trainer.state.log_history if "raw/total" in row]
    return {
        "histories": len(chosen),
        "steps": trainer.state.global_step,
        "outputs": len(rows) * settings.group * settings.prompts,
        "raw_total_first": rows[0]["raw/total"] if rows else None,
        "raw_total_last": rows[-1]["raw/total"] if rows else None,
        "tied_groups": mean([row["raw/tied_groups"] for row in rows]),
        "unscored_share": mean([row["raw/unscored_share"] for row in rows]),
        "rejected_share": mean([row["guard/rejected_share"] for row in rows]),
        "parts_that_never_varied": still_parts(rows, len(rows)),
    }


def grpo_trainer(
    model: Path,
    scorer: Scores,
    records: Mapping[str, SerRecord],
    settings: GrpoSettings,
    folder: Path,
    seed: int,
    kind: type[RedundancyGRPOTrainer] = RedundancyGRPOTrainer,
) -> RedundancyGRPOTrainer:
    """The trainer, ready to run; a step generates `prompts` groups over all processes."""
    from datasets import Dataset

    check_vllm(settings)
    tokenizer = load_tokenizer(model)
    reader = picture_reader(model)
    network = trainable_network(model, settings)
    if reader:
        network.register_forward_pre_hook(drop_empty_patches, with_kwargs=True)
    config = grpo_config(settings, folder, seed)  # after the network: once it is made, DeepSpeed loads only parts
    samples = folder / "samples.jsonl"
    if first_process():
        rows_until(last_step(folder) - 1, samples)
    asked = {key: supporter_prompt(one.history, settings.history, images=bool(reader)) for key, one in records.items()}
    prompts = {key: (blocks if reader else defuse)(tokenizer, prompt) for key, prompt in asked.items()}
    return kind(
        scorer=scorer,
        settings=settings,
        samples=samples,
        model=network,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt, "record": key} for key, prompt in prompts.items()]),
        processing_class=MultimodalProcessor(tokenizer, reader) if reader else tokenizer,
        peft_config=lora_config(network, settings),
    )
