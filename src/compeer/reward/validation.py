"""Watching a judge while it is trained: how well it does on held-out dialogues, when to stop, which weights to keep.

Every so many steps the judge is measured on the validation records by the mean Weighted-F1 of its parts. The weights of
the best measurement are kept beside the checkpoints and are put back at the end. A training that was killed goes on
with the measurements that its last whole checkpoint has seen; best weights are only removed once a checkpoint knows of
better ones. One that stopped because nothing got better has a checkpoint of that step, and is not taken up again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from compeer.models.training import last_checkpoint
from compeer.reasoning import STEPS
from compeer.reward.conversation import record_case
from compeer.reward.form import Form, Judge
from compeer.reward.judge import LocalJudge
from compeer.reward.looks import FEWEST
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import SerRecord
from compeer.statistics import generator, mean, weighted_f1

THRESHOLDS = tuple(round(0.05 * number, 2) for number in range(1, 20))


def hold_out(records: Sequence[SerRecord], share: float, seed: int) -> tuple[list[SerRecord], list[SerRecord]]:
    """Records to train on and records to validate on; no dialogue is in both."""
    dialogues = sorted({record.dialogue for record in records})
    count = min(len(dialogues) - 1, max(1, round(share * len(dialogues))))
    held = set(generator(seed, "validation").permutation(np.array(dialogues, dtype=object))[:count].tolist())
    return [r for r in records if r.dialogue not in held], [r for r in records if r.dialogue in held]


def part_figures(records: Sequence[SerRecord], judgments: Sequence[Judgment | Unscored]) -> dict[str, float]:
    """Weighted-F1 of each part that was judged; what the judge failed on counts as wrong."""
    found: dict[str, float] = {}
    for part in STEPS:
        if any(isinstance(judgment, Judgment) and part in judgment.steps for judgment in judgments):
            truth = [getattr(record.labels, part).value for record in records]
            found[part] = weighted_f1(truth, [j.step(part) if isinstance(j, Judgment) else None for j in judgments])
    if any(isinstance(judgment, Judgment) and judgment.response for judgment in judgments):
        truth = [record.preference.value if record.preference else None for record in records]
        said = [j.preferred() if isinstance(j, Judgment) else None for j in judgments]
        found["response"] = weighted_f1(truth, said)
    return found


def best_threshold(records: Sequence[SerRecord], judgments: Sequence[Judgment | Unscored]) -> float:
    """The probability of True below which a step counts as False, best for the steps' mean Weighted-F1.

    Of several equally good ones the middle is taken: it is the one most likely to hold elsewhere. With fewer than
    `FEWEST` records whose steps were judged it would be a matter of luck: 0.5.
    """
    scored = [(r, j) for r, j in zip(records, judgments, strict=True) if isinstance(j, Judgment) and j.steps]
    if len(scored) < FEWEST:
        return 0.5
    truths = {part: [bool(getattr(record.labels, part).value) for record, _ in scored] for part in STEPS}
    figures = [
        sum(weighted_f1(truths[part], [judgment.steps[part] >= threshold for _, judgment in scored]) for part in STEPS)
        for threshold in THRESHOLDS
    ]
    best = [threshold for threshold, figure in zip(THRESHOLDS, figures, strict=True) if figure >= max(figures) - 1e-9]
    return best[len(best) // 2]


def judged(judge: Judge, records: Sequence[SerRecord]) -> list[Judgment | Unscored]:
    """What a judge says to records."""
    return judge.judge([record_case(record) for record in records])


class Watch(TrainerCallback):  # type: ignore[misc]
    """Measures every `every` steps, stops after `patience` measurements without a better one (0: never)."""

    def __init__(
        self,
        records: Sequence[SerRecord],
        form: Form,
        model: Path,
        tokenizer: Any,
        folder: Path,
        every: int,
        patience: int,
        batch: int,
    ) -> None:
        self._records, self._form, self._model, self._tokenizer = records, form, model, tokenizer
        self._folder, self._every, self._patience, self._batch = folder, every, patience, batch
        self.measured: list[dict[str, Any]] = []

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The best measurement; of equal ones the earliest."""
        return max(self.measured, key=lambda row: row["mean"]) if self.measured else None

    @property
    def out_of_patience(self) -> bool:
        """Whether so many measurements are not better than the best one that training shall stop."""
        since = {row["step"] for row in self.measured if self.best and row["step"] > self.best["step"]}
        return 0 < self._patience <= len(since)

    def stopped(self) -> int | None:
        """The step at which an earlier call ran out of patience; None if training shall go on."""
        checkpoint = last_checkpoint(self._folder / "checkpoints")
        step = int(checkpoint.name.split("-")[1]) if checkpoint else 0
        self._recall(step)
        return step if self.out_of_patience else None

    def _recall(self, step: int) -> None:
        """Takes up the measurements of earlier calls, up to a step."""
        path = self._folder / "validation.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        self.measured = [row for row in rows if row["step"] <= step]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._recall(state.global_step)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "validation.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in self.measured), encoding="utf-8")

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self._every and state.global_step < state.max_steps:
            return
        model.eval()
        judge = LocalJudge(
            self._model, self._batch, form=self._form, threshold=0.5, network=model, tokenizer=self._tokenizer
        )
        figures = part_figures(self._records, judged(judge, self._records))
        model.train()
        row = {"step": state.global_step, "mean": mean(list(figures.values())) or 0.0, **figures}
        if self.best is None or row["mean"] > self.best["mean"]:
            self._weights(state.global_step).parent.mkdir(exist_ok=True)
            save_file(_trained(model), self._weights(state.global_step))
        self.measured.append(row)
        with (self._folder / "validation.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if self.out_of_patience:
            control.should_training_stop = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for path in (self._folder / "checkpoints").glob("best-*.safetensors"):
            if self.best and path != self._weights(self.best["step"]):
                path.unlink()

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.best is None:
            return
        kept = load_file(self._weights(self.best["step"]))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in kept:
                    parameter.copy_(kept[name].to(parameter.device))

    def _weights(self, step: int) -> Path:
        return self._folder / "checkpoints" / f"best-{step}.safetensors"


def _trained(model: Any) -> dict[str, torch.Tensor]:
    return {
        name: parameter.detach().contiguous().cpu()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
