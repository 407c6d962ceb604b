"""Corpora: a reader for each format, and the sample corpus written for this project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from compeer.corpora.avamerg import avamerg_dialogue
from compeer.corpora.esconv import esconv_dialogue, failed_esconv_dialogue
from compeer.corpora.jsonlines import dialogue_of, write_jsonlines
from compeer.corpora.labels import PROBLEMS
from compeer.corpora.mesc import csv_items, mesc_dialogue
from compeer.corpora.reading import BadDialogues, Item, json_items
from compeer.corpora.recognise import is_csv, recognise
from compeer.corpora.seen import SeenIds
from compeer.corpora.soulchat import smile_dialogue, soulchat_dialogue
from compeer.dialogue import Dialogue, merge_consecutive
from compeer.errors import InputError

__all__ = [
    "FORMATS",
    "PROBLEMS",
    "BadDialogues",
    "corpus_path",
    "read_corpus",
    "sample_path",
    "write_jsonlines",
]

FORMATS: dict[str, Callable[[Item], Dialogue]] = {
    "compeer": dialogue_of,
    "esconv": esconv_dialogue,
    "failed-esconv": failed_esconv_dialogue,
    "mesc": mesc_dialogue,
    "avamerg": avamerg_dialogue,
    "soulchat": soulchat_dialogue,
    "smile": smile_dialogue,
}
"""What each format's raw item becomes."""


def sample_path() -> Path:
    """The sample corpus that comes with the package."""
    return Path(str(files("compeer.corpora").joinpath("sample.jsonl")))


def corpus_path(path: str | Path) -> Path:
    """The file that a corpus' name means: `sample`, or a path."""
    if str(path) == "sample":
        return sample_path()
    if not Path(path).is_file():
        raise InputError("there is no such corpus file.", file=path, do="Give a path, or 'sample' for our own.")
    return Path(path)


def read_corpus(
    path: str | Path,
    format: str | None = None,
    *,
    merge: bool = False,
    skip_bad: Callable[[InputError], None] | None = None,
    media: str | Path = "",
) -> Iterator[Dialogue]:
    """The corpus' dialogues, one at a time; of a folder those of all its corpus files, by name.

    The format is recognised unless it is given. `merge` joins what one speaker says in a row. A bad dialogue is an
    error, unless `skip_bad` takes the error (as a `BadDialogues` does) and the next one is read. `media` is the folder
    put before the names of clips.
    """
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown format '{format}'", do=f"Known formats: {', '.join(FORMATS)}")
    folder = Path(path)
    if str(path) != "sample" and folder.is_dir():
        found = [(file, _format_in_folder(file)) for file in sorted(folder.iterdir()) if file.is_file()]
        chosen = [(file, name) for file, name in found if name is not None and format in (None, name)]
        if not chosen:
            wanted = f"of format '{format}' " if format else ""
            raise InputError(f"there is no corpus file {wanted}in this folder.", file=folder, do=_KNOWN)
    else:
        file = corpus_path(path)
        chosen = [(file, format or _format_of(file))]
    return _dialogues(chosen, merge, skip_bad, str(media))


_KNOWN = f"Known formats: {', '.join(FORMATS)}. See docs/data.md, or name one (--format)."


def _format_of(file: Path) -> str:
    if name := recognise(file):
        return name
    # Nothing that can be told apart: our own reader names the line that is broken, if that is what is wrong.
    first = next(json_items(file), None)
    if first is None or isinstance(first, InputError):
        return "compeer"
    raise first.bad("the format is not recognised", do=_KNOWN)


def _format_in_folder(file: Path) -> str | None:
    """The format of a file in a folder where other things may lie too; a broken corpus is not passed over."""
    if file.suffix.casefold() not in (".jsonl", ".json", ".csv", ".txt"):
        return None
    name = recognise(file)
    if (
        name is None
        and file.suffix.casefold() == ".jsonl"
        and isinstance(first := next(json_items(file), None), InputError)
    ):
        raise first
    return name


def _dialogues(
    chosen: list[tuple[Path, str]], merge: bool, skip_bad: Callable[[InputError], None] | None, media: str
) -> Iterator[Dialogue]:
    seen = _Seen()
    for file, name in chosen:
        for item in csv_items(file) if name == "mesc" and is_csv(file) else json_items(file):
            try:
                dialogue = _checked(item, FORMATS[name], seen, media)
            except InputError as error:
                if skip_bad is None:
                    raise
                skip_bad(error)
                continue
            if merge:
                utterances = tuple(merge_consecutive(dialogue.utterances))
                dialogue = dialogue.model_copy(update={"utterances": utterances})
            yield dialogue


def _checked(item: Item | InputError, convert: Callable[[Item], Dialogue], seen: _Seen, media: str) -> Dialogue:
    """The item's dialogue, whose id is its own."""
    if isinstance(item, InputError):
        raise item
    dialogue = convert(replace(item, media=media))
    if where := seen.before(dialogue.id, item):
        what = f"this id is used twice: '{dialogue.id}' stands on {where} already"
        raise item.bad(what, "id", do="Give every dialogue an id of its own.")
    return dialogue


class _Seen:
    """Which ids were read, and where."""

    def __init__(self) -> None:
        self._ids = SeenIds()
        self._files: list[Path] = []

    def before(self, id: str, item: Item) -> str | None:
        """Where the id stood before; None, and remembered, if it did not."""
        if item.file not in self._files:
            self._files.append(item.file)
        number = item.position if item.line is None else item.line
        place = (self._files.index(item.file) << 1 | (item.line is not None)) << 40 | number
        found = self._ids.before(id, place)
        if found is None:
            return None
        file = self._files[found >> 41]
        where = f"{'line' if found >> 40 & 1 else 'item'} {found & (1 << 40) - 1}"
        return where if file == item.file else f"{where} of {file.name}"
