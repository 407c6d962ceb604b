"""How the arguments and options of commands are declared, and those that several commands have.

A parameter of a command is declared as `name: type = option("Its help.", default)`. Options that several commands take
together are the fields of a dataclass; a command that `grouped` made takes them as one parameter.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import typer

from compeer.io import check_writable


def option(what: str, default: Any = None, *flags: str, **more: Any) -> Any:
    """An option with its help; without a default it is None, with `...` it must be given."""
    return typer.Option(default, *flags, help=what, **more)


def argument(what: str, default: Any = ..., **more: Any) -> Any:
    """An argument with its help; without a default it must be given."""
    return typer.Argument(default, help=what, **more)


def writable(path: Path | None) -> Path | None:
    """The callback of a file that is to be written: stops before any work where it could not be."""
    return check_writable(path) if path else None


def grouped(work: Callable[..., None]) -> Callable[..., None]:
    """The function as a command: in place of a parameter that is a dataclass stand the options that are its fields."""
    own = inspect.signature(work, eval_str=True).parameters
    groups: dict[str, Any] = {name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)}

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        work(**given)

    flat: dict[str, inspect.Parameter] = {}
    for name, one in own.items():
        flat |= inspect.signature(groups[name], eval_str=True).parameters if name in groups else {name: one}
    run.__name__, run.__doc__, run.__annotations__ = work.__name__, work.__doc__, {}
    run.__signature__ = inspect.Signature([one.replace(kind=one.KEYWORD_ONLY) for one in flat.values()])  # type: ignore[attr-defined]
    return run


SPLITS = "Which records: reward, policy, test, or all."
TEMPERATURE = "0 takes the most probable token."
LONGEST = "Longest output, in tokens."
GOES_ON = "Stopped anywhere, it goes on when called again."
CACHE = Path("answers.sqlite")

RECORDS = argument("A file of SER records.")
SEED = option("All randomness comes from it.", 0)
CHANGES = option("A setting, as steps=900; a wrong one lists them all.", None, "--set", metavar="KEY=VALUE")
CALL = option("How servers are called: compeer ser calls.", None, "--call", metavar="KEY=VALUE")
ANSWERS = option("Where answers from servers are kept.", CACHE)
SKIP_BAD = option("Leave bad dialogues out and count them by reason.", False, "--skip-bad")
JSON = option("Write all metrics as JSON.", None, "--json", metavar="FILE", callback=writable)
HOST = option("The address to listen on; 0.0.0.0 lets others in.", "127.0.0.1")
PROXY = option("A proxy's address or network, whose X-Forwarded-For is believed.")
