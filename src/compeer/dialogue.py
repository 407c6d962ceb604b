"""Who said what: a conversation between a seeker and a supporter, with the labels a corpus gives it.

A `Dialogue` is what every reader of a corpus yields and every later stage reads, one JSON object a line. Unknown labels
are `None`. `compeer.corpora.labels` maps other vocabularies; what has no place in ours is kept in `extra`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from compeer.io import Frozen

Speaker = Literal["seeker", "supporter"]
Stage = Literal["exploration", "comforting", "action"]
PositiveEmotion = Literal["relief", "hope", "joy", "gratitude"]
NeutralEmotion = Literal["confusion", "neutral"]
NegativeEmotion = Literal[
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
]
Emotion = Literal[NegativeEmotion, PositiveEmotion, NeutralEmotion]
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
    """Blocks: what one speaker wrote in a row becomes one utterance, its texts joined by a line break.

    Of the supporter's choices the first one counts, since a block can carry only one; of other labels the last.
    """
    blocks: list[Utterance] = []
    for utterance in utterances:
        if not blocks or blocks[-1].speaker != utterance.speaker:
            blocks.append(utterance)
            continue
        before = blocks[-1]
        merged: dict[str, Any] = {
            "text": f"{before.text}\n{utterance.text}",
            "media": before.media + utterance.media,
            "extra": {**before.extra, **utterance.extra},
        }
        for name in ("strategy", "stage", "notes"):
            merged[name] = getattr(before, name) or getattr(utterance, name)
        for name in ("emotion", "intensity", "feedback"):
            merged[name] = getattr(utterance, name) or getattr(before, name)
        blocks[-1] = before.model_copy(update=merged)
    return blocks


def rounds_of(dialogue: Dialogue) -> list[Round]:
    """The dialogue's rounds in order. A supporter block that opens the dialogue answers nobody and is no round."""
    blocks = merge_consecutive(dialogue.utterances)
    replies = [index for index, block in enumerate(blocks) if block.speaker == "supporter" and index]
    return [Round(number=n, history=tuple(blocks[:at]), reply=blocks[at]) for n, at in enumerate(replies, 1)]


def last_seeker(history: Sequence[Utterance]) -> Utterance | None:
    """The seeker's latest utterance, or None."""
    return next((u for u in reversed(history) if u.speaker == "seeker"), None)


def language_of(text: str) -> str:
    """The language of a text as far as we tell them apart: `zh` if there is a Chinese character in it, else `en`."""
    return "zh" if re.search("[\u4e00-\u9fff]", text) else "en"


def transcript(history: Sequence[Utterance]) -> str:
    """What was said, a line an utterance, as models read it."""
    return "\n".join(f"{utterance.speaker.capitalize()}: {' '.join(utterance.text.split())}" for utterance in history)
