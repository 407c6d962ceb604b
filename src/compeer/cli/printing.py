"""What the commands share when they read what is piped in, and when they print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from compeer.errors import InputError


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
