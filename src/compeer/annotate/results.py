"""What the labels of a project lead to: its metrics, where annotators differ, single items, and the files of an export.

Agreement is of first labels only, those given without knowing another's, once both are frozen. An item's week is that
of its second label. Names do not occur, only pseudonyms. Of an export, `records.jsonl` holds SER records as a judge is
trained on, of items with a consensus on every question; `annotations.jsonl` every label by itself, for all tasks;
`agreement.json` the metrics.
"""

import itertools
import json
import statistics
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, select

from compeer.annotate.items import view
from compeer.annotate.labels import passed_items
from compeer.annotate.people import DAY, Actor, admin_writes, require
from compeer.annotate.projects import Project, project_by_id
from compeer.annotate.questions import QUESTIONS, RESPONSES, Answer, LabelQuestion, TaskKind
from compeer.annotate.queue import freeze_all
from compeer.annotate.schema import ITEMS, LABELS, PEOPLE, TEXTS
from compeer.annotate.store import Refused, Store, make_private_folder, needed_row
from compeer.errors import InputError
from compeer.io import write_json, write_lines
from compeer.ser.record import SerRecord, write_records
from compeer.statistics import Estimate, cohens_kappa, krippendorff, percent, wilson

K = TypeVar("K", bound="int | str | tuple[str, str]")
V = TypeVar("V")
WEEK = 7 * DAY
_AT_WORK = threading.Lock()


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
        """For each question the first answer that two of the annotators share, or None."""
        counted = [label.answers for label in self.labels if label.role in ("first", "adjudication")]
        found: dict[str, Answer | None] = {}
        for question in QUESTIONS[task]:
            given = [answers[question.name] for answers in counted if question.name in answers]
            found[question.name] = next((one for index, one in enumerate(given) if one in given[index + 1 :]), None)
        return found


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


def labelled_items(connection: Connection, chosen: Any) -> list[LabelledItem]:
    """The items of a condition that are not deleted, in the order of their numbers, with all their labels."""
    joined = LABELS.join(PEOPLE, PEOPLE.c.id == LABELS.c.person).join(ITEMS, ITEMS.c.id == LABELS.c.item)
    wanted = select(LABELS, PEOPLE.c.pseudonym).select_from(joined).where(chosen)
    labels = groups((row.item, row) for row in connection.execute(wanted.order_by(LABELS.c.at, LABELS.c.person)))
    items = connection.execute(select(ITEMS).where(chosen, ITEMS.c.stage != "deleted").order_by(ITEMS.c.id)).all()
    return [LabelledItem(row, tuple(labels.get(row.id, ()))) for row in items]


def texts_of(connection: Connection, chosen: Any) -> dict[str | None, str]:
    """All texts of the items of a condition by their ids: contents, and remarks made on them."""
    wanted = select(TEXTS.c.id, TEXTS.c.value).join(ITEMS, ITEMS.c.id == TEXTS.c.item).where(chosen)
    return dict(connection.execute(wanted).tuples().all())


def _described(label: Row[Any], **more: Any) -> dict[str, Any]:
    """A label without the name of who gave it."""
    names = {"annotator": "pseudonym", "guidelines": "guideline"}
    columns = ("annotator", "source", "role", "answers", "guidelines", "seconds", "at")
    return {name: label._mapping[names.get(name, name)] for name in columns} | more


