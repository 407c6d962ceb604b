"""What an evaluation's folder tells, conversation by conversation: who said what, what was noted, and the scores.

The engine's logs (`dialogues/`) hold the words, the reasoning and the seeker's facts; `scores.jsonl` what became of
each conversation; `judged.jsonl` what the judges wrote. They are read leniently: what is missing or torn is left out
or becomes a dash, for a report is most needed when something went wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compeer.evaluate.esc_eval import DIMENSIONS
from compeer.evaluate.esc_eval.rubric import HIGHEST
from compeer.report.reading import as_number, find, read_lines
from compeer.report.tables import Table
from compeer.report.wording import DASH, decimal, signed

Key = tuple[str, int]
"""A scenario's id and the repeat, counted from 1."""
MARKS = {"success": "▲", "failure": "▼"}
"""Shapes beside the colours, for those who do not see them."""


@dataclass(frozen=True)
class Feeling:
    """The seeker's emotion at a turn, by how much the reply before it changed that, and why."""

    emotion: float
    change: str = ""
    reasons: str = ""

    @property
    def shown(self) -> str:
        return f"{self.emotion:g}"


@dataclass(frozen=True)
class ShownTurn:
    """One turn with what was thought and noted beside it; `missing` says which steps could not be read, and why."""

    speaker: str
    text: str
    reasoning: str | None = None
    feeling: Feeling | None = None
    cut_off: bool = False
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """What one judge wrote about one dimension."""

    judge: str
    dimension: str
    answer: str


@dataclass(frozen=True)
class Transcript:
    """A conversation as the page shows it.

    `score` is for ordering, `kind` is success, failure, failed or nothing. Where a model failed, `unused` holds its
    answers that could not be used.
    """

    scenario: str
    repeat: int
    language: str
    turns: list[ShownTurn]
    ending: str
    facts: dict[str, str]
    last: Feeling | None = None
    score: float | None = None
    kind: str = ""
    failed: str | None = None
    unused: list[str] = field(default_factory=list)
    emotions: list[float] = field(default_factory=list)
    by_judge: dict[str, Any] = field(default_factory=dict)
    unscored: dict[str, Any] = field(default_factory=dict)
    judged: list[Judged] = field(default_factory=list)

    @property
    def shown_score(self) -> str:
        """The final emotion as it is, or the mean of the dimensions with one decimal."""
        if self.score is None:
            return DASH
        return f"{self.score:g}" if self.emotions else decimal(self.score, 1)

    @property
    def mark(self) -> str:
        return MARKS.get(self.kind, "")

    @property
    def table(self) -> Table | None:
        """What the judges gave, dimension by dimension; None where none was asked."""
        return _score_table(self.by_judge, self.unscored) if self.by_judge else None


def read_scores(folder: Path) -> dict[Key, dict[str, Any]]:
    """The lines of `scores.jsonl` by scenario and repeat, in the order of the file."""
    return {(str(row.get("scenario")), _repeat(row)): row for row in read_lines(folder / "scores.jsonl")}


def transcripts_of(folder: Path, scores: Mapping[Key, Mapping[str, Any]]) -> list[Transcript]:
    """All conversations, in the order of the scores; those that have only a log, or only a score, are there too."""
    logs = dict(_logs(folder / "dialogues"))
    written: dict[Key, list[dict[str, Any]]] = {}
    for row in read_lines(folder / "judged.jsonl"):
        written.setdefault((str(row.get("conversation")), _repeat(row)), []).append(row)
    found = [_transcript(key, logs.pop(_name(key), []), row, written.get(key, [])) for key, row in scores.items()]
    return found + [_transcript((name, 1), log, {}, []) for name, log in logs.items()]


def _name(key: Key) -> str:
    """What a log calls a conversation: the scenario, and from the second repeat on its number."""
    scenario, repeat = key
    return scenario if repeat == 1 else f"{scenario}#{repeat}"


# --- one conversation -------------------------------------------------------------------------------------------------


