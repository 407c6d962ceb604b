"""A SER record: one output for one history, with a verdict on each step and on its response, and where each came from.

`reference` is the other response that the candidate's is compared with, usually the corpus' own. A record without a
preference (a reference turn itself, say) has nothing to compare; one without labels waits for people to judge it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from compeer.dialogue import Strategy, Utterance
from compeer.io import Frozen, read_lines, write_lines
from compeer.reasoning import SupportTurn

LabelSource = Literal["human", "llm", "silver"]
Split = Literal["reward", "policy", "test"]
Preferred = Literal["candidate", "reference", "both", "neither"]
SPLITS: tuple[Split, ...] = get_args(Split)
PREFERENCES: tuple[Preferred, ...] = ("candidate", "reference", "both", "neither")
ACCEPTABLE: tuple[Preferred, ...] = ("candidate", "both")
"""Preferences that accept the candidate's response: it is as good as the reference or better."""


class StepLabel(Frozen):
    """True or False for one step, by whom, and how it came about; `kind` names what is wrong with a False one."""

    value: bool
    source: LabelSource
    how: str
    kind: str | None = None
    reason: str | None = Field(default=None, description="the annotator's own words, where there are any")


def silver_label(value: bool, how: str, kind: str | None = None) -> StepLabel:
    """A label that was made by rule."""
    return StepLabel(value=value, source="silver", how=how, kind=kind)


class StepLabels(Frozen):
    """The verdicts on the three steps."""

    history: StepLabel
    emotion: StepLabel
    strategy: StepLabel


class PreferenceLabel(Frozen):
    """Which response is better, by whom, and how it came about."""

    value: Preferred
    source: LabelSource
    how: str
    reason: str | None = Field(default=None, description="the annotator's own words, where there are any")


class Moment(Frozen):
    """A round of a dialogue, in which the supporter is to answer."""

    id: str = Field(min_length=1)
    dialogue: str
    round: int = Field(ge=1)
    language: str
    source: str
    split: Split
    history: tuple[Utterance, ...] = Field(description="what was said before, without reasoning or labels")


class SerRecord(Moment):
    """One labelled output for one history."""

    candidate: SupportTurn
    author: str = Field(description="who wrote the candidate: 'corpus', 'silver', or a model's name")
    response_strategy: Strategy | None = Field(default=None, description="of the candidate's response, by the corpus")
    reference: str = Field(min_length=1)
    labels: StepLabels | None = Field(default=None, description="none: not judged yet")
    preference: PreferenceLabel | None = None
    candidate_first: bool = Field(description="whether the candidate's response is shown before the reference")
    derived: tuple[str, ...] = Field(default=(), description="decisions that a rule gave, not the corpus")
    rewritten: Literal["plain", "personality"] | None = Field(default=None, description="how the dialogue was reworded")


def is_judged(record: SerRecord) -> bool:
    """Whether a record has all labels that a judge learns from: one for each step, and a preference."""
    return record.labels is not None and record.preference is not None


def write_records(path: Path, records: Iterable[SerRecord]) -> int:
    """Writes records as JSON lines, whole or not at all, and returns how many."""
    return write_lines(path, records)


def read_records(path: Path) -> Iterator[SerRecord]:
    """The records of a file, one at a time; an error names the file, line and field."""
    return read_lines(path, SerRecord, "file of SER records")
