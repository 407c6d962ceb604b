"""The report of a run: what came out, a few answers, what it does not prove, and how to repeat it, on one page.

What the stages recorded is read leniently. The prose and the tables are in `run.html.jinja`; here are the intervals of
what was measured, the charts, and a few histories with all outputs.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from compeer.io import read_json
from compeer.models.catalogue import BASES, PACKAGED_MODELS
from compeer.reasoning import LABELS, PARTS, STEPS, parse_turn
from compeer.report.charts import MANY_POINTS, Dots, Series, dot_chart, line_chart
from compeer.report.page import Table, as_dict, as_estimate, as_list, find, number, objects, read_rows, write_page
from compeer.report.wording import DASH, WORDS, count, decimal, percent, signed, supporter_name, toml, without_folder
from compeer.statistics import Estimate

STAGES = ("1-ser", "2-judge", "3-sft", "4-grpo", "5-evaluate")
TRAINED = ("2-judge", "3-sft", "4-grpo")
DECISIONS = ("stage", "emotion", "intensity", "strategy")
FEW_PAIRS = 10  # with fewer shared histories a bootstrap interval means nothing, and nothing is concluded from it
WIDE_SCORE, WIDE_SHARE = 1.0, 0.25  # intervals from this width on are warned of
MOST_EXAMPLES = 5
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SCORES = (-5.0, -3.0, -1.0, 1.0, 3.0, 5.0)
SCORE_PARTS = ("history", "emotion", "strategy", "response", "format")


@dataclass(frozen=True)
class RunMetrics:
    """All that the report reads: manifests by stage, curves by stage, and outputs by supporter."""

    manifests: dict[str, dict[str, Any]]
    curves: dict[str, list[dict[str, Any]]]
    outputs: dict[str, list[dict[str, Any]]]

    def of(self, stage: str, *keys: str) -> Any:
        """A metric of a stage, of any type, or None."""
        return find(self.manifests.get(stage), "figures", *keys)

    def number(self, stage: str, *keys: str) -> float | None:
        return number(self.of(stage, *keys))

    def counts(self, stage: str, *keys: str) -> dict[str, float | None]:
        return {str(key): number(value) for key, value in as_dict(self.of(stage, *keys)).items()}

    def names(self, stage: str, *keys: str) -> list[str]:
        return [str(name) for name in as_list(self.of(stage, *keys))]

    def judge(self, *keys: str) -> float | None:
        return self.number("5-evaluate", "judge", *keys)

    def supporter(self, name: str, *keys: str) -> float | None:
        return self.number("5-evaluate", "supporters", name, *keys)

    def each(self, *keys: str) -> list[float | None]:
        """A metric of all supporters, in their order."""
        return [self.supporter(name, *keys) for name in self.supporters]

    @property
    def supporters(self) -> list[str]:
        return list(self.outputs)

    def of_supporters(self, *keys: str) -> dict[str, float]:
        """A metric of each supporter that has it."""
        return {name: found for name in self.supporters if (found := self.supporter(name, *keys)) is not None}

    def majority(self, decision: str) -> float | None:
        """How often always making the most frequent decision would be right."""
        return next(iter(self.of_supporters("decisions", decision, "majority").values()), None)

    @cached_property
    def complete(self) -> dict[str, Estimate]:
        shares, outputs = (self.each("decisions", key) for key in ("format_complete", "outputs"))
        return dict(zip(self.supporters, map(share_estimate, shares, outputs), strict=True))

    @cached_property
    def scores(self) -> dict[str, Estimate]:
        return {name: self._estimate(name, "reward", value="total") for name in self.supporters}

    def decisions(self, decision: str) -> dict[str, Estimate]:
        """The share of decisions as in the corpus; with Wilson's interval where the run's own has shrunk to a point."""
        found = {}
        for name in self.supporters:
            own = self._estimate(name, "decisions", decision, value="accuracy")
            shrunk = own.low is not None and own.low == own.high
            found[name] = share_estimate(own.value, self.supporter(name, "decisions", "outputs")) if shrunk else own
        return found

    def _estimate(self, name: str, *keys: str, value: str) -> Estimate:
        return as_estimate(self.of("5-evaluate", "supporters", name, *keys), value)

    @cached_property
    def balanced(self) -> dict[str, Estimate]:
        return {LABELS[step]: self._balanced(step) for step in STEPS}

    def _balanced(self, step: str) -> Estimate:
        """Balanced accuracy with an approximate interval, from the recalls and the number of labels."""
        balanced, recall_false = self.judge(step, "balanced_accuracy"), self.judge(step, "recall_false")
        share, scored = self.judge(step, "false_share"), self.judge("scored")
        if balanced is None or recall_false is None or share is None or not scored or not 0 < share < 1:
            return Estimate(value=balanced)
        variance = 0.0
        for recall, labels in ((recall_false, share * scored), (2 * balanced - recall_false, (1 - share) * scored)):
            smoothed = (recall * labels + 2) / (labels + 4)  # two of each more: few labels are no certainty
            variance += max(0.0, smoothed * (1 - smoothed)) / (labels + 4)
        half = 1.96 * math.sqrt(variance) / 2
        return Estimate(value=balanced, low=max(0.0, balanced - half), high=min(1.0, balanced + half))

    @cached_property
    def preferred(self) -> Estimate:
        """How often the judge names the right one of four answers on the responses."""
        return share_estimate(self.judge("response", "accuracy"), self.judge("scored"))

    def changes(self, what: str) -> list[tuple[str, str, Estimate | None]]:
        """Each supporter's "total" score, or whether it is "complete", compared with the one before it, by history."""
        found = {name: self._by_record(name, what) for name in self.supporters}
        return [(one, other, paired(found[one], found[other])) for one, other in pairwise(self.supporters)]

    def _by_record(self, supporter: str, what: str) -> dict[str, float]:
        keys = ("total",) if what == "total" else ("parts", "format")
        found = {str(row.get("record")): number(row, *keys) for row in self.outputs[supporter]}
        known = {record: value for record, value in found.items() if value is not None}
        return known if what == "total" else {record: float(sign > 0) for record, sign in known.items()}

    @property
    def wide_intervals(self) -> list[str]:
        found = []
        for name in self.supporters:
            if (width := _width(self.scores[name])) > WIDE_SCORE:
                found.append(f"{supporter_name(name)}'s score ({decimal(width, 1)} points wide)")
            for decision in DECISIONS:
                if (width := _width(self.decisions(decision)[name])) > WIDE_SHARE:
                    found.append(f"{supporter_name(name)}'s {decision} ({100 * width:.0f} points)")
        return [*found[:4], f"{len(found) - 4} more"] if len(found) > 5 else found


