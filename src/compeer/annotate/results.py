"""What the labels of a project lead to: its metrics, where annotators differ, single items, and the files of an export.

Of an export, `records.jsonl` holds SER records as a judge is trained on, of items with a consensus on every question;
`annotations.jsonl` every label by itself, for all tasks, with annotators by pseudonym; `agreement.json` the metrics.
"""

import json
import threading
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, select

from compeer.annotate.items import view
from compeer.annotate.labels import passed_items
from compeer.annotate.metrics import LabelledItem, groups, project_metrics
from compeer.annotate.people import Actor, admin_writes, require
from compeer.annotate.projects import Project, project_by_id
from compeer.annotate.questions import QUESTIONS, RESPONSES, Answer, TaskKind
from compeer.annotate.queue import freeze_all
from compeer.annotate.schema import ITEMS, LABELS, PEOPLE, TEXTS
from compeer.annotate.store import Refused, Store, make_private_folder, needed_row
from compeer.errors import InputError
from compeer.io import write_json, write_lines
from compeer.ser.record import SerRecord, write_records

_AT_WORK = threading.Lock()


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
