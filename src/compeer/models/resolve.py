"""Which model is meant by a name, and what is needed to run it.

embedded                          the packaged model as it is
supporter, judge, …-1.5b          the packaged adapters over their base
qwen-1.5b                         a base of the catalogue, once `compeer models get` has put it there
path/to/file.gguf                 a file that llama.cpp reads
runs/demo/sft/model               a folder that transformers loads
a folder of adapters              what peft wrote, over the base that its `compeer.json` or its config names
Qwen2.5-7B@http://host:8000/v1    a model behind an OpenAI-compatible server

`open_model` gives something that can be asked for text, `model_folder` a folder for transformers, `prepare` the files
for llama.cpp. What has to be made lies in the cache, under a name with the hash of what it was made from.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from compeer.engine import gguf
from compeer.engine.gguf import cache_folder, made
from compeer.engine.rows import ModelFiles
from compeer.errors import InputError
from compeer.io import file_hash, read_json, text_hash
from compeer.models.base import CallSettings, TextModel
from compeer.models.cache import AnswerCache
from compeer.models.catalogue import (
    ADAPTERS,
    BASES,
    KNOWN,
    PACKAGED_MODELS,
    SMOLLM2,
    base_file,
    only_process,
    packaged_adapters,
)
from compeer.models.client import EndpointModel

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

_CONFIG = "adapter_config.json"
Use = Literal["chat", "serve", "judge"]  # one person talks, many do, or outputs are judged


class ModelSettings(CallSettings):
    """How a model is asked; for one in this process only `batch` matters."""

    batch: int = Field(default=16, ge=1, description="requests that a model in this process works on together")


def open_model(name: str, *, settings: ModelSettings | None = None, cache: Path | None = None) -> TextModel:
    """The model that a name means: a packaged one, a folder, or `NAME@URL`, whose answers `cache` keeps."""
    settings = settings or ModelSettings()
    model, _, url = name.partition("@http")
    if model and url:
        return EndpointModel(f"http{url}", model, settings, AnswerCache(cache) if cache else None)
    check_local(name)
    from compeer.models.local import LocalModel  # torch is heavy

    return LocalModel(name, batch_size=settings.batch)


def check_local(
    name: str, field: str = "model", own: str = "supporter", configs: Sequence[str] = ("config.json",)
) -> None:
    """An error unless a name means a model in this process: one that is known, or a folder with one of these files."""
    if name.startswith(("http://", "https://", "@http")):
        do = f"Write it before the URL: NAME@{name.removeprefix('@')}"
        raise InputError("the model's name is missing.", field=field, do=do)
    if name not in KNOWN and not any((Path(name) / config).is_file() for config in configs):
        do = f"Give '{own}', a base's name (compeer models list), a model's folder, or NAME@http://host:8000/v1."
        raise InputError(f"there is no model '{name}': no such folder with a config.json in it.", field=field, do=do)


def display_name(name: str | Path) -> str:
    if str(name) in PACKAGED_MODELS:
        return f"compeer-{name}"
    return str(KNOWN[str(name)].title) if str(name) in KNOWN else Path(name).resolve().name


def model_mark(name: str | Path) -> str | None:
    """The hash of a model that is known by its name; None for all other names."""
    return str(KNOWN[str(name)].sha256) if str(name) in KNOWN else None


def folder_mark(folder: Path) -> str:
    """Changes when the files of a model's folder do: by their names, sizes and times, not by reading gigabytes."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return text_hash(repr([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]))


