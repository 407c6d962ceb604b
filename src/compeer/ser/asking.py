"""Asking a model for something that can be read: parse the answer, and where it cannot be, ask again and say why.

Answers are outside data. What could not be read after the last try stays `Unread` with the complaint; a model that
could not be asked at all gives its `Failure`. Neither is ever taken for an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from compeer.errors import InputError
from compeer.models.base import Failure, Generation, Message, Request, Sampling, TextModel
from compeer.models.packaged import SMOLLM2

T = TypeVar("T")


@dataclass(frozen=True)
class Read(Generic[T]):
    """An answer that could be read, and how many times the model was asked."""

    value: T
    text: str
    tries: int


@dataclass(frozen=True)
class Unread:
    """The last answer, which could not be read, and why."""

    text: str
    complaint: str
    tries: int


@dataclass(frozen=True)
class Complaint:
    """What is wrong with an answer, in words that help the model to mend it."""

    text: str


Answer = Read[T] | Unread | Failure


async def ask_until_read(
    model: TextModel,
    requests: Sequence[Request],
    read: Callable[[int, Generation], T | Complaint],
    sampling: Sampling,
    retries: int,
) -> list[Answer[T]]:
    """For each request the answer as `read(its index, generation)` understood it, asked at most 1 + `retries` times."""
    found: dict[int, Answer[T]] = {}
    asked = dict(enumerate(requests))
    for tries in range(1, retries + 2):
        answers = await model.generate(list(asked.values()), sampling)
        again: dict[int, Request] = {}
        for (index, request), answer in zip(asked.items(), answers, strict=True):
            if isinstance(answer, Failure):
                found[index] = answer
                continue
            value = read(index, answer)
            if isinstance(value, Complaint):
                found[index] = Unread(answer.text, value.text, tries)
                again[index] = _with_complaint(request, requests[index], answer.text, value.text, tries)
            else:
                found[index] = Read(value, answer.text, tries)
        asked = again
        if not asked:
            break
    return [found[index] for index in range(len(requests))]


def _with_complaint(request: Request, first: Request, answer: str, complaint: str, tries: int) -> Request:
    """The question again, after the answer that could not be read; older failed answers are left out."""
    mend = f"That cannot be used: {complaint}. Answer again, in exactly the form that was asked for."
    messages: tuple[Message, ...] = (
        *first.messages,
        {"role": "assistant", "content": answer or "(empty)"},
        {"role": "user", "content": mend},
    )
    return replace(request, messages=messages, seed=(first.seed + tries) % 2**31)


def refuse_embedded(model: TextModel, what: str) -> None:
    """Stops a stage whose answers from the embedded model would be worse than none."""
    name = model.name.lower()
    if name == "embedded" or SMOLLM2.title.lower() in name:
        raise InputError(
            f"the embedded model is too small to {what}.",
            do="Name another (--model: an endpoint, or a larger one's folder), or import what was made elsewhere.",
        )