def _width(estimate: Estimate) -> float:
    return 0.0 if estimate.low is None or estimate.high is None else estimate.high - estimate.low


def share_estimate(share: float | None, items: float | None) -> Estimate:
    """A share with Wilson's interval, which stays honest at 0 and 1, where a bootstrap has nothing to redraw."""
    if share is None or not 0 <= share <= 1 or not items or items < 0:
        return Estimate(value=share)
    return Estimate.of_share(round(share * items), round(items)).model_copy(update={"value": share})


def paired(before: dict[str, float], after: dict[str, float]) -> Estimate | None:
    """The mean difference on the records that both have, or None if they share none."""
    changes = [after[record] - value for record, value in before.items() if record in after]
    return Estimate.of_mean(changes) if changes else None


def conclusion(change: Estimate) -> str:
    if change.n < FEW_PAIRS or change.low is None or change.high is None:
        return "These are too few histories to conclude anything"
    if change.low <= 0 <= change.high:
        return "That is within what chance gives"
    return "Chance alone would rarely give so much"


def read_run(run: Path) -> RunMetrics:
    manifests = {stage: found for stage in STAGES if (found := read_json(run / stage / "manifest.json"))}
    curves = {stage: list(read_rows(run / stage / "metrics.jsonl")) for stage in TRAINED}
    supporters = as_dict(find(manifests.get("5-evaluate"), "figures", "supporters"))
    outputs = {
        name: objects(find(read_json(run / "5-evaluate" / f"outputs-{name}.json"), "outputs")) for name in supporters
    }
    return RunMetrics(manifests, curves, outputs)


def write_report(run: Path, recipe: dict[str, Any], path: Path) -> None:
    """Writes what the run found to `path`, one self-contained HTML file, whole or not at all."""
    metrics = read_run(run)
    settings = without_folder(dict(recipe))
    accuracy, chance = "Balanced accuracy by step (higher is better)", ("chance", 0.5)
    content: dict[str, Any] = {
        **{"run": metrics, "recipe": settings, "settings": toml(settings)},
        **{key: _recorded(metrics, key) for key in ("versions", "machine")},
        **{"stages": STAGES, "parts": PARTS, "steps": STEPS, "decisions": DECISIONS, "score_parts": SCORE_PARTS},
        **{"many_points": MANY_POINTS, "preferences": WORDS["preferences"], "chance_level": chance[1]},
        **{"conclusion": conclusion, "counted": counted, "model_name": _model_name},
        "packaged": lambda name: str(name) in PACKAGED_MODELS,
        "curves": lambda stage: _curves(metrics, stage),
        "judge_chart": dot_chart("judge-balanced", accuracy, _dots(metrics.balanced), SHARES, chance, percent),
        **{"supporter_charts": supporter_charts(metrics), "examples": examples(metrics)},
    }
    write_page(path, "run.html.jinja", **content)


