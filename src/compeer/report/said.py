"""What was said: a few held-out histories, each with the corpus' reply and every supporter's output, read part by part.

The histories are the first ones in the order of the file. Nobody chose them, so they flatter nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from compeer.reasoning import LABELS, PARTS, parse_turn
from compeer.report.reading import RunFigures, as_number, find
from compeer.report.wording import DASH, signed, supporter_name

MOST = 5


@dataclass(frozen=True)
class PartSaid:
    """One part of an output: its text and decision if it could be read, else why not, and the judge's mark."""

    label: str
    mark: str
    text: str | None = None
    decision: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class OutputSaid:
    """One supporter's output for a history; `raw` is kept where something could not be read."""

    supporter: str
    parts: list[PartSaid] = field(default_factory=list)
    total: str = DASH
    format: str = ""
    raw: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Example:
    """A history's last words, the corpus' reply, and what each supporter made of it."""

    said: str
    reference: str
    outputs: list[OutputSaid]


def examples(figures: RunFigures) -> list[Example]:
    """The first few histories that any supporter has answered."""
    by_record: dict[str, dict[str, dict[str, Any]]] = {}
    for name, rows in figures.outputs.items():
        for row in rows:
            by_record.setdefault(str(row.get("record")), {})[name] = row
    found = []
    for answers in list(by_record.values())[:MOST]:
        first = next(iter(answers.values()))
        outputs = [_output(name, answers.get(name)) for name in figures.supporters]
        found.append(Example(_text(first.get("said")), _text(first.get("reference")), outputs))
    return found


def _output(name: str, row: dict[str, Any] | None) -> OutputSaid:
    if row is None:
        return OutputSaid(supporter_name(name))
    text = _text(row.get("text"))
    parsed = parse_turn(text, cut_off=_was_cut_off(row))
    parts = []
    for part in PARTS:
        label, mark = LABELS[part], _mark(find(row, "parts", part))
        read = parsed.parts.get(part)
        if read is None:
            parts.append(PartSaid(label, mark, why=parsed.missing.get(part, "not there")))
        elif isinstance(read, str):
            parts.append(PartSaid(label, mark, text=read))
        else:
            parts.append(PartSaid(label, mark, text=read.text, decision=read.decision))
    return OutputSaid(
        supporter_name(name),
        parts,
        signed(as_number(row.get("total")), 0),
        _mark(find(row, "parts", "format")),
        raw=None if parsed.complete else text,
        problems=parsed.problems,
    )


def _was_cut_off(row: dict[str, Any]) -> bool:
    """Whether the model was stopped before its end, which the text alone does not show."""
    missing = row.get("missing")
    reasons = missing.values() if isinstance(missing, dict) else []
    return row.get("cut_off") is True or any(str(reason).startswith("cut off") for reason in reasons)


def _mark(value: Any) -> str:
    """'+', '−', or nothing where the judge gave no verdict."""
    number = as_number(value)
    return "" if number is None else "+" if number > 0 else "−"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else DASH
