"""What it takes to ask a language model for text: requests in, generations or failures out, batched and async.

Every model, whether it runs in this process, behind an endpoint or from a script, answers through `TextModel`. A model
that could not be asked gives a `Failure` with its reason in the place of the answer; it never raises for one request
and never invents an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

from pydantic import BaseModel, ConfigDict, Field


class Message(TypedDict):
    """One message of a chat; `content` is text, or a list of text and image blocks for models that see."""

    role: Literal["system", "user", "assistant"]
    content: str | list[dict[str, Any]]


class Sampling(BaseModel):
    """How answers are drawn."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=0.8, ge=0, description="0 takes the most probable token")
    top_p: float = Field(default=1.0, gt=0, le=1, description="share of probability kept")
    min_p: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="tokens less probable than this share of the likeliest are left out; servers are not asked for it",
    )
    max_tokens: int = Field(default=192, ge=1, description="longest answer, in tokens")
    stop: tuple[str, ...] = Field(default=(), description="strings that end an answer; they are left out of it")


@dataclass(frozen=True)
class Request:
    """One question to a model. The answer starts with `prefix`, and `seed` alone decides how it is drawn."""

    messages: tuple[Message, ...]
    seed: int = 0
    prefix: str = ""
    grammar: str | None = None
    """A Lark grammar that the answer must follow; a model that cannot do this ignores it."""


@dataclass(frozen=True)
class Generation:
    """An answer, `prefix` included. `cut_off` says that it reached `max_tokens`."""

    text: str
    cut_off: bool = False
    prompt_tokens: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Failure:
    """No answer, and why. `kind` groups reasons in tables.

    `refused` is about this one request, which can never be answered as it is (too long, say); `access` is about the
    server, which wants another key or has no such model. All the others may pass.
    """

    kind: Literal["connection", "timeout", "rate limit", "server", "access", "refused", "answer", "script"]
    reason: str


class TextModel(Protocol):
    """Anything that can be asked for text."""

    @property
    def name(self) -> str:
        """What to call it in tables and records."""

    @property
    def batch_size(self) -> int:
        """How many requests it likes in one call of `generate`."""

    @property
    def at_once(self) -> int:
        """How many calls of `generate` may be under way at the same time."""

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        """One answer or failure for each request, in their order."""


def ask(model: TextModel, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
    """`TextModel.generate` for callers that are not async."""
    return asyncio.run(model.generate(requests, sampling))
