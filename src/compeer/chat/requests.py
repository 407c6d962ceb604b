"""What may be asked over HTTP: OpenAI's chat requests with fields of our own, and turns to be judged.

Fields of OpenAI's that have no meaning here are ignored, so that common clients work as they are, and the answer names
them in `compeer.ignored`; so a misspelt field of ours is seen too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from compeer.dialogue import Emotion, Stage, Strategy
from compeer.policy.control import Persona
from compeer.reasoning import MAX_RESPONSE, SupportTurn
from compeer.web.errors import readable

MOST_MESSAGES = 500
LONGEST_HISTORY = 200_000
"""Characters of all messages together. Of what is more than that, or more messages, the oldest is dropped."""
LONGEST_OUTPUT = 20_000
LONGEST_STATE = 16_384
MOST_CANDIDATES = 8
_LONGEST_IMAGE = 2**25
_MOST_SENT = 20_000
"""Messages that are looked at at all."""


class TextPart(BaseModel):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class ImageAddress(BaseModel):
    """An image, inside the request."""

    url: str = Field(
        max_length=_LONGEST_IMAGE,
        description="a data URL with a PNG, JPEG, WebP or GIF, as data:image/png;base64,…; addresses are not fetched",
    )


class ImagePart(BaseModel):
    """An image in a message, for supporters that see."""

    type: Literal["image_url"]
    image_url: ImageAddress


def _part(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return {"text": "(text)", "image_url": "(image)"}.get(kind) if isinstance(kind, str) else None


def _content(value: Any) -> str | None:
    return "(text)" if isinstance(value, str) else "(parts)" if isinstance(value, list) else None


ContentPart = Annotated[
    Annotated[TextPart, Tag("(text)")] | Annotated[ImagePart, Tag("(image)")],
    Discriminator(_part, "unknown_part", "a part of a message is an object of type 'text' or 'image_url'"),
]
Content = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[ContentPart], Tag("(parts)")],
    Discriminator(_content, "unknown_content", "the content of a message is text or a list of parts"),
]


class ChatMessage(BaseModel):
    """One message. Those of `user` are the seeker's, those of `assistant` the supporter's."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = Field(
        description="who speaks; messages that are neither the user's nor the assistant's are ignored"
    )
    content: Content | None = Field(default=None, description="text, or text and images")


Messages = Annotated[
    list[ChatMessage],
    Field(min_length=1, max_length=_MOST_SENT, description="the conversation so far; a message of `user` is last"),
]


class StreamOptions(BaseModel):
    """What a stream holds beside the answer."""

    include_usage: bool | None = Field(default=None, description="a last chunk with the number of tokens")


class ChatRequest(BaseModel):
    """A conversation that wants its next turn."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {"messages": [{"role": "user", "content": "I failed the exam again."}], "strategy": "Question"}
            ]
        },
    )

    model: str | None = Field(default=None, description="the supporter's name, as /v1/models lists it; may be left out")
    messages: Messages
    stream: bool | None = Field(default=False, description="the answer in pieces, as server-sent events")
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 takes the most probable token")
    top_p: float | None = Field(default=None, gt=0, le=1, description="share of probability kept")
    max_tokens: int | None = Field(default=None, ge=1, description="tokens of steps and reply together, at most")
    max_completion_tokens: int | None = Field(default=None, ge=1, description="another name for max_tokens")
    seed: int | None = Field(
        default=None, ge=-(2**63), lt=2**63, description="decides how the answer is drawn; none: at random"
    )
    n: Literal[1] | None = Field(default=None, description="one answer; for a choice among several see best_of")

    strategy: Strategy | None = Field(default=None, description="the strategy to choose; forced")
    stage: Stage | None = Field(default=None, description="the stage to take the conversation to be in; forced")
    emotion: Emotion | None = Field(default=None, description="the emotion to take the seeker to feel; forced")
    persona: Persona | None = Field(default=None, description="the manner to speak in, after DISC; asked for")
    best_of: int | None = Field(
        default=None, ge=1, le=MOST_CANDIDATES, description="so many outputs are written, and the judge chooses"
    )
    show_reasoning: bool | None = Field(
        default=True, description="whether the steps are given; in a crisis they never are"
    )
    state: str | None = Field(
        default=None,
        max_length=LONGEST_STATE,
        description="`compeer.state` of the answer before: what the guard remembers of this conversation",
    )
    conversation: str | None = Field(
        default=None, max_length=200, description="your own name for the conversation, told to the guard's hooks only"
    )

    @model_validator(mode="before")
    @classmethod
    def _mended(cls, sent: Any) -> Any:
        """Half characters are no reason to send somebody away; those in messages are mended where these are read."""
        if not isinstance(sent, dict):
            return sent
        mended = {name: readable(value) if isinstance(value, str) else value for name, value in sent.items()}
        return {readable(name) if isinstance(name, str) else name: value for name, value in mended.items()}

    def ignored(self) -> list[str]:
        """The fields that were sent and have no meaning here."""
        given: dict[str, Any] = self.model_extra or {}
        return sorted(field for field, value in given.items() if value is not None)


class JudgeRequest(BaseModel):
    """A turn to be judged in its conversation, with or without a reference to compare its response with."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"anyOf": [{"required": ["turn"]}, {"required": ["output"]}]}
    )

    messages: Messages
    turn: SupportTurn | None = Field(default=None, description="the turn by its parts; this or `output`")
    output: str | None = Field(
        default=None, max_length=LONGEST_OUTPUT, description="the turn as a model wrote it, four lines; this or `turn`"
    )
    reference: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_RESPONSE,
        description="a response to compare with; without one the response itself is not judged",
    )
