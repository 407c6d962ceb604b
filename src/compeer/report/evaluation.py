"""The report of an evaluation: one self-contained HTML page made from nothing but an evaluation's folder.

`write_evaluation(FOLDER)` writes `report.html` beside `scores.jsonl`, what became of each conversation, `judged.jsonl`,
what the judges wrote, `dialogues/` with the words, the reasoning and the seeker's facts, and `figures.json`, of which
it reads the keys below. What is missing or torn is left out or becomes a dash.

    protocol, supporter, seeker, judges, mode, seed, scenarios, repeats, settings, versions, hashes
    figures     esc-eval: what `measure_esc_eval` gives; sage: emotion, success, failure, replies, by_repeat
    failures    {"model": {reason: times}, "infrastructure": {reason: times}}
    cost        {"roles": {role: {"calls", "prompt_tokens", "tokens"}}, "seconds", and "price" with its "currency"}

Utterances are escaped everywhere, and the page's policy lets no script run but its own, which only pages through the
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
from compeer.report.charts import Curve, bar_chart, dot_chart, emotion_chart, spark
from compeer.report.page import Table, as_dict, as_estimate, as_list, find, number, read_rows, write_page
from compeer.report.wording import DASH, count, decimal, listing, signed, without_folder
from compeer.statistics import mean

PROTOCOLS = {"esc-eval": "ESC-Eval", "sage": "SAGE"}
HUNDRED = (0.0, 25.0, 50.0, 75.0, 100.0)
Key = tuple[str, int]  # a scenario's id and the repeat, counted from 1
MARKS = {"success": "▲", "failure": "▼"}  # shapes beside the colours, for those who do not see them


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
        "broken": sum(number(times) or 0 for times in as_dict(find(written, "failures", "infrastructure")).values()),
        **{"charts": _charts(is_sage, metrics, transcripts), "coverage": _coverage_table(transcripts)},
        **{"dimensions": DIMENSIONS, "highest": HIGHEST},
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


def _of(part: float | None, whole: float | None) -> str:
    return f"{count(part)}\u00a0of\u00a0{count(whole)}"


def _charts(is_sage: bool, metrics: Mapping[str, Any], transcripts: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """Emotion curves, or a dot with its interval for each dimension; beside them how single conversations came out."""
    if is_sage:
        first = emotion_chart([Curve(one["emotions"], one["kind"]) for one in transcripts if not one["failed"]])
    else:
        found = {name.capitalize(): find(metrics, "dimensions", name) for name in DIMENSIONS}
        found["Average"] = metrics.get("average")
        dots = [(name, as_estimate(one, "score")) for name, one in found.items()]
        title = "Score by dimension, with 95 % intervals (higher is better)"
        first = dot_chart("dimensions", title, dots, HUNDRED, words=lambda value: decimal(value, 0))
    scores = [one["score"] for one in transcripts if one["score"] is not None]
    title = f"Conversations by {'final emotion' if is_sage else 'mean score'} (higher is better)"
    second = bar_chart("spread", title, {name: [times] for name, times in bands(scores).items()} if scores else {})
    endings = Counter("failed" if one["failed"] else one["ending"] for one in transcripts)
    if len(endings) > 1:
        bars = {name: [times] for name, times in endings.most_common()}
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


def read_transcripts(folder: Path) -> list[dict[str, Any]]:
    """All conversations, in the order of the scores; those that have only a log, or only a score, are there too."""
    scores = {(str(row.get("scenario")), _repeat(row)): row for row in read_rows(folder / "scores.jsonl")}
    logs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((folder / "dialogues").glob("*.jsonl")):
        lines = list(read_rows(path))
        if lines and isinstance(name := find(lines[0], "scenario", "id"), str):
            logs[name] = lines
    written: dict[Key, list[dict[str, Any]]] = {}
    for row in read_rows(folder / "judged.jsonl"):
        written.setdefault((str(row.get("conversation")), _repeat(row)), []).append(row)
    found = []
    for key, row in scores.items():
        name = key[0] if key[1] == 1 else f"{key[0]}#{key[1]}"  # as a log names a conversation
        found.append(_transcript(key, logs.pop(name, []), row, written.get(key, [])))
    return found + [_transcript((name, 1), log, {}, []) for name, log in logs.items()]


def _repeat(row: Mapping[str, Any]) -> int:
    return int(number(row.get("repeat", 1)) or 1)


def _transcript(
    key: Key, log: Sequence[dict[str, Any]], scores: Mapping[str, Any], written: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A conversation as the page shows it."""
    head, entries = (as_dict(log[0].get("scenario")), log[1:]) if log else ({}, [])
    turns = [_turn(found) for entry in entries if isinstance(found := entry.get("turn"), dict)]
    closing = next((found for entry in reversed(entries) if (found := entry.get("closing"))), None)
    outcome = next((found for entry in reversed(entries) if isinstance(found := entry.get("outcome"), dict)), {})
    failed = scores.get("failed")
    emotions = [known for value in as_list(scores.get("emotions")) if (known := number(value)) is not None]
    if emotions and turns and turns[0]["feeling"] is None:  # words that were given come without notes
        turns[0]["feeling"] = _feeling({"emotion": emotions[0]})
    by_judge, end = as_dict(scores.get("judges")), scores.get("end")
    calls = as_list(entries[-1].get("calls")) if failed and entries else []
    score = number(scores, "final") if emotions or "final" in scores else conversation_score(by_judge)
    displayed = f"{score:g}" if emotions and score is not None else decimal(score, 1)
    kind = "failed" if failed else str(end) if end in MARKS else ""
    return {
        **{"scenario": key[0], "repeat": key[1], "turns": turns, "last": _feeling(as_dict(closing)), "kind": kind},
        "language": str(scores.get("language") or head.get("language") or ""),
        "ending": _ending(outcome) or str(failed or "not finished"),
        "facts": {str(name): _plain(value) for name, value in as_dict(head.get("facts")).items() if value},
        **{"score": score, "displayed_score": "failed" if failed else displayed, "mark": MARKS.get(kind, "")},
        "failed": str(failed) if failed else None,
        # where a model failed, its answers that could not be used
        "unused": [str(call["answer"]) for call in calls if find(call, "complaint") and find(call, "answer")],
        **{"emotions": emotions, "spark": spark(Curve(emotions, kind)) if len(emotions) > 1 else ""},
        **{"by_judge": by_judge, "means": dimension_means(by_judge), "unscored": as_dict(scores.get("unscored"))},
        "judged": [row for row in written if isinstance(row.get("answer"), str) and row["answer"].strip()],
    }


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    extra, reasoning = as_dict(turn.get("extra")), turn.get("reasoning")
    feeling = _feeling(extra)
    if feeling and reasoning == feeling["reasons"]:  # the sentient seeker's reasoning is its reasons
        reasoning = None
    return {
        "speaker": str(turn.get("speaker")),
        "text": str(turn.get("text")),
        "reasoning": reasoning,
        "feeling": feeling,
        "cut_off": bool(extra.get("cut_off")),
        "missing": as_dict(extra.get("missing")),
    }


