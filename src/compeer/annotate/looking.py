"""What an admin sees of items and their labels: where annotators differ, and one item with all that was said of it.

Names do not occur, only pseudonyms. An admin who annotates too sees labels of closed items only: who could look at
another's label before giving or changing their own would not judge blindly.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import select

from compeer.annotate.gather import agreed, labelled_item, labelled_items
from compeer.annotate.people import Person, require
from compeer.annotate.projects import project_by_id
from compeer.annotate.schema import ITEMS, PASSES, PEOPLE
from compeer.annotate.store import Refused, Store, row_of, text_of
from compeer.annotate.tasks import QUESTIONS, RESPONSES, view


def disagreements(store: Store, project: int, question: str, actor: Person | None = None) -> list[dict[str, Any]]:
    """Items on which first labels differ in a question, newest first, to be looked at one by one."""
    require(actor, "admin")
    with store.read() as connection:
        task = project_by_id(connection, project).task
        if question not in (known := [one.name for one in QUESTIONS[task]]):
            raise Refused("invalid", "there is no such question.", do=f"Known: {', '.join(known)}")
        items = labelled_items(connection, project)
    found: list[dict[str, Any]] = []
    for item in items:
        if _works(actor) and item.stage != "closed":
            continue
        if item.is_doubled and len({label.answers.get(question) for label in item.firsts}) == 2:
            told = {label.pseudonym: label.answers[question] for label in item.labels if question in label.answers}
            row = {"item": item.id, "author": item.author, "stage": item.stage, "answers": told}
            found.append(row | {"consensus": agreed(item, task)[question], "at": item.labels[-1].at})
    return sorted(found, key=lambda row: -row["at"])


def everything(store: Store, number: int, actor: Person | None = None) -> dict[str, Any]:
    """An item with its source, all its labels, and who passed it and why."""
    require(actor, "admin")
    with store.read() as connection:
        row = row_of(connection.execute(select(ITEMS).where(ITEMS.c.id == number)).first(), "item")
        if row.content is None:
            raise Refused("missing", "this item was deleted.")
        if _works(actor) and row.stage not in ("closed", "flagged", "dropped"):
            what = "you annotate too, and could not judge this item blindly once you have seen its labels."
            raise Refused("conflict", what, do="Look at it when it is closed, or let an admin look who does not.")
        project = project_by_id(connection, row.project)
        item = labelled_item(connection, row)
        content = json.loads(text_of(connection, row.content) or "{}")
        hidden = _works(actor) and row.stage == "flagged"
        labels = [
            {"annotator": label.pseudonym, "source": label.source, "role": label.role, "answers": dict(label.answers)}
            | {"note": text_of(connection, label.remark), "guidelines": label.guideline}
            | {"seconds": label.seconds, "at": label.at}
            for label in item.labels
            if not hidden
        ]
        joined = PASSES.join(PEOPLE, PEOPLE.c.id == PASSES.c.person)
        wanted = select(PASSES, PEOPLE.c.pseudonym).select_from(joined).where(PASSES.c.item == number)
        passed = [
            {"annotator": one.pseudonym, "why": one.why, "reason": text_of(connection, one.remark), "at": one.at}
            for one in connection.execute(wanted.order_by(PASSES.c.at)).all()
        ]
    names = RESPONSES[project.task]
    shown = view(project.task, content, names)
    models = content.get("models") or [content.get("author"), None]
    responses = [
        {"name": name, "text": text, "model": model}
        for name, text, model in zip(names, shown.get("responses", ()), models, strict=False)
    ]
    return {
        "item": row.id,
        "project": row.project,
        "task": project.task,
        "kind": row.kind,
        "stage": row.stage,
        "author": row.author,
        "record": row.record,
        "dialogue": row.dialogue,
        "language": row.language,
        "crisis": row.crisis,
        "history": shown["history"],
        "steps": shown.get("steps", {}),
        "responses": responses,
        "labels": labels,
        "consensus": agreed(item, project.task) if row.kind == "real" and not hidden else {},
        "known": dict(item.known) if item.known else None,
        "passed": passed,
    }


def _works(actor: Person | None) -> bool:
    """Whether somebody gives labels too."""
    return actor is not None and bool({"annotator", "adjudicator"} & set(actor.roles))
