"""AvaMERG: empathetic dialogues with a talking avatar, and a chain of empathy before each reply.

Each turn of a conversation repeats the whole history before its response; the longest turn is the dialogue. A turn's
chain becomes our notes on its reply, its emotion also the label of the seeker's utterance before; the chain itself
stays in the reply's `extra`. A turn whose response the longest one does not have belongs to another version of the
dialogue: it is kept in the dialogue's `extra` under `other_turns` and labels nothing.

Each utterance has a clip `dia{conversation}utt{index}_{ID}.mp4`; the ID is that of the profile who speaks.
"""

from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from compeer.corpora.items import Item, Text
from compeer.corpora.labels import EMOTIONS, SPEAKERS
from compeer.dialogue import Dialogue, Media, Notes, Speaker, Utterance

_Name = Annotated[str, StringConstraints(pattern=r"^[^/\\]+$")]  # ids become parts of file names


class _Raw(BaseModel, extra="allow", coerce_numbers_to_str=True):
    """Whatever AvaMERG holds."""


class _Spoken(_Raw):
    index: int = Field(ge=0, le=1_000_000)
    role: str
    utterance: Text


class _Chain(_Raw):
    speaker_emotion: str | None = None
    event_scenario: str | None = None
    emotion_cause: str | None = None
    goal_to_response: str | None = None


class _AvamergTurn(_Raw):
    dialogue_history: list[_Spoken]
    response: Text
    chain_of_empathy: _Chain = _Chain()

    @property
    def reply_index(self) -> int:
        return self.dialogue_history[-1].index + 1 if self.dialogue_history else 0


class _Profile(_Raw):
    ID: _Name


class _AvamergDialogue(_Raw):
    conversation_id: _Name
    speaker_profile: _Profile
    listener_profile: _Profile
    turns: list[_AvamergTurn] = Field(min_length=1)


def avamerg_dialogue(item: Item) -> Dialogue:
    raw = item.check(_AvamergDialogue)
    longest = max(range(len(raw.turns)), key=lambda number: len(raw.turns[number].dialogue_history))
    texts = _texts(item, raw.turns[longest], longest)
    own, folder = raw.conversation_id, PurePosixPath(item.media)
    profiles = {"seeker": raw.speaker_profile.ID, "supporter": raw.listener_profile.ID}
    fields: dict[int, dict[str, Any]] = {}
    for index, (speaker, text) in texts.items():
        clip = Media(kind="video", path=str(folder / f"dia{own}utt{index}_{profiles[speaker]}.mp4"))
        fields[index] = {"speaker": speaker, "text": text, "media": (clip,), "extra": {}}
    others: list[Any] = []
    for number, turn in enumerate(raw.turns):
        reply, as_it_was = turn.reply_index, item.value["turns"][number]
        if texts.get(reply) != ("supporter", turn.response):
            others.append(as_it_was)
            continue
        fields[reply]["notes"] = _notes(turn.chain_of_empathy)
        more = as_it_was.keys() - {"dialogue_history", "response"}
        fields[reply]["extra"] |= {key: value for key, value in as_it_was.items() if key in more}
        if theirs := turn.chain_of_empathy.speaker_emotion:
            field = f"turns.{number}.chain_of_empathy.speaker_emotion"
            emotion = item.label(EMOTIONS["avamerg"], theirs, "emotion", field)
            before = max((index for index in texts if index < reply and texts[index][0] == "seeker"), default=None)
            if before is not None:
                fields[before]["emotion"] = emotion
    extra = {key: value for key, value in item.value.items() if key not in ("conversation_id", "turns")}
    return Dialogue(
        id=item.id("avamerg", own),
        language="en",
        source="avamerg",
        utterances=tuple(Utterance(**fields[index]) for index in texts),
        extra={**extra, "other_turns": others} if others else extra,
    )


def _texts(item: Item, turn: _AvamergTurn, number: int) -> dict[int, tuple[Speaker, str]]:
    """Speaker and text by index, in order, the response last."""
    texts: dict[int, tuple[Speaker, str]] = {}
    for entry, spoken in enumerate(turn.dialogue_history):
        field = f"turns.{number}.dialogue_history.{entry}"
        if texts and spoken.index <= max(texts):
            raise item.bad("the indices do not rise", f"{field}.index")
        speaker = item.label(SPEAKERS["avamerg"], spoken.role, "speaker", f"{field}.role")
        texts[spoken.index] = (speaker, spoken.utterance)
    texts[turn.reply_index] = ("supporter", turn.response)
    return texts


def _notes(chain: _Chain) -> Notes | None:
    emotion = ": ".join(part for part in (chain.speaker_emotion, chain.emotion_cause) if part)
    texts = {"history": chain.event_scenario, "emotion": emotion, "strategy": chain.goal_to_response}
    given = {name: text for name, text in texts.items() if text}
    return Notes(**given) if given else None
