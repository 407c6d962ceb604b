"""How each participant of a dialogue speaks, from which supporters learn a manner (`compeer.policy.sft`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from compeer.dialogue import Speaker
from compeer.io import Frozen, read_lines

Trait = Literal["dominance", "influence", "steadiness", "compliance"]
TRAITS: tuple[Trait, ...] = get_args(Trait)


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
