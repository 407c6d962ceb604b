"""The report of a run: what came out, what was said, what it does not show, and how to repeat it, on one page.

The prose and the tables are in `run.html.jinja`; here are the charts, and a few histories with all outputs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from compeer.models.catalogue import BASES, PACKAGED_MODELS
from compeer.reasoning import PARTS, STEPS, parse_turn
from compeer.report.charts import MANY_POINTS, Dot, Series, dot_chart, line_chart
from compeer.report.page import Table, as_dict, as_list, as_number, number, write_page
from compeer.report.run_metrics import DECISIONS, STAGES, RunMetrics, conclusion, read_run
from compeer.report.wording import DASH, WORDS, count, percent, signed, supporter_name, toml, without_folder
from compeer.statistics import Estimate

MOST_EXAMPLES = 5
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SCORES = (-5.0, -3.0, -1.0, 1.0, 3.0, 5.0)
SCORE_PARTS = ("history", "emotion", "strategy", "response", "format")


def write_report(run: Path, recipe: dict[str, Any], path: Path) -> None:
    """Writes what the run found to `path`, one self-contained HTML file, whole or not at all."""
    metrics = read_run(run, recipe)
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
        mark = ("always the most frequent", run.supporter(run.supporters[0], "decisions", decision, "majority"))
        charts.append(dot_chart(decision, title, _dots(run.decisions(decision)), SHARES, mark, percent))
    return charts


def _dots(estimates: Mapping[str, Estimate]) -> list[Dot]:
    return [Dot(_short(name), found.value, found.low, found.high) for name, found in estimates.items()]


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
        earlier = [one for one in as_list(first.get("before")) if isinstance(one, dict)]
        history = [(_text(one.get("speaker")), _text(one.get("text"))) for one in earlier]
        outputs = [_output(name, answers.get(name)) for name in run.supporters]
        history.append(("seeker", _text(first.get("said"))))
        found.append({"history": history, "reference": _text(first.get("reference")), "outputs": outputs})
    return found


def _output(name: str, row: dict[str, Any] | None) -> dict[str, Any]:
    if row is None:
        return {"supporter": name, "parsed": None}
    text, reasons = _text(row.get("text")), as_dict(row.get("missing")).values()
    # That the model was stopped before its end the text alone does not show.
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
    known = as_number(probability)
    return good, str(good) if known is None else f"{good}, {percent(known if good else 1 - known)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else DASH
