"""From the messages of a request to a history of seeker and supporter, with its images apart.

Messages that are neither's (a system prompt, a tool's answer) are left out, since the supporter has a prompt of its
own; so is reasoning that a client sends back, since earlier turns enter a history by their words alone. Nobody is
refused for sending too much as long as there are words to read, for the guard must read them: what is too much, or is
no image, is dropped, the oldest first, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compeer.chat.pictures import MOST_IMAGES, decoded
from compeer.chat.requests import LONGEST_HISTORY, MOST_MESSAGES, ChatMessage, TextPart
from compeer.dialogue import Media, Speaker, Utterance
from compeer.web.errors import Refusal, readable

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
    dropped: tuple[Refusal, ...] = ()
    """What was too much or could not be read, each as the refusal that it would have been."""

    def with_pictures(self, written: Sequence[Path | Refusal]) -> tuple[tuple[Utterance, ...], tuple[Refusal, ...]]:
        """The history with its images, which have been written to these paths, and what is dropped by now.

        Refused if nothing is left of the last message.
        """
        found, dropped = list(self.history), [*self.dropped]
        for image, path in zip(self.images, written, strict=True):
            if isinstance(path, Refusal):
                dropped.append(path)
                continue
            media = Media(kind="image", path=str(path))
            own = found[image.utterance]
            found[image.utterance] = own.model_copy(update={"media": (*own.media, media)})
        if not found[-1].text.strip() and not found[-1].media:
            raise dropped[-1]
        return tuple(one for one in found if one.text.strip() or one.media), tuple(dropped)


def dropped_texts(dropped: Sequence[Refusal]) -> list[str]:
    """What was dropped, as an answer names it: the field, and the code of what was wrong."""
    return [f"{one.field} ({one.code})" for one in dropped]


def read_history(messages: Sequence[ChatMessage], sees: bool) -> Sent:
    """The history that messages hold; a refusal where it does not end with the seeker, or there is nothing to read."""
    ignored = [f"messages.{n} ({one.role})" for n, one in enumerate(messages) if one.role not in _SPEAKERS]
    dropped: list[Refusal] = []
    history: list[Utterance] = []
    images: list[SentImage] = []
    for number, message, text in _within_limits(messages, dropped):
        own = _images(message, f"messages.{number}.content", len(history), sees, dropped)
        if text.strip() or own:
            history.append(Utterance(speaker=_SPEAKERS[message.role], text=text))
            images += own
        elif number == len(messages) - 1:
            place = f"messages.{number}.content"
            if dropped and str(dropped[-1].field).startswith(place):
                raise dropped[-1]
            raise Refusal(400, "The last message is empty.", field=place, code="empty_message")
    if not history or history[-1].speaker != "seeker":
        what = "The last message must be the seeker's: one with the role 'user'."
        raise Refusal(400, what, field="messages", code="not_the_seekers_turn")
    for image in images[:-MOST_IMAGES]:
        what = f"At most {MOST_IMAGES} images are looked at, the last ones."
        dropped.append(Refusal(400, what, field=image.field, code="too_many_images"))
    return Sent(tuple(history), tuple(images[-MOST_IMAGES:]), tuple(ignored), tuple(dropped))


def _within_limits(messages: Sequence[ChatMessage], dropped: list[Refusal]) -> list[tuple[int, ChatMessage, str]]:
    """The newest messages of seeker and supporter, with their numbers and texts, that are not too much together."""
    kept: list[tuple[int, ChatMessage, str]] = []
    left = LONGEST_HISTORY
    for number, message in reversed([(n, one) for n, one in enumerate(messages) if one.role in _SPEAKERS]):
        text = _text(message)
        if len(kept) == MOST_MESSAGES or (len(text) > left and kept):
            last = f"messages.0 to messages.{number}" if number else "messages.0"
            what = f"A conversation has at most {MOST_MESSAGES} messages and {LONGEST_HISTORY:,} characters."
            dropped.append(Refusal(400, what, field=last, code="history_too_long"))
            break
        if len(text) > left:
            what = f"A message has at most {LONGEST_HISTORY:,} characters: its end was read."
            dropped.append(Refusal(400, what, field=f"messages.{number}.content", code="message_too_long"))
            text = text[-left:]
        left -= len(text)
        kept.append((number, message, text))
    return kept[::-1]


def _text(message: ChatMessage) -> str:
    if message.content is None or isinstance(message.content, str):
        return readable(message.content or "")
    return readable("\n".join(part.text for part in message.content if isinstance(part, TextPart)))


def _images(message: ChatMessage, place: str, utterance: int, sees: bool, dropped: list[Refusal]) -> list[SentImage]:
    found: list[SentImage] = []
    for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if isinstance(part, TextPart):
            continue
        field = f"{place}.{number}.image_url"
        try:
            if not sees:
                what = "No image can be looked at here: text only. Send the message without its images."
                raise Refusal(400, what, field=field, code="cannot_see")
            found.append(SentImage(utterance, field, decoded(part.image_url.url, f"{field}.url")))
        except Refusal as refusal:
            dropped.append(refusal)
    return found
