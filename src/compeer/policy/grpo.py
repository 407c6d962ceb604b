"""GRPO with redundancy-aware rewards, on TRL's trainer.

For each history the supporter writes a group of outputs; UnifiReward scores each; rewards are reweighted by how
redundant a response is within its group and against its history; outputs that did better than their group become more
likely.

TRL calls a reward function with one process's rows only, and a group may straddle processes. So the one method that
gathers rewards, `_calculate_rewards`, is overridden: every process scores and embeds its own rows, all rows are
gathered, and whole groups are reweighted on every process alike. It is a private method: `trl` is pinned, and a test
holds the contract.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from trl import GRPOConfig, GRPOTrainer

from compeer.errors import InputError
from compeer.models.embedder import Embedder, Matrix
from compeer.models.local import load_tokenizer
from compeer.models.training import (
    WeightSettings,
    last_checkpoint,
    lora_config,
    run_trainer,
    save_model,
    trainable_network,
    trainer_arguments,
)
from compeer.policy.prompt import supporter_prompt
from compeer.policy.redundancy import (
    Negatives,
    group_rewards,
    history_similarity,
    in_group_similarity,
    length_gate,
    tied,
)
from compeer.reasoning import ParsedTurn, parse_turn
from compeer.reward import Case, Judgment, LocalJudge, Score, Unscored, score
from compeer.ser.record import SerRecord
from compeer.statistics import distinct, generator, mean, words


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


@dataclass(frozen=True)
class Rollout:
    """One output with all that a group's rewards need; travels between processes."""

    record: str
    text: str
    score: Score
    length: int
    response: Matrix
    history: Matrix

    @property
    def raw(self) -> float:
        """The total, or NaN where the judge failed."""
        return float("nan") if self.score.total is None else float(self.score.total)


class Scorer:
    """Scores outputs with a judge and embeds their responses."""

    def __init__(self, judge: LocalJudge, embedder: Embedder, records: Mapping[str, SerRecord], seed: int) -> None:
        self._judge, self._embedder, self._records, self._seed = judge, embedder, records, seed

    def __call__(self, ids: Sequence[str], texts: Sequence[str], cut_off: Sequence[bool]) -> list[Rollout]:
        parsed = [parse_turn(text, cut_off=cut) for text, cut in zip(texts, cut_off, strict=True)]
        readable = [index for index, turn in enumerate(parsed) if turn.parts]
        cases = [self._case(self._records[ids[index]], parsed[index]) for index in readable]
        judgments: list[Judgment | Unscored] = [Unscored("nothing could be read")] * len(parsed)
        for index, judgment in zip(readable, self._judge.judge(cases), strict=True):
            judgments[index] = judgment
        histories = {key: self._embedder.embed([u.text for u in self._records[key].history]) for key in set(ids)}
        responses = [str(turn.parts.get("response", "")) for turn in parsed]
        rows = self._embedder.embed(responses)
        return [
            Rollout(
                record=key,
                text=text,
                score=score(turn, judgment),
                length=len(words(response)),
                response=row,
                history=histories[key],
            )
            for key, text, turn, judgment, response, row in zip(
                ids, texts, parsed, judgments, responses, rows, strict=True
            )
        ]

    def _case(self, record: SerRecord, turn: ParsedTurn) -> Case:
        first = bool(generator(self._seed, "order", record.id, str(turn.parts.get("response"))).random() < 0.5)
        return Case(record.history, turn, record.reference, candidate_first=first)


class RedundancyGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPO, its rewards replaced by reweighted scores of whole groups."""

    def __init__(
        self,
        scorer: Callable[[Sequence[str], Sequence[str], Sequence[bool]], list[Rollout]],
        settings: GrpoSettings,
        samples: Path,
        **kwargs: Any,
    ) -> None:
        self._scorer, self._settings, self._samples = scorer, settings, samples
        super().__init__(reward_funcs=[_never_called], **kwargs)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> torch.Tensor:
        from accelerate.utils import gather_object

        texts = [_completion_text(completion) for completion in completions]
        ends = set(self.eos_token_ids)
        cut_off = [not ids or ids[-1] not in ends for ids in completion_ids_list]
        rollouts = gather_object(self._scorer([row["record"] for row in inputs], texts, cut_off))
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
        rewards = [self._group_rewards(group) for group in groups]
        mode = "train" if self.model.training else "eval"
        for name, value in group_figures(groups, self._settings).items():
            self._metrics[mode][name].append(value)
        if mode == "train" and self.accelerator.is_main_process:
            self._keep_samples(groups, rewards)
        flat = [reward for group in rewards for reward in group]
        return torch.tensor(flat, dtype=torch.float32, device=self.accelerator.device).unsqueeze(1)

    def _group_rewards(self, group: Sequence[Rollout]) -> list[float]:
        settings = self._settings
        return group_rewards(
            [rollout.raw for rollout in group],
            np.stack([rollout.response for rollout in group]),
            group[0].history,
            [rollout.length for rollout in group],
            settings.alpha,
            settings.beta,
            settings.negatives,
        )

    def _keep_samples(self, groups: Sequence[Sequence[Rollout]], rewards: Sequence[Sequence[float]]) -> None:
        with self._samples.open("a", encoding="utf-8") as file:
            for group, values in zip(groups, rewards, strict=True):
                for rollout, reward in zip(group, values, strict=True):
                    row = {
                        "step": self.state.global_step,
                        "record": rollout.record,
                        "output": rollout.text,
                        "parts": rollout.score.parts(),
                        "total": rollout.score.total,
                        "unscored": rollout.score.unscored,
                        "reward": None if reward != reward else round(reward, 6),
                    }
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _never_called(**_: Any) -> list[float]:
    raise AssertionError("rewards are computed in _calculate_rewards")


_never_called.__name__ = "reweighted"


def _completion_text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def group_figures(groups: Sequence[Sequence[Rollout]], settings: GrpoSettings) -> dict[str, float]:
    """What a step's groups look like: raw parts and how much each varies within groups, redundancy, diversity."""
    everyone = [rollout for group in groups for rollout in group]
    scored = [rollout for rollout in everyone if rollout.score.total is not None]
    figures: dict[str, float] = {
        "raw/total": _mean([rollout.raw for rollout in scored]),
        "raw/unscored_share": 1 - len(scored) / max(1, len(everyone)),
        "raw/tied_groups": _mean([float(tied([rollout.raw for rollout in group])) for group in groups]),
        "redundancy/s_in": _mean([s for g in groups for s in in_group_similarity(np.stack([r.response for r in g]))]),
        "redundancy/s_hi": _mean(
            [s for g in groups for s in history_similarity(np.stack([r.response for r in g]), g[0].history)]
        ),
        "redundancy/tau": _mean([length_gate([r.length for r in g], settings.alpha, settings.beta) for g in groups]),
        "response/words": _mean([rollout.length for rollout in everyone]),
        "response/distinct_2": distinct([str(parse_turn(r.text).parts.get("response", "")) for r in everyone], 2),
    }
    for name in ("history", "emotion", "strategy", "response", "format"):
        figures[f"raw/{name}"] = _mean([r.score.parts()[name] for r in scored])
        spread = [np.var([v for r in g if (v := r.score.parts()[name]) is not None] or [0]) for g in groups]
        figures[f"variance/{name}"] = _mean([float(value) for value in spread])
    return figures


def _mean(values: Sequence[float | None]) -> float:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else float("nan")


def train_grpo(
    model: Path,
    judge: LocalJudge,
    embedder: Embedder,
    records: Sequence[SerRecord],
    settings: GrpoSettings,
    folder: Path,
    seed: int,
) -> dict[str, Any]:
    """Trains the supporter on the histories of the corpus' own turns; leaves it in `folder/model`."""
    chosen = {record.id: record for record in records if record.author == "corpus"}
    trainer = grpo_trainer(model, Scorer(judge, embedder, chosen, seed), chosen, settings, folder, seed)
    run_trainer(trainer, folder, settings, "Training the supporter by reward")
    card = {"role": "supporter", "history": settings.history}
    save_model(trainer.model, trainer.processing_class, folder, card)
    rows = [row for row in trainer.state.log_history if "raw/total" in row]
    still = [
        name
        for name in ("history", "emotion", "strategy", "response", "format")
        if rows and all(row[f"variance/{name}"] == 0 for row in rows)
    ]
    return {
        "histories": len(chosen),
        "steps": trainer.state.global_step,
        "outputs": len(rows) * settings.group * settings.prompts,
        "raw_total_first": rows[0]["raw/total"] if rows else None,
        "raw_total_last": rows[-1]["raw/total"] if rows else None,
        "tied_groups": mean([row["raw/tied_groups"] for row in rows]),
        "unscored_share": mean([row["raw/unscored_share"] for row in rows]),
        "parts_that_never_varied": still,
    }


def grpo_trainer(
    model: Path,
    scorer: Callable[[Sequence[str], Sequence[str], Sequence[bool]], list[Rollout]],
    records: Mapping[str, SerRecord],
    settings: GrpoSettings,
    folder: Path,
    seed: int,
    kind: type[RedundancyGRPOTrainer] = RedundancyGRPOTrainer,
) -> RedundancyGRPOTrainer:
    """The trainer, ready to run; a step generates `prompts` groups, spread over all processes."""
    from datasets import Dataset

    tokenizer = load_tokenizer(model)
    network = trainable_network(model, settings)
    _drop_lost_samples(folder / "samples.jsonl", folder)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    outputs = settings.group * settings.prompts
    if outputs % processes:
        raise InputError(f"{outputs} outputs a step cannot be spread evenly over {processes} processes.", field="grpo")
    here = outputs // processes
    micro = max(size for size in range(1, min(settings.group, here) + 1) if here % size == 0)
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
                {"prompt": supporter_prompt(record.history, settings.history), "record": key}
                for key, record in records.items()
            ]
        ),
        processing_class=tokenizer,
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
