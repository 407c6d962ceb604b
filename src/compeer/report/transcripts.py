"""The conversations of an evaluation's folder: who said what, what was noted, and the scores.

`dialogues/` holds the words, the reasoning and the seeker's facts; `scores.jsonl` what became of each conversation;
`judged.jsonl` what the judges wrote. What is missing or torn is left out or becomes a dash.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compeer.evaluate.answers import DIMENSIONS, HIGHEST
from compeer.report.charts import Curve, spark
from compeer.report.page import as_dict, as_list, as_number, find, number, read_rows
from compeer.report.wording import decimal, signed

Key = tuple[str, int]  # a scenario's id and the repeat, counted from 1
MARKS = {"success": "▲", "failure": "▼"}  # shapes beside the colours, for those who do not see them


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
    return int(as_number(row.get("repeat", 1)) or 1)


def _transcript(
    key: Key, log: Sequence[dict[str, Any]], scores: Mapping[str, Any], written: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A conversation as the page shows it."""
    head, entries = (as_dict(log[0].get("scenario")), log[1:]) if log else ({}, [])
    turns = [_turn(found) for entry in entries if isinstance(found := entry.get("turn"), dict)]
    closing = next((found for entry in reversed(entries) if (found := entry.get("closing"))), None)
    outcome = next((found for entry in reversed(entries) if isinstance(found := entry.get("outcome"), dict)), {})
    failed = scores.get("failed")
    emotions = [known for value in as_list(scores.get("emotions")) if (known := as_number(value)) is not None]
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
