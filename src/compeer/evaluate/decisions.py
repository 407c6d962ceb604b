"""A supporter's decisions against those of the corpus: stage, emotion, intensity and strategy, and the form.

Held-out turns come from SER records or straight from a corpus. What the corpus labels is gold; what a rule derived from
the history (a stage by the round's number, say) is reported apart. A decision that could not be read counts as wrong.
Macro-F1 is the mean F1 of the classes that the gold has. Beside each figure stands what always saying the most frequent
class would reach on the same turns. Intervals are bootstrap ones over dialogues.

How a supporter spreads its strategies is compared with the humans' of the same turns, stage by stage:

    KL(human ‖ model) = Σ p·log(p / q)    p, q = (count + ½) / (turns + ½·8), in nats

It is what one loses by taking the model's spread for the humans', and is never 0 in a small sample: `by_chance` is its
mean if the model drew its strategies from the humans' own spread.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from compeer.corpora import read_corpus
from compeer.evaluate.diversity import Measured, measured
from compeer.reasoning import STAGES, STRATEGIES, EmotionStep, HistoryStep, ParsedTurn, StrategyStep, SupportTurn
from compeer.ser.record import SerRecord
from compeer.ser.sampling import contexts_of
from compeer.ser.wording import reference_of, why_not
from compeer.statistics import (
    Numbers,
    accuracy_of,
    confusion_by_group,
    generator,
    group_weights,
    mean_interval,
    ratio,
    reweighted,
)

DECISIONS = ("stage", "emotion", "strategy")
SMOOTHING = 0.5
_CHANCE_DRAWS = 400


def _decisions(turn: ParsedTurn) -> dict[str, object]:
    found: dict[str, object] = {}
    for step in turn.parts.values():
        if isinstance(step, HistoryStep):
            found["stage"] = step.stage
        elif isinstance(step, EmotionStep):
            found["emotion"] = step.emotion
            found["intensity"] = step.intensity
        elif isinstance(step, StrategyStep):
            found["strategy"] = step.strategy
    return found


def _gold(turn: SupportTurn) -> dict[str, object]:
    return {
        "stage": turn.history.stage,
        "emotion": turn.emotion.emotion,
        "intensity": turn.emotion.intensity,
        "strategy": turn.strategy.strategy,
    }


def decision_figures(outputs: Sequence[ParsedTurn], gold: Sequence[SupportTurn]) -> dict[str, Any]:
    """Accuracy with its 95 % interval, beside the largest class of the gold; a missing decision counts as wrong."""
    said = [_decisions(output) for output in outputs]
    truth = [_gold(turn) for turn in gold]
    figures: dict[str, Any] = {
        "outputs": len(outputs),
        "format_complete": sum(output.complete for output in outputs) / max(1, len(outputs)),
        "missing": dict(Counter(part for output in outputs for part in output.missing)),
    }
    for name in ("stage", "emotion", "intensity", "strategy"):
        values = [row[name] for row in truth]
        hits = [float(found.get(name) == value) for found, value in zip(said, values, strict=True)]
        low, high = mean_interval(hits)
        figures[name] = {
            "accuracy": sum(hits) / max(1, len(hits)),
            "low": low,
            "high": high,
            "majority": max(Counter(values).values(), default=0) / max(1, len(values)),
        }
    return figures


# --- held-out turns ---------------------------------------------------------------------------------------------------


def is_records(path: str | Path) -> bool:
    """Whether a file holds SER records, going by its first line; else it is a corpus, or broken."""
    if not Path(path).is_file():
        return False
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        value = json.loads(first)
    except ValueError:
        return False
    return isinstance(value, dict) and {"candidate", "reference", "author"} <= set(value)


def corpus_records(path: str | Path, rounds: int, seed: int, dropped: Counter[str]) -> list[SerRecord]:
    """The reference turns of up to `rounds` rounds of each dialogue, drawn as the dataset's are.

    Rounds without a gold turn are counted in `dropped`, by reason.
    """
    found = []
    for dialogue in read_corpus(path):
        for context in contexts_of(dialogue, "test", rounds, seed):
            if reason := why_not(context):
                dropped[reason] += 1
                continue
            turn = reference_of(context, seed).turn
            record = SerRecord(
                **context.model_dump(include={"id", "dialogue", "round", "language", "source", "split", "derived"}),
                history=context.history,
                candidate=turn,
                author="corpus",
                reference=turn.response,
                candidate_first=True,
            )
            found.append(record)
    return found


# --- figures ----------------------------------------------------------------------------------------------------------


class DecisionFigure(BaseModel):
    """How often one decision is that of the corpus."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turns: int
    missing: int = Field(description="decisions that could not be read; they count as wrong")
    accuracy: Measured
    macro_f1: Measured
    majority: str = Field(description="the most frequent class of these turns")
    majority_accuracy: float
    majority_macro_f1: float
    above_majority: Measured = Field(description="accuracy less that of the majority class")


class SpreadFigure(BaseModel):
    """How a supporter spreads its strategies, beside the humans of the same turns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turns: int
    missing: int = Field(description="turns without a strategy that could be read; left out of the model's spread")
    human: dict[str, float]
    model: dict[str, float]
    kl: Measured = Field(description="KL(human ‖ model) in nats, smoothed by half a turn a strategy")
    by_chance: float | None = Field(description="its mean if the model drew from the humans' own spread")


class DecisionReport(BaseModel):
    """All that is said of a supporter's decisions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turns: int
    dialogues: int
    complete: float | None = Field(description="share of the outputs in which everything could be read")
    gold: dict[str, DecisionFigure] = Field(description="by decision, where the corpus labels it")
    derived: dict[str, DecisionFigure] = Field(description="by decision, where a rule gave it")
    strategies: dict[str, SpreadFigure] = Field(description="by the gold stage, and over all")