def _feeling(notes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The seeker's emotion at a turn, by how much the reply before it changed that, and why."""
    emotion, change, applied = (number(notes, name) for name in ("emotion", "change", "applied"))
    if emotion is None:
        return None
    displayed = "" if change is None else _signed(change)
    if change is not None and applied is not None and change != applied:
        displayed = f"{_signed(applied)} (said {_signed(change)})"
    return {"emotion": emotion, "change": displayed, "reasons": str(notes.get("reasons") or "")}


def _signed(value: float) -> str:
    return "±0" if value == 0 else signed(value, 0 if value == round(value) else 2)


def _ending(outcome: Mapping[str, Any]) -> str:
    """How the log says that it ended, in words; nothing where it does not."""
    if not outcome:
        return ""
    why, who, reason = (str(outcome.get(name) or "") for name in ("why", "who", "reason"))
    status = str(outcome.get("status"))
    return why if status == "ended" else f"{status}: {who}: {why}{f' ({reason})' if reason else ''}"


def _plain(value: Any) -> str:
    """A fact in words: lists as lines, other structures as JSON."""
    if isinstance(value, list):
        return "\n".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def dimension_means(by_judge: Mapping[str, Any]) -> dict[str, float]:
    """Each dimension's mean over the judges that scored it; those that nobody scored are left out."""
    found = {}
    for dimension in DIMENSIONS:
        known = [given for judge in by_judge if (given := number(by_judge, judge, dimension)) is not None]
        if known:
            found[str(dimension)] = sum(known) / len(known)
    return found


def conversation_score(by_judge: Mapping[str, Any]) -> float | None:
    """The mean of the dimensions that were scored, from 0 to 100."""
    means = dimension_means(by_judge).values()
    return 100 * sum(means) / (HIGHEST * len(means)) if means else None
