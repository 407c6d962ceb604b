"""ESConv in all its shapes, and the dialogues that failed.

Three shapes are read alike: JSON lines with turns `{text, speaker: usr|sys, strategy}`; the official JSON array with
turns `{speaker: seeker|supporter, annotation: {strategy, feedback}, content}`; MultiESC's JSON lines, with `feedback`
on a turn and two intensities on the dialogue. FailedESConv has the official shape and names speakers and strategies
otherwise.

Seekers rated what the supporter had written after every second message, so a rating on a seeker's utterance goes to the
supporter's last two blocks (messages in a row) after the rating before; nothing is rated twice. It also stays where it
stood, as `feedback` in the `extra` of that utterance.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel, Field

from compeer.corpora.items import Item, Score, Text
from compeer.corpora.labels import EMOTIONS, PROBLEM_TYPES, SPEAKERS, STRATEGIES
from compeer.dialogue import Dialogue, Intensity, Speaker, Utterance

RATED_BLOCKS = 2
_READ = ("dialog", "situation", "emotion_type", "problem_type", "init_intensity", "final_intensity")


class _Annotation(BaseModel, extra="allow"):
    strategy: str | None = None
    feedback: Score = None


class _EsconvTurn(_Annotation):
    speaker: str
    text: Text = Field(validation_alias=AliasChoices("text", "content"))
    annotation: _Annotation = _Annotation()


def _felt(survey: str, own: str) -> AliasChoices:
    return AliasChoices(AliasPath("survey_score", "seeker", survey), own)


class _EsconvDialogue(BaseModel):
    emotion_type: str | None = None
    problem_type: str | None = None
    situation: str | None = None
    initial: Score = Field(default=None, validation_alias=_felt("initial_emotion_intensity", "init_intensity"))
    final: Score = Field(default=None, validation_alias=_felt("final_emotion_intensity", "final_intensity"))
    dialog: list[_EsconvTurn] = Field(min_length=1)


def esconv_dialogue(source: str, item: Item) -> Dialogue:
    """A dialogue of ESConv in any of its shapes, or of FailedESConv."""
    raw = item.check(_EsconvDialogue)
    extra = {key: value for key, value in item.value.items() if key not in _READ}
    found: dict[str, Any] = {}
    for kind, table in (("emotion", EMOTIONS), ("problem", PROBLEM_TYPES)):
        if theirs := getattr(raw, f"{kind}_type"):
            found[kind] = item.label(table[source], theirs, kind, f"{kind}_type")
            if found[kind] != theirs:
                extra[f"{kind}_type"] = theirs
    return Dialogue(
        id=item.id(source),
        language="en",
        source=source,
        situation=(raw.situation or "").strip() or None,
        **found,
        intensity=Intensity(initial=raw.initial, final=raw.final),
        utterances=_utterances(item, raw.dialog, source),
        extra=extra,
    )


def _utterances(item: Item, turns: Sequence[_EsconvTurn], source: str) -> tuple[Utterance, ...]:
    speakers: list[Speaker] = [
        item.label(SPEAKERS[source], turn.speaker, "speaker", f"dialog.{index}.speaker")
        for index, turn in enumerate(turns)
    ]
    feedback = [turn.feedback or turn.annotation.feedback for turn in turns]
    ratings = rated(speakers, feedback)
    utterances = []
    for index, (speaker, turn) in enumerate(zip(speakers, turns, strict=True)):
        extra: dict[str, Any] = {**(turn.model_extra or {}), **(turn.annotation.model_extra or {})}
        if feedback[index] is not None:
            extra["feedback"] = feedback[index]
        strategy, theirs = None, turn.strategy or turn.annotation.strategy
        if theirs and speaker == "supporter":
            field = f"dialog.{index}.strategy" if turn.strategy else f"dialog.{index}.annotation.strategy"
            strategy = item.label(STRATEGIES[source], theirs, "strategy", field)
        if theirs and theirs != strategy:  # a label that changed on its way stays as it was
            extra["strategy"] = theirs
        utterances.append(
            Utterance(speaker=speaker, text=turn.text, strategy=strategy, feedback=ratings.get(index), extra=extra)
        )
    return tuple(utterances)


def rated(speakers: Sequence[Speaker], feedback: Sequence[int | None]) -> dict[int, int]:
    """Which supporter utterances got which rating, by the rule at the head of this module."""
    ratings: dict[int, int] = {}
    start = 0
    for index, rating in enumerate(feedback):
        if rating is None or speakers[index] != "seeker":
            continue
        blocks = 0
        for earlier in range(index - 1, start - 1, -1):
            if speakers[earlier] != "supporter":
                continue
            blocks += speakers[earlier + 1] == "seeker"
            if blocks > RATED_BLOCKS:
                break
            ratings[earlier] = rating
        start = index + 1
    return ratings
