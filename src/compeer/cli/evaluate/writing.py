"""Figures as JSON, for the commands that print tables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compeer.cli.printing import plain
from compeer.errors import InputError
from compeer.progress import console


def check_place(out: Path | None) -> None:
    """Stops before any work where the file could not be written."""
    if out and not out.parent.is_dir():
        raise InputError("there is no such folder.", file=out.parent, do="Make it first, or give another name.")


def write_figures(out: Path, found: Mapping[str, Any]) -> None:
    """Writes the figures, whole or not at all, and says where."""
    unfinished = out.with_name(f"{out.name}.{os.getpid()}.unfinished")
    unfinished.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, out)
    console.print(f"written: {plain(str(out))}", highlight=False, soft_wrap=True)
