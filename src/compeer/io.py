"""Files: written whole or not at all, JSON lines read into models, hashes, locks, and the frozen base class."""

import codecs
import fcntl
import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from compeer.errors import InputError, from_validation

LOCK = ".lock"  # the file that is locked while somebody is at work in a folder; it stays
MEND_LINE = "Mend this line, or take it out: each line that is not blank is one JSON value."

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")


class Frozen(BaseModel, frozen=True, extra="forbid"):
    """The base of everything that is read and written: it cannot be changed, and unknown keys are errors."""


def check_writable(path: Path) -> Path:
    """The path, if a file can be written there; otherwise an error that says what to do."""
    if path.is_dir():
        raise InputError("this is a folder.", file=path, do="Give the name of a file to write.")
    if not path.parent.is_dir():
        raise InputError("there is no such folder.", file=path.parent, do="Make it first, or give another name.")
    return path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to. It takes `path`'s name when the block ends well, and is gone otherwise."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        _sync(unfinished)
        os.replace(unfinished, path)
        _sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to fill. It becomes `folder` when the block ends well; one that came first is kept."""
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        for path in unfinished.rglob("*"):
            _sync(path)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process may have been quicker
                raise
        _sync(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all."""
    with atomic(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_lines(path: Path, values: Iterable[BaseModel | Mapping[str, Any]]) -> int:
    """Writes a JSON object a line, all of them or none, and returns how many. Models leave their defaults out."""
    count = 0
    with atomic(check_writable(path)) as unfinished, unfinished.open("w", encoding="utf-8", newline="\n") as file:
        for value in values:
            file.write(json_line(value) + "\n")
            count += 1
    return count


def json_line(value: BaseModel | Mapping[str, Any]) -> str:
    """One JSON object without line breaks."""
    if isinstance(value, BaseModel):
        return value.model_dump_json(exclude_defaults=True)
    return json.dumps(value, ensure_ascii=False)


def _sync(path: Path) -> None:
    """Asks the disk to keep what was written, so that a name never stands for less after a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def read_values(
    path: Path, mend: str = MEND_LINE, what: str = "file", do: str | None = None
) -> Iterator[tuple[int, Any | InputError]]:
    """The number and value of each line that is not blank; a line that cannot be read gives its error instead."""
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        raise InputError(f"there is no such {what}.", file=path, do=do) from None
    except OSError as error:
        raise InputError(f"this cannot be opened: {error.strerror}", file=path) from None
    with opened as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or (number == 1 and not line.removeprefix(codecs.BOM_UTF8).strip()):
                continue
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, rewritable(text, json.loads(text))
            except (ValueError, RecursionError) as error:
                yield number, _unreadable(error, path, number, mend)


def read_json_lines(path: Path, what: str = "file", do: str | None = None) -> Iterator[tuple[int, Any]]:
    """The number and value of each line that is not blank; an error names the file and line."""
    for number, value in read_values(path, what=what, do=do):
        if isinstance(value, InputError):
            raise value
        yield number, value


def read_numbered(
    path: Path, model: type[Model], what: str = "file", do: str | None = None
) -> Iterator[tuple[int, Model]]:
    """The models of a file of JSON lines with their lines' numbers; an error names the file, line and field."""
    for number, value in read_json_lines(path, what, do):
        try:
            yield number, model.model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None


def read_lines(path: Path, model: type[Model], what: str = "file", do: str | None = None) -> Iterator[Model]:
    """The models of a file of JSON lines, one at a time; an error names the file, line and field."""
    return (value for _, value in read_numbered(path, model, what, do))


def rewritable(text: str, value: Any) -> Any:
    """The value of a JSON text, unless it holds half a surrogate pair, which could not be written again."""
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_setting(text: str, example: str) -> tuple[str, Any]:
    """The key and the value of `key=value`; the value as TOML has it, or else the words as they are."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"'{text}' is not of the form key=value.", do=f"Write, for instance, {example}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _unreadable(error: Exception, path: Path, line: int, mend: str) -> InputError:
    if isinstance(error, json.JSONDecodeError):
        return InputError(f"this is not JSON: {error.msg} at character {error.colno}", file=path, line=line, do=mend)
    if isinstance(error, UnicodeError):
        reason = getattr(error, "reason", error)
        return InputError(f"this is not UTF-8 text: {reason}", file=path, line=line, do="Save the file as UTF-8.")
    return InputError(f"this cannot be read: {error}", file=path, line=line, do=mend)


@cache
def table(path: str) -> dict[str, Any]:
    """A packaged table of words, patterns or texts, by its path without `.toml`."""
    return tomllib.loads(files("compeer").joinpath(f"{path}.toml").read_text(encoding="utf-8"))


def readable(text: str) -> str:
    """Text with half characters replaced, which JSON can spell and UTF-8 cannot hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def file_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_hash(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def value_hash(value: Any) -> str:
    """The SHA-256 of a JSON value, whatever the order of its keys."""
    return text_hash(json.dumps(value, sort_keys=True, ensure_ascii=False))


def folder_hash(folder: Path) -> str:
    """The SHA-256 of all files that lie directly in a folder, by name and content."""
    return value_hash({path.name: file_hash(path) for path in sorted(folder.iterdir()) if path.is_file()})


@contextmanager
def locked(path: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Holds a file's lock, which goes with the process; where another has it, calls `busy`, then waits for it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            busy()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def only_one(folder: Path) -> AbstractContextManager[None]:
    """Holds the folder's lock; an error if another process has it."""

    def busy() -> None:
        do = "Wait for it, or stop it."
        raise InputError("another run is at work in this folder.", file=folder, do=do) from None

    return locked(folder / LOCK, busy)


def loaded_once(load: Callable[[], T]) -> Callable[[], T]:
    """A loader whose result is kept. Threads that ask at the same time wait for the first; `cache` lets each load."""
    kept, lock = cache(load), Lock()

    @wraps(load)
    def loaded() -> T:
        with lock:
            return kept()

    return loaded
