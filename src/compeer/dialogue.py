"""Who said what: a conversation between a seeker and a supporter, with the labels a corpus gives it.

A `Dialogue` is what every reader of a corpus yields and what every later stage reads, one JSON object a line. Labels
that are not known are `None`; labels of other vocabularies are mapped by `compeer.corpora.labels` before they get
here, and what has no place in our vocabulary is kept as it was in `extra`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from compeer.io import Frozen

Speaker = Literal["seeker", "supporter"]
Stage = Literal["exploration", "comforting", "action"]
Emotion = Literal[
    "anxiety",
    "sadness",
    "depression",
    "anger",
    "fear",
    "shame",
    "guilt",
    "disgust",
    "loneliness",
    "frustration",
    "hurt",
    "stress",
    "relief",
    "hope",
    "joy",
    "gratitude",
    "confusion",
    "neutral",
]
Strategy = Literal[
    "Question",
    "Restatement or Paraphrasing",
    "Reflection of feelings",
    "Self-disclosure",
    "Affirmation and Reassurance",
    "Providing Suggestions",
    "Information",
    "Others",
]
Rating = Annotated[int, Field(ge=1, le=5)]


class Media(Frozen):
    """A picture, clip or recording that goes with an utterance, by its path; `start` and `end` in seconds."""

    kind: Literal["image", "video", "audio"]
    path: str
    start: float | None = Field(default=None, ge=0)
    end: float | None = Field(default=None, ge=0)


class Notes(Frozen):
    """What a supporter thought before a reply, in free text, where a corpus holds it."""

    history: str | None = None
    emotion: str | None = None
    strategy: str | None = None


class Utterance(Frozen):
    """One message. `emotion` and `intensity` are the seeker's, the other labels the supporter's."""

    speaker: Speaker
    text: str
    strategy: Strategy | None = None
    stage: Stage | None = None
    emotion: Emotion | None = None
    intensity: Rating | None = None
    feedback: Rating | None = Field(default=None, description="the seeker's rating of this supporter message")
    notes: Notes | None = None
    media: tuple[Media, ...] = ()
    extra: dict[str, Any] = Field(default_factory=dict, description="labels that have no place in our vocabulary")


class Intensity(Frozen):
    """How strong the seeker's distress was, 1 to 5, before and after the conversation."""

    initial: Rating | None = None
    final: Rating | None = None


class Dialogue(Frozen):
    """A whole conversation. `situation` is not known to the supporter and never enters a prompt."""

    id: str = Field(min_length=1)
    language: str = Field(min_length=2, description="ISO 639-1 code")
    source: str = Field(min_length=1, description="the corpus it comes from")
    situation: str | None = None
    problem: str | None = None
    emotion: Emotion | None = None
    intensity: Intensity = Intensity()
    utterances: tuple[Utterance, ...] = Field(min_length=1)
    extra: dict[str, Any] = Field(default_factory=dict)


class Round(Frozen):
    """A seeker block and the supporter block after it; `number` counts from 1 (METHOD: a round)."""

    number: int
    history: tuple[Utterance, ...] = Field(description="all that was said before the supporter block, merged")
    reply: Utterance


def merge_consecutive(utterances: Iterable[Utterance]) -> list[Utterance]:
    """Blocks: what one speaker wrote in a row becomes one utterance.

    Texts are joined by a line break. Of labels the last one given counts, but the first strategy does: it is what
    the supporter chose to do first, and a block can carry only one.
    """
    blocks: list[Utterance] = []
    for utterance in utterances:
        if not blocks or blocks[-1].speaker != utterance.speaker:
            blocks.append(utterance)
            continue
        before = blocks[-1]
        blocks[-1] = before.model_copy(
            update={
                "text": f"{before.text}\n{utterance.text}",
                "strategy": before.strategy or utterance.strategy,
                "stage": before.stage or utterance.stage,
                "notes": before.notes or utterance.notes,
                "emotion": utterance.emotion or before.emotion,
                "intensity": utterance.intensity or before.intensity,
                "feedback": utterance.feedback or before.feedback,
                "media": before.media + utterance.media,
                "extra": {**before.extra, **utterance.extra},
            }
        )
    return blocks


def rounds_of(dialogue: Dialogue) -> list[Round]:
    """The dialogue's rounds in order. A supporter block that opens the dialogue answers nobody and is no round."""
    blocks = merge_consecutive(dialogue.utterances)
    rounds: list[Round] = []
    for index, block in enumerate(blocks):
        if block.speaker == "supporter" and index > 0:
            rounds.append(Round(number=len(rounds) + 1, history=tuple(blocks[:index]), reply=block))
    return rounds


def last_seeker(history: Sequence[Utterance]) -> Utterance | None:
    """The seeker's latest utterance, or None."""
    return next((u for u in reversed(history) if u.speaker == "seeker"), None)


def language_of(text: str) -> str:
    """The language of a text as far as we tell them apart: `zh` if there is a Chinese character in it, else `en`."""
    return "zh" if re.search("[\u4e00-\u9fff]", text) else "en"


def transcript(history: Sequence[Utterance], last: int | None = None) -> str:
    """What was said, a line an utterance, as models read it; only the `last` utterances if a number is given."""
    kept = history[-last:] if last is not None else history
    return "\n".join(f"{utterance.speaker.capitalize()}: {' '.join(utterance.text.split())}" for utterance in kept)
