"""From the messages of a request to a history of seeker and supporter, with its images apart.

Messages that are neither's (a system prompt, a tool's answer) are left out, since the supporter has a prompt of its
own; so is reasoning that a client sends back, since earlier turns enter a history by their words alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compeer.dialogue import Media, Speaker, Utterance
from compeer.web.errors import Refusal, readable
from compeer.web.pictures import decoded
from compeer.web.requests import LONGEST_HISTORY, ChatMessage, TextPart

_SPEAKERS: dict[str, Speaker] = {"user": "seeker", "assistant": "supporter"}


@dataclass(frozen=True)
class SentImage:
    """An image as it came: which utterance it belongs to, in which field it stood, and its bytes."""

    utterance: int
    field: str
    data: bytes


@dataclass(frozen=True)
class Sent:
    """What a request says: utterances, images, and what was left out."""

    history: tuple[Utterance, ...]
    images: tuple[SentImage, ...] = ()
    ignored: tuple[str, ...] = ()

    def with_pictures(self, paths: Sequence[Path]) -> tuple[Utterance, ...]:
        """The history with its images, which have been written to these paths."""
        found = list(self.history)
        for image, path in zip(self.images, paths, strict=True):
            media = Media(kind="image", path=str(path))
            own = found[image.utterance]
            found[image.utterance] = own.model_copy(update={"media": (*own.media, media)})
        return tuple(found)


def read_history(messages: Sequence[ChatMessage], sees: bool) -> Sent:
    """The history that messages hold; a refusal where it does not end with the seeker, or has images nobody sees."""
    history: list[Utterance] = []
    images: list[SentImage] = []
    ignored = []
    size = 0
    for number, message in enumerate(messages):
        place = f"messages.{number}.content"
        speaker = _SPEAKERS.get(message.role)
        if speaker is None:
            ignored.append(f"messages.{number} ({message.role})")
            continue
        text, own = _content(message, place, len(history), sees)
        size += len(text)
        if size > LONGEST_HISTORY:
            what = f"The messages are longer than {LONGEST_HISTORY:,} characters together. Leave out the oldest."
            raise Refusal(400, what, field="messages", code="history_too_long")
        if text.strip() or own:
            history.append(Utterance(speaker=speaker, text=text))
            images += own
        elif number == len(messages) - 1:
            raise Refusal(400, "The last message is empty.", field=place, code="empty_message")
    if not history or history[-1].speaker != "seeker":
        what = "The last message must be the seeker's: one with the role 'user'."
        raise Refusal(400, what, field="messages", code="not_the_seekers_turn")
    return Sent(tuple(history), tuple(images), tuple(ignored))


def _content(message: ChatMessage, place: str, utterance: int, sees: bool) -> tuple[str, list[SentImage]]:
    if message.content is None or isinstance(message.content, str):
        return readable(message.content or ""), []
    texts, images = [], []
    for number, part in enumerate(message.content):
        if isinstance(part, TextPart):
            texts.append(part.text)
            continue
        field = f"{place}.{number}.image_url"
        if not sees:
            what = "No image can be looked at here: text only. Send the message without its images."
            raise Refusal(400, what, field=field, code="cannot_see")
        images.append(SentImage(utterance, field, decoded(part.image_url.url, f"{field}.url")))
    return readable("\n".join(texts)), images