def model_folder(model: str | Path) -> Path:
    """The folder for transformers that a name means, made on the first call: seconds, or minutes for a large model."""
    name = str(model)
    if name == "embedded":
        own, title = f"smollm2-135m-instruct-{SMOLLM2.sha256[:12]}", "the embedded language model"
        return made(own, lambda to: gguf.write_folder(SMOLLM2.checked_path(), to, title, "float32"))
    if name in PACKAGED_MODELS:
        own, over = f"{name}-{PACKAGED_MODELS[name].sha256[:12]}", PACKAGED_MODELS[name].base
        message = f"Unpacking the packaged {name} (some seconds, once)"
        return made(own, lambda to: _merge(packaged_adapters(name), over, to), message)
    if name in BASES:
        base, source = BASES[name], base_file(BASES[name])
        with nullcontext() if base.folder.is_dir() else only_process(base):
            return made(base.folder, lambda to: gguf.write_folder(source, to, base.title))
    folder = Path(model)
    if _are_adapters(folder):
        mark = text_hash(f"{file_hash(folder / ADAPTERS)} {file_hash(folder / _CONFIG)} {_named_base(folder)}")
        message = f"Adding the adapters {folder.name} to their base (some seconds, once)"
        return made(f"adapted-{mark[:12]}", lambda to: _merge(folder, _named_base(folder), to), message)
    if not (folder / "config.json").is_file():
        do = "Give a folder that transformers can load, 'embedded' for the packaged model, or a base's name "
        do += "(compeer models list)."
        raise InputError("this is no model folder: there is no config.json in it.", file=folder, do=do)
    return folder


def _merge(adapters: Path, base: str, to: Path) -> None:
    """Writes the model that adapters make of their base."""
    from safetensors.torch import load_file, save_file

    weights = "model.safetensors"
    if base not in BASES and base != "embedded" and not (Path(base) / weights).is_file():
        raise _unknown_base(base, adapters)
    folder = model_folder(base)
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns(weights), dirs_exist_ok=True)
    save_file(add_adapters(load_file(folder / weights), adapters), to / weights, metadata={"format": "pt"})
    if (adapters / "compeer.json").is_file():
        shutil.copyfile(adapters / "compeer.json", to / "compeer.json")


def _unknown_base(base: str, adapters: Path) -> InputError:
    known = f"embedded, {', '.join(BASES)}, a GGUF file or a model's folder"
    do = f'Write it into compeer.json as "base": {known}.'
    return InputError(f"these adapters are over a base that is not known: '{base}'.", file=adapters, do=do)


def add_adapters(weights: Weights, adapters: Path) -> dict[str, torch.Tensor]:
    """The weights with the changes added that a folder of adapters holds."""
    from safetensors.torch import load_file

    config = json.loads((adapters / _CONFIG).read_text(encoding="utf-8"))
    return merged_weights(weights, load_file(adapters / ADAPTERS), config["lora_alpha"] / config["r"])


def merged_weights(weights: Weights, adapters: Weights, scale: float) -> dict[str, torch.Tensor]:
    """The weights with LoRA adapters added to them where they lie, W + scale B A; the adapters by peft's names."""
    for name in sorted(adapters):
        owner, is_lora, _ = name.removeprefix("base_model.model.").partition(".lora_A.")
        if not is_lora:
            continue
        if (target := weights.get(f"{owner}.weight")) is None:
            raise InputError(f"the model has no weight {owner}.weight for these adapters.")
        change = adapters[name.replace(".lora_A.", ".lora_B.")].float() @ adapters[name].float()
        target.copy_(target.float() + scale * change)
    return dict(weights)


def card_folder(model: str | Path) -> Path:
    """The folder with a model's card, if it has one; that of adapters is their own."""
    if str(model) in PACKAGED_MODELS:
        return packaged_adapters(str(model))
    return Path(model) if (Path(model) / _CONFIG).is_file() else model_folder(model)


def cpu_files(model: str | Path, use: Use) -> ModelFiles | None:
    """The files of a model for an engine of `cpu_table.py`; None where torch runs it (docs/engine.md)."""
    from compeer.engine.int8 import has_eight_bits  # torch is heavy

    name = str(model)
    base = PACKAGED_MODELS[name].base if name in PACKAGED_MODELS else name
    quantised = base in BASES or name.endswith(".gguf") or _are_adapters(Path(model))
    if not (quantised or use == "chat" or (use == "serve" and (platform.machine() != "x86_64" or has_eight_bits()))):
        return None
    prepared = prepare(model)
    return prepared and replace(prepared, exact=use == "judge")


