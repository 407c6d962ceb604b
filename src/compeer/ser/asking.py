"""What the stages share: doing one, asking a model until its answer can be read, prompts and tables.

Answers are outside data: what could not be read after the last try stays `Unread`, a model that could not be asked at
all gives its `Failure`, and neither is ever taken for an answer.
"""

import base64
import mimetypes
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import ValidationError

from compeer.errors import InputError, from_validation
from compeer.io import Model
from compeer.io import table as table
from compeer.models.base import Failure, Generation, Message, Request, Sampling, TextModel
from compeer.models.catalogue import SMOLLM2
from compeer.models.embedder import NGRAM_DIMENSIONS, Embedder, Embeds, Matrix, hashed_counts
from compeer.pipeline import Done, Stage, ask_through, work_through
from compeer.statistics import generator, words

T = TypeVar("T")
Manifest = dict[str, Any]


def run_stage(stage: Stage, units: Iterable[T], work: Callable[[T], Done], workers: int = 1) -> Manifest:
    """Does what is left of a stage and returns its manifest; a stage that is done is not done again."""
    if found := stage.finished():
        return found
    with stage:
        work_through(stage, units, work, workers)
        return stage.finish()


async def ask_stage(stage: Stage, units: Iterable[T], work: Callable[[T], Awaitable[Done]], at_once: int) -> Manifest:
    """`run_stage` for work that waits for a model; the manifest counts the questions that `failed`."""
    if found := stage.finished():
        return found
    with stage:
        await ask_through(stage, units, work, at_once)
        return stage.finish(failed=sum(stage.counts.get("failed", {}).values()))


@cache
def prompt(name: str, room: str = "ser") -> str:
    """A prompt of a room's folder `prompts`."""
    return files("compeer").joinpath(room, "prompts", f"{name}.txt").read_text(encoding="utf-8").strip()


def regex(pattern: str | Sequence[str], fragments: Mapping[str, str | Sequence[str]] | None = None) -> str:
    """A pattern of a table: a text or its parts, in which <NAME> stands for a fragment of that name."""
    text = "".join(pattern)
    for name, part in (fragments or {}).items():
        text = text.replace(f"<{name}>", "".join(part))
    return text


def ask_user(
    content: str | list[dict[str, Any]], seed: int, *names: str, grammar: str | None = None, system: str | None = None
) -> Request:
    """A question of one message, after one of the system if there is any; its own seed belongs to its names."""
    own = int(generator(seed, *names).integers(2**31))
    before: tuple[Message, ...] = ({"role": "system", "content": system},) if system else ()
    return Request((*before, {"role": "user", "content": content}), seed=own, grammar=grammar)


def data_url(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f"data:{mimetypes.guess_type(path.name)[0] or 'image/png'};base64,{data}"


@cache
def one_thread(name: str) -> Embeds:
    """The embedder of a name, or 'words', with one thread: the last bits depend on their number, and so who is near."""
    return WordEmbedder() if name == "words" else _OneThread(name)


class _OneThread(Embedder):
    def embed(self, texts: Sequence[str]) -> Matrix:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return super().embed(texts)
        finally:
            torch.set_num_threads(before)


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
class AnswerFault:
    """What is wrong with an answer, in words that help the model to mend it."""

    text: str


Answer = Read[T] | Unread | Failure


async def ask_until_read(
    model: TextModel,
    requests: Sequence[Request],
    read: Callable[[int, Generation], T | AnswerFault],
    sampling: Sampling,
    retries: int,
) -> list[Answer[T]]:
    """For each request the answer as `read(its index, generation)` understood it, asked at most 1 + `retries` times."""
    found: dict[int, Answer[T]] = {}
    asked = dict(enumerate(requests))
    for tries in range(1, retries + 2):
        answers = await model.generate(list(asked.values()), sampling)
        again: dict[int, Request] = {}
        for index, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Failure):
                found[index] = answer
                continue
            value = read(index, answer)
            if isinstance(value, AnswerFault):
                found[index] = Unread(answer.text, value.text, tries)
                again[index] = _with_complaint(requests[index], answer.text, value.text, tries)
            else:
                found[index] = Read(value, answer.text, tries)
        if not (asked := again):
            break
    return [found[index] for index in range(len(requests))]


def read_object(text: str, kind: type[Model], cut_off: bool = False) -> Model | AnswerFault:
    """The JSON object that an answer is, or what is wrong with it."""
    if cut_off:
        return AnswerFault("it is too long and was cut off")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        if error.errors()[0]["type"] in ("json_invalid", "model_type"):
            return AnswerFault("it is not one JSON object")
        plain = from_validation(error)
        what = plain.what.removeprefix("Value error, ")
        return AnswerFault(f"'{plain.field}': {what}" if plain.field else what)


def _with_complaint(first: Request, answer: str, complaint: str, tries: int) -> Request:
    """The question again, after the answer that could not be read; older failed answers are left out."""
    mend = f"That cannot be used: {complaint}. Answer again, in exactly the form that was asked for."
    tried: Message = {"role": "assistant", "content": answer or "(empty)"}
    messages: tuple[Message, ...] = (*first.messages, tried, {"role": "user", "content": mend})
    return replace(first, messages=messages, seed=(first.seed + tries) % 2**31)


def count_failure(failure: Failure, counts: dict[str, Counter[str]]) -> None:
    """Counts a refusal as dropped; any other failure may be mended by asking again."""
    counts["dropped" if failure.kind == "refused" else "failed"][failure.kind] += 1


def refuse_packaged(model: TextModel, what: str) -> None:
    """Stops a stage whose answers from the embedded model would be worse than none."""
    name = model.name.lower()
    if name == "embedded" or SMOLLM2.title.lower() in name:
        do = "Name another (--model: an endpoint, or a larger one's folder)."
        raise InputError(f"the embedded model is too small to {what}.", do=do)


class WordEmbedder:
    """A cheap stand-in for very large sets: hashed words, the rarer among the texts given the heavier."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """A row of unit length for each text; zeros for a text without words."""
        present = np.array([hashed_counts(words(text)) > 0 for text in texts], dtype=bool).reshape(-1, NGRAM_DIMENSIONS)
        rows = present * np.log((1 + len(texts)) / (1 + present.sum(axis=0))).astype(np.float32)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0))
