"""What the commands that train share: settings from `--set`, and the folder that a training claims for itself."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from compeer.errors import InputError
from compeer.models.distributed import first_process

if TYPE_CHECKING:
    from pydantic import BaseModel

    Settings = TypeVar("Settings", bound=BaseModel)

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, as steps=900; a wrong one lists them all."),
]
_STATE = "settings.json"


def read_settings(kind: type[Settings], start: Mapping[str, Any], changes: Sequence[str] | None) -> Settings:
    """The settings of a kind: those given to start from, with the changes of the command line."""
    from pydantic import ValidationError

    from compeer.errors import from_validation

    values = dict(start)
    for change in changes or ():
        key, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"'{change}' is not of the form key=value.", do="Write, for instance, --set steps=900")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text.strip()
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise from_validation(error, do=f"Known settings: {', '.join(kind.model_fields)}") from None


def claim(out: Path, records: Path, split: str, settings: BaseModel, seed: int, **more: str) -> None:
    """Makes the folder, or checks that what was begun in it is this training: another one must not go on from it."""
    from compeer.io import file_hash, write_json

    if out.is_file():
        raise InputError("this is a file.", file=out, do="Give a folder.")
    told = {"records": file_hash(records), "split": split, "seed": seed, **more, **settings.model_dump(mode="json")}
    path = out / _STATE
    begun = path.is_file() and any((out / name).is_dir() for name in ("checkpoints", "model"))
    before = json.loads(path.read_text(encoding="utf-8")) if begun else told
    if other := [key for key in sorted({*told, *before}) if told.get(key) != before.get(key)]:
        what = f"a training with other settings was begun here ({', '.join(other)})."
        raise InputError(what, file=out, do="Give another folder, or remove this one.")
    if not begun and first_process():
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, told)
