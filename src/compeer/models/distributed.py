"""Trainings that are distributed over processes: which one writes, and the whole weights, with adapters merged.

FSDP2 and DeepSpeed's ZeRO-3 leave every process with a part of each weight. A model is saved from the whole: gathered
from all processes in the main one's memory, with adapters added to the weights that they stand beside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compeer.errors import InputError

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
    if not configs:
        return dict(gathered)
    plain = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): value
        for name, value in gathered.items()
        if ".lora_" not in name
    }
    return merged_weights(plain, gathered, configs["default"].lora_alpha / configs["default"].r)


def merged_weights(
    weights: Mapping[str, torch.Tensor], adapters: Mapping[str, torch.Tensor], scale: float
) -> dict[str, torch.Tensor]:
    """The weights with LoRA adapters added, W + scale B A; the adapters by peft's names."""
    found = dict(weights)
    for name in sorted(adapters):
        owner, is_lora, _ = name.removeprefix("base_model.model.").partition(".lora_A.")
        if not is_lora:
            continue
        if (target := f"{owner}.weight") not in found:
            raise InputError(f"the model has no weight {target} for these adapters.")
        change = adapters[name.replace(".lora_A.", ".lora_B.")].float() @ adapters[name].float()
        found[target] = (found[target].float() + scale * change).to(found[target].dtype)
    return found
