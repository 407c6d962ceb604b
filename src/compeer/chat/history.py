"""What a chat request holds: a history of seeker and supporter, images, and the guard's memory of the conversation.

Nobody is refused for sending too much as long as there is text, for the guard must read it: what is too much, or is no
image, is dropped, the oldest first, and named. An image is decoded, shrunk and written again, so that whatever else its
file held, such as where it was taken, stays behind. The guard's memory is encoded, not signed: whoever changes it
changes only what the guard remembers of their own conversation, and danger is found in the messages, never in it.
"""

from __future__ import annotations

import base64
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from compeer.chat.schemas import LONGEST_HISTORY, LONGEST_STATE, MOST_MESSAGES, ChatMessage, ChatRequest, TextPart
from compeer.dialogue import Media, Speaker, Utterance
from compeer.io import readable, table
from compeer.safety.guard import GuardState
from compeer.web.errors import Refusal

MOST_IMAGES = 4  # of more the newest are read
LARGEST_IMAGE = 2**22  # bytes of one image
MOST_PIXELS = 25_000_000
LONGEST_SIDE = 1024  # pixels; no model here reads more
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_DATA_URL = re.compile(r"data:image/[a-z.+-]{1,20};base64,", re.IGNORECASE)
SPEAKERS: dict[str, Speaker] = {"user": "seeker", "assistant": "supporter"}
_MOST_ANSWERED = 200
_STATE = TypeAdapter(GuardState)
_REFUSALS: dict[str, str] = table("chat/refusals")
_LIMITS = {"messages": MOST_MESSAGES, "characters": LONGEST_HISTORY, "images": MOST_IMAGES}
_LIMITS |= {"bytes": LARGEST_IMAGE, "pixels": MOST_PIXELS}
SentImage = tuple[int, str, bytes]  # after the index of its utterance and the field it stood in


def refused(code: str, field: str | None = None, status: int = 400, model: str = "") -> Refusal:
    """A refusal in the words that `refusals.toml` has for its code."""
    return Refusal(status, _REFUSALS[code].format(**_LIMITS, model=model), field=field, code=code)


@dataclass(frozen=True)
class SentHistory:
    """The utterances and images of a request, and what was left out."""

    utterances: tuple[Utterance, ...]
    images: tuple[SentImage, ...] = ()
    ignored: tuple[str, ...] = ()
    dropped: tuple[Refusal, ...] = ()  # what was too much or could not be read, as the refusal that it would have been

    def with_pictures(self, folder: Path) -> SentHistory:
        """The history with its images written into a folder; refused if nothing is left of the last message."""
        found, dropped = list(self.utterances), [*self.dropped]
        for number, (index, field, data) in enumerate(self.images):
            path = folder / f"{number}.png"
            try:
                write_picture(data, path, field)
            except Refusal as refusal:
                dropped.append(refusal)
                continue
            media = (*found[index].media, Media(kind="image", path=str(path)))
            found[index] = found[index].model_copy(update={"media": media})
        if not found[-1].text.strip() and not found[-1].media:
            raise dropped[-1]
        kept = tuple(one for one in found if one.text.strip() or one.media)
        return SentHistory(kept, (), self.ignored, tuple(dropped))

    def dropped_texts(self) -> list[str]:
        """What was dropped, as an answer names it: the field, and the code of what was wrong."""
        return [f"{one.field} ({one.code})" for one in self.dropped]


def read_history(messages: Sequence[ChatMessage], multimodal: bool) -> SentHistory:
    """The history that messages hold; a refusal where it does not end with the seeker, or there is nothing to read."""
    ignored = [f"messages.{n} ({one.role})" for n, one in enumerate(messages) if one.role not in SPEAKERS]
    dropped: list[Refusal] = []
    history: list[Utterance] = []
    images: list[SentImage] = []
    for number, message, text in _within_limits(messages, dropped):
        field = f"messages.{number}.content"
        own = _images(message, field, len(history), multimodal, dropped)
        if text.strip() or own:
            history.append(Utterance(speaker=SPEAKERS[message.role], text=text))
            images += own
        elif number == len(messages) - 1:
            if dropped and str(dropped[-1].field).startswith(field):
                raise dropped[-1]
            raise refused("empty_message", field)
    if not history or history[-1].speaker != "seeker":
        raise refused("not_the_seekers_turn", "messages")
    dropped += [refused("too_many_images", field) for _, field, _ in images[:-MOST_IMAGES]]
    return SentHistory(tuple(history), tuple(images[-MOST_IMAGES:]), tuple(ignored), tuple(dropped))


