"""Supervised training in which some of what the assistant says counts more than the rest.

TRL's trainer takes the mean of the loss over all tokens that are learnt. Here the model's log-probabilities are
multiplied by weights before the trainer sees them, so that everything else stays the trainer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from trl import SFTTrainer


class WeighingTrainer(SFTTrainer):  # type: ignore[misc]
    """`weigh` gives the weight of each label from the labels of a batch, in which -100 marks what is not learnt."""

    def __init__(self, weigh: Callable[[torch.Tensor], torch.Tensor], **kwargs: Any) -> None:
        self._weigh = weigh
        super().__init__(**kwargs)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        weights = self._weigh(inputs["labels"])[:, 1:]  # a label is predicted from the token before it

        def weighed(**given: Any) -> Any:
            outputs = model(**given)
            if outputs.get("log_probs") is not None:
                outputs["log_probs"] = outputs["log_probs"] * weights
            return outputs

        return super().compute_loss(weighed, inputs, *args, **kwargs)


def round_weights(labels: torch.Tensor, number: int, weight: float) -> torch.Tensor:
    """One for each label, but `weight` for those of the assistant's `number`-th answer (from 1) in each row."""
    learnt = labels != -100
    before = torch.nn.functional.pad(learnt, (1, 0))[:, :-1]
    answers = (learnt & ~before).cumsum(1)
    return torch.where(learnt & (answers == number), weight, 1.0)
