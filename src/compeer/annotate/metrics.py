"""The metrics of a project as it stands: agreement, drift from gold, label balance, pace, and what is left.

Agreement is of first labels only, those given without knowing another's, once both are frozen. An item's week is that
of its second label. Names do not occur, only pseudonyms.
"""

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Row

from compeer.annotate.people import DAY
from compeer.annotate.projects import Project
from compeer.annotate.questions import QUESTIONS, Answer, LabelQuestion, TaskKind, consensus
from compeer.statistics import Estimate, cohens_kappa, krippendorff, percent, wilson

K = TypeVar("K", bound="int | str | tuple[str, str]")
V = TypeVar("V")
WEEK = 7 * DAY


@dataclass(frozen=True)
class LabelledItem:
    """An item and its labels, the earliest first: rows of the tables, the labels with the annotator's pseudonym."""

    row: Row[Any]
    labels: tuple[Row[Any], ...]

    @property
    def firsts(self) -> tuple[Row[Any], ...]:
        """The labels of those who judged without knowing another's."""
        return tuple(label for label in self.labels if label.role == "first")

    @property
    def is_doubled(self) -> bool:
        """Whether two people have judged it, and neither can correct their label any more."""
        return len(self.firsts) == 2 and self.row.stage != "full"

    def consensus(self, task: TaskKind) -> dict[str, Answer | None]:
        """For each question what two of the annotators answered, or None."""
        counted = [label.answers for label in self.labels if label.role in ("first", "adjudication")]
        return consensus(counted, [question.name for question in QUESTIONS[task]])


def project_metrics(project: Project, items: Sequence[LabelledItem], now: int) -> dict[str, Any]:
    stages = Counter(item.row.stage for item in items)
    doubled = [item for item in items if item.is_doubled]
    training = _right([item for item in items if item.row.kind == "training"])
    questions = QUESTIONS[project.task]
    return {
        "project": project.name,
        "task": project.task,
        "stages": dict(sorted(stages.items())),
        "questions": {question.name: _question(question, project, items) for question in questions},
        "pairs": _pairs(questions, doubled),
        "gold": _gold([item for item in items if item.row.kind == "gold"], now),
        "training": {name: _share([right for _, right in answers]) for name, answers in training.items()},
        "pace": _pace(items, doubled, now),
    }


def _question(question: LabelQuestion, project: Project, items: Sequence[LabelledItem]) -> dict[str, Any]:
    balance: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item in items:
        for label in item.firsts:
            balance[label.pseudonym][str(label.answers[question.name])] += 1
    doubled, closed = (
        [item for item in items if item.is_doubled],
        [item for item in items if item.row.stage == "closed"],
    )

    def agreement(items: Sequence[LabelledItem]) -> dict[str, Any]:
        pairs = [(item.firsts[0].answers[question.name], item.firsts[1].answers[question.name]) for item in items]
        dialogues = [item.row.dialogue or str(item.row.id) for item in items]
        alpha = krippendorff(pairs, question.values, ordered=question.ordered, groups=dialogues)
        described = {"value": alpha.value, "low": alpha.low, "high": alpha.high, "units": alpha.n}
        return {"items": len(items), "percent": percent(pairs), "alpha": described}

    def by(keys: Callable[[LabelledItem], Iterable[str]]) -> dict[str, Any]:
        parts = groups((key, item) for item in doubled for key in keys(item))
        return {key: agreement(part) for key, part in parts.items()}

    return {
        **agreement(doubled),
        "without_consensus": sum(item.consensus(project.task)[question.name] is None for item in closed),
        "by_annotator": by(lambda item: (label.pseudonym for label in item.firsts)),
        "by_author": by(lambda item: (item.row.author,)),
        "by_week": by(lambda item: (_week(item.firsts[1].at),)),
        "balance": {name: dict(sorted(counts.items())) for name, counts in sorted(balance.items())},
    }


def _pairs(questions: Sequence[LabelQuestion], doubled: Sequence[LabelledItem]) -> list[dict[str, Any]]:
    both = [sorted(item.firsts, key=lambda label: label.person) for item in doubled]
    rows = []
    for pair, labels in groups(((one.pseudonym, other.pseudonym), (one, other)) for one, other in both).items():
        found = {}
        for question in questions:
            answers = [(one.answers[question.name], other.answers[question.name]) for one, other in labels]
            found[question.name] = {"percent": percent(answers), "kappa": cohens_kappa(answers)}
        rows.append({"annotators": list(pair), "items": len(labels), "questions": found})
    return rows


def _gold(items: Sequence[LabelledItem], now: int) -> dict[str, Any]:
    """How often each annotator gives a gold item's answers, by week, and who has become worse."""
    found = {}
    for name, answers in _right(items).items():
        weeks = groups((_week(at), right) for at, right in answers)
        late = [right for at, right in answers if at > now - WEEK]
        early = [right for at, right in answers if at <= now - WEEK]
        found[name] = _share([right for _, right in answers]) | {
            "by_week": {week: _share(values) for week, values in weeks.items()},
            # Drifting: what is right now lies surely below what was right before.
            "drifting": bool(late and early) and wilson(sum(late), len(late))[1] < sum(early) / len(early),
        }
    return found


def _right(items: Sequence[LabelledItem]) -> dict[str, list[tuple[int, bool]]]:
    """By annotator, when each known question was answered, and whether rightly."""
    return groups(
        (label.pseudonym, (label.at, label.answers[name] == value))
        for item in items
        for label in item.labels
        for name, value in (item.row.answers or {}).items()
        if name in label.answers
    )


def _share(right: Sequence[bool]) -> dict[str, Any]:
    share = Estimate.of_share(sum(right), len(right))
    return {"answers": share.n, "right": share.value, "low": share.low, "high": share.high}


def _pace(items: Sequence[LabelledItem], doubled: Sequence[LabelledItem], now: int) -> dict[str, Any]:
    labels = list(itertools.chain.from_iterable(item.labels for item in items))
    annotators = {}
    for name, own in groups((label.pseudonym, label) for label in labels).items():
        hours = sum(label.seconds for label in own) / 3600
        annotators[name] = {
            "labels": len(own),
            "hours": hours,
            "labels_an_hour": len(own) / hours if hours else None,
            "last_week": sum(label.at > now - WEEK for label in own),
        }
    timed = [label.seconds for label in labels if label.seconds and label.role == "first"]
    differing = sum(item.firsts[0].answers != item.firsts[1].answers for item in doubled)
    missing = sum(2 - len(item.firsts) for item in items if item.row.stage in ("fresh", "half", "full"))
    waiting = sum(item.row.stage in ("adjudicate", "adjudicating") for item in items)
    expected = waiting + missing / 2 * (differing / len(doubled) if doubled else 0)
    return {
        "annotators": annotators,
        "first_labels_left": missing,
        "adjudications_expected": round(expected),
        "hours_left": (missing + expected) * statistics.median(timed) / 3600 if timed else None,
    }


def _week(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%G-W%V")


def groups(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in the order of the keys."""
    found: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: found[key] for key in sorted(found)}
