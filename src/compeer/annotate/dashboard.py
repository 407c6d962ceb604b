"""The figures of a project as it stands: agreement, drift from gold, label balance, pace, and what is left.

Agreement is of first labels alone, those given without seeing another's, once both are frozen. An item's week is that
of its second label. Names do not occur, only pseudonyms.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from compeer.annotate.agreement import cohens_kappa, krippendorff, percent
from compeer.annotate.gather import Given, LabelledItem, agreed, labelled_items
from compeer.annotate.people import Person, require
from compeer.annotate.projects import Project, project_by_id
from compeer.annotate.queue import freeze_all
from compeer.annotate.store import Store
from compeer.annotate.tasks import QUESTIONS, Question
from compeer.statistics import wilson

WEEK = 7 * 86_400_000


def dashboard(store: Store, project: int, actor: Person | None = None) -> dict[str, Any]:
    """All figures of a project, ready for JSON."""
    require(actor, "admin")
    freeze_all(store)
    with store.read() as connection:
        chosen = project_by_id(connection, project)
        items = labelled_items(connection, project)
    return figures(chosen, items, store.now())


def figures(project: Project, items: Sequence[LabelledItem], now: int) -> dict[str, Any]:
    """The same from items at hand."""
    stages = Counter(item.stage for item in items)
    real = [item for item in items if item.kind == "real"]
    doubled = [item for item in real if item.is_doubled]
    return {
        "project": project.name,
        "task": project.task,
        "stages": dict(sorted(stages.items())),
        "questions": {
            question.name: _question(question, project, real, doubled) for question in QUESTIONS[project.task]
        },
        "pairs": _pairs(QUESTIONS[project.task], doubled),
        "gold": _gold([item for item in items if item.kind == "gold"], now),
        "training": _known_answers([item for item in items if item.kind == "training"]),
        "pace": _pace(items, real, stages, now),
    }


# --- agreement --------------------------------------------------------------------------------------------------------


def _question(
    question: Question, project: Project, real: Sequence[LabelledItem], doubled: Sequence[LabelledItem]
) -> dict[str, Any]:
    balance: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item in real:
        for label in item.firsts:
            balance[label.pseudonym][str(label.answers[question.name])] += 1
    closed = [item for item in real if item.stage == "closed"]
    dropped = sum(agreed(item, project.task)[question.name] is None for item in closed)

    def by(keys: Callable[[LabelledItem], Iterable[str]]) -> dict[str, Any]:
        parts: defaultdict[str, list[LabelledItem]] = defaultdict(list)
        for item in doubled:
            for key in keys(item):
                parts[key].append(item)
        return {key: _figures(question, parts[key]) for key in sorted(parts)}

    return {
        **_figures(question, doubled),
        "without_consensus": dropped,
        "by_annotator": by(lambda item: (label.pseudonym for label in item.firsts)),
        "by_author": by(lambda item: (item.author,)),
        "by_week": by(lambda item: (_week(item.firsts[1].at),)),
        "balance": {name: dict(sorted(counts.items())) for name, counts in sorted(balance.items())},
    }


def _figures(question: Question, doubled: Sequence[LabelledItem]) -> dict[str, Any]:
    """Percent and α of some items."""
    pairs = [(item.firsts[0].answers[question.name], item.firsts[1].answers[question.name]) for item in doubled]
    dialogues = [item.dialogue or str(item.id) for item in doubled]
    alpha = krippendorff(pairs, question.values, ordered=question.ordered, groups=dialogues)
    return {"items": len(doubled), "percent": percent(pairs), "alpha": asdict(alpha)}


def _pairs(questions: Sequence[Question], doubled: Sequence[LabelledItem]) -> list[dict[str, Any]]:
    """For each pair of annotators, and each question, the percentage and κ."""
    shared: defaultdict[tuple[str, str], list[tuple[Given, Given]]] = defaultdict(list)
    for item in doubled:
        one, other = sorted(item.firsts, key=lambda label: label.person)
        shared[one.pseudonym, other.pseudonym].append((one, other))
    rows = []
    for pair, labels in sorted(shared.items()):
        told = {}
        for question in questions:
            answers = [(one.answers[question.name], other.answers[question.name]) for one, other in labels]
            told[question.name] = {"percent": percent(answers), "kappa": cohens_kappa(answers)}
        rows.append({"annotators": list(pair), "items": len(labels), "questions": told})
    return rows


# --- gold, training, pace ---------------------------------------------------------------------------------------------


def _gold(items: Sequence[LabelledItem], now: int) -> dict[str, Any]:
    """How often each annotator gives a gold item's answers, by week, and who has become worse."""
    told = _known_answers(items)
    right: defaultdict[str, list[tuple[int, bool]]] = defaultdict(list)
    for item in items:
        for label in item.labels:
            right[label.pseudonym] += [(label.at, value) for value in _right(label, item)]
    for name, answers in right.items():
        weeks: defaultdict[str, list[bool]] = defaultdict(list)
        for at, value in answers:
            weeks[_week(at)].append(value)
        told[name]["by_week"] = {week: _share(values) for week, values in sorted(weeks.items())}
        late = [value for at, value in answers if at > now - WEEK]
        early = [value for at, value in answers if at <= now - WEEK]
        # Drifting: what is right now lies surely below what was right before.
        told[name]["drifting"] = bool(late and early) and wilson(sum(late), len(late))[1] < sum(early) / len(early)
    return told


def _known_answers(items: Sequence[LabelledItem]) -> dict[str, Any]:
    values: defaultdict[str, list[bool]] = defaultdict(list)
    for item in items:
        for label in item.labels:
            values[label.pseudonym] += _right(label, item)
    return {name: _share(right) for name, right in sorted(values.items())}


def _right(label: Given, item: LabelledItem) -> list[bool]:
    known = item.known or {}
    return [label.answers[name] == known[name] for name in known if name in label.answers]


def _share(right: Sequence[bool]) -> dict[str, Any]:
    low, high = wilson(sum(right), len(right))
    return {"answers": len(right), "right": sum(right) / len(right), "low": low, "high": high}


def _pace(
    items: Sequence[LabelledItem], real: Sequence[LabelledItem], stages: Counter[str], now: int
) -> dict[str, Any]:
    labels = list(itertools.chain.from_iterable(item.labels for item in items))
    people = {}
    for name in sorted({label.pseudonym for label in labels}):
        own = [label for label in labels if label.pseudonym == name]
        hours = sum(label.seconds for label in own) / 3600
        people[name] = {
            "labels": len(own),
            "hours": hours,
            "labels_an_hour": len(own) / hours if hours else None,
            "last_week": sum(label.at > now - WEEK for label in own),
        }
    timed = [label.seconds for label in labels if label.seconds and label.role == "first"]
    settled = [item for item in real if item.is_doubled]
    disputed = sum(item.firsts[0].answers != item.firsts[1].answers for item in settled)
    waiting = sum(stages[stage] for stage in ("adjudicate", "adjudicating"))
    missing = sum(2 - len(item.firsts) for item in real if item.stage in ("fresh", "half", "full"))
    to_come = waiting + missing / 2 * (disputed / len(settled) if settled else 0)
    seconds = statistics.median(timed) if timed else None
    return {
        "annotators": people,
        "first_labels_left": missing,
        "adjudications_expected": round(to_come),
        "hours_left": (missing + to_come) * seconds / 3600 if seconds is not None else None,
    }


def _week(at: int) -> str:
    year, week, _ = datetime.fromtimestamp(at / 1000, UTC).isocalendar()
    return f"{year}-W{week:02d}"
