"""Adapters taken out of any training: they hold a change of their rank, and say what they cannot hold."""

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from compeer.errors import InputError
from compeer.models.resolve import add_adapters

_SPEC = importlib.util.spec_from_file_location(
    "extract", Path(__file__).parents[2] / "research" / "results" / "weights" / "extract.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
extract_adapters = _MODULE.extract_adapters


def changed(base: Path, to: Path, rank: int, also: str = "") -> dict[str, torch.Tensor]:
    """A copy of a model in which every matrix of a layer has changed by one of the rank, and one weight at will."""
    shutil.copytree(base, to)
    noise = torch.Generator().manual_seed(1)

    def change(weight: torch.Tensor) -> torch.Tensor:
        wide = torch.randn(weight.shape[0], rank, generator=noise)
        return weight + 0.01 * wide @ torch.randn(rank, weight.shape[1], generator=noise)

    weights = load_file(base / "model.safetensors")
    weights = {name: change(w) if name.endswith("_proj.weight") else w.clone() for name, w in weights.items()}
    if also:
        weights[also] = weights[also] + 0.1
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return weights


def test_adapters_hold_a_change_of_their_rank_and_peft_reads_them(tiny_learner: Path, tmp_path: Path) -> None:
    weights = changed(tiny_learner, tmp_path / "trained", 3)
    told = extract_adapters(tiny_learner, tmp_path / "trained", tmp_path / "adapters", 3)
    assert told["kept"] > 0.999
    assert told["elsewhere"] == 0
    merged = add_adapters(load_file(tiny_learner / "model.safetensors"), tmp_path / "adapters")
    assert all(torch.allclose(merged[name], weights[name], atol=1e-3) for name in weights)

    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_learner, dtype=torch.float32)
    by_peft = PeftModel.from_pretrained(base, tmp_path / "adapters").merge_and_unload().state_dict()
    assert all(torch.allclose(by_peft[name], merged[name], atol=1e-6) for name in merged)


def test_what_adapters_cannot_hold_is_said(tiny_learner: Path, tmp_path: Path) -> None:
    changed(tiny_learner, tmp_path / "trained", 6, also="model.norm.weight")
    told = extract_adapters(tiny_learner, tmp_path / "trained", tmp_path / "adapters", 2)
    assert 0.3 < told["kept"] < 0.95
    assert told["elsewhere"] > 0
    with pytest.raises(InputError, match="nothing that adapters can change"):
        extract_adapters(tiny_learner, tiny_learner, tmp_path / "none", 2)
    with pytest.raises(InputError, match="has no weight"):
        add_adapters({}, tmp_path / "adapters")
