"""The bodies of requests and answers: OpenAI's chat requests with fields of our own, and turns to be judged.

Fields of OpenAI's that have no meaning here are ignored, so that common clients work as they are, and the answer names
them in `compeer.ignored`; so a misspelt field of ours is noticed too.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from compeer.dialogue import Emotion, Stage, Strategy
from compeer.io import readable
from compeer.policy.persona import Persona
from compeer.reasoning import MAX_RESPONSE, Part, SupportTurn
from compeer.safety.risk import Level

MOST_MESSAGES = 500
LONGEST_HISTORY = 200_000  # characters of all messages; where there are more, or more messages, the oldest is dropped
LONGEST_OUTPUT = 20_000
LONGEST_STATE = 16_384
MOST_OUTPUTS = 8
_MOST_SENT = 20_000  # messages that are looked at at all


class TextPart(BaseModel):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class ImageAddress(BaseModel):
    """An image, inside the request."""

    url: str = Field(max_length=2**25, description="a data URL with a PNG, JPEG, WebP or GIF; nothing is fetched")


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
    content: Content | None = Field(None, description="text, or text and images")


Messages = Annotated[
    list[ChatMessage],
    Field(min_length=1, max_length=_MOST_SENT, description="the conversation so far; a message of `user` is last"),
]


class StreamOptions(BaseModel):
    """What a stream holds beside the answer."""

    include_usage: bool | None = Field(None, description="a last chunk with the number of tokens")


_EXAMPLE: Any = {"messages": [{"role": "user", "content": "I failed the exam again."}], "strategy": "Question"}


class ChatRequest(BaseModel):
    """A conversation that wants its next turn."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [_EXAMPLE]})

    model: str | None = Field(None, description="the supporter's name, as /v1/models lists it; may be left out")
    messages: Messages
    stream: bool | None = Field(False, description="the answer in pieces, as server-sent events")
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2, description="0 takes the most probable token")
    top_p: float | None = Field(None, gt=0, le=1, description="share of probability kept")
    max_tokens: int | None = Field(None, ge=1, description="tokens of steps and reply together, at most")
    max_completion_tokens: int | None = Field(None, ge=1, description="another name for max_tokens")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="decides the sampling; none: at random")
    n: Literal[1] | None = Field(None, description="one answer; for a choice among several see best_of")

    strategy: Strategy | None = Field(None, description="the strategy to choose; forced")
    stage: Stage | None = Field(None, description="the stage to take the conversation to be in; forced")
    emotion: Emotion | None = Field(None, description="the emotion to take the seeker to feel; forced")
    persona: Persona | None = Field(None, description="the manner to speak in, after DISC; asked for")
    best_of: int | None = Field(None, ge=1, le=MOST_OUTPUTS, description="outputs of which the judge chooses one")
    show_reasoning: bool | None = Field(True, description="whether the steps are given; in a crisis they never are")
    state: str | None = Field(None, max_length=LONGEST_STATE, description="`compeer.state` of the answer before")
    conversation: str | None = Field(None, max_length=200, description="your name for it, for the guard's hooks only")

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


Output = Annotated[str, Field(max_length=LONGEST_OUTPUT)]
Reference = Annotated[str, Field(min_length=1, max_length=MAX_RESPONSE)]
_EITHER: Any = [{"required": ["turn"]}, {"required": ["output"]}]


class JudgeRequest(BaseModel):
    """A turn to be judged in its conversation, with or without a reference to compare its response with."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"anyOf": _EITHER})

    messages: Messages
    turn: SupportTurn | None = Field(None, description="the turn by its parts; this or `output`")
    output: Output | None = Field(None, description="the turn as a model wrote it, four lines; this or `turn`")
    reference: Reference | None = Field(None, description="a response to compare with; or only steps are judged")


class ScoreAnswer(BaseModel):
    """A score: +1 or −1 a part, and their total; `unscored` says why there is none."""

    parts: dict[str, int | None]
    total: int | None
    unscored: str | None = None


class CandidateAnswer(BaseModel):
    """One of several outputs and the judge's verdicts on it."""

    number: int
    place: int | None = Field(description="1 for the one that was chosen")
    turn: SupportTurn | None = Field(description="none where it is broken or must not be shown")
    score: ScoreAnswer | None
    problem: str | None


class Decided(BaseModel):
    """Our own part of an answer."""

    turn: SupportTurn | None = Field(description="the steps with their decisions, and the response; none if hidden")
    risk: Level = Field(description="how great the guard takes the danger to be")
    hide_reasoning: bool = Field(description="whether the guard hides the reasoning")
    replaced: str | None = Field(description="why the seeker does not read the supporter's own words, if so")
    passage: str = Field("", description="the guard's own fixed words at the reply's end; all of it where replaced")
    state: str = Field(description="to be sent with the next request of this conversation")
    problems: list[str] = Field(description="what could not be read or did not work")
    candidates: list[CandidateAnswer] = Field([], description="with best_of: all outputs")
    ignored: list[str] = Field([], description="what was sent and has no meaning here")
    dropped: list[str] = Field([], description="what was too much or no image: the field, and the code of why")


class AnswerMessage(BaseModel):
    """The supporter's message."""

    role: Literal["assistant"] = "assistant"
    content: str
    reasoning_content: str | None = None
    refusal: None = None


class Choice(BaseModel):
    """The one answer there is."""

    index: int = 0
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatAnswer(BaseModel):
    """An answer in one piece, as OpenAI's clients read it; `compeer` is our own."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    compeer: Decided


class ModelCard(BaseModel):
    """A supporter that can be talked to, and what can be asked of it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "compeer"
    sees: bool = Field(description="whether images may be sent")
    language: str = Field(description="the language it speaks")
    guard: bool = Field(description="whether the guard stands around it")
    judge: bool = Field(description="whether turns can be judged, and best_of be more than 1")
    keeps: bool = Field(description="whether this server stores conversations")
    max_best_of: int
    controls: dict[str, list[str]] = Field(description="what strategy, stage, emotion and persona can be")


class ModelList(BaseModel):
    """All supporters of this server: one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class StepVerdict(BaseModel):
    """What the judge says of a step."""

    right: bool
    probability: float
    reason: str | None = None


class ResponseVerdict(BaseModel):
    """Which response the judge prefers."""

    preferred: Literal["candidate", "reference", "both", "neither"]
    probabilities: dict[str, float]
    reason: str | None = None


class JudgeAnswer(BaseModel):
    """The judge's verdicts on a turn and the score that follows from them."""

    object: Literal["compeer.judgment"] = "compeer.judgment"
    judge: str
    steps: dict[Part, StepVerdict]
    response: ResponseVerdict | None = Field(description="none without a reference")
    score: ScoreAnswer
    missing: dict[Part, str] = Field(description="the parts of the turn that could not be read, with the reason")
    problems: list[str]
