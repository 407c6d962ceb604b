"""Run by test_grpo, alone or by torchrun: three steps of GRPO with scripted outputs and scores, results as JSON.

Every output is fixed by its history and its place in the group, and every score by its text, so that one process and
two must come to the same rewards, advantages and parameters.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from compeer.models.training import run_trainer
from compeer.policy.grpo import GrpoSettings, RedundancyGRPOTrainer, Rollout, grpo_trainer
from compeer.reward import Score
from compeer.ser import read_records
from compeer.statistics import words

OUTPUTS = ["good morning to you", "I see what you mean, go on", "tell me more", "go on then, tell me"]


def number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


def scripted_scores(ids: list[str], texts: list[str], _: list[bool]) -> list[Rollout]:
    """Totals from −5 to 5 by the text; embeddings by its words; the fourth output of some histories is unscored."""
    rollouts = []
    for key, text in zip(ids, texts, strict=True):
        unscored = number(key + text) % 7 == 0
        total = None if unscored else number(key + text) % 11 - 5
        row = np.zeros(32, dtype=np.float32)
        for word in words(text):
            row[number(word) % 32] += 1
        history = np.ones((2, 32), dtype=np.float32)
        score = Score(total=total, unscored="scripted" if unscored else None)
        rollouts.append(Rollout(key, text, score, len(words(text)), row, history))
    return rollouts


class Scripted(RedundancyGRPOTrainer):
    """Outputs by rule instead of sampling; keeps what it computed."""

    seen: ClassVar[list[Any]] = []

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[Any, None]:
        size = self.num_generations
        start = self.accelerator.process_index * len(prompt_ids)
        completions = []
        for row in range(len(prompt_ids)):
            text = OUTPUTS[(start + row) % size]
            completions.append([*self.processing_class(text)["input_ids"], self.processing_class.eos_token_id])
        return completions, None

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        Scripted.seen.append([None if value != value else round(value, 5) for value in rewards[:, 0].tolist()])
        return rewards


def main() -> None:
    model, records, folder = (Path(word) for word in sys.argv[1:4])
    settings = GrpoSettings(steps=3, learning_rate=1e-3, lora_rank=0, group=4, prompts=2, max_tokens=16, history=2)
    chosen = {record.id: record for record in read_records(records) if record.author == "corpus"}
    trainer = grpo_trainer(model, scripted_scores, chosen, settings, folder, 0, kind=Scripted)
    run_trainer(trainer, folder, settings, "scripted")
    if trainer.accelerator.is_main_process:
        network = trainer.accelerator.unwrap_model(trainer.model)
        sums = {name: float(value.double().abs().sum()) for name, value in network.named_parameters()}
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        (folder / "result.json").write_text(json.dumps({"rewards": Scripted.seen, "sums": sums, "losses": losses}))


if __name__ == "__main__":
    main()
