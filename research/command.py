"""What the commands of this folder share: each is a function whose parameters are its words and options.

A command puts the repository's root on `sys.path` before it imports this, so that it runs as
`python research/FOLDER/NAME.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from compeer import cli

Records = Annotated[Path, typer.Argument(help="A file of SER records.")]
Written = Annotated[Path, typer.Argument(help="The file to write.")]
Call = Annotated[list[str], typer.Option(metavar="KEY=VALUE", help="How models are called (see: compeer ser calls).")]
Cache = Annotated[Path, typer.Option(help="Where answers are kept, so that none is paid for twice.")]
Seed = Annotated[int, typer.Option(help="All randomness comes from it.")]


def run_command(work: Callable[..., None]) -> None:
    """Runs a function as a command; what a person can mend ends with one message and exit code 2, as in `compeer`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(work)
    cli.quiet()
    cli.main(app)
