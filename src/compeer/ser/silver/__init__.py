"""The silver stage: contexts in, step-labelled preference records out, by rule and matched (see `records.py`).

Contexts are taken in blocks of one split, of at least a thousand where there are so many: a block is the unit of work,
and exchanges happen within it. So memory stays bounded however large the corpus, and the workers change nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from compeer.models.embedder import Embeds
from compeer.pipeline import Done, Stage, work_through
from compeer.ser.check.seen import shared_texts
from compeer.ser.reason import CandidateTurn
from compeer.ser.record import Split
from compeer.ser.sampling import Context, read_contexts
from compeer.ser.silver.moments import Moments
from compeer.ser.silver.records import silver_records
from compeer.ser.silver.responses import halves
from compeer.ser.split.duplicates import text_hash

BLOCK = 1000

__all__ = ["BLOCK", "SilverSettings", "silver_stage"]


class SilverSettings(BaseModel):
    """How labels are made by rule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    false_share: float = Field(default=0.23, gt=0, lt=0.5, description="share of False among candidates' step labels")
    coherent: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="share of the wrong strategies that the response carries out; of the others it knows nothing",
    )
    embedder: str = Field(
        default="embedded",
        description="who is near: by 'embedded', a sentence-transformers folder, or 'words' (fast, for huge sets)",
    )


@dataclass(frozen=True)
class _Block:
    """Lines of contexts of one split, each with the lines of the turns that models wrote for it."""

    lines: Sequence[tuple[str, Sequence[str]]]


def silver_stage(
    contexts: Path, out: Path, settings: SilverSettings, seed: int, workers: int = 1, turns: Path | None = None
) -> dict[str, Any]:
    """Writes the records of a file of contexts; returns the stage's manifest."""
    inputs = {"contexts": contexts, **({"turns": turns} if turns else {})}
    stage = Stage(out, {**settings.model_dump(mode="json"), "seed": seed}, inputs)
    if found := stage.finished():
        return found
    with stage:
        moments, shared = _first_reading(contexts)
        work = partial(_work, moments, shared, settings, seed)
        work_through(stage, _blocks(contexts, turns), work, workers)
        return stage.finish()


def _first_reading(contexts: Path) -> tuple[Moments, frozenset[int]]:
    """The statistics of strategies, and the hashes of long replies that stand in more than one split."""
    moments = Moments()

    def replies() -> Iterator[tuple[str, Split]]:
        for context in read_contexts(contexts):
            moments.add(context)
            for text in _texts(context):
                yield text, context.split

    return moments, shared_texts(replies())


def _texts(context: Context) -> tuple[str, ...]:
    """The reply, whole and halved, as records may show it."""
    return (context.reply.text, *(halves(context.reply.text) or ()))


def _work(moments: Moments, shared: frozenset[int], settings: SilverSettings, seed: int, block: _Block) -> Done:
    read = [Context.model_validate_json(line) for line, _ in block.lines]
    contexts = [context for context in read if not any(text_hash(text) in shared for text in _texts(context))]
    turns = {
        context.id: [CandidateTurn.model_validate_json(line) for line in lines]
        for context, (_, lines) in zip(read, block.lines, strict=True)
        if lines
    }
    dropped = Counter({"the same reply in another split": len(read) - len(contexts)})
    embedder, shares = _embedder(settings.embedder), (settings.false_share, settings.coherent)
    records = list(silver_records(contexts, turns, moments, embedder, *shares, seed, dropped))
    counts: dict[str, Counter[str]] = {
        "records": Counter(record.author for record in records),
        "splits": Counter(record.split for record in records),
        "no record": dropped,
    }
    for record in records:
        name = "unlabelled" if record.labels is None else "labelled"
        counts.setdefault("labels", Counter())[name] += 1
    return Done([record.model_dump_json(exclude_defaults=True) for record in records], counts=counts)


@cache
def _embedder(name: str) -> Embeds:
    from compeer.models.embedder import Embedder, WordEmbedder

    return WordEmbedder() if name == "words" else _OneThread(Embedder(name))


class _OneThread:
    """Embeds with one thread: the last bits depend on their number, and with them who is nearest."""

    def __init__(self, embedder: Embeds) -> None:
        self._embedder = embedder

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._embedder.embed(texts)
        finally:
            torch.set_num_threads(before)


def _blocks(contexts: Path, turns: Path | None) -> Iterator[_Block]:
    """The contexts of each split in blocks; the last of a split takes the rest, up to twice the size."""
    waiting: dict[str, list[tuple[str, Sequence[str]]]] = {}
    for line, written in _with_turns(contexts, turns):
        split = json.loads(line)["split"]
        here = waiting.setdefault(split, [])
        here.append((line, written))
        if len(here) == 2 * BLOCK:
            yield _Block(here[:BLOCK])
            waiting[split] = here[BLOCK:]
    for split in sorted(waiting):
        yield _Block(waiting[split])


def _with_turns(contexts: Path, turns: Path | None) -> Iterator[tuple[str, Sequence[str]]]:
    """Each line of contexts with the lines of its turns, which stand in the same order in their own file."""
    written = _grouped(turns) if turns else iter(())
    ahead = next(written, None)
    with contexts.open(encoding="utf-8") as file:
        for line in file:
            if not line.strip():
                continue
            lines: Sequence[str] = ()
            if ahead is not None and ahead[0] == json.loads(line)["id"]:
                lines, ahead = ahead[1], next(written, None)
            yield line, lines


def _grouped(turns: Path) -> Iterator[tuple[str, list[str]]]:
    def lines() -> Iterable[str]:
        with turns.open(encoding="utf-8") as file:
            yield from (line for line in file if line.strip())

    context: str | None = None
    found: list[str] = []
    for line in lines():
        name = str(json.loads(line)["context"])
        if name != context:
            if context is not None:
                yield context, found
            context, found = name, []
        found.append(line)
    if context is not None:
        yield context, found
