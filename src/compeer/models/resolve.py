"""Which model is meant by a name, and what is needed to run it.

embedded                          the packaged model as it is
supporter, judge, supporter-1.5b  the packaged adapters over their base
qwen-1.5b                         a base of the catalogue, once `compeer models get` has put it there
path/to/file.gguf                 a file that llama.cpp reads
runs/demo/sft/model               a folder that transformers loads
a folder of adapters              what peft wrote, over the base that its `compeer.json` or its config names
Qwen2.5-7B@http://host:8000/v1    a model behind an OpenAI-compatible server

`open_model` gives something that can be asked for text, `model_folder` a folder for transformers, `prepare` the files
for llama.cpp. What has to be made for llama.cpp is made once and lies in the cache, under a name with the hash of what
it was made from.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from pydantic import Field

from compeer.engine.convert import (
    convert_adapter,
    convert_folder,
    family,
    family_of,
    read_pairs,
    split,
    write_pairs,
)
from compeer.engine.gguf import cache_folder, write_settings
from compeer.engine.rows import ModelFiles
from compeer.errors import InputError
from compeer.io import atomic_folder, file_hash, text_hash
from compeer.models.base import CallSettings, EndpointSettings, TextModel
from compeer.models.cache import AnswerCache, CachedModel
from compeer.models.catalogue import base_file, base_folder, catalogue, find_base, is_base
from compeer.models.client import EndpointModel
from compeer.models.packaged import (
    ADAPTERS,
    OVER,
    PACKAGED_MODELS,
    SMOLLM2,
    checked_adapters,
    is_packaged,
    packaged_adapters,
    packaged_base,
    packaged_model,
)
from compeer.progress import console

_CONFIG = "adapter_config.json"
Use = Literal["chat", "serve", "judge"]
"""One person talks, many do, or outputs are judged."""


class ModelSettings(CallSettings):
    """How a model is asked; for one in this process only `batch` matters."""

    batch: int = Field(default=16, ge=1, description="requests that a model in this process works on together")


def open_model(name: str, *, settings: ModelSettings | None = None, cache: Path | None = None) -> TextModel:
    """The model that a name means: a packaged one, a folder, or `NAME@URL`; its answers go to `cache`, if given."""
    settings = settings or ModelSettings()
    model, at, url = name.partition("@http")
    if at:
        if not model:
            raise InputError("the model's name is missing.", field="model", do=f"Write it before the URL: NAME{name}")
        call = settings.model_dump(exclude={"batch"})
        endpoint = EndpointSettings(url=f"http{url}", model=model, **call)
        return EndpointModel(endpoint, AnswerCache(cache) if cache else None)
    if name.startswith(("http://", "https://")):
        raise InputError("the model's name is missing.", field="model", do=f"Write it before the URL: NAME@{name}")
    if model_mark(name) is None and not (Path(name) / "config.json").is_file():
        raise InputError(
            f"there is no model '{name}': no such folder with a config.json in it.",
            field="model",
            do="Give 'supporter', 'embedded', a base's name (compeer models list), a model's folder, or "
            "NAME@http://host:8000/v1 for one behind a server.",
        )
    from compeer.models.local import LocalModel  # torch is heavy

    local = LocalModel(name, batch_size=settings.batch)
    if cache is None:
        return local
    return CachedModel(local, AnswerCache(cache), model_mark(name) or folder_mark(Path(name)))


def display_name(name: str | Path) -> str:
    """The name of a model for people."""
    if str(name) == "embedded":
        return SMOLLM2.title
    if is_base(name):
        return find_base(str(name)).title
    return f"compeer-{name}" if is_packaged(name) else Path(name).resolve().name


def model_mark(name: str | Path) -> str | None:
    """The hash of a model that is known by its name, packaged or of the catalogue; None for all other names."""
    if is_base(name):
        return find_base(str(name)).sha256
    return SMOLLM2.sha256 if str(name) == "embedded" else PACKAGED_MODELS.get(str(name))


def folder_mark(folder: Path) -> str:
    """Changes when the files of a model's folder do: by their names, sizes and times, not by reading gigabytes."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return text_hash(repr([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]))


def model_folder(model: str | Path) -> Path:
    """The folder for transformers that a name means: `embedded`, a packaged model, a base, or a path."""
    if str(model) == "embedded":
        return packaged_base()
    if is_packaged(model):
        return packaged_model(str(model))
    if is_base(model):
        return base_folder(str(model))
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise InputError(
            "this is no model folder: there is no config.json in it.",
            file=folder,
            do="Give a folder that transformers can load, 'embedded' for the packaged model, or a base's name "
            "(compeer models list).",
        )
    return folder


def card_folder(model: str | Path) -> Path:
    """The folder with a model's card, if it has one; that of adapters is their own."""
    if is_packaged(model):
        return packaged_adapters(str(model))
    return Path(model) if (Path(model) / _CONFIG).is_file() else model_folder(model)


# --- for llama.cpp ----------------------------------------------------------------------------------------------------


def engine_cache() -> Path:
    """The folder of files made for llama.cpp."""
    return cache_folder() / "engine"


def is_file(model: str | Path) -> bool:
    """Whether a name means a GGUF file."""
    return str(model).endswith(".gguf")


