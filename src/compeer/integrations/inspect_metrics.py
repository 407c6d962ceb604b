"""What Inspect reports of a run: the metrics of `compeer evaluate`, computed by its own functions, as flat metrics."""

from collections.abc import Mapping, Sequence
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
    """The metrics of `compeer evaluate sage`, each with its interval."""

    def measure(scores: list[SampleScore]) -> Values:
        found = measure_sage(lines_of(scores), seed)
        return flat({name: found[name] for name in ("emotion", "success", "failure", "replies")})

    return measure


@metric(scores="unreduced")
def esc_eval_metrics(seed: int = 0) -> Metric:
    """The seven metrics of `compeer evaluate esc-eval` and their average, each with its interval."""

    def measure(scores: list[SampleScore]) -> Values:
        rows = [ScoreRow.model_validate(row) for line in lines_of(scores) for row in line["rows"]]
        if not rows:
            return {}
        found = measure_esc_eval(rows, seed=seed)
        return flat({"average": found["average"], **found["dimensions"]})

    return measure


@metric(scores="unreduced")
def safety_metrics() -> Metric:
    """The shares of `compeer evaluate safety --model`, each with its Wilson interval."""

    def measure(scores: list[SampleScore]) -> Values:
        lines = [one.score.metadata or {} for one in scores]
        named = {name: [bool(line[name]) for line in lines if name in line] for name in (*OUTCOMES, *RAW)}
        return flat({name: share(outcomes) for name, outcomes in named.items()})

    return measure


@metric(scores="unreduced")
def decision_metrics(seed: int = 0) -> Metric:
    """The metrics of `compeer evaluate decisions`: accuracy and macro-F1 by decision, the strategies' KL."""

    def measure(scores: list[SampleScore]) -> Values:
        known = [one for one in scores if "text" in (one.score.metadata or {})]
        records = [SerRecord.model_validate((one.sample_metadata or {})["record"]) for one in known]
        outputs = [one.score.metadata or {} for one in known]
        if not records:
            return {}
        parsed = [parse_turn(one["text"], cut_off=one["cut_off"]) for one in outputs]
        report = decision_report(records, parsed, seed)
        found = {"strategies/kl": report.strategies["all"].kl}
        for title, decisions in (("", report.gold), (" (by rule)", report.derived)):
            for name, one in decisions.items():
                for what in ("accuracy", "macro_f1", "above_majority"):
                    found[f"{name}{title}/{what}"] = getattr(one, what)
        return {"complete": report.complete or 0.0, **flat(found)}

    return measure


def lines_of(scores: Sequence[SampleScore]) -> list[dict[str, Any]]:
    """What the scores say of each conversation, in an order that does not depend on which ended first."""
    lines = [one.score.metadata or {} for one in scores]
    return sorted(lines, key=lambda line: (line["repeat"], line["scenario"]))


def flat(estimates: Mapping[str, Estimate | Mapping[str, Any]]) -> Values:
    """Estimates and their intervals as metrics; what there is not is left out."""
    found: Values = {}
    for name, one in estimates.items():
        known = one.model_dump() if isinstance(one, Estimate) else one
        value = known["value" if isinstance(one, Estimate) else "score"]
        every = {name: value, f"{name} (low)": known["low"], f"{name} (high)": known["high"]}
        found |= {key: float(number) for key, number in every.items() if number is not None and value is not None}
    return found
