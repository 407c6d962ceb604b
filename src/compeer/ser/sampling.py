"""Which rounds of a dialogue become records: more from its middle, where support really happens (equation 1).

A sampled round is a `Context`: what was said before, the reply that the corpus has, and what the corpus knows of that
moment. It holds all that later stages need, so that they can read contexts one at a time.
"""

import math
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from compeer.corpora import read_corpus
from compeer.dialogue import Dialogue, Emotion, Rating, Strategy, Utterance, last_seeker, rounds_of
from compeer.errors import InputError
from compeer.io import json_line, read_lines
from compeer.pipeline import Done, Stage, in_blocks
from compeer.reasoning import SupportTurn
from compeer.ser.asking import run_stage
from compeer.ser.record import Moment, SerRecord, Split
from compeer.ser.split import iter_splits, read_splits
from compeer.statistics import generator

DIALOGUES_A_UNIT = 200


class Context(Moment):
    """A sampled round; `reply` keeps the corpus' labels."""

    reply: Utterance
    emotion: Emotion | None = Field(default=None, description="of the seeker's last message, else of the dialogue")
    intensity: Rating | None = Field(default=None, description="of the seeker's last message, else the initial one")
    derived: tuple[str, ...] = Field(default=(), description="what is not the corpus' own label of this moment")
    earlier_emotions: tuple[Emotion, ...] = Field(default=(), description="of the seeker's messages before the last")
    earlier_strategies: tuple[Strategy | None, ...] = Field(default=(), description="of the supporter's blocks so far")
    helped: bool | None = Field(default=None, description="whether the seeker's distress fell over the dialogue")


def contexts_of(dialogue: Dialogue, split: Split, count: int, seed: int) -> list[Context]:
    """The sampled rounds of a dialogue. Its own id seeds the sample: order and parallelism change nothing."""
    rounds = rounds_of(dialogue)
    before, after = dialogue.intensity.initial, dialogue.intensity.final
    found = []
    for number in sample_rounds(len(rounds), count, generator(seed, "rounds", dialogue.id)):
        round_ = rounds[number - 1]
        seeker = last_seeker(round_.history)
        emotion, intensity = (seeker.emotion, seeker.intensity) if seeker else (None, None)
        given = {"stage": round_.reply.stage, "emotion": emotion, "intensity": intensity}
        earlier = [u for u in round_.history if u.speaker == "seeker" and u is not seeker]
        found.append(
            Context(
                id=f"{dialogue.id}:{number}",
                dialogue=dialogue.id,
                round=number,
                language=dialogue.language,
                source=dialogue.source,
                split=split,
                history=tuple(Utterance(speaker=u.speaker, text=u.text, media=u.media) for u in round_.history),
                reply=round_.reply,
                emotion=emotion or dialogue.emotion,
                intensity=intensity or before,
                derived=tuple(name for name, value in given.items() if not value),
                earlier_emotions=tuple(u.emotion for u in earlier if u.emotion),
                earlier_strategies=tuple(u.strategy for u in round_.history if u.speaker == "supporter"),
                helped=None if before is None or after is None else after < before,
            )
        )
    return found


def record_of(context: Context, turn: SupportTurn, **more: Any) -> SerRecord:
    """A record of a turn for the context's history, with what `more` says of it."""
    names = ("id", "dialogue", "round", "language", "source", "split", "history", "derived")
    return SerRecord(**{**{name: getattr(context, name) for name in names}, "candidate": turn, **more})


def sample_stage(dialogues: Path, splits: Path, out: Path, rounds: int, seed: int, workers: int = 1) -> dict[str, Any]:
    """Writes the contexts of a file of dialogues; returns the stage's manifest."""
    stage = Stage(out, {"rounds": rounds, "seed": seed}, {"dialogues": dialogues, "splits": splits})
    units = in_blocks(_with_splits(dialogues, splits), DIALOGUES_A_UNIT)
    return run_stage(stage, units, partial(_sample, rounds, seed), workers)


def _with_splits(dialogues: Path, splits: Path) -> Iterator[tuple[Dialogue, Split]]:
    """Each dialogue with its split. The two files usually stand in the same order; else all splits are kept at hand."""
    ahead = iter_splits(splits)
    known: dict[str, Split] | None = None
    for dialogue in read_corpus(dialogues):
        if known is None:
            line = next(ahead, None)
            if line and line.dialogue == dialogue.id:
                yield dialogue, line.split
                continue
            known = read_splits(splits)
        if dialogue.id not in known:
            raise InputError(f"dialogue '{dialogue.id}' has no split.", file=splits, do="Split these dialogues first.")
        yield dialogue, known[dialogue.id]


def _sample(rounds: int, seed: int, block: list[tuple[Dialogue, Split]]) -> Done:
    lines, counts = [], {"contexts": 0, "dialogues": len(block), "without a round": 0}
    for dialogue, split in block:
        found = contexts_of(dialogue, split, rounds, seed)
        counts["contexts"] += len(found)
        counts["without a round"] += not found
        lines += [json_line(context) for context in found]
    return Done(lines, counts={"sampling": counts})


def read_contexts(path: Path) -> Iterator[Context]:
    """The contexts of a file, one at a time; an error names the file, line and field."""
    return read_lines(path, Context, "file of contexts", "Make it with: compeer ser sample")


def round_weights(rounds: int) -> list[float]:
    """Equation 1: p(i) ∝ exp(−(i − μ)² / 2σ²) with μ = N/2 and σ = N/4, for i = 1 … N, summing to 1."""
    mean, deviation = rounds / 2, rounds / 4
    weights = [math.exp(-((i - mean) ** 2) / (2 * deviation**2)) for i in range(1, rounds + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def sample_rounds(rounds: int, count: int, rng: random.Random | np.random.Generator) -> list[int]:
    """Up to `count` of the rounds 1 … `rounds`, sampled by equation 1 without replacement, in ascending order."""
    left = dict(enumerate(round_weights(rounds), 1)) if rounds > 0 else {}
    chosen: list[int] = []
    while left and len(chosen) < count:
        point = rng.random() * sum(left.values())
        picked = next(reversed(left))  # rounding may leave a trace of `point` after the last one
        for number, weight in left.items():
            point -= weight
            if point < 0:
                picked = number
                break
        chosen.append(picked)
        del left[picked]
    return sorted(chosen)
