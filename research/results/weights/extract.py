"""What a training changed, as LoRA adapters: a small file beside the model it started from.

Each matrix's change is written as a product of two narrow ones, by its largest singular values. Trainings by LoRA, one
after another, lose nothing as long as their ranks add up to no more than the adapters' own; of a training of all
weights only a part is kept, and the metrics say how much. The folder is an ordinary one of `peft`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from compeer.errors import InputError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."


def extract_adapters(base: Path, trained: Path, to: Path, rank: int) -> dict[str, Any]:
    """Writes the change from `base` to `trained` as adapters of a rank, in bfloat16, and says how much of it they hold.

    `kept` is the share of the change's squared norm in the matrices that adapters can change, `elsewhere` the squared
    norm of what changed beside these (embeddings, norms) over that of all changes.
    """
    before, after = _weights(base), _weights(trained)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found: dict[str, torch.Tensor] = {}
    changed = kept = elsewhere = 0.0
    for name, weight in after.items():
        if name not in before:
            raise InputError(f"the model it started from has no weight {name}.", file=trained)
        change = (weight.float() - before[name].float()).to(device)
        size = float(change.square().sum())
        if weight.dim() != 2 or not name.endswith("_proj.weight"):
            elsewhere += size
            continue
        if not size:
            continue
        left, values, right = torch.linalg.svd(change, full_matrices=False)
        root = values[:rank].sqrt()
        module = _PREFIX + name.removesuffix(".weight")
        narrow = (root[:, None] * right[:rank]).to(torch.bfloat16), (left[:, :rank] * root).to(torch.bfloat16)
        found[f"{module}.lora_A.weight"], found[f"{module}.lora_B.weight"] = (
            part.contiguous().cpu() for part in narrow
        )
        changed += size
        kept += size - float((change - narrow[1].float() @ narrow[0].float()).square().sum())
    if not found:
        raise InputError("nothing that adapters can change differs between the two models.", file=trained)
    to.mkdir(parents=True, exist_ok=True)
    save_file(found, to / WEIGHTS)
    (to / CONFIG).write_text(json.dumps(_config(found, rank), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return {"rank": rank, "kept": kept / changed, "elsewhere": elsewhere / (changed + elsewhere)}


def _config(found: Mapping[str, torch.Tensor], rank: int) -> dict[str, Any]:
    modules = sorted({name.split(".")[-3] for name in found})
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": modules}


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    if not found:
        raise InputError("there are no weights (*.safetensors) in it.", file=folder)
    return found
