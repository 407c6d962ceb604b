"""What the commands share when they read what is piped in, and when they print."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compeer.errors import InputError

if TYPE_CHECKING:
    from compeer.statistics import Estimate

_NO_LIMIT = 10_000
"""Characters: a table is never cut or folded to the width of a terminal, which may be a file."""


def plain(text: str) -> str:
    """Text that rich prints as it is."""
    from rich.markup import escape

    return escape(text)


def tell_unknown_place(locale: str | None) -> None:
    """Says so where a locale was given that names no country whose numbers for help are known."""
    from compeer.progress import console
    from compeer.safety.resources import load_resources

    resources = load_resources()
    if locale and resources.country(locale) is None:
        known = ", ".join(sorted(resources.countries))
        told = f"No numbers for help are known for the locale '{locale}', so none is named. Countries: {known}."
        console.print(f"[yellow]{plain(told)}[/]", highlight=False, soft_wrap=True)


def standard_input() -> str:
    """What was piped in; an error if it is no text."""
    try:
        text = sys.stdin.read()
        text.encode()  # what cannot be decoded may come as surrogates
    except UnicodeError as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"the standard input is not UTF-8 text: {reason}", do="Give text in UTF-8.") from None
    return text


def silence_libraries() -> None:
    """No chatter from the libraries below."""
    import logging
    import warnings

    import datasets
    import transformers

    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    warnings.filterwarnings("ignore", module="(torch|transformers|trl|peft|accelerate)")
    logging.getLogger("transformers").setLevel(logging.ERROR)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Prints a table as wide as it is."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*map(plain, columns), box=None)
    for row in rows:
        table.add_row(*map(plain, row))
    Console(soft_wrap=True, width=_NO_LIMIT).print(table)


def with_bounds(figure: Estimate, form: str = ".3f") -> str:
    """A value with its interval."""
    if figure.value is None:
        return "–"
    if figure.low is None or figure.high is None:
        return f"{figure.value:{form}}"
    return f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]"


def print_counts(manifest: dict[str, Any], out: Path) -> None:
    """Prints what a stage counted, by group, and where it wrote."""
    from rich.table import Table

    from compeer.progress import console

    table = Table(show_header=False, box=None)
    for group, names in manifest["counts"].items():
        if any(names.values()):
            table.add_row(plain(group), "", style="bold")
        for name, count in names.items():
            if count:
                table.add_row(f"  {plain(name)}", f"{count:,}")
    console.print(table)
    console.print(f"written: {plain(str(out))}", highlight=False, soft_wrap=True)
