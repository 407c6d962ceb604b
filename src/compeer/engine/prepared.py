"""What llama.cpp needs of a model, by the model's name: a base file, adapters over it, a tokenizer. Made once.

embedded                the packaged SmolLM2, its file split (`convert.split`)
supporter, judge        the same base with the packaged adapters
a base's name           a file of the catalogue (`compeer models list`)
path/to/file.gguf       any file of a family that llama.cpp knows
a folder of adapters    what `peft` wrote, over the base that its `compeer.json` or its config names
a model's folder        what `transformers` wrote, converted

What is made lies in the cache folder, under a name that holds the hash of what it was made from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from compeer.engine.convert import (
    convert_adapter,
    convert_folder,
    family,
    family_of,
    read_pairs,
    split,
    write_pairs,
)
from compeer.errors import InputError
from compeer.io import atomic_folder, file_hash
from compeer.models.catalogue import base_file, catalogue, is_base
from compeer.models.embedded import SMOLLM2, cache_folder
from compeer.models.shipped import OVER, SHIPPED, is_shipped, packaged_adapters
from compeer.progress import console

_ADAPTERS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class Prepared:
    """Files of a model: `card` is the folder in which its `compeer.json` may lie."""

    base: Path
    adapter: Path | None
    tokenizer: Path
    card: Path | None = None


def engine_cache() -> Path:
    """Where converted files are kept."""
    return cache_folder() / "engine"


def is_file(model: str | Path) -> bool:
    """Whether a name means a GGUF file."""
    return str(model).endswith(".gguf")


def prepare(model: str | Path) -> Prepared | None:
    """The files of a model, made where they are missing; None for a folder that llama.cpp cannot run."""
    name = str(model)
    if name == "embedded":
        base, offsets = _smollm2()
        return Prepared(base, offsets, _tokenizer(SMOLLM2.checked_path(), SMOLLM2.sha256))
    if is_shipped(name):
        adapters = _checked(packaged_adapters(name), SHIPPED[name])
        return _over_named_base(adapters) if name in OVER else _over_smollm2(adapters, SHIPPED[name])
    if is_base(name):
        path = base_file(name)
        return Prepared(path, None, _tokenizer(path, catalogue()[name].sha256))
    if is_file(name):
        path = Path(name).absolute()
        if not path.is_file():
            raise InputError("there is no such file.", file=path, do="Give a GGUF file, or a base's name.")
        family_of(path)
        return Prepared(path, None, _tokenizer(path, _mark_of_file(path)))
    folder = Path(name).absolute()
    if (folder / _CONFIG).is_file() and not (folder / "config.json").is_file():
        return _over_named_base(folder)
    if not (folder / "config.json").is_file() or family(folder) is None:
        return None
    return Prepared(_converted(folder), None, folder, folder)


def _smollm2() -> tuple[Path, Path]:
    """The packaged base in two parts: its file, and what has to be added to it."""
    folder = engine_cache() / f"smollm2-{SMOLLM2.sha256[:12]}"
    if not folder.is_dir():
        source = SMOLLM2.checked_path()
        with _making(folder, "the packaged language model") as unfinished:
            write_pairs("llama", split(source, unfinished / "base.gguf"), unfinished / "offsets.gguf")
    return folder / "base.gguf", folder / "offsets.gguf"


def _checked(adapters: Path, mark: str) -> Path:
    """The folder of packaged adapters; an error unless they are those that we know."""
    if not (adapters / _ADAPTERS).is_file() or file_hash(adapters / _ADAPTERS) != mark:
        do = "Install compeer again, or use the untouched model: embedded."
        raise InputError("these packaged adapters are missing or not the ones we know.", file=adapters, do=do)
    return adapters


def _over_smollm2(adapters: Path, mark: str) -> Prepared:
    base, offsets = _smollm2()
    made = _adapted(adapters, base, mark, lambda to: convert_adapter(adapters, base, to, read_pairs(offsets)))
    return Prepared(base, made, _tokenizer(SMOLLM2.checked_path(), SMOLLM2.sha256), adapters)


def _over_named_base(adapters: Path) -> Prepared:
    """Adapters over the base that their card names, or their config by its repository."""
    config = json.loads((adapters / _CONFIG).read_text(encoding="utf-8"))
    card = adapters / "compeer.json"
    told = json.loads(card.read_text(encoding="utf-8")).get("base") if card.is_file() else None
    told = str(told or config.get("base_model_name_or_path") or "")
    named = {base.repository.removesuffix("-GGUF"): name for name, base in catalogue().items()}
    name = named.get(told, told)
    mark = file_hash(adapters / _ADAPTERS)
    if name == "embedded":
        return _over_smollm2(adapters, mark)
    over = prepare(name) if name else None
    if over is None or over.adapter is not None:
        known = f"embedded, {', '.join(catalogue())}, a GGUF file or a model's folder"
        do = f'Write it into compeer.json as "base": {known}.'
        raise InputError(f"these adapters are over a base that is not known: '{told}'.", file=adapters, do=do)
    made = _adapted(adapters, over.base, mark, lambda to: convert_adapter(adapters, over.base, to))
    return Prepared(over.base, made, over.tokenizer, adapters)


def _adapted(adapters: Path, base: Path, mark: str, make: Callable[[Path], None]) -> Path:
    """Converted adapters; the same ones over another base are others."""
    config = (adapters / _CONFIG).read_bytes()
    own = hashlib.sha256(f"{mark} {base} {hashlib.sha256(config).hexdigest()}".encode()).hexdigest()
    folder = engine_cache() / f"adapter-{own[:16]}"
    if not folder.is_dir():
        with atomic_folder(folder) as unfinished:
            make(unfinished / "adapter.gguf")
    return folder / "adapter.gguf"


def _converted(folder: Path) -> Path:
    """A model's folder as one file."""
    paths = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    mark = hashlib.sha256(" ".join(map(file_hash, paths)).encode()).hexdigest()
    made = engine_cache() / f"model-{mark[:16]}"
    if not made.is_dir():
        with _making(made, folder.name) as unfinished:
            convert_folder(folder, unfinished / "base.gguf")
    return made / "base.gguf"


def _tokenizer(source: Path, mark: str) -> Path:
    """A folder with a file's tokenizer and chat template, read from the file once."""
    folder = engine_cache() / f"tokenizer-{mark[:16]}"
    if not folder.is_dir():
        from compeer.models.gguf import write_settings

        with atomic_folder(folder) as unfinished:
            write_settings(source, unfinished)
    return folder


def _mark_of_file(path: Path) -> str:
    """A user's file by its place, size and time: a gigabyte is not read at every start."""
    found = path.stat()
    return hashlib.sha256(f"{path} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()


def _making(folder: Path, title: str) -> AbstractContextManager[Path]:
    console.print(f"  Preparing {title} for the CPU (once)", highlight=False)
    return atomic_folder(folder)
