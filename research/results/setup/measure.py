"""How much room that takes which setting up installs and unpacks: size.json beside this file.

    .venv/bin/python research/results/setup/measure.py

Counted are the files of the packages that constraints.txt names, as pip recorded them; what else is installed in the
same environment is left out. The packaged models' files are counted where they were unpacked.
"""

from __future__ import annotations

import json
import platform
import re
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from compeer.models.catalogue import SMALL
from compeer.models.resolve import model_folder

CONSTRAINTS = Path(__file__).resolve().parents[3] / "constraints.txt"


def size_figures() -> dict[str, Any]:
    """Bytes of the installed packages, and the largest of them; of the unpacked models."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    wanted = {_key(line.partition("==")[0]) for line in lines if "==" in line}
    sizes: dict[str, int] = {}
    for package in distributions():
        if (name := _key(package.name)) in wanted:
            paths = {Path(str(file.locate())).resolve() for file in package.files or ()}
            sizes[name] = sum(path.stat().st_size for path in paths if path.is_file())
    folders = [model_folder(name) for name in ("embedded", *SMALL)]
    unpacked = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
    return {
        "packages": len(sizes),
        "bytes": sum(sizes.values()),
        "gigabytes": round(sum(sizes.values()) / 1e9, 2),
        "largest": {name: sizes[name] for name in largest},
        "cache_gigabytes": round(unpacked / 1e9, 2),
        "machine": platform.machine(),
    }


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


if __name__ == "__main__":
    Path(__file__).with_name("size.json").write_text(json.dumps(size_figures(), indent=1) + "\n", encoding="utf-8")