def until_the_seeker(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages up to the seeker's last one that holds text."""
    kept = list(messages)
    while kept and not (kept[-1].role == "user" and _text(kept[-1]).strip()):
        kept.pop()
    return kept


def readable_request(sent: object) -> ChatRequest | None:
    """What the guard needs of a body that is not as described: the messages that can be read, and its memory."""
    if not isinstance(sent, dict) or not isinstance(sent.get("messages"), list):
        return None
    kept = []
    for message in sent["messages"][-MOST_MESSAGES:]:
        with suppress(ValidationError):
            kept.append(ChatMessage.model_validate(message))
    if not (kept := until_the_seeker(kept)):
        return None
    state = sent.get("state")
    remembered = state if isinstance(state, str) and len(state) <= LONGEST_STATE else None
    return ChatRequest(messages=kept, stream=sent.get("stream") is True, state=remembered)


def _within_limits(messages: Sequence[ChatMessage], dropped: list[Refusal]) -> list[tuple[int, ChatMessage, str]]:
    """The newest messages of seeker and supporter, with their numbers and texts, that are not too much together."""
    kept: list[tuple[int, ChatMessage, str]] = []
    left = LONGEST_HISTORY
    for number, message in reversed([(n, one) for n, one in enumerate(messages) if one.role in SPEAKERS]):
        text = _text(message)
        if len(kept) == MOST_MESSAGES or (len(text) > left and kept):
            last = f"messages.0 to messages.{number}" if number else "messages.0"
            dropped.append(refused("history_too_long", last))
            break
        if len(text) > left:
            dropped.append(refused("message_too_long", f"messages.{number}.content"))
            text = text[-left:]
        left -= len(text)
        kept.append((number, message, text))
    return kept[::-1]


def _text(message: ChatMessage) -> str:
    if message.content is None or isinstance(message.content, str):
        return readable(message.content or "")
    return readable("\n".join(part.text for part in message.content if isinstance(part, TextPart)))


def _images(message: ChatMessage, at: str, index: int, multimodal: bool, dropped: list[Refusal]) -> list[SentImage]:
    found: list[SentImage] = []
    for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if isinstance(part, TextPart):
            continue
        field = f"{at}.{number}.image_url"
        try:
            if not multimodal:
                raise refused("cannot_see", field)
            found.append((index, field, _decoded(part.image_url.url, f"{field}.url")))
        except Refusal as refusal:
            dropped.append(refusal)
    return found


def _decoded(url: str, field: str) -> bytes:
    head = _DATA_URL.match(url[:60])
    if head is None:
        raise refused("image_not_inline", field)
    try:
        found = base64.b64decode(url[head.end() :], validate=True) if len(url) <= 2 * LARGEST_IMAGE else None
    except ValueError:
        raise refused("image_unreadable", field) from None
    if found is None or len(found) > LARGEST_IMAGE:
        raise refused("image_too_large", field)
    return found


def write_picture(data: bytes, path: Path, field: str) -> None:
    """Writes an image as a small PNG; refuses what is no image, or too large to be unpacked."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(data), formats=_FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Image.DecompressionBombError
                image.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
                small = ImageOps.exif_transpose(image).convert("RGB")
                small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        small.info.clear()
        small.save(path, "PNG")
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise refused("image_too_large", field) from None
    except Exception:  # a broken file makes Pillow raise whatever its decoders do
        raise refused("image_unreadable", field) from None


def state_text(state: GuardState) -> str:
    """The state as a client keeps it; of very many crisis replies only the latest are remembered."""
    kept = asdict(state) | {"answered": state.answered[-_MOST_ANSWERED:]}
    return base64.urlsafe_b64encode(_STATE.dump_json(GuardState(**kept))).decode()


def read_state(text: str) -> GuardState | None:
    """The state that a client sent; None where it cannot be read, since somebody may be waiting for an answer."""
    try:
        data = base64.b64decode(text.encode("ascii", "replace"), altchars=b"-_", validate=True)
        return _STATE.validate_json(data, extra="forbid")
    except (ValueError, ValidationError):
        return None
