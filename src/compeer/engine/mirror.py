"""A second network with the weights of the one in training, for sampling rollouts.

Training keeps float32 weights and computes in a lower precision (autocast), casting every weight in every call; it may
add adapters beside them, and trainers put hooks around its calls. A mirror has none of that: its matrices stand in the
precision that training casts them to, adapters merged, at addresses that stay the same. Everything else, and on a CPU
all of it, is shared with the network in training and takes no memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

_CAST = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.Conv3d)
"""What autocast computes in the lower precision."""


class Mirror:
    """A network that computes what `source` does in training, in autocast to `precision` where one is given."""

    def __init__(self, source: Any, precision: torch.dtype | None = None) -> None:
        self._precision = precision
        base = _base(source)
        with torch.device("meta"):
            network = type(base)(copy.deepcopy(base.config))
        self.network: Any = network.eval().requires_grad_(False)
        for name, buffer in base.named_buffers(remove_duplicate=False):
            module, leaf = self._owner(name.replace(".base_layer.", "."))
            module._buffers[leaf] = buffer
        self.follow(source)

    @torch.no_grad()
    def follow(self, source: Any) -> bool:
        """Takes over the weights as they are now; whether any stands elsewhere than before."""
        moved = False
        for name, value in _weights(_base(source)):
            module, leaf = self._owner(name)
            own = module._parameters[leaf]
            cast = self._precision if self._precision and isinstance(module, _CAST) else value.dtype
            shared = cast == value.dtype and isinstance(value, torch.nn.Parameter)
            if not shared and own.device == value.device and own.dtype == cast:
                own.copy_(value)
            elif not shared or own.data_ptr() != value.data_ptr():
                held = value.detach() if shared else value.detach().to(cast)
                module._parameters[leaf] = torch.nn.Parameter(held, requires_grad=False)
                moved = True
        return moved

    def _owner(self, name: str) -> tuple[Any, str]:
        parent, _, leaf = name.rpartition(".")
        return self.network.get_submodule(parent), leaf


def _base(source: Any) -> Any:
    return source.get_base_model() if hasattr(source, "get_base_model") else source


def _weights(base: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights by the names that a network without adapters has, adapters added."""
    for name, value in base.named_parameters(remove_duplicate=False):
        if ".lora_" in name:
            continue
        owner, held, leaf = name.rpartition(".base_layer.")
        if not held:
            yield name, value
            continue
        layer = base.get_submodule(owner)
        if leaf == "weight" and not layer.merged:
            value = value + sum(layer.get_delta_weight(adapter) for adapter in layer.active_adapters)
        yield f"{owner}.{leaf}", value
