"""What it takes to ask a language model for text: requests in, generations or failures out, batched and async.

Every model answers through `TextModel`. One that could not be asked gives a `Failure` with its reason in the place of
the answer; it never raises for one request and never invents an answer.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from pydantic import Field

from compeer.engine.rows import Sampling as Sampling
from compeer.io import Frozen

Result = TypeVar("Result")
FailureKind = Literal["connection", "timeout", "rate limit", "server", "access", "refused", "answer", "script"]
"""`access`: the server wants another key or has no such model; `refused`: this request can never be answered, being too
long, say. All the others may pass."""


class Message(TypedDict):
    """One message of a chat; `content` is text, or a list of text and image blocks for multimodal models."""

    role: Literal["system", "user", "assistant"]
    content: str | list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """One question to a model. The answer starts with `prefix`, and nothing but `seed` decides how it is sampled."""

    messages: tuple[Message, ...]
    seed: int = 0
    prefix: str = ""
    grammar: str | None = None  # a Lark grammar that the answer must follow; a model that cannot do this ignores it


@dataclass(frozen=True)
class Generation:
    """An answer, `prefix` included. `cut_off` says that it reached `max_tokens`."""

    text: str
    cut_off: bool = False
    prompt_tokens: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Failure:
    """No answer, and why."""

    kind: FailureKind
    reason: str


class TextModel(Protocol):
    """Anything that can be asked for text."""

    name: str  # what to call it in tables and records
    batch_size: int  # how many requests it likes in one call of `generate`
    at_once: int  # how many calls of `generate` may be under way at the same time

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        """One answer or failure for each request, in their order."""


def ask(model: TextModel, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
    """`TextModel.generate` for callers that are not async."""
    return asyncio.run(model.generate(requests, sampling))


async def gathered(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results of all of it, at once; if one part raises, the others are stopped before the error is passed on."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """What work comes to, done by a daemon: nobody has to wait for its end."""
    answer: Future[Result] = Future()

    def do() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return answer


class CallSettings(Frozen, use_attribute_docstrings=True):
    """How a server is called."""

    key_variable: str = Field(default="OPENAI_API_KEY", description="environment variable that holds the server's key")
    concurrency: int = Field(default=16, ge=1, description="calls under way at the same time")
    requests_per_minute: float | None = Field(default=None, gt=0, description="calls a minute at most; none: no cap")
    timeout: float = Field(default=120.0, gt=0, description="seconds for one try")
    deadline: float = Field(default=900.0, gt=0)
    """seconds for one request, tries and pauses included; not those of waiting for a place, the cap or the server"""
    retries: int = Field(default=6, ge=0, description="further tries after a failure that may pass")
    first_pause: float = Field(default=1.0, ge=0)
    """seconds before the second try; doubles with each one, up to a minute"""
    constrain: Literal["off", "vllm", "llama.cpp"] = "off"
    """whose way of holding an answer to a grammar the server knows; others refuse the request"""
