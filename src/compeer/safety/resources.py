"""Where a person in danger can turn: emergency numbers and help lines by country, with the day each was last looked at.

The data are `resources.toml`, which anybody can edit. A service lays its own file of the same form over ours, by an
argument or by the environment variable `COMPEER_RESOURCES`: a country in it replaces ours whole, so that a number that
no longer works can be taken out. Where the country is not known, a neutral text says how to find help anywhere.
"""

import os
import re
import tomllib
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from compeer.errors import InputError, from_validation
from compeer.io import Frozen
from compeer.safety.risk import Kind

VARIABLE = "COMPEER_RESOURCES"
LineKind = Literal["suicide", "general", "abuse", "medical emergency"]
CountryCode = Annotated[str, Field(pattern="^[A-Z]{2}$")]
Data = TypeVar("Data")


class HelpLine(Frozen):
    """One help line: how to reach it, when, in what language, and how sure we are of it."""

    name: str = Field(min_length=1)
    names: dict[str, str] = Field(default={}, description="the name in other languages, by language code")
    kinds: tuple[LineKind, ...] = Field(min_length=1)
    phone: str | None = Field(default=None, pattern=r"^[*#+\d][\d\s\-()]*$")
    text: str | None = Field(default=None, pattern=r"^[+\d][\d\s\-]*$", description="the number for text messages")
    word: str | None = Field(default=None, description="what to write to that number, where it must be a certain word")
    chat: str | None = Field(default=None, description="an address in the web, or another way to write")
    hours: str = Field(min_length=1)
    languages: tuple[str, ...] = Field(min_length=1)
    checked: date
    source: str = Field(min_length=1)
    verified_by_phone: bool

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if not (self.phone or self.text or self.chat):
            raise ValueError("a line needs a phone number, a text number or a chat address")
        return self


class Country(Frozen):
    """A country's emergency numbers and help lines."""

    name: str = Field(min_length=1)
    emergency: str = Field(pattern=r"^\d[\d\s\-]*$", description="an ambulance")
    police: str | None = Field(default=None, pattern=r"^\d[\d\s\-]*$", description="where it is another number")
    lines: tuple[HelpLine, ...] = Field(min_length=1)

    def urgent(self, kind: Kind) -> str:
        """The number to call at once in that kind of danger."""
        return self.police or self.emergency if kind in ("abuse", "harm to others") else self.emergency

    def fitting(self, kind: Kind, language: str, most: int = 3) -> tuple[HelpLine, ...]:
        """The lines for that kind of danger, best first; among equals those that speak the language. May be none."""
        wanted = _WANTED[kind]

        def rank(line: HelpLine) -> tuple[int, bool]:
            return min(wanted.index(each) for each in line.kinds if each in wanted), language not in line.languages

        return tuple(sorted((line for line in self.lines if set(line.kinds) & set(wanted)), key=rank)[:most])


class Resources(Frozen):
    """All countries we know, and the text for where we know none, by language."""

    neutral: dict[str, str] = Field(default_factory=dict)
    countries: dict[CountryCode, Country] = Field(default_factory=dict)

    def country(self, locale: str | None) -> Country | None:
        """The country of a locale ("en-US", "zh_CN.UTF-8", "GB"), or None where it names none that we know."""
        return self.countries.get(region_of(locale) or "")


def region_of(locale: str | None) -> str | None:
    """The country code in a locale; a language alone names no country."""
    parts = re.split(r"[-_]", re.split(r"[.@]", locale or "")[0])
    if len(parts) == 1 and not parts[0].isupper():
        return None
    found = next((part.upper() for part in reversed(parts) if re.fullmatch("[A-Za-z]{2}", part)), None)
    return "GB" if found == "UK" else found


def load_resources(path: str | Path | None = None) -> Resources:
    """Our resources, with those of `path` (or of `COMPEER_RESOURCES`) laid over them."""
    ours, over = _packaged(), path or os.environ.get(VARIABLE)
    if not over:
        return ours
    theirs = read_toml(Path(over), Resources, "See resources.toml in compeer/safety for the form that is expected.")
    return Resources(neutral={**ours.neutral, **theirs.neutral}, countries={**ours.countries, **theirs.countries})


@cache
def _packaged() -> Resources:
    return read_toml(Path(__file__).with_name("resources.toml"), Resources)


def read_toml(path: Path, model: type[Data], do: str | None = None) -> Data:
    """What a TOML file holds, as the type given; an `InputError` says what is wrong with it, and what to `do`."""
    try:
        return TypeAdapter(model).validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise from_validation(error, file=path, do=do) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", file=path, do="Give the path of a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"this is no TOML: {error}", file=path, do="Correct the file.") from None


_WANTED = read_toml(Path(__file__).with_name("fitting.toml"), dict[Kind, tuple[LineKind, ...]])