def _logs(place: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each dialogue's log by what it calls the conversation: a head, then an entry a turn, then the end."""
    for path in sorted(place.glob("*.jsonl")):
        lines = list(read_lines(path))
        name = find(lines[0], "scenario", "id") if lines else None
        if isinstance(name, str):
            yield name, lines


def _transcript(
    key: Key, log: Sequence[dict[str, Any]], scores: Mapping[str, Any], written: Sequence[Mapping[str, Any]]
) -> Transcript:
    head, entries = (_dict(log[0].get("scenario")), log[1:]) if log else ({}, [])
    turns = [_turn(found) for entry in entries if isinstance(found := entry.get("turn"), dict)]
    closing = next((found for entry in reversed(entries) if (found := entry.get("closing"))), None)
    outcome = next((found for entry in reversed(entries) if isinstance(found := entry.get("outcome"), dict)), {})
    failed = scores.get("failed")
    emotions = [number for value in _list(scores.get("emotions")) if (number := as_number(value)) is not None]
    if emotions and turns and turns[0].feeling is None:  # words that were given come without notes
        turns[0] = replace(turns[0], feeling=Feeling(emotions[0]))
    by_judge, end = _dict(scores.get("judges")), scores.get("end")
    return Transcript(
        scenario=key[0],
        repeat=key[1],
        language=str(scores.get("language") or head.get("language") or ""),
        turns=turns,
        ending=_ending(outcome) or str(failed or "not finished"),
        facts={str(name): _plain(value) for name, value in _dict(head.get("facts")).items() if value},
        last=_feeling(closing) if isinstance(closing, dict) else None,
        score=as_number(scores.get("final")) if emotions or "final" in scores else conversation_score(by_judge),
        kind="failed" if failed else str(end) if end in MARKS else "",
        failed=str(failed) if failed else None,
        unused=_unused(entries) if failed else [],
        emotions=emotions,
        by_judge=by_judge,
        unscored=_dict(scores.get("unscored")),
        judged=[
            Judged(str(row.get("judge")), str(row.get("dimension")), answer)
            for row in written
            if isinstance(answer := row.get("answer"), str) and answer.strip()
        ],
    )


def _turn(turn: dict[str, Any]) -> ShownTurn:
    extra = _dict(turn.get("extra"))
    feeling = _feeling(extra)
    reasoning = turn.get("reasoning")
    if feeling and reasoning == feeling.reasons:  # the sentient seeker's reasoning is its reasons
        reasoning = None
    return ShownTurn(
        speaker=str(turn.get("speaker")),
        text=str(turn.get("text")),
        reasoning=str(reasoning) if reasoning else None,
        feeling=feeling,
        cut_off=bool(extra.get("cut_off")),
        missing={str(part): str(why) for part, why in _dict(extra.get("missing")).items()},
    )


def _feeling(notes: Mapping[str, Any]) -> Feeling | None:
    emotion, change, applied = (as_number(notes.get(name)) for name in ("emotion", "change", "applied"))
    if emotion is None:
        return None
    told = "" if change is None else _signed(change)
    if change is not None and applied is not None and change != applied:
        told = f"{_signed(applied)} (said {_signed(change)})"
    return Feeling(emotion, told, str(notes.get("reasons") or ""))


def _signed(value: float) -> str:
    return "±0" if value == 0 else signed(value, 0 if value == round(value) else 2)


def _ending(outcome: Mapping[str, Any]) -> str:
    """How the log says that it ended, in words; nothing where it does not."""
    if not outcome:
        return ""
    why, who, reason = (str(outcome.get(name) or "") for name in ("why", "who", "reason"))
    status = str(outcome.get("status"))
    return why if status == "ended" else f"{status}: {who}: {why}{f' ({reason})' if reason else ''}"


def _unused(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a model answered in vain before the conversation was given up."""
    calls = [call for call in _list(entries[-1].get("calls")) if isinstance(call, dict)] if entries else []
    return [str(call["answer"]) for call in calls if call.get("complaint") and call.get("answer")]


# --- scores of one conversation ---------------------------------------------------------------------------------------


def dimension_means(by_judge: Mapping[str, Any]) -> dict[str, float]:
    """Each dimension's mean over the judges that scored it; those that nobody scored are left out."""
    found = {}
    for dimension in DIMENSIONS:
        known = [number for judge in by_judge if (number := as_number(find(by_judge, judge, dimension))) is not None]
        if known:
            found[str(dimension)] = sum(known) / len(known)
    return found


def conversation_score(by_judge: Mapping[str, Any]) -> float | None:
    """The mean of the dimensions that were scored, from 0 to 100."""
    means = dimension_means(by_judge).values()
    return 100 * sum(means) / (HIGHEST * len(means)) if means else None


def _score_table(by_judge: Mapping[str, Any], unscored: Any) -> Table:
    means = dimension_means(by_judge)

    def cell(judge: str, dimension: str) -> str:
        number = as_number(find(by_judge, judge, dimension))
        if number is not None:
            return f"{number:g}"
        return str(find(unscored, judge, dimension) or "unscored")

    several = len(by_judge) > 1
    rows = [
        [
            dimension.capitalize(),
            *([decimal(means.get(dimension))] if several else []),
            *(cell(judge, dimension) for judge in by_judge),
        ]
        for dimension in DIMENSIONS
    ]
    head = ["dimension", *(["average"] if several else []), *by_judge]
    return Table(f"Scores from 0 to {HIGHEST}. Higher is better.", head, rows)


# --- reading ----------------------------------------------------------------------------------------------------------


def _repeat(row: Mapping[str, Any]) -> int:
    number = as_number(row.get("repeat", 1))
    return int(number) if number is not None else 1


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain(value: Any) -> str:
    """A fact in words: lists as lines, other structures as JSON."""
    if isinstance(value, list):
        return "\n".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
