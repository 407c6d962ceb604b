"""Which backend runs a model on a CPU."""

import platform
from pathlib import Path

import pytest

from compeer.engine import int8
from compeer.engine.rows import ModelFiles
from compeer.models import resolve
from compeer.models.resolve import cpu_files


@pytest.mark.parametrize(
    ("model", "use", "machine", "engine"),
    [
        ("qwen-1.5b", "judge", "x86_64", True),
        ("supporter-1.5b", "serve", "x86_64", True),
        ("any/file.gguf", "serve", "x86_64", True),
        ("adapters", "judge", "aarch64", True),
        ("supporter", "chat", "x86_64", True),
        ("supporter", "serve", "x86_64", False),
        ("supporter", "serve", "aarch64", True),
        ("judge", "judge", "x86_64", False),
        ("judge", "judge", "aarch64", False),
        ("merged", "judge", "x86_64", False),
    ],
)
def test_each_use_gets_the_backend_that_was_measured_faster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, use: resolve.Use, machine: str, engine: bool
) -> None:
    for name, files in (("adapters", ["adapter_config.json"]), ("merged", ["adapter_config.json", "config.json"])):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(resolve, "prepare", lambda model: ModelFiles(Path(model), None, Path(model)))
    monkeypatch.setattr(int8, "has_eight_bits", lambda: False)
    assert (cpu_files(model, use) is not None) == engine
    monkeypatch.setattr(int8, "has_eight_bits", lambda: True)
    prepared = cpu_files(model, use)
    assert (prepared is not None) == (engine or use == "serve")
    assert prepared is None or prepared.exact == (use == "judge")
