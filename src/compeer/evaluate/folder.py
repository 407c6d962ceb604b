"""The folder of an evaluation: its names, whether it belongs to the evaluation at hand, and files written whole."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from compeer import __version__
from compeer.errors import InputError
from compeer.io import LOCK, write_json

MANIFEST, CONVERSATIONS, SCORES, FIGURES = "manifest.json", "conversations.jsonl", "scores.jsonl", "figures.json"


def check_folder(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Stops where the folder holds another evaluation, and names what differs; or something else altogether."""
    if folder.is_file():
        raise InputError("this is a file.", file=folder, do="Give a folder to write to.")
    path = folder / MANIFEST
    if not path.is_file():
        if folder.is_dir() and any(path.name != LOCK for path in folder.iterdir()):
            do = "Give a new folder, or that of an evaluation to go on with."
            raise InputError("there is something else in this folder.", file=folder, do=do)
        return
    try:
        before = dict(_leaves(json.loads(path.read_text(encoding="utf-8"))))
    except ValueError:
        raise InputError("this cannot be read.", file=path, do="Give another folder, or remove this one.") from None
    now = dict(_leaves(json.loads(json.dumps(manifest))))
    keys = [key for key in {**now, **before} if not key.startswith("versions") and not key.endswith(".url")]
    if other := [key for key in keys if before.get(key) != now.get(key)]:
        shown = [f"{key} (there: {_short(before.get(key))}, now: {_short(now.get(key))})" for key in other[:3]]
        what = f"another evaluation was begun here; what differs: {', '.join(shown)}{', …' * (len(other) > 3)}."
        raise InputError(what, file=folder, do="Give another folder, or the same settings as before.")


def claim_folder(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Makes the folder with its manifest, or checks that it belongs to this evaluation."""
    check_folder(folder, manifest)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).is_file():
        write_json(folder / MANIFEST, manifest)


def _short(value: str | None) -> str:
    shown = value or "nothing"
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """What a tree of settings holds, by dotted names; lists as they are."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else key)
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def versions(local: bool) -> dict[str, str]:
    """What an evaluation is made with."""
    packages = ("torch", "transformers") if local else ()
    told = {name: importlib.metadata.version(name) for name in packages}
    return {"compeer": __version__, "python": platform.python_version(), **told}


def text_hash(text: str) -> str:
    """The SHA-256 of a text."""
    return sha256(text.encode()).hexdigest()


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Writes a JSON object a line, all of them or none."""
    unfinished = path.with_name(path.name + ".unfinished")
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    unfinished.write_text(text, encoding="utf-8", newline="\n")
    os.replace(unfinished, path)