def prepare(model: str | Path) -> ModelFiles | None:
    """The files of a model, made where they are missing; None for a folder that llama.cpp cannot run."""
    from compeer.engine.int8 import has_eight_bits  # torch is heavy

    name = str(model)
    if name == "embedded":
        whole = _one_file(SMOLLM2.checked_path(), SMOLLM2.sha256)
        if has_eight_bits():
            return whole

        def split_in_two(to: Path) -> None:
            gguf.write_pairs("llama", gguf.split(whole.base, to / "base.gguf"), to / "offsets.gguf")

        message = "Preparing the packaged language model for the CPU (once)"
        folder = made(f"engine/smollm2-{SMOLLM2.sha256[:12]}", split_in_two, message)
        return replace(whole, base=folder / "base.gguf", adapter=folder / "offsets.gguf")
    if name in PACKAGED_MODELS:
        return _over(PACKAGED_MODELS[name].base, packaged_adapters(name))
    if name in BASES:
        return _one_file(base_file(BASES[name]), BASES[name].sha256)
    if name.endswith(".gguf"):
        path = Path(name).absolute()
        if not path.is_file():
            raise InputError("there is no such file.", file=path, do="Give a GGUF file, or a base's name.")
        gguf.opened(path)
        return _one_file(path, gguf.file_mark(path))
    folder = Path(name).absolute()
    if _are_adapters(folder):
        return _over(_named_base(folder), folder)
    if not (folder / "config.json").is_file() or gguf.family(folder) is None:
        return None
    mark = text_hash(" ".join(map(file_hash, [folder / "config.json", *sorted(folder.glob("*.safetensors"))])))
    message = f"Preparing {folder.name} for the CPU (once)"
    own = made(f"engine/model-{mark[:16]}", lambda to: gguf.convert_folder(folder, to / "base.gguf"), message)
    return ModelFiles(own / "base.gguf", None, folder, folder, cache_folder() / "engine" / "states")


def _are_adapters(folder: Path) -> bool:
    return (folder / _CONFIG).is_file() and not (folder / "config.json").is_file()


def _one_file(path: Path, mark: str) -> ModelFiles:
    """A file that has all of a model; its tokenizer and chat template are laid into the cache."""
    tokenizer = made(f"engine/tokenizer-{mark[:16]}", lambda to: gguf.write_settings(path, to))
    return ModelFiles(path, None, tokenizer, states=cache_folder() / "engine" / "states")


def _named_base(adapters: Path) -> str:
    """The base that the card of adapters names, or their config by its repository."""
    config = json.loads((adapters / _CONFIG).read_text(encoding="utf-8"))
    base = (read_json(adapters / "compeer.json") or {}).get("base") or config.get("base_model_name_or_path") or ""
    by_repository = {one.repository.removesuffix("-GGUF"): name for name, one in BASES.items()}
    return by_repository.get(str(base), str(base))


def _over(base: str, adapters: Path) -> ModelFiles:
    """Adapters over a base, together with what has to be added to its file anyway."""
    over = prepare(base) if base else None
    if over is None or (over.adapter is not None and base != "embedded"):
        raise _unknown_base(base, adapters)
    mark = text_hash(f"{file_hash(adapters / ADAPTERS)} {over.base} {file_hash(adapters / _CONFIG)}")

    def convert(to: Path) -> None:
        offsets = gguf.read_pairs(over.adapter) if over.adapter else None
        gguf.convert_adapter(adapters, over.base, to / "adapter.gguf", offsets)

    return replace(over, adapter=made(f"engine/adapter-{mark[:16]}", convert) / "adapter.gguf", card=adapters)
