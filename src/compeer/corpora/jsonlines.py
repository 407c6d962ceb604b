"""Our own format: one `Dialogue` as a JSON object a line, read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from compeer.corpora.reading import Item
from compeer.dialogue import Dialogue
from compeer.errors import InputError
from compeer.io import write_lines


def dialogue_of(item: Item) -> Dialogue:
    """The dialogue as it stands."""
    return item.check(Dialogue)


def write_jsonlines(dialogues: Iterable[Dialogue], path: Path) -> int:
    """Writes the dialogues, whole or not at all, and returns how many they were."""
    return write_lines(path, _writable(dialogues))


def _writable(dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
    for dialogue in dialogues:
        try:
            dialogue.model_dump_json(exclude_defaults=True)
        except (ValueError, RecursionError) as error:
            what = f"dialogue '{dialogue.id}' cannot be written: {error}"
            raise InputError(what, field="extra", do="What it holds is nested too deeply; leave it out.") from None
        yield dialogue
