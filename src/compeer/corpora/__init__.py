"""Corpora: a reader for each format, and the sample corpus written for this project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

from compeer.corpora.jsonlines import read_jsonlines
from compeer.corpora.labels import PROBLEMS
from compeer.dialogue import Dialogue
from compeer.errors import InputError

__all__ = ["FORMATS", "PROBLEMS", "corpus_path", "read_corpus", "sample_path"]

FORMATS: dict[str, Callable[[Path], Iterator[Dialogue]]] = {"compeer": read_jsonlines}


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


def read_corpus(path: str | Path, format: str | None = None) -> Iterator[Dialogue]:
    """The corpus' dialogues, one at a time. The format is recognised unless it is given."""
    chosen = format or "compeer"
    if chosen not in FORMATS:
        raise InputError(f"unknown format '{format}'", do=f"Known formats: {', '.join(FORMATS)}")
    return FORMATS[chosen](corpus_path(path))
