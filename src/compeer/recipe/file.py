"""A recipe, read from its TOML file: every setting of every stage of an experiment.

A recipe may extend another one, and then holds only what differs: `extends = "../h200.toml"` names a file, from the
folder of the recipe that says so. Tables are merged key by key; everything else replaces what the other one has.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compeer.errors import InputError, from_validation
from compeer.evaluate import EvaluateSettings
from compeer.policy import SupporterSettings
from compeer.policy.grpo import GrpoSettings
from compeer.reward import RewardSettings
from compeer.ser import SerSettings


class Recipe(BaseModel):
    """An experiment: every setting of every stage, and the one seed all randomness comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[\w.-]+$", description="the folder of the run")
    seed: int = Field(default=0, ge=0, description="all randomness comes from it")
    ser: SerSettings = Field(default=SerSettings(), description="the dataset")
    judge: RewardSettings = Field(description="UnifiReward")
    sft: SupporterSettings = Field(description="supervised fine-tuning of the supporter")
    grpo: GrpoSettings = Field(description="training the supporter by reward")
    evaluate: EvaluateSettings = Field(default=EvaluateSettings(), description="measuring on the test split")


def recipe_path(name: str | Path) -> Path:
    """The file that a recipe's name means: a path, or a recipe that comes with the package."""
    if Path(name).is_file():
        return Path(name)
    folders = (Path(str(files("compeer"))) / "recipes", Path(__file__).resolve().parents[3] / "recipes")
    for folder in folders:
        if (found := folder / f"{name}.toml").is_file():
            return found
    known = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise InputError("there is no such recipe.", file=name, do=f"Give a TOML file, or one of: {', '.join(known)}")


def load_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Reads a recipe, with what it extends, and applies `key=value` changes; an error names the files and the key."""
    values, where = _read(recipe_path(name))
    for change in changes:
        _set(values, change)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise from_validation(error, file=where, do=_hint(first["loc"], first["type"])) from None


def _read(path: Path, below: tuple[Path, ...] = ()) -> tuple[dict[str, Any], str]:
    """A recipe's values, merged into those of what it extends, and how an error names it.

    `below` are the recipes that extend this one, the one that was asked for first.
    """
    where = ", extended by ".join(str(one) for one in (path, *reversed(below)))
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"this is not TOML: {error}", file=where) from None
    if "extends" not in values:
        return values, str(path)
    named = values.pop("extends")
    do = "Name the file of another recipe, from this one's folder, as ../h200.toml"
    if not isinstance(named, str):
        raise InputError("this is not a path.", file=where, field="extends", do=do)
    other = path.parent / named
    if not other.is_file():
        raise InputError(f"there is no {other}.", file=where, field="extends", do=do)
    if other.resolve() in [one.resolve() for one in (*below, path)]:
        raise InputError(f"{other} extends this one, or is it: that has no end.", file=where, field="extends", do=do)
    base, of_base = _read(other, (*below, path))
    return _merged(base, values), f"{path}, which extends {of_base}"


def _merged(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in changed.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found


def _set(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise InputError(f"'{change}' is not of the form key=value.", do="Write, for instance, --set grpo.steps=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise InputError(f"'{table}' in '{key}' is no table.", do="Name a key of the recipe, as grpo.steps")
    values[last] = value


def _hint(location: tuple[int | str, ...], kind: str) -> str | None:
    if kind != "extra_forbidden":
        return None
    model: Any = Recipe
    for part in location[:-1]:
        # a table of tables, as grpo.rewards: what stands in it is of one kind, whatever its name
        model = get_args(model)[-1] if get_args(model) else model.model_fields[str(part)].annotation
    near = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1)
    known = ", ".join(model.model_fields)
    return f"Did you mean '{near[0]}'?" if near else f"Known keys here: {known}"


def explain(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Each setting's key, value and meaning, tables unfolded."""
    for name, field_ in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from explain(value, f"{prefix}{name}.")
        elif isinstance(value, dict) and value and all(isinstance(one, BaseModel) for one in value.values()):
            for key, one in value.items():
                yield from explain(one, f"{prefix}{name}.{key}.")
        else:
            shown = json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{name}", shown, field_.description or ""
