"""Personas, four manners of speaking, and the DISC profiles of speakers that show who speaks so."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from compeer.dialogue import Speaker
from compeer.io import Frozen, read_lines

Trait = Literal["dominance", "influence", "steadiness", "compliance"]
TRAITS: tuple[Trait, ...] = get_args(Trait)
Persona = Literal["dominant", "lively", "steady", "careful"]
PERSONAS: tuple[Persona, ...] = get_args(Persona)  # in the order of the traits that they go with
CLEAR = 3.5  # the score from which on a trait is marked enough to name a manner after it


class Scores(Frozen):
    """The four DISC traits, each from 1 (hardly there) to 5 (very marked)."""

    dominance: float = Field(ge=1, le=5)
    influence: float = Field(ge=1, le=5)
    steadiness: float = Field(ge=1, le=5)
    compliance: float = Field(ge=1, le=5)


class Profile(Frozen):
    """How one participant of one dialogue speaks, and who says so."""

    dialogue: str = Field(min_length=1)
    participant: Speaker
    scores: Scores
    description: str = Field(min_length=1)
    source: Literal["llm", "lexical"]
    model: str | None = None


def read_profiles(path: Path) -> Iterator[Profile]:
    """The profiles of a file, one at a time; an error names the file, line and field."""
    return read_lines(path, Profile, "file of profiles", "Make it with: python research/personality/profiles.py")


def persona_of(profile: Profile) -> Persona | None:
    """The manner of the trait that stands out in a profile; None where none is marked, or two are equally so."""
    scores = [getattr(profile.scores, trait) for trait in TRAITS]
    highest = max(scores)
    return PERSONAS[scores.index(highest)] if highest >= CLEAR and scores.count(highest) == 1 else None


def personas(profiles: Iterable[Profile]) -> dict[str, Persona]:
    """The manner of each dialogue's supporter, where there is a marked one."""
    supporters = [one for one in profiles if one.participant == "supporter"]
    return {one.dialogue: persona for one in supporters if (persona := persona_of(one))}
