"""What each parameter of a command of `compeer ser` is: its type, its default, its help."""

from __future__ import annotations

import os
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from compeer.cli.models import CACHE

REQUIRED = Parameter.empty


def _file(what: str) -> tuple[Any, Any]:
    return Annotated[Path, typer.Argument(help=what)], REQUIRED


def _option(kind: Any, default: Any, what: str, *flags: str, **more: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(*flags, help=what, **more)], default


_CORPORA = typer.Argument(metavar="CORPUS...", help="Corpus files or folders, or 'sample'.")
_CALL = "How models are called, as concurrency=64 (see: compeer ser calls)."
_WORKERS = "Processes at work; they change nothing but the time."
_FORMATS = "All but 'parquet' are for datasets.load_dataset: all columns, preference pairs, or conversations."
PARAMETERS: dict[str, tuple[Any, Any]] = {
    "corpora": (Annotated[list[str], _CORPORA], REQUIRED),
    "dialogues": _file("A file of dialogues."),
    "splits": _file("Their splits."),
    "splits.known": _option(Path | None, None, "The splits that the dialogues have in a build."),
    "contexts": _file("A file of contexts."),
    "records": _file("A file of records."),
    "out": _file("The file to write."),
    "out.screened": _option(Path, Path("screened.jsonl"), "The file to write."),
    "out.folder": _option(Path, Path("ser"), "The folder to build in."),
    "out.json": _option(Path | None, None, "A JSON file to write what was found to."),
    "folder": _file("The folder to read or write."),
    "languages": _option(list[str], [], "A language to take; all, if none is given.", "--language"),
    "skip_bad": _option(bool, False, "Leave bad dialogues out and count them by reason.", "--skip-bad"),
    "rounds": _option(int, 5, "Rounds sampled from a dialogue.", min=1),
    "shares": _option(tuple[float, float, float], (0.45, 0.35, 0.2), "For judge, supporter and test."),
    "turns": _option(Path | None, None, "Turns that models wrote for these contexts."),
    "false_share": _option(float, 0.23, "Share of False among candidates' step labels."),
    "coherent": _option(float, 0.8, "Share of the wrong strategies that the response carries out."),
    "embedder": _option(str, "embedded", "Who is near: 'embedded', a sentence-transformers folder, or 'words'."),
    "candidates": _option(int, 1, "Turns that each model writes for a history.", min=1),
    "retries": _option(int, 2, "How often an unreadable turn is asked for again.", min=0),
    "images": _option(bool, False, "Give the history's pictures to the models.", "--images"),
    "examples": _option(int, 12, "Records shown, with their text.", min=0),
    "format": _option(Literal["parquet", "datasets", "preferences", "messages", "sharegpt"], "parquet", _FORMATS),
    "model": _option(str, REQUIRED, "'embedded', a model folder, or NAME@http://host:8000/v1."),
    "screener": _option(str | None, None, "A model that drops unfit dialogues.", "--screen-model"),
    "models": _option(list[str], [], "As NAME@http://host:8000/v1; several may be given.", "--model"),
    "call": _option(list[str], [], _CALL, metavar="KEY=VALUE"),
    "cache": _option(Path, CACHE, "Where answers are kept, so that none is paid for twice."),
    "cache.own": _option(Path | None, None, "Where answers are kept; in the folder, if not given."),
    "seed": _option(int, 0, "All randomness comes from it."),
    "workers": _option(int, 1, _WORKERS, min=1),
    "workers.all": _option(int, os.cpu_count() or 1, _WORKERS, min=1),
}
"""What each parameter of a command is, and its default; after a point stands what tells two of one name apart."""


def signature_of(parameters: str) -> Signature:
    """The signature of a command that takes these parameters."""
    own = [(key.partition(".")[0], *PARAMETERS[key]) for key in parameters.split()]
    return Signature([Parameter(key, Parameter.KEYWORD_ONLY, default=value, annotation=a) for key, a, value in own])
