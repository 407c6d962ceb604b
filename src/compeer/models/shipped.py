"""The trained supporters and the judge that come with the package, as adapters over a base.

`supporter`, `judge` and `supporter-1.5b` are names that stand wherever a model's folder may. The first two are over the
embedded model, the third over a base of the catalogue, which has to be fetched first (`compeer models get qwen-1.5b`).
The first call adds the adapters to the base's weights and leaves an ordinary model folder in the cache. What they were
trained on and how well they do is told in their cards, `weights/*/README.md`; they have a licence of their own beside
these.
"""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

from compeer.errors import InputError
from compeer.io import atomic_folder, file_hash
from compeer.models.catalogue import find_base, is_base
from compeer.models.embedded import SMOLLM2, cache_folder, embedded_model
from compeer.models.gguf import base_folder
from compeer.progress import console

SHIPPED = {
    "supporter": "b6dc0ca52d510865372d4d029d2499dbf690e7579abadd1d64add554cb12238b",
    "judge": "c7f4d28812cf020c4ed761b7d0197fef9dc37faeda3dbf52b53de653e8b2d012",
    "supporter-1.5b": "c815da0f9979d34e20df6337d2fd2a7ff1855c715f1456058b584ac8117ea891",
}
"""The SHA-256 of each one's adapters."""
OVER = {"supporter-1.5b": "qwen-1.5b"}
"""The base of those that are not over the embedded model."""
SMALL = tuple(name for name in SHIPPED if name not in OVER)
_BASE = "model.safetensors"


def is_shipped(name: str | Path) -> bool:
    """Whether a name means a trained model that comes with the package."""
    return str(name) in SHIPPED


def shown_name(name: str | Path) -> str:
    """What a model is called before people."""
    if str(name) == "embedded":
        return SMOLLM2.title
    if is_base(name):
        return find_base(str(name)).title
    return f"compeer-{name}" if is_shipped(name) else Path(name).resolve().name


def packaged_mark(name: str | Path) -> str | None:
    """What marks a model that is known by its name, packaged or a base of the catalogue; None for all other names."""
    if is_base(name):
        return find_base(str(name)).sha256
    return SMOLLM2.sha256 if str(name) == "embedded" else SHIPPED.get(str(name))


def packaged_adapters(name: str) -> Path:
    """The folder in which the adapters of the packaged supporter or judge lie, and their card."""
    return Path(str(files("compeer").joinpath("weights", name)))


def best_supporter() -> str:
    """The best supporter that this machine has: the large one as soon as its base is here."""
    return next((name for name, base in OVER.items() if find_base(base).path.is_file()), "supporter")


def shipped_model(name: str) -> Path:
    """The folder of a packaged supporter or judge, made on the first call (some seconds, minutes for a large one)."""
    expected = SHIPPED[name]
    folder = cache_folder() / f"{name}-{expected[:12]}"
    if (folder / _BASE).is_file() and (folder / "compeer.json").is_file():
        return folder
    from safetensors.torch import load_file, save_file

    from compeer.models.adapters import WEIGHTS, add_adapters

    source = packaged_adapters(name)
    if not (source / WEIGHTS).is_file() or file_hash(source / WEIGHTS) != expected:
        raise InputError(
            f"the packaged {name} is missing or not the one we know: its hash differs.",
            file=source / WEIGHTS,
            do="Install compeer again, or use the untouched model: embedded.",
        )
    base = base_folder(OVER[name]) if name in OVER else embedded_model()
    console.print(f"  Unpacking the packaged {name} (some seconds, once)", highlight=False)
    with atomic_folder(folder) as unfinished:
        shutil.copytree(base, unfinished, ignore=shutil.ignore_patterns(_BASE), dirs_exist_ok=True)
        save_file(add_adapters(load_file(base / _BASE), source), unfinished / _BASE, metadata={"format": "pt"})
        shutil.copyfile(source / "compeer.json", unfinished / "compeer.json")
    return folder
