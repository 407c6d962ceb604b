"""What is answered over HTTP, for the OpenAPI description; answers are written in this form."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from compeer.reasoning import Part, SupportTurn
from compeer.safety.risk import Level


class Scored(BaseModel):
    """A score: +1 or −1 a part, and their total; `unscored` says why there is none."""

    parts: dict[str, int | None]
    total: int | None
    unscored: str | None = None


class CandidateAnswer(BaseModel):
    """One of several outputs and the judge's verdicts on it."""

    number: int
    place: int | None = Field(description="1 for the one that was chosen")
    turn: SupportTurn | None = Field(description="none where it is broken or must not be shown")
    score: Scored | None
    problem: str | None


class Decided(BaseModel):
    """Our own part of an answer."""

    turn: SupportTurn | None = Field(description="the steps with their decisions, and the response; none if hidden")
    risk: Level = Field(description="how great the guard takes the danger to be")
    hide_reasoning: bool = Field(description="whether the guard hides the reasoning")
    replaced: str | None = Field(description="why the seeker does not read the supporter's own words, if so")
    passage: str = Field(
        default="", description="the guard's own fixed words, with which the reply ends; all of it where it is replaced"
    )
    state: str = Field(description="to be sent with the next request of this conversation")
    problems: list[str] = Field(description="what could not be read or did not work")
    candidates: list[CandidateAnswer] = Field(default=[], description="with best_of: all outputs")
    ignored: list[str] = Field(default=[], description="what was sent and has no meaning here")
    dropped: list[str] = Field(
        default=[], description="what was too much or no image, and was left out: the field, and the code of why"
    )


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
    score: Scored
    missing: dict[Part, str] = Field(description="the parts of the turn that could not be read, with the reason")
    problems: list[str]


def chunk(answer: dict[str, Any], delta: dict[str, Any], finish: str | None, own: dict[str, Any] | None) -> Any:
    """One chunk of a stream; `answer` holds what all chunks have in common, `own` is what is ours."""
    found = {**answer, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}
    return {**found, "compeer": own} if own is not None else found
