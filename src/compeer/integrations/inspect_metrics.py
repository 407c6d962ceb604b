"""What Inspect reports of a run: the figures of `compeer evaluate`, computed by its own functions, as flat metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inspect_ai.scorer import Metric, SampleScore, metric

from compeer.evaluate.decisions import decision_report
from compeer.evaluate.esc_eval import measure_esc_eval
from compeer.evaluate.judging import ScoreRow
from compeer.evaluate.safety import share
from compeer.evaluate.sage import measure_sage
from compeer.reasoning import parse_turn
from compeer.ser.record import SerRecord
from compeer.statistics import Estimate

Values = dict[str, float]
OUTCOMES = ("resources", "no_harm", "not_pushed_away", "ordinary_spared")  # of a guarded reply, where they apply
RAW = ("raw_harm", "raw_not_pushed_away")  # what is reported of the model's own first reply


@metric(scores="unreduced")
def sage_metrics(seed: int = 0) -> Metric:
    """The figures of `compeer evaluate sage`, each with its interval."""

    def measure(scores: list[SampleScore]) -> Values:
        found = measure_sage(lines_of(scores), seed)
        metrics: Values = {}
        for name in ("emotion", "success", "failure", "replies"):
            metrics |= flat(name, found[name]["score"], found[name]["low"], found[name]["high"])
        return metrics

    return measure


@metric(scores="unreduced")
def esc_eval_metrics(seed: int = 0) -> Metric:
    """The seven figures of `compeer evaluate esc-eval` and their average, each with its interval."""

    def measure(scores: list[SampleScore]) -> Values:
        rows = [ScoreRow.model_validate(row) for line in lines_of(scores) for row in line["rows"]]
        if not rows:
            return {}
        found = measure_esc_eval(rows, seed=seed)
        metrics: Values = {}
        for name, one in {"average": found["average"], **found["dimensions"]}.items():
            metrics |= flat(name, one["score"], one["low"], one["high"])
        return metrics

    return measure


@metric(scores="unreduced")
def safety_metrics() -> Metric:
    """The shares of `compeer evaluate safety --model`, each with its Wilson interval."""

    def measure(scores: list[SampleScore]) -> Values:
        found: Values = {}
        lines = [one.score.metadata or {} for one in scores]
        for name in (*OUTCOMES, *RAW):
            one = share([bool(line[name]) for line in lines if name in line])
            found |= flat(name, one.value, one.low, one.high)
        return found

    return measure


@metric(scores="unreduced")
def decision_metrics(seed: int = 0) -> Metric:
    """The figures of `compeer evaluate decisions`: accuracy and macro-F1 by decision, the strategies' KL."""

    def measure(scores: list[SampleScore]) -> Values:
        known = [one for one in scores if "text" in (one.score.metadata or {})]
        records = [SerRecord.model_validate((one.sample_metadata or {})["record"]) for one in known]
        outputs = [one.score.metadata or {} for one in known]
        if not records:
            return {}
        parsed = [parse_turn(one["text"], cut_off=one["cut_off"]) for one in outputs]
        report = decision_report(records, parsed, seed)
        found = {"complete": report.complete or 0.0} | measured("strategies/kl", report.strategies["all"].kl)
        for title, decisions in (("", report.gold), (" (by rule)", report.derived)):
            for name, one in decisions.items():
                found |= measured(f"{name}{title}/accuracy", one.accuracy)
                found |= measured(f"{name}{title}/macro_f1", one.macro_f1)
                found |= measured(f"{name}{title}/above_majority", one.above_majority)
        return found

    return measure


def lines_of(scores: Sequence[SampleScore]) -> list[dict[str, Any]]:
    """What the scores say of each conversation, in an order that does not depend on which ended first."""
    lines = [one.score.metadata or {} for one in scores]
    return sorted(lines, key=lambda line: (line["repeat"], line["scenario"]))


def flat(name: str, value: float | None, low: float | None, high: float | None) -> Values:
    """A figure and its interval as metrics; what there is not is left out."""
    found = {name: value, f"{name} (low)": low, f"{name} (high)": high}
    return {key: float(number) for key, number in found.items() if number is not None and value is not None}


def measured(name: str, estimate: Estimate) -> Values:
    """The same of a measured figure."""
    return flat(name, estimate.value, estimate.low, estimate.high)
