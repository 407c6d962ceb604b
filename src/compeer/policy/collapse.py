"""Stopping when a supporter collapses: it says less and less, or the same to everyone, while the reward may still rise.

The sign is entropy or distinct-2 under a floor for several steps on end. The figures of step n are of the outputs drawn
in it, and so of the weights after step n − 1: the checkpoint of step n − 1 is good if step n is. The last good one is
kept beside the others, whatever the trainer deletes, and becomes the model when training stops.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from compeer.progress import console

_NOT_WEIGHTS = shutil.ignore_patterns("optimizer*", "scheduler*", "rng_state*", "scaler*", "trainer_state*")


def steps_under(rows: Sequence[Mapping[str, Any]], floors: Mapping[str, float]) -> int:
    """How many of the last rows, on end, have a figure under its floor."""
    count = 0
    for row in reversed(rows):
        if not any(row.get(name) is not None and row[name] < floor for name, floor in floors.items()):
            break
        count += 1
    return count


class CollapseRule(TrainerCallback):  # type: ignore[misc]
    """Stops training after `patience` steps on end with one of the figures under its floor."""

    def __init__(self, floors: Mapping[str, float], patience: int, checkpoints: Path) -> None:
        self._floors, self._patience, self._checkpoints = floors, patience, checkpoints
        self.stopped: str | None = None
        """Why training was stopped; None if it was not."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.log_history or "loss" not in state.log_history[-1]:
            return
        rows = [row for row in state.log_history if "loss" in row]
        under = steps_under(rows, self._floors)
        if not under and state.is_world_process_zero:
            self._keep(state.global_step - 1)
        if under >= self._patience:
            low = [(name, rows[-1].get(name), floor) for name, floor in self._floors.items()]
            told = ", ".join(f"{name} {value:.3g} < {floor:g}" for name, value, floor in low if (value or 0) < floor)
            self.stopped = f"collapse: under a floor for {under} steps, at step {state.global_step}: {told}"
            console.print(f"[yellow]![/] training stops: {self.stopped}", highlight=False)
            control.should_training_stop = True
            control.should_save = False  # taken up again, it shall come to the same end

    def good(self) -> tuple[int, Path] | None:
        """The last good checkpoint, its step and its folder; None if there was none."""
        found = [(int(path.name.split("-")[1]), path) for path in self._checkpoints.glob("good-*")]
        return max(found, default=None)

    def _keep(self, step: int) -> None:
        checkpoint, kept = self._checkpoints / f"checkpoint-{step}", self._checkpoints / f"good-{step}"
        if not checkpoint.is_dir() or kept.is_dir():
            return
        unfinished = self._checkpoints / "good.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        # a link costs nothing, and stays when the trainer deletes the checkpoint
        shutil.copytree(checkpoint, unfinished, ignore=_NOT_WEIGHTS, copy_function=_link)
        unfinished.rename(kept)
        for other in self._checkpoints.glob("good-*"):
            if other != kept:
                shutil.rmtree(other)


def _link(source: str, target: str) -> None:
    """The same file under another name, or a copy where the disk has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
