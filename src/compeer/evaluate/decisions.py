"""A supporter's decisions against those of the corpus: stage, emotion, intensity and strategy, and the form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from compeer.reasoning import EmotionStep, HistoryStep, ParsedTurn, StrategyStep, SupportTurn
from compeer.statistics import mean_interval


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


def decision_figures(outputs: Sequence[ParsedTurn], gold: Sequence[SupportTurn]) -> dict[str, Any]:
    """Accuracy with its 95 % interval, beside the largest class of the gold; a missing decision counts as wrong."""
    said = [_decisions(output) for output in outputs]
    truth: dict[str, list[object]] = {
        "stage": [turn.history.stage for turn in gold],
        "emotion": [turn.emotion.emotion for turn in gold],
        "intensity": [turn.emotion.intensity for turn in gold],
        "strategy": [turn.strategy.strategy for turn in gold],
    }
    figures: dict[str, Any] = {
        "outputs": len(outputs),
        "format_complete": sum(output.complete for output in outputs) / max(1, len(outputs)),
        "missing": dict(Counter(part for output in outputs for part in output.missing)),
    }
    for name, values in truth.items():
        hits = [float(found.get(name) == value) for found, value in zip(said, values, strict=True)]
        low, high = mean_interval(hits)
        figures[name] = {
            "accuracy": sum(hits) / max(1, len(hits)),
            "low": low,
            "high": high,
            "majority": max(Counter(values).values(), default=0) / max(1, len(values)),
        }
    return figures
