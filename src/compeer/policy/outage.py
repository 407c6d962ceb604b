"""Random numbers as they stood when the last step ended, for a checkpoint that is written in the middle of the next."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback


class RandomKeeper(TrainerCallback):  # type: ignore[misc]
    """Keeps the state of all generators at the end of each step."""

    def __init__(self) -> None:
        self._restores: list[Callable[[], None]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        python, arrays, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._restores = [
            lambda: random.setstate(python),
            lambda: np.random.set_state(arrays),
            lambda: torch.set_rng_state(cpu),
        ]
        if torch.cuda.is_available():
            devices = torch.cuda.get_rng_state_all()
            self._restores.append(lambda: torch.cuda.set_rng_state_all(devices))

    def restore(self) -> None:
        """Puts the generators back to where the last step ended."""
        for restore in self._restores:
            restore()
