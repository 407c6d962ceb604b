"""Which contexts are partners, and what each pair exchanges: steps, the whole turn, the stage alone, or one fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compeer.models.embedder import Embeds
from compeer.reasoning import STEPS, STRATEGIES, Part
from compeer.ser.silver.exchange import exchange
from compeer.ser.silver.moments import IMPROBABLE, Moments
from compeer.ser.silver.reference import Reference

ENOUGH = 0.7
"""Share of the exchanges wanted below which, in a small set, the rest are made without regard to cells and values."""

TOO_NEAR = 0.85
"""Contexts more alike than this may share an issue: they do not exchange it."""


@dataclass(frozen=True)
class Pattern:
    """What a pair exchanges, and in which share of the contexts, relative to the others.

    `kind` names what is wrong then; None: each step has a name of its own.
    """

    steps: tuple[Part, ...]
    weight: float
    kind: str | None = None

    @property
    def plans(self) -> bool:
        """Whether another strategy is shown than the one of the moment."""
        return "strategy" in self.steps and self.kind is None


WHOLE = Pattern(STEPS, 20)
WRONG_STAGE, SWAPPED_FACT, CONTRADICTS = "wrong stage", "swapped fact", "reasoning contradicts the decision"
PATTERNS = (
    WHOLE,
    Pattern(("history", "strategy"), 7),
    Pattern(("emotion", "strategy"), 7),
    Pattern(("strategy",), 11),
    Pattern(("history", "emotion"), 7),
    Pattern(("emotion",), 11),
    Pattern(("history",), 7, WRONG_STAGE),
    Pattern(("history",), 3),
    Pattern(("history",), 2, SWAPPED_FACT),
    Pattern(("emotion",), 1, CONTRADICTS),
    Pattern(("strategy",), 1, CONTRADICTS),
)
FALSE_BY_WEIGHT = {part: sum(p.weight for p in PATTERNS if part in p.steps) for part in STEPS}


@dataclass(frozen=True)
class Pairing:
    """Each context's partner (-1: none) and what they exchange (None: nothing)."""

    partner: list[int]
    pattern: list[Pattern | None]


def pair_up(
    references: Sequence[Reference], moments: Moments, embedder: Embeds, false_share: float, rng: np.random.Generator
) -> Pairing:
    """Pairs the contexts; about twice `false_share` of each step is exchanged, as one candidate in two is spoiled."""
    count = len(references)
    vectors = embedder.embed([f"{r.quotes.issue} {r.quotes.said}" for r in references])
    closeness = np.round(vectors @ vectors.T, 4)  # the last bits differ between machines
    wrong = _wrong(references, moments, closeness)
    partner, patterns = [-1] * count, [None] * count  # type: tuple[list[int], list[Pattern | None]]
    free = np.ones(count, dtype=bool)

    def meet(pairs: Sequence[tuple[int, int]], pattern: Pattern | None) -> None:
        for one, other in pairs:
            partner[one], partner[other] = other, one
            patterns[one] = patterns[other] = pattern
            free[[one, other]] = False

    for strict in (True, False):
        for pattern in PATTERNS:
            wanted = 2 * false_share * pattern.weight / FALSE_BY_WEIGHT[pattern.steps[0]]
            there = sum(found is pattern for found in patterns) / max(1, count)
            if not strict and there > ENOUGH * wanted:
                continue
            cells = [_cell(reference, pattern) if strict else "" for reference in references]
            values = [_values(reference, pattern) if strict else () for reference in references]
            pairs = exchange(cells, values, _allowed(pattern, wrong, references), closeness, wanted, free, rng)
            meet(pairs if strict else pairs[: round((wanted - there) * count / 2)], pattern)
    meet(exchange([""] * count, [()] * count, wrong["history"], closeness, 1.0, free, rng), None)
    return Pairing(partner, patterns)


def _wrong(
    references: Sequence[Reference], moments: Moments, closeness: npt.NDArray[np.float32]
) -> dict[str, npt.NDArray[np.bool_]]:
    """For each step a matrix: whether the column's step is wrong in the row's context."""
    dialogues = _numbers([r.context.dialogue for r in references])
    elsewhere = dialogues[:, None] != dialogues[None, :]
    emotions = _numbers([r.turn.emotion.emotion for r in references])
    intensities = np.array([r.turn.emotion.intensity for r in references])
    stages = _numbers([r.turn.history.stage for r in references])
    strategies = np.array([STRATEGIES.index(r.turn.strategy.strategy) for r in references], dtype=int)
    lifts = np.array([moments.lifts(r.context) for r in references]).reshape(len(references), len(STRATEGIES))
    replies = _numbers([r.turn.response for r in references])
    other_emotion = emotions[:, None] != emotions[None, :]
    far = np.abs(intensities[:, None] - intensities[None, :]) >= 2
    return {
        "history": elsewhere & (closeness < TOO_NEAR) & (replies[:, None] != replies[None, :]),
        "emotion": elsewhere & (other_emotion | far),
        "strategy": elsewhere & (lifts[:, strategies] < IMPROBABLE) & (strategies[:, None] != strategies[None, :]),
        "other stage": elsewhere & (stages[:, None] != stages[None, :]),
        "other emotion": elsewhere & other_emotion,
        "other strategy": elsewhere & (strategies[:, None] != strategies[None, :]),
    }


def _numbers(values: Sequence[str]) -> npt.NDArray[np.int64]:
    known: dict[str, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


def _allowed(
    pattern: Pattern, wrong: Mapping[str, npt.NDArray[np.bool_]], references: Sequence[Reference]
) -> npt.NDArray[np.bool_]:
    responses_differ = wrong["history"]
    if pattern.kind == WRONG_STAGE:
        return wrong["other stage"] & responses_differ
    if pattern.kind == SWAPPED_FACT:
        framed = np.array(["{detail}" in (r.history[0].frame or "") for r in references], dtype=bool)
        return np.asarray(responses_differ & framed[:, None] & framed[None, :])
    if pattern.kind == CONTRADICTS:
        return wrong[f"other {pattern.steps[0]}"] & responses_differ
    found = responses_differ
    for part in pattern.steps:
        found = found & wrong[part]
    return found


def _cell(reference: Reference, pattern: Pattern) -> str:
    """What is shown beside what is exchanged and goes with it: only contexts that agree in it exchange.

    Stage and strategy go together (one asks early and suggests late); the emotion goes with neither.
    """
    if "history" in pattern.steps and "strategy" not in pattern.steps:
        return reference.turn.strategy.strategy
    if "strategy" in pattern.steps and "history" not in pattern.steps:
        return reference.turn.history.stage
    return ""


def _values(reference: Reference, pattern: Pattern) -> list[str]:
    """Of what equal shares are exchanged: stage and strategy together, and the emotion where it is exchanged."""
    turn = reference.turn
    found = [f"{turn.history.stage}, {turn.strategy.strategy}"]
    return [*found, turn.emotion.emotion] if "emotion" in pattern.steps else found
