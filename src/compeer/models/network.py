"""Which weights of a network are trained: all, its upper layers, or adapters beside them; what sees never is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.integrations import unset_hf_deepspeed_config

from compeer.models.vision import network_class

if TYPE_CHECKING:
    from compeer.models.training import WeightSettings


def steady_attention() -> None:
    """Keeps torch from attending by cuDNN, which makes a plan for every new shape: up to half a second each.

    Batches of conversations hardly ever have the same shape twice. It holds for the whole process.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def trainable_network(model: Path, settings: WeightSettings) -> Any:
    """The model in float32, its lower layers frozen if so set, and what sees always.

    It is loaded whole, by every process; a trainer that spreads weights over processes does so afterwards.
    """
    steady_attention()
    unset_hf_deepspeed_config()  # an earlier training by ZeRO-3 would make this one load a part of each weight
    network = network_class(model).from_pretrained(model, dtype=torch.float32)
    network.config.use_cache = False
    for name, parameter in network.named_parameters():
        if _sees(name):
            parameter.requires_grad = False
    if not settings.lora_rank and settings.top_layers:
        top = _top_layers(network, settings)
        for name, parameter in network.named_parameters():
            parameter.requires_grad = _layer(name) in top and not _sees(name)
    return network


def lora_config(network: Any, settings: WeightSettings) -> Any:
    """The adapters to train, or None to train the weights themselves."""
    if not settings.lora_rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora_rank,
        lora_alpha=2 * settings.lora_rank,
        target_modules=_linear_modules(network, settings) if settings.top_layers else "all-linear",
        exclude_modules=[name for name, _ in network.named_modules() if _sees(name)] or None,
        task_type="CAUSAL_LM",
    )


def _linear_modules(network: Any, settings: WeightSettings) -> list[str]:
    top = _top_layers(network, settings)
    return [
        name
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and _layer(name) in top and not _sees(name)
    ]


def _sees(name: str) -> bool:
    """Whether a parameter or module is part of a model's vision tower."""
    return "visual" in name or "vision" in name


def _layer(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _top_layers(network: Any, settings: WeightSettings) -> list[int]:
    layers = network.config.get_text_config().num_hidden_layers
    return list(range(max(0, layers - settings.top_layers), layers))
