"""Our own format: one `Dialogue` as a JSON object a line, read and written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from compeer.corpora.reading import Item, line_items
from compeer.dialogue import Dialogue
from compeer.errors import InputError


def dialogue_of(item: Item) -> Dialogue:
    """The dialogue as it stands."""
    return item.check(Dialogue)


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The number and value of each line that is not blank; an error names the file and line."""
    for item in line_items(path, "Mend this line, or take it out: each line that is not blank is one JSON value."):
        if isinstance(item, InputError):
            raise item
        yield item.line or 0, item.value


def write_jsonlines(dialogues: Iterable[Dialogue], path: Path) -> int:
    """Writes the dialogues, whole or not at all, and returns how many they were."""
    if path.is_dir():
        raise InputError("this is a folder.", file=path, do="Give the name of a file to write.")
    if not path.parent.is_dir():
        raise InputError("there is no such folder.", file=path.parent, do="Make it first, or give another name.")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    count = 0
    try:
        with unfinished.open("w", encoding="utf-8", newline="\n") as file:
            for dialogue in dialogues:
                file.write(_line(dialogue) + "\n")
                count += 1
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _line(dialogue: Dialogue) -> str:
    try:
        return dialogue.model_dump_json(exclude_defaults=True)
    except (ValueError, RecursionError) as error:
        what = f"dialogue '{dialogue.id}' cannot be written: {error}"
        raise InputError(what, field="extra", do="What it holds is nested too deeply; leave it out.") from None
