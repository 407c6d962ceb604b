"""How many calls and tokens some requests will cost, before any is made. The figures are rough.

Tokens are guessed from the text: about four Latin characters to a token, one token to a Chinese, Japanese or Korean
character, two characters to a token in other scripts, and a fixed number for an image. A model's own tokenizer may
differ by a third.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from compeer.models.base import Failure, Generation, Message, Request, Sampling, TextModel

MESSAGE_TOKENS = 4
"""What a chat template puts around a message."""
IMAGE_TOKENS = 800
_EAST_ASIAN = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_LATIN = re.compile("[\u0000-\u024f\u2000-\u206f]")


@dataclass(frozen=True)
class Estimate:
    """What asking would cost. `cached` requests need no call; completion tokens cannot be more than the figure."""

    calls: int
    cached: int
    prompt_tokens: int
    completion_tokens_at_most: int

    def __str__(self) -> str:
        return (
            f"{self.calls:,} calls ({self.cached:,} answers are in the cache), about {self.prompt_tokens:,} prompt "
            f"tokens, at most {self.completion_tokens_at_most:,} completion tokens; retries come on top"
        )


@runtime_checkable
class Remembering(Protocol):
    """A model that knows which requests it could answer without a call."""

    def remembered(self, requests: Sequence[Request], sampling: Sampling) -> list[bool]:
        """For each request, whether it needs no call of its own."""


def estimate(requests: Sequence[Request], sampling: Sampling, model: TextModel) -> Estimate:
    """What asking the model these requests would cost, retries apart."""
    known = model.remembered(requests, sampling) if isinstance(model, Remembering) else [False] * len(requests)
    asked = [request for request, is_known in zip(requests, known, strict=True) if not is_known]
    return Estimate(
        calls=len(asked),
        cached=len(requests) - len(asked),
        prompt_tokens=sum(prompt_tokens(request) for request in asked),
        completion_tokens_at_most=len(asked) * sampling.max_tokens,
    )


def prompt_tokens(request: Request) -> int:
    """About how many tokens a request's messages and prefix have."""
    return sum(_message_tokens(message) for message in request.messages) + text_tokens(request.prefix)


def text_tokens(text: str) -> int:
    """About how many tokens a text has."""
    if text.isascii():
        return -(-len(text) // 4)
    wide = len(_EAST_ASIAN.findall(text))
    latin = len(_LATIN.findall(text))
    return -(-(4 * wide + 2 * (len(text) - wide - latin) + latin) // 4)


def _message_tokens(message: Message) -> int:
    content = message["content"]
    if isinstance(content, str):
        return MESSAGE_TOKENS + text_tokens(content)
    return MESSAGE_TOKENS + sum(
        text_tokens(str(block["text"])) if "text" in block else IMAGE_TOKENS for block in content
    )


class Estimating:
    """Stands in for a model on a dry run: adds up what it is asked, and answers nothing."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self.total = Estimate(0, 0, 0, 0)

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def batch_size(self) -> int:
        return self._model.batch_size

    @property
    def at_once(self) -> int:
        return self._model.at_once

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        found = estimate(requests, sampling, self._model)
        self.total = Estimate(
            self.total.calls + found.calls,
            self.total.cached + found.cached,
            self.total.prompt_tokens + found.prompt_tokens,
            self.total.completion_tokens_at_most + found.completion_tokens_at_most,
        )
        return [Failure("refused", "a dry run")] * len(requests)