def _recorded(metrics: RunMetrics, key: str) -> dict[str, str]:
    """Versions or machine, as the stages recorded them; where stages differ, all of them."""
    found: dict[str, list[str]] = {}
    for manifest in metrics.manifests.values():
        for name, value in as_dict(manifest.get(key)).items():
            found.setdefault(str(name), []).append(str(without_folder(value)))
    return {name: " / ".join(dict.fromkeys(values)) for name, values in found.items()}


def _model_name(name: Any) -> str:
    if name == "embedded":
        return "the packaged SmolLM2-135M-Instruct"
    if str(name) in PACKAGED_MODELS:
        return f"the packaged {name}"
    return BASES[str(name)].title if str(name) in BASES else str(name or "a model that is not known")


def counted(
    caption: str, head: list[str], counts: Mapping[str, float | None], names: Mapping[str, str] | None = None
) -> Table:
    rows = [[(names or {}).get(name, name), count(value)] for name, value in counts.items()]
    return Table(caption, head, rows or [[DASH, DASH]])


def _curves(run: RunMetrics, stage: str) -> Callable[..., Markup]:
    """Draws logged metrics of a training, each key under a name that people read."""
    rows = [(step, row) for row in run.curves.get(stage, []) if (step := number(row, "step")) is not None]

    def plot(name: str, title: str, unit: str, names: Mapping[str, str]) -> Markup:
        series = [Series(line, [(step, number(row, key)) for step, row in rows]) for key, line in names.items()]
        return line_chart(name, title, series, y_label=unit)

    return plot


def supporter_charts(run: RunMetrics) -> list[Markup]:
    if not run.supporters:
        return []
    title, first = "Mean score (higher is better)", _dots(run.scores)
    charts = [dot_chart("score", title, first, SCORES, words=lambda value: signed(value).removesuffix(".00"))]
    for decision in DECISIONS:
        title = f"{decision.capitalize()} as in the corpus (higher is better)"
        mark = ("always the most frequent", run.majority(decision))
        charts.append(dot_chart(decision, title, _dots(run.decisions(decision)), SHARES, mark, percent))
    return charts


def _dots(estimates: Mapping[str, Estimate]) -> Dots:
    return [(_short(name), found) for name, found in estimates.items()]


def _short(name: str) -> str:
    """A supporter's name that fits beside its row; the tables have it whole."""
    name = supporter_name(name)
    return name if len(name) <= 12 else f"{name[:11]}…"


def examples(run: RunMetrics) -> list[dict[str, Any]]:
    """The first histories that any supporter has answered, with all outputs; nobody chose them."""
    by_record: dict[str, dict[str, dict[str, Any]]] = {}
    for name, rows in run.outputs.items():
        for row in rows:
            by_record.setdefault(str(row.get("record")), {})[name] = row
    found = []
    for answers in list(by_record.values())[:MOST_EXAMPLES]:
        first = next(iter(answers.values()))
        history = [(_text(one.get("speaker")), _text(one.get("text"))) for one in objects(first.get("before"))]
        outputs = [_output(name, answers.get(name)) for name in run.supporters]
        history.append(("seeker", _text(first.get("said"))))
        found.append({"history": history, "reference": _text(first.get("reference")), "outputs": outputs})
    return found


def _output(name: str, row: dict[str, Any] | None) -> dict[str, Any]:
    if row is None:
        return {"supporter": name, "parsed": None}
    text, reasons = _text(row.get("text")), as_dict(row.get("missing")).values()
    # The text itself does not reveal that the model was stopped before its end.
    cut_off = row.get("cut_off") is True or any(str(reason).startswith("cut off") for reason in reasons)
    form = number(row, "parts", "format")
    verdicts = {str(part): _verdict(row, part) for part in PARTS}
    verdicts["format"] = (False, "") if form is None else (form > 0, "whole" if form > 0 else "broken")
    parsed = parse_turn(text, cut_off=cut_off)
    return {"supporter": name, "text": text, "parsed": parsed, "verdicts": verdicts, "total": number(row, "total")}


def _verdict(row: dict[str, Any], part: str) -> tuple[bool, str]:
    """Whether the judge found a part good, and in words how sure it was; no words where there is no verdict."""
    sign = number(row, "parts", part)
    if sign is None:
        return False, ""
    good, probabilities = sign > 0, as_dict(row.get("chances"))
    probability = probabilities.get(part)
    if isinstance(probability, dict):
        if void := probabilities.get("void"):
            return good, f"counts for nothing: {void}"
        answers = {name: known for name in WORDS["compared"] if (known := number(probability, name)) is not None}
        if answers:
            answer = max(answers, key=answers.__getitem__)
            return good, f"{WORDS['compared'][answer]}, {percent(answers[answer])}"
    known = number(probability)
    return good, str(good) if known is None else f"{good}, {percent(known if good else 1 - known)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else DASH