def cpu_files(model: str | Path, use: Use) -> ModelFiles | None:
    """The files of a model that llama.cpp is to run on this CPU; None where torch is faster, or llama.cpp cannot.

    Decided by measurement (docs/engine.md). Bases of the catalogue and files are made for llama.cpp. A small model
    writes sooner on llama.cpp for one person, and for many on aarch64; on x86_64 torch writes for many, and a judge,
    which only reads prompts, is on torch everywhere.
    """
    name, folder = str(model), Path(model)
    adapters = (folder / _CONFIG).is_file() and not (folder / "config.json").is_file()
    quantised = is_base(name) or is_file(name) or name in OVER or adapters
    if quantised or use == "chat" or (use == "serve" and platform.machine() != "x86_64"):
        return prepare(model)
    return None


def prepare(model: str | Path) -> ModelFiles | None:
    """The files of a model, made where they are missing; None for a folder that llama.cpp cannot run."""
    name = str(model)
    if name == "embedded":
        base, offsets = _smollm2()
        return _files(base, offsets, _tokenizer(SMOLLM2.checked_path(), SMOLLM2.sha256))
    if is_packaged(name):
        adapters = checked_adapters(name)
        return _over_named_base(adapters) if name in OVER else _over_smollm2(adapters, PACKAGED_MODELS[name])
    if is_base(name):
        path = base_file(name)
        return _files(path, None, _tokenizer(path, catalogue()[name].sha256))
    if is_file(name):
        path = Path(name).absolute()
        if not path.is_file():
            raise InputError("there is no such file.", file=path, do="Give a GGUF file, or a base's name.")
        family_of(path)
        found = path.stat()  # by size and time: a gigabyte is not read at every start
        return _files(path, None, _tokenizer(path, text_hash(f"{path} {found.st_size} {found.st_mtime_ns}")))
    folder = Path(name).absolute()
    if (folder / _CONFIG).is_file() and not (folder / "config.json").is_file():
        return _over_named_base(folder)
    if not (folder / "config.json").is_file() or family(folder) is None:
        return None
    return _files(_converted(folder), None, folder, folder)


def _files(base: Path, adapter: Path | None, tokenizer: Path, card: Path | None = None) -> ModelFiles:
    return ModelFiles(base, adapter, tokenizer, card, engine_cache() / "states")


def _smollm2() -> tuple[Path, Path]:
    """The packaged base in two parts: its file, and what has to be added to it."""
    folder = engine_cache() / f"smollm2-{SMOLLM2.sha256[:12]}"
    if not folder.is_dir():
        source = SMOLLM2.checked_path()
        with _making(folder, "the packaged language model") as unfinished:
            write_pairs("llama", split(source, unfinished / "base.gguf"), unfinished / "offsets.gguf")
    return folder / "base.gguf", folder / "offsets.gguf"


def _over_smollm2(adapters: Path, mark: str) -> ModelFiles:
    base, offsets = _smollm2()
    made = _adapted(adapters, base, mark, lambda to: convert_adapter(adapters, base, to, read_pairs(offsets)))
    return _files(base, made, _tokenizer(SMOLLM2.checked_path(), SMOLLM2.sha256), adapters)


def _over_named_base(adapters: Path) -> ModelFiles:
    """Adapters over the base that their card names, or their config by its repository."""
    config = json.loads((adapters / _CONFIG).read_text(encoding="utf-8"))
    card = adapters / "compeer.json"
    base = json.loads(card.read_text(encoding="utf-8")).get("base") if card.is_file() else None
    base = str(base or config.get("base_model_name_or_path") or "")
    by_repository = {one.repository.removesuffix("-GGUF"): name for name, one in catalogue().items()}
    name = by_repository.get(base, base)
    mark = file_hash(adapters / ADAPTERS)
    if name == "embedded":
        return _over_smollm2(adapters, mark)
    over = prepare(name) if name else None
    if over is None or over.adapter is not None:
        known = f"embedded, {', '.join(catalogue())}, a GGUF file or a model's folder"
        do = f'Write it into compeer.json as "base": {known}.'
        raise InputError(f"these adapters are over a base that is not known: '{base}'.", file=adapters, do=do)
    made = _adapted(adapters, over.base, mark, lambda to: convert_adapter(adapters, over.base, to))
    return _files(over.base, made, over.tokenizer, adapters)


def _adapted(adapters: Path, base: Path, mark: str, make: Callable[[Path], None]) -> Path:
    """Converted adapters; the same ones over another base are others."""
    config = file_hash(adapters / _CONFIG)
    folder = engine_cache() / f"adapter-{text_hash(f'{mark} {base} {config}')[:16]}"
    if not folder.is_dir():
        with atomic_folder(folder) as unfinished:
            make(unfinished / "adapter.gguf")
    return folder / "adapter.gguf"


def _converted(folder: Path) -> Path:
    """A model's folder as one file."""
    paths = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    made = engine_cache() / f"model-{text_hash(' '.join(map(file_hash, paths)))[:16]}"
    if not made.is_dir():
        with _making(made, folder.name) as unfinished:
            convert_folder(folder, unfinished / "base.gguf")
    return made / "base.gguf"


def _tokenizer(source: Path, mark: str) -> Path:
    """A folder with a file's tokenizer and chat template, read from the file once."""
    folder = engine_cache() / f"tokenizer-{mark[:16]}"
    if not folder.is_dir():
        with atomic_folder(folder) as unfinished:
            write_settings(source, unfinished)
    return folder


def _making(folder: Path, title: str) -> AbstractContextManager[Path]:
    console.print(f"  Preparing {title} for the CPU (once)", highlight=False)
    return atomic_folder(folder)
