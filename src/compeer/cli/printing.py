"""What the commands share when they read what is piped in, and when they print."""

import json
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from compeer.errors import InputError
from compeer.io import write_json
from compeer.progress import console, first_process
from compeer.statistics import Estimate

_NO_LIMIT = 10_000  # characters: a table is never cut or folded to the width of a terminal, which may be a file
plain = escape  # text that rich prints as it is


def note(text: str, style: str = "") -> None:
    """Prints a line about the work beside its result: as it is, however long."""
    console.print(plain(text), style=style, highlight=False, soft_wrap=True)


def note_written(path: Path) -> None:
    note(f"written: {path}")


def note_unknown_locale(locale: str | None) -> None:
    """Prints so where a locale was given that names no country whose numbers for help are known."""
    from compeer.safety.resources import load_resources

    resources = load_resources()
    if locale and resources.country(locale) is None:
        known = ", ".join(sorted(resources.countries))
        what = f"No numbers for help are known for the locale '{locale}', so none is named. Countries: {known}."
        note(what, "yellow")


def standard_input() -> str:
    """What was piped in; an error if it is no text."""
    try:
        text = sys.stdin.read()
        text.encode()  # what cannot be decoded may come as surrogates
    except UnicodeError as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"the standard input is not UTF-8 text: {reason}", do="Give text in UTF-8.") from None
    return text


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], width: int | None = _NO_LIMIT) -> None:
    table = Table(*map(plain, columns), box=None)
    for row in rows:
        table.add_row(*map(plain, row))
    Console(soft_wrap=width is not None, width=width).print(table)


print_folded = partial(print_table, width=None)  # to the width of the terminal


def with_bounds(estimate: Estimate, form: str = ".3f") -> str:
    """A value with its interval."""
    if estimate.value is None:
        return "–"
    low, high = estimate.low, estimate.high
    return f"{estimate.value:{form}}" + ("" if low is None or high is None else f" [{low:{form}}, {high:{form}}]")


def print_counts(manifest: dict[str, Any], out: Path) -> None:
    """Prints what a stage counted, by group, and where it wrote."""
    table = Table(show_header=False, box=None)
    for group, names in manifest["counts"].items():
        if any(names.values()):
            table.add_row(plain(group), "", style="bold")
        for name, count in names.items():
            if count:
                table.add_row(f"  {plain(name)}", f"{count:,}")
    console.print(table)
    note_written(out)


def print_metrics(metrics: Mapping[str, Any], written: Path) -> None:
    """Prints what a command found, and where it left its result."""
    if first_process():
        console.print_json(json.dumps(metrics))
        note_written(written)


def write_metrics(out: Path | None, found: Mapping[str, Any]) -> None:
    """Writes the metrics where they are wanted, whole or not at all, and prints where."""
    if out:
        write_json(out, found)
        note_written(out)
