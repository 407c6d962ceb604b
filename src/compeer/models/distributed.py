"""Trainings that are distributed over processes: which one writes, and the whole weights of the network.

FSDP2 and DeepSpeed's ZeRO-3 leave every process with a part of each weight. A model is saved from the whole: gathered
from all processes in the main one's memory, with adapters added to the weights that they stand beside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def first_process() -> bool:
    """Whether this is the process that writes, where several train together."""
    return os.environ.get("RANK", "0") == "0"


def whole_weights(trainer: Any) -> dict[str, torch.Tensor] | None:
    """The weights by their names in the plain network, in the main process; None elsewhere.

    None too where they are not distributed. Every process must call it. ZeRO-3 gives them in its own precision.
    """
    if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        return None
    gathered = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not trainer.accelerator.is_main_process:
        return None
    configs = getattr(trainer.model, "peft_config", None)
    return merged_weights(gathered, configs["default"]) if configs else dict(gathered)


def merged_weights(weights: Mapping[str, torch.Tensor], adapters: Any) -> dict[str, torch.Tensor]:
    """The weights of a network with LoRA adapters as those of the same network without: W + (alpha / r) B A."""
    scale = adapters.lora_alpha / adapters.r
    found: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        owner, beside, leaf = name.rpartition(".base_layer.")
        if ".lora_" in name:
            continue
        if beside and leaf == "weight":
            up, down = (weights[f"{owner}.lora_{which}.default.weight"].float() for which in "BA")
            value = value + (scale * (up @ down)).to(value.dtype)
        found[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = value
    return found
