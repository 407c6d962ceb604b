"""What a simulated conversation is: where it starts, its turns, what each side knows of it, and how it ended.

A `Scenario` gives the seeker its facts; the supporter never gets them. A `View` is the part of a `Conversation` that
one side has: all that was spoken aloud, and of its own turns also what it noted down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from compeer.dialogue import Speaker, Utterance
from compeer.io import Frozen, read_lines

Status = Literal["ended", "model failed", "infrastructure failed"]


class Scenario(Frozen):
    """Where a conversation starts."""

    id: str = Field(min_length=1)
    language: str = Field(default="en", min_length=2, description="ISO 639-1 code")
    opening: str | None = Field(default=None, min_length=1, description="the seeker's first words, where given")
    facts: dict[str, Any] = Field(default_factory=dict, description="what the seeker knows; hidden from the supporter")


class Turn(Frozen):
    """What one side wrote, with what it thought and noted beside it; the other side gets the text alone."""

    speaker: Speaker
    text: str = Field(min_length=1)
    reasoning: str | None = None
    extra: dict[str, Any] = Field(default_factory=dict, description="values of the agent's own: an emotion, say")


class Outcome(Frozen):
    """How a conversation ended."""

    status: Status
    why: str = Field(description="a word for tables: the limit reached, why an agent stopped, or the kind of a failure")
    who: Speaker | None = Field(default=None, description="whose model failed, or who stopped")
    reason: str = ""

    @property
    def may_pass(self) -> bool:
        """Whether another try can end otherwise: the model was not to blame, and the request can be answered."""
        return self.status == "infrastructure failed" and self.why != "refused"


class Call(Frozen):
    """One request to a model and its answer, or why there is none; `complaint` says why an answer was not used."""

    messages: tuple[dict[str, Any], ...]
    seed: int
    answer: str | None = None
    cut_off: bool = False
    prompt_tokens: int = 0
    tokens: int = 0
    failure: str | None = None
    complaint: str | None = None


class Conversation(Frozen):
    """A whole simulated conversation."""

    scenario: str = Field(description="the scenario's id")
    language: str
    turns: tuple[Turn, ...]
    closing: dict[str, Any] = Field(default_factory=dict, description="what was noted without a word at its end")
    outcome: Outcome
    prompt_tokens: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class View:
    """What one side has: the other's words, its own turns with `extra`, its facts."""

    speaker: Speaker
    language: str
    facts: dict[str, Any]
    turns: tuple[Turn, ...]
    over: bool = False  # the conversation has reached a limit: a closing turn, in which nothing more is said

    @property
    def own(self) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.turns if turn.speaker == self.speaker)

    @property
    def utterances(self) -> tuple[Utterance, ...]:
        return tuple(Utterance(speaker=turn.speaker, text=turn.text) for turn in self.turns)


def view_of(scenario: Scenario, turns: Sequence[Turn], speaker: Speaker, *, over: bool = False) -> View:
    def known(turn: Turn) -> Turn:
        if turn.speaker != speaker:
            return Turn(speaker=turn.speaker, text=turn.text)
        return turn.model_copy(deep=True, update={"reasoning": None})

    return View(
        speaker=speaker,
        language=scenario.language,
        facts=scenario.model_copy(deep=True).facts if speaker == "seeker" else {},
        turns=tuple(map(known, turns)),
        over=over,
    )


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file that `run_dialogues` wrote."""
    return list(read_lines(path, Conversation))
