"""What was said: a few held-out histories, each with the corpus' reply and every supporter's output, read part by part.

The histories are the first ones in the order of the file. Nobody chose them, so they flatter nobody. Beside each part
stands what the judge said of it, and how sure it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from compeer.reasoning import LABELS, PARTS, STEPS, parse_turn
from compeer.report.reading import RunFigures, as_number, find
from compeer.report.wording import DASH, percent, signed, supporter_name

MOST = 5
_COMPARED = {"candidate": "better", "both": "as good", "reference": "worse", "neither": "neither is good"}
"""How a response compares with the corpus' reply, in the judge's four answers."""


@dataclass(frozen=True)
class Verdict:
    """What the judge said of a part, in words with its probability where it is known; empty words: it was not asked."""

    good: bool = False
    words: str = ""


@dataclass(frozen=True)
class PartSaid:
    """One part of an output: its text and decision if it could be read, else why not, and the judge's verdict."""

    label: str
    verdict: Verdict
    is_step: bool
    text: str | None = None
    decision: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class OutputSaid:
    """One supporter's output for a history; `raw` is kept where something could not be read."""

    supporter: str
    parts: list[PartSaid] = field(default_factory=list)
    total: str = DASH
    format: Verdict = Verdict()
    raw: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def is_unreadable(self) -> bool:
        """Whether nothing but the raw output shows what was said."""
        return all(part.text is None for part in self.parts)


@dataclass(frozen=True)
class Example:
    """A history's last utterances (speaker and text), the corpus' reply, and what each supporter made of it."""

    history: list[tuple[str, str]]
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
        found.append(Example(_history(first), _text(first.get("reference")), outputs))
    return found


def _history(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The last utterances; a run of an older version kept only the seeker's last words."""
    before = row.get("before")
    earlier = [one for one in before if isinstance(one, dict)] if isinstance(before, list) else []
    said = [(_text(one.get("speaker")), _text(one.get("text"))) for one in earlier]
    return [*said, ("seeker", _text(row.get("said")))]


def _output(name: str, row: dict[str, Any] | None) -> OutputSaid:
    if row is None:
        return OutputSaid(supporter_name(name))
    text = _text(row.get("text"))
    parsed = parse_turn(text, cut_off=_was_cut_off(row))
    parts = []
    for part in PARTS:
        label, verdict, is_step = LABELS[part], _verdict(row, part), part in STEPS
        read = parsed.parts.get(part)
        if read is None:
            parts.append(PartSaid(label, verdict, is_step, why=parsed.missing.get(part, "not there")))
        elif isinstance(read, str):
            parts.append(PartSaid(label, verdict, is_step, text=read))
        else:
            parts.append(PartSaid(label, verdict, is_step, text=read.text, decision=read.decision))
    return OutputSaid(
        supporter_name(name),
        parts,
        signed(as_number(row.get("total")), 0),
        _format(row),
        raw=None if parsed.complete else text,
        problems=parsed.problems,
    )


def _was_cut_off(row: dict[str, Any]) -> bool:
    """Whether the model was stopped before its end, which the text alone does not show."""
    missing = row.get("missing")
    reasons = missing.values() if isinstance(missing, dict) else []
    return row.get("cut_off") is True or any(str(reason).startswith("cut off") for reason in reasons)


def _verdict(row: dict[str, Any], part: str) -> Verdict:
    """True or False for a step, how it compares for the response; without words where there is no verdict."""
    sign = as_number(find(row, "parts", part))
    if sign is None:
        return Verdict()
    good, chance = sign > 0, find(row, "chances", part)
    if isinstance(chance, dict):
        if void := find(row, "chances", "void"):
            return Verdict(good, f"counts for nothing: {void}")
        answers = {name: number for name in _COMPARED if (number := as_number(chance.get(name))) is not None}
        if not answers:
            return Verdict(good, str(good))
        said = max(answers, key=answers.__getitem__)
        return Verdict(good, f"{_COMPARED[said]}, {percent(answers[said])}")
    known = as_number(chance)
    if known is None:
        return Verdict(good, str(good))
    return Verdict(good, f"{good}, {percent(known if good else 1 - known)}")


def _format(row: dict[str, Any]) -> Verdict:
    sign = as_number(find(row, "parts", "format"))
    return Verdict() if sign is None else Verdict(sign > 0, "whole" if sign > 0 else "broken")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else DASH
