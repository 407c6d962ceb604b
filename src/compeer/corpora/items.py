"""What all readers share: the items of a file one at a time, and errors that say which item is meant.

An `Item` is the raw value of one dialogue with its position in the file. JSON lines are read line by line; a JSON array
is decoded item by item from a buffer, so that memory is bounded by the largest dialogue and not by the file. An item
that cannot be read is handed on as the `InputError` itself, so that the caller may count it and go on; a fault of
the whole file (an array that breaks off) is raised, since nothing after it can be trusted.
"""

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, StringConstraints, ValidationError

from compeer.corpora.labels import normal
from compeer.dialogue import Rating
from compeer.errors import InputError, from_validation
from compeer.io import read_values, rewritable

MEND = "Mend it, or see docs/data.md for the format; --skip-bad leaves bad dialogues out and counts them."
CHUNK = 1 << 16
LONGEST_ITEM = 1 << 25  # characters; a dialogue is never that long, so what is longer is a broken file

_BLANK = " \t\r\n"
_JSON = json.JSONDecoder()

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Score = Annotated[Rating | None, BeforeValidator(lambda given: None if given == "" else given)]


@dataclass(frozen=True)
class Item:
    """The raw value of one dialogue. `position` counts from 1; `line` is None where lines mean nothing."""

    value: Any
    file: Path
    position: int
    line: int | None = None
    media: str = ""  # the folder put before the names of clips

    def bad(self, what: str, field: str | None = None, *, do: str = MEND) -> InputError:
        """The error that names this item and the field in it."""
        if self.line is None:
            field = f"item {self.position}, {field}" if field else f"item {self.position}"
        return InputError(what, file=self.file, line=self.line, field=field, do=do)

    def check(self, model: type[Model]) -> Model:
        """The value as a model, or the error that names the field."""
        try:
            return model.model_validate(self.value)
        except ValidationError as error:
            plain = from_validation(error)
            raise self.bad(plain.what, plain.field) from None

    def label(self, table: Mapping[str, Value], theirs: str, kind: str, field: str) -> Value:
        """What a label of theirs is called by us, or the error that it stands in no table."""
        if normal(theirs) not in table:
            name = theirs if len(theirs) <= 60 else f"{theirs[:60]}…"
            known = f"Known: {', '.join(table)} (docs/labels.md). --skip-bad leaves such dialogues out."
            raise self.bad(f"unknown {kind} '{name}'", field, do=known)
        return table[normal(theirs)]

    def id(self, source: str, own: str | None = None) -> str:
        """The source and the corpus' own id, or else the split (the file's name) and the position."""
        if own is not None:
            return f"{source}-{own}"
        split = re.sub(r"[^\w]+|_+", "-", self.file.stem.casefold()).strip("-")
        if split.replace("-", "") == source.replace("-", ""):
            split = ""
        split = split.removeprefix(f"{source}-")
        return f"{source}-{split}-{self.position:04d}" if split else f"{source}-{self.position:04d}"


@dataclass
class BadDialogues:
    """Counts the dialogues that were left out, by reason; to be given as `skip_bad`."""

    reasons: Counter[str] = field(default_factory=Counter)
    first: dict[str, InputError] = field(default_factory=dict)

    def __call__(self, error: InputError) -> None:
        # What differs from dialogue to dialogue, an index or the detail after a colon, is no part of the reason.
        parts = re.sub(r"^(item|line) \d+(, )?", "", error.field or "").split(".")
        where = ".".join(part for part in parts if not part.isdigit())
        what = error.what.split(": ")[0]
        reason = f"{where}: {what}" if where else what
        self.reasons[reason] += 1
        self.first.setdefault(reason, error)


def id_hash(name: str) -> int:
    """Eight bytes that stand for an id."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def json_items(path: Path) -> Iterator[Item | InputError]:
    """The items of a JSON array or of JSON lines, whichever the file is."""
    return array_items(path) if first_bytes(path).startswith(b"[") else line_items(path)


def first_bytes(path: Path) -> bytes:
    """How the file begins, without a byte order mark and white space."""
    try:
        with path.open("rb") as file:
            return file.read(CHUNK).removeprefix(codecs.BOM_UTF8).lstrip(_BLANK.encode())
    except OSError as error:
        raise InputError(f"this cannot be opened: {error.strerror}", file=path) from None


def line_items(path: Path) -> Iterator[Item | InputError]:
    """An item for each line that is not blank."""
    for position, (number, value) in enumerate(read_values(path, MEND), 1):
        yield value if isinstance(value, InputError) else Item(value, path, position, number)


def array_items(path: Path) -> Iterator[Item | InputError]:
    """An item for each element of a JSON array; a fault of the array itself is raised."""
    position = 0
    with path.open("rb") as file:
        buffer = _Buffer(file, path)
        buffer.take()
        while buffer.next_sign() != "]":
            if position and buffer.take() != ",":
                raise buffer.broken("a comma or the array's end should stand here", position)
            position += 1
            text, value = buffer.decode(position)
            item = Item(value, path, position)
            try:
                rewritable(text, value)
            except (ValueError, RecursionError) as error:
                yield item.bad(f"this cannot be written again: {error}")
            else:
                yield item
        buffer.take()
        if buffer.next_sign():
            raise buffer.broken("something stands after the array's end", position)


class _Buffer:
    """The part of a file that is being decoded, and the line it begins on."""

    def __init__(self, file: Any, path: Path) -> None:
        self.file, self.path, self.text, self.line = file, path, "", 1
        self.decoder, self.ended = codecs.getincrementaldecoder("utf-8-sig")(), False

    def more(self, size: int = CHUNK) -> bool:
        """Reads on; False at the file's end."""
        if self.ended:
            return False
        data = self.file.read(size)
        self.ended = not data
        try:
            self.text += self.decoder.decode(data, final=self.ended)
        except UnicodeDecodeError as error:
            line = self.line + self.text.count("\n") + error.object[: error.start].count(b"\n")
            what = f"this is not UTF-8 text: {error.reason}"
            raise InputError(what, file=self.path, line=line, do="Save the file as UTF-8.") from None
        return True

    def next_sign(self) -> str:
        """The next character that is not white space, which then opens the buffer; empty at the file's end."""
        while True:
            rest = self.text.lstrip(_BLANK)
            self._drop(len(self.text) - len(rest))
            if rest or not self.more():
                return rest[:1]

    def take(self) -> str:
        sign = self.next_sign()
        self._drop(1)
        return sign

    def decode(self, position: int) -> tuple[str, Any]:
        self.next_sign()
        while True:
            size = len(self.text)
            try:
                value, end = _JSON.raw_decode(self.text)
                if end < size or not self.more(max(size, CHUNK)):  # at the buffer's end a number may go on
                    text = self.text[:end]
                    self._drop(end)
                    return text, value
            except json.JSONDecodeError as error:
                # A value that is merely cut off fails at the buffer's end, or in a string that has not ended.
                cut_off = error.msg.startswith("Unterminated string") or error.pos > size - 16
                if not cut_off or size > LONGEST_ITEM or not self.more(max(size, CHUNK)):
                    raise self.broken(f"this is not JSON: {error.msg}", position, error.pos) from None
            except (ValueError, RecursionError) as error:
                raise self.broken(f"this cannot be read: {error}", position) from None

    def broken(self, what: str, position: int, offset: int = 0) -> InputError:
        line = self.line + self.text.count("\n", 0, offset)
        return InputError(what, file=self.path, line=line, field=f"item {position}", do="Mend the JSON array.")

    def _drop(self, count: int) -> None:
        self.line += self.text.count("\n", 0, count)
        self.text = self.text[count:]