def dashboard(store: Store, project: int, actor: Actor = None) -> dict[str, Any]:
    """All metrics of a project, ready for JSON: computed once for each state of the store and, for the week, minute."""
    require(actor, "admin")
    with _AT_WORK:
        return _dashboard(store, project, store.length(), int(store.clock() // 60))


@lru_cache(maxsize=16)
def _dashboard(store: Store, project: int, _length: int, _minute: int) -> dict[str, Any]:
    freeze_all(store)
    with store.read() as connection:
        chosen = project_by_id(connection, project)
        items = labelled_items(connection, ITEMS.c.project == project)
    return project_metrics(chosen, items, store.now())


def disagreements(store: Store, project: int, question: str, actor: Actor = None) -> list[dict[str, Any]]:
    """Items on which first labels differ in a question, newest first."""
    require(actor, "admin")
    with store.read() as connection:
        task = project_by_id(connection, project).task
        if question not in (known := [one.name for one in QUESTIONS[task]]):
            raise Refused("invalid", "there is no such question.", do=f"Known: {', '.join(known)}")
        items = labelled_items(connection, ITEMS.c.project == project)
    found: list[dict[str, Any]] = []
    for item in items:
        # Who could read another's label before giving or changing their own would not judge blindly.
        if actor is not None and actor.works and item.row.stage != "closed":
            continue
        if item.is_doubled and len({label.answers.get(question) for label in item.firsts}) == 2:
            answers = {label.pseudonym: label.answers[question] for label in item.labels if question in label.answers}
            row = {"item": item.row.id, "author": item.row.author, "stage": item.row.stage, "answers": answers}
            found.append(row | {"consensus": item.consensus(task)[question], "at": item.labels[-1].at})
    return sorted(found, key=lambda row: -row["at"])


def everything(store: Store, number: int, actor: Actor = None) -> dict[str, Any]:
    require(actor, "admin")
    blind = actor is not None and actor.works
    with store.read() as connection:
        row = needed_row(connection, ITEMS, "item", id=number)
        if row.content is None:
            raise Refused("missing", "this item was deleted.")
        if blind and row.stage not in ("closed", "flagged", "dropped"):
            what = "you annotate too, and could not judge this item blindly once you have seen its labels."
            raise Refused("conflict", what, do="Look at it when it is closed, or let an admin look who does not.")
        hidden = blind and row.stage == "flagged"
        task = project_by_id(connection, row.project).task
        (item,) = labelled_items(connection, ITEMS.c.id == number)
        texts = texts_of(connection, ITEMS.c.id == number)
    content = json.loads(texts[row.content])
    labels = [_described(label, note=texts.get(label.remark)) for label in (item.labels if not hidden else ())]
    found = view(task, number, content, RESPONSES[task])
    models = content.get("models") or [content.get("author"), None]
    columns = ("project", "kind", "stage", "author", "record", "dialogue", "language", "crisis")
    return {
        **{"item": number, "task": task, **{name: row._mapping[name] for name in columns}},
        **{"history": found["history"], "steps": found["steps"]},
        "responses": [
            {"name": name, "text": text, "model": model}
            for name, text, model in zip(RESPONSES[task], found["responses"], models, strict=False)
        ],
        "labels": labels,
        "consensus": item.consensus(task) if row.kind == "real" and not hidden else {},
        "known": row.answers,
        "passed": passed_items(store, actor, item=number),
    }


def export_project(store: Store, project: Project, folder: Path, actor: Actor = None) -> Counter[str]:
    """Writes a project's labels into a folder and counts what was written and what was left out, and why."""
    require(actor, "admin")
    freeze_all(store)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("this is there already.", file=folder, do="Remove it, or give another name.")
    if not folder.parent.is_dir():
        raise InputError("there is no such folder.", file=folder.parent, do="Make it first, or give another name.")
    make_private_folder(folder)
    counts: Counter[str] = Counter()
    annotations: list[dict[str, Any]] = []
    records: list[SerRecord] = []
    with store.read() as connection:
        items = labelled_items(connection, ITEMS.c.project == project.id)
        texts = texts_of(connection, ITEMS.c.project == project.id)
    for item in [one for one in items if one.row.content in texts]:
        content, found = json.loads(texts[item.row.content]), item.consensus(project.task)
        if item.labels:
            annotations.append(_annotation(item, content, texts, project.task))
            counts["annotated items"] += 1
        if item.row.kind != "real":
            continue
        if item.row.stage != "closed":
            counts["left out: not closed"] += 1
        elif missing := [question for question, value in found.items() if value is None]:
            counts["left out: no consensus"] += 1
            counts.update(f"no consensus on {question}" for question in missing)
        else:
            counts["with consensus"] += 1
            if project.task == "steps":
                judged = {name: {"value": value, **_origin(item, name, value)} for name, value in found.items()}
                labels = {"preference": judged.pop("preference"), "labels": judged}
                records.append(SerRecord.model_validate(content | labels))
    write_lines(folder / "annotations.jsonl", annotations)
    if project.task == "steps":
        write_records(folder / "records.jsonl", records)
    write_json(folder / "agreement.json", project_metrics(project, items, store.now()))
    make_private_folder(folder)
    with admin_writes(store, actor) as writing:
        writing.record("exported", {"project": project.id, "counts": counts})
    return counts


def _origin(item: LabelledItem, question: str, value: Answer | None) -> dict[str, Any]:
    """Where a consensus comes from. It is people's only if nobody who shares it is a program."""
    counted = [label for label in item.labels if label.role in ("first", "adjudication") and question in label.answers]
    sharing = [label for label in counted if label.answers[question] == value]
    others = [label.pseudonym for label in counted if label.answers[question] != value]
    how = f"{' and '.join(label.pseudonym for label in sharing)} agree"
    how += f", {others[0]} differs" if others else ""
    versions = ", ".join(str(version) for version in sorted({label.guideline for label in counted}))
    source = "human" if all(label.source == "human" for label in sharing) else "llm"
    return {"source": source, "how": f"{how}; guidelines {versions}"}


def _annotation(
    item: LabelledItem, content: Mapping[str, Any], texts: Mapping[str | None, str], task: TaskKind
) -> dict[str, Any]:
    row: dict[str, Any] = {"id": content["id"], "dialogue": content.get("dialogue"), "kind": item.row.kind}
    row |= {"author": item.row.author, "language": item.row.language, "stage": item.row.stage, "task": task}
    if task == "compare":
        row["models"] = dict(zip(RESPONSES[task], content["models"], strict=True))
    row["labels"] = [_described(label, shown=label.shown, remark=texts.get(label.remark)) for label in item.labels]
    return row | {"consensus": item.consensus(task) if item.row.kind == "real" else item.row.answers}
