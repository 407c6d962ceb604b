"""Reading a corpus: which format a file has, the reader of each format, and our own format, read and written.

The format comes from a file's first bytes and the keys of its first objects; names say little (`train.jsonl`), but
ESConv's failed dialogues are in a file called so. A file that holds something else is no corpus.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from compeer.corpora.avamerg import avamerg_dialogue
from compeer.corpora.esconv import esconv_dialogue
from compeer.corpora.items import Item, id_hash, json_items
from compeer.corpora.labels import normal
from compeer.corpora.mesc import csv_items, is_csv, mesc_dialogue
from compeer.corpora.soulchat import soulchat_dialogue
from compeer.dialogue import Dialogue, merge_consecutive
from compeer.errors import InputError
from compeer.io import write_lines

SkipBad = Callable[[InputError], None]
FORMATS: dict[str, Callable[[Item], Dialogue]] = {
    "compeer": lambda item: item.check(Dialogue),
    "esconv": partial(esconv_dialogue, "esconv"),
    "failed-esconv": partial(esconv_dialogue, "failed-esconv"),
    "mesc": mesc_dialogue,
    "avamerg": avamerg_dialogue,
    "soulchat": partial(soulchat_dialogue, "soulchat", "messages"),
    "smile": partial(soulchat_dialogue, "smile", "dialog"),
}  # what each format's raw item becomes
_KNOWN = f"Known formats: {', '.join(FORMATS)}. See docs/data.md, or name one (--format)."
_RECOGNISED_BY = 50  # objects; the first may be broken, and whoever counts bad dialogues still wants the others


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
    skip_bad: SkipBad | None = None,
    media: str | Path = "",
) -> Iterator[Dialogue]:
    """The corpus' dialogues, one at a time; of a folder those of all its corpus files, by name.

    `merge` joins what one speaker says in a row. A bad dialogue is an error, unless `skip_bad` takes the error (as a
    `BadDialogues` does) and the next one is read. `media` is the folder put before the names of clips.
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
        chosen = [(file, format or _format_of_file(file))]
    return _dialogues(chosen, merge, skip_bad, str(media))


def _dialogues(chosen: list[tuple[Path, str]], merge: bool, skip_bad: SkipBad | None, media: str) -> Iterator[Dialogue]:
    known: dict[Path, dict[int, int]] = {}
    for file, name in chosen:
        for item in csv_items(file) if name == "mesc" and is_csv(file) else json_items(file):
            try:
                dialogue = _checked(item, FORMATS[name], known, media)
            except InputError as error:
                if skip_bad is None:
                    raise
                skip_bad(error)
                continue
            if merge:
                utterances = tuple(merge_consecutive(dialogue.utterances))
                dialogue = dialogue.model_copy(update={"utterances": utterances})
            yield dialogue


def _checked(
    item: Item | InputError, convert: Callable[[Item], Dialogue], known: dict[Path, dict[int, int]], media: str
) -> Dialogue:
    """The item's dialogue, whose id is its own. `known` has a line, or minus a position, for each hash of an id."""
    if isinstance(item, InputError):
        raise item
    dialogue = convert(replace(item, media=media))
    mark = id_hash(dialogue.id)
    for file, positions in known.items():
        if position := positions.get(mark):
            where = f"line {position}" if position > 0 else f"item {-position}"
            where += "" if file == item.file else f" of {file.name}"
            what = f"this id is used twice: '{dialogue.id}' stands on {where} already"
            raise item.bad(what, "id", do="Give every dialogue an id of its own.")
    known.setdefault(item.file, {})[mark] = item.line or -item.position
    return dialogue


def write_jsonlines(dialogues: Iterable[Dialogue], path: Path) -> int:
    """Writes the dialogues in our own format, whole or not at all, and returns how many they were."""

    def writable(dialogue: Dialogue) -> Dialogue:
        try:
            dialogue.model_dump_json(exclude_defaults=True)
        except (ValueError, RecursionError) as error:
            what = f"dialogue '{dialogue.id}' cannot be written: {error}"
            raise InputError(what, field="extra", do="What it holds is nested too deeply; leave it out.") from None
        return dialogue

    return write_lines(path, map(writable, dialogues))


def _format_of_file(file: Path) -> str:
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
    first = next(json_items(file), None) if name is None and file.suffix.casefold() == ".jsonl" else None
    if isinstance(first, InputError):
        raise first
    return name


def recognise(path: Path) -> str | None:
    """The name of the file's format, or None. A JSON array that is broken where it begins is an error."""
    if is_csv(path):
        return "mesc"
    for item in islice(json_items(path), _RECOGNISED_BY):
        if not isinstance(item, InputError) and (name := _format_of(item.value)):
            return "failed-esconv" if name == "esconv" and "failed" in path.name.casefold() else name
    return None


def _format_of(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    if "utterances" in value:
        return "compeer"
    if "turns" in value and "conversation_id" in value:
        return "avamerg"
    if "messages" in value:
        return "soulchat"
    dialog = value.get("dialog")
    turns = [turn for turn in dialog if isinstance(turn, dict)] if isinstance(dialog, list) else []
    if any("role" in turn for turn in turns):
        return "smile"
    speakers = {normal(turn["speaker"]) for turn in turns if isinstance(turn.get("speaker"), str)}
    if speakers & {"speaker", "listener"}:
        return "failed-esconv"
    if "emotion_type" in value:
        return "esconv"
    if "user" in speakers or any("emotion" in turn for turn in turns):
        return "mesc"
    return "esconv" if speakers & {"usr", "sys", "seeker", "supporter"} else None