def decision_report(records: Sequence[SerRecord], outputs: Sequence[ParsedTurn], seed: int = 0) -> DecisionReport:
    """The figures of outputs for the records' histories, in the same order."""
    dialogues = list(dict.fromkeys(record.dialogue for record in records))
    place = {name: number for number, name in enumerate(dialogues)}
    groups = [place[record.dialogue] for record in records]
    weights = group_weights(len(dialogues), seed=seed)
    said = [_decisions(output) for output in outputs]
    truth = [_gold(record.candidate) for record in records]
    parts: dict[bool, dict[str, DecisionFigure]] = {False: {}, True: {}}
    for derived, found in parts.items():
        for name in DECISIONS:
            rows = [number for number, record in enumerate(records) if (name in record.derived) == derived]
            if rows:
                pairs = [(groups[row], str(truth[row][name]), said[row].get(name)) for row in rows]
                found[name] = _agreement(pairs, weights)
    stages = {"all": list(range(len(records)))}
    stages |= {stage: [row for row, gold in enumerate(truth) if gold["stage"] == stage] for stage in STAGES}
    return DecisionReport(
        turns=len(records),
        dialogues=len(dialogues),
        complete=sum(output.complete for output in outputs) / len(outputs) if outputs else None,
        gold=parts[False],
        derived=parts[True],
        strategies={
            stage: _spread(
                [(groups[row], str(truth[row]["strategy"]), said[row].get("strategy")) for row in rows],
                weights,
                generator(seed, "chance", stage),
            )
            for stage, rows in stages.items()
            if rows
        },
    )


def _agreement(rows: Sequence[tuple[int, str, object]], weights: Numbers) -> DecisionFigure:
    """The figures of one decision: the dialogue's place, the truth, and what was said or None."""
    groups = np.array([group for group, _, _ in rows])
    counts = Counter(truth for _, truth, _ in rows)
    classes = {value: number for number, value in enumerate(sorted(counts))}
    other = len(classes)  # what is missing, or no class of the gold
    true = np.array([classes[truth] for _, truth, _ in rows])
    told = np.array([classes.get(str(said), other) for _, _, said in rows])
    majority = max(sorted(counts), key=counts.__getitem__)
    size = (weights.shape[1], other + 1)
    confusions = reweighted(weights, confusion_by_group(groups, true, told, size))
    constant = np.full(len(rows), classes[majority])
    always = reweighted(weights, confusion_by_group(groups, true, constant, size))
    units = len(set(groups.tolist()))
    return DecisionFigure(
        turns=len(rows),
        missing=sum(said is None for _, _, said in rows),
        accuracy=measured(accuracy_of(confusions), units),
        macro_f1=measured(macro_f1_of(confusions), units),
        majority=majority,
        majority_accuracy=float(accuracy_of(always)[0]),
        majority_macro_f1=float(macro_f1_of(always)[0]),
        above_majority=measured(accuracy_of(confusions) - accuracy_of(always), units),
    )


def macro_f1_of(confusions: Numbers) -> Numbers:
    """The mean F1 of the classes that each confusion matrix has in its rows; NaN of an empty one."""
    hits, true, said = np.diagonal(confusions, axis1=-2, axis2=-1), confusions.sum(-1), confusions.sum(-2)
    scores = np.where(true > 0, ratio(2 * hits, true + said), 0)
    return ratio(scores.sum(-1), (true > 0).sum(-1).astype(np.float64))


def _spread(rows: Sequence[tuple[int, str, object]], weights: Numbers, rng: np.random.Generator) -> SpreadFigure:
    counts = np.zeros((2, weights.shape[1], len(STRATEGIES)))
    place = {str(name): number for number, name in enumerate(STRATEGIES)}
    for group, truth, said in rows:
        counts[0, group, place[truth]] += 1
        if said is not None:
            counts[1, group, place[str(said)]] += 1
    human, model = reweighted(weights, counts[0]), reweighted(weights, counts[1])
    said_at_all = int(counts[1].sum())
    chance = None
    if said_at_all:
        drawn = rng.multinomial(said_at_all, human[0] / human[0].sum(), size=_CHANCE_DRAWS).astype(np.float64)
        chance = float(divergence(human[0], drawn).mean())
    nothing = np.full(len(weights), np.nan)
    return SpreadFigure(
        turns=len(rows),
        missing=len(rows) - said_at_all,
        human=_shares(human[0]),
        model=_shares(model[0]),
        kl=measured(divergence(human, model) if said_at_all else nothing, len({group for group, _, _ in rows})),
        by_chance=chance,
    )


def _shares(counts: Numbers) -> dict[str, float]:
    total = counts.sum()
    return {str(name): float(count / total) if total else 0.0 for name, count in zip(STRATEGIES, counts, strict=True)}


def divergence(human: Numbers, model: Numbers) -> Numbers:
    """KL(human ‖ model) of counts over the last axis, in nats, each count half a turn larger."""
    p, q = (
        (counts + SMOOTHING) / (counts.sum(-1, keepdims=True) + SMOOTHING * counts.shape[-1])
        for counts in (human, model)
    )
    total: Numbers = (p * np.log(p / q)).sum(-1)
    return total
