"""The report of an evaluation: one self-contained HTML page made from an evaluation's folder alone.

`write_evaluation(FOLDER)` reads `figures.json`, `scores.jsonl`, `judged.jsonl` and the dialogues' logs and writes
`report.html` beside them: the metrics with their intervals and what they rest on, what failed and why, what it cost,
and every transcript to page through. Of `figures.json` the page reads

    protocol, supporter, seeker, judges, mode, seed, scenarios, repeats, settings, versions, hashes
    figures     esc-eval: what `measure_esc_eval` gives; sage: emotion, success, failure, replies, by_repeat
    failures    {"model": {reason: times}, "infrastructure": {reason: times}}
    cost        {"roles": {role: {"calls", "prompt_tokens", "tokens"}}, "seconds", and "price" with its "currency"}

What was said is escaped everywhere, and the page's policy lets no script run but its own, which only pages through the
transcripts; without it they stand closed, one below the other.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from compeer.errors import InputError
from compeer.evaluate.answers import DIMENSIONS, HIGHEST
from compeer.io import read_json
from compeer.report.charts import Bar, Curve, Dot, bar_chart, dot_chart, emotion_chart
from compeer.report.page import Table, as_dict, as_estimate, as_list, as_number, find, number, write_page
from compeer.report.transcripts import read_transcripts
from compeer.report.wording import DASH, count, decimal, listing, without_folder
from compeer.statistics import mean

PROTOCOLS = {"esc-eval": "ESC-Eval", "sage": "SAGE"}
HUNDRED = (0.0, 25.0, 50.0, 75.0, 100.0)


def write_evaluation(folder: Path) -> Path:
    written = _read_metrics(folder / "figures.json")
    transcripts = read_transcripts(folder)
    metrics, is_sage = as_dict(written.get("figures")), written["protocol"] == "sage"
    script = files("compeer.report").joinpath("evaluation.js").read_text(encoding="utf-8")
    content: dict[str, Any] = {
        **{"written": written, "metrics": metrics, "is_sage": is_sage, "transcripts": transcripts},
        **{"protocol": PROTOCOLS[written["protocol"]], "scenarios": number(written, "scenarios")},
        **{key: _model(written.get(key)) for key in ("supporter", "seeker")},
        "judges": [_model(judge) for judge in as_list(written.get("judges"))],
        "main": metrics.get("emotion" if is_sage else "average"),
        "broken": sum(as_number(times) or 0 for times in as_dict(find(written, "failures", "infrastructure")).values()),
        **{"charts": _charts(is_sage, metrics, transcripts), "coverage": _coverage_table(transcripts)},
        **{"folded": _folded(written), "dimensions": DIMENSIONS, "highest": HIGHEST},
        **{"mean": mean, "of": _of, "estimate": partial(as_estimate, key="score")},
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return write_page(folder / "report.html", "evaluation.html.jinja", **content)


def _read_metrics(path: Path) -> dict[str, Any]:
    do = "Give the folder of an evaluation: compeer evaluate esc-eval, or sage, makes one."
    found = read_json(path)
    if found is None:
        raise InputError("this is no JSON object." if path.is_file() else "there is no such file.", file=path, do=do)
    if found.get("protocol") not in PROTOCOLS:
        raise InputError(f"it is not one of {listing(list(PROTOCOLS))}.", file=path, field="protocol", do=do)
    return found


def _model(name: Any) -> str:
    """A model's name; of a path only the last part."""
    return str(without_folder(name)).removeprefix("…/") if name else DASH


def _folded(written: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings, hashes and versions as text; paths and addresses of the machine are left out."""
    return [
        (key.capitalize(), json.dumps(_without_addresses(without_folder(found)), indent=2, ensure_ascii=False))
        for key in ("settings", "hashes", "versions")
        if (found := as_dict(written.get(key)))
    ]


def _without_addresses(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_addresses(inner) for key, inner in value.items() if key != "url"}
    return value


def _of(part: float | None, whole: float | None) -> str:
    return f"{count(part)}\u00a0of\u00a0{count(whole)}"


def _charts(is_sage: bool, metrics: Mapping[str, Any], transcripts: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """Emotion curves, or a dot with its interval for each dimension; beside them how single conversations came out."""
    if is_sage:
        first = emotion_chart([Curve(one["emotions"], one["kind"]) for one in transcripts if not one["failed"]])
    else:
        found = {name.capitalize(): find(metrics, "dimensions", name) for name in DIMENSIONS}
        found["Average"] = metrics.get("average")
        dots = [Dot(name, *(number(one, key) for key in ("score", "low", "high"))) for name, one in found.items()]
        title = "Score by dimension, with 95 % intervals (higher is better)"
        first = dot_chart("dimensions", title, dots, HUNDRED, words=lambda value: decimal(value, 0))
    scores = [one["score"] for one in transcripts if one["score"] is not None]
    title = f"Conversations by {'final emotion' if is_sage else 'mean score'} (higher is better)"
    second = bar_chart("spread", title, [Bar(name, [times]) for name, times in bands(scores).items()] if scores else [])
    endings = Counter("failed" if one["failed"] else one["ending"] for one in transcripts)
    if len(endings) > 1:
        bars = [Bar(name, [times]) for name, times in endings.most_common()]
        second += bar_chart("endings", "How the conversations ended", bars)
    return [first, Markup('<div class="stack">{}</div>').format(second)]


def bands(scores: Sequence[float]) -> dict[str, int]:
    """How many scores lie in each fifth of the scale from 0 to 100; a border belongs to the fifth above it."""
    fifths = Counter(min(int(score // 20), 4) for score in scores)
    return {f"{20 * fifth} to {20 * fifth + 20}": fifths[fifth] for fifth in range(5)}


def _coverage_table(transcripts: Sequence[Mapping[str, Any]]) -> Table:
    judges = list(dict.fromkeys(judge for one in transcripts for judge in one["by_judge"]))
    rows = []
    for name in DIMENSIONS:
        cells, reasons = [], Counter[str]()
        for judge in judges:
            asked = [one for one in transcripts if judge in one["by_judge"]]
            scored = sum(number(one["by_judge"], judge, name) is not None for one in asked)
            cells.append(_of(scored, len(transcripts)))
            reasons.update(str(why) for one in asked if (why := find(one["unscored"], judge, name)))
        rows.append([name.capitalize(), *cells, ", ".join(f"{why} {times}" for why, times in reasons.items()) or DASH])
    caption = "Conversations scored, by dimension and judge. What is unscored is in no figure."
    return Table(caption, ["dimension", *judges, "unscored, why"], rows if judges else [])
