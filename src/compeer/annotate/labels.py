"""Giving labels, correcting one's own for a few minutes, and giving items back.

A label freezes a fixed time after it was given, and only a frozen label counts for what becomes of its item: who could
see an item close would only have to try each answer until it does. A label that comes after the lease expired is still
taken if the seat is free. The same label twice is one label, and to give back what was given back does nothing, so that
a page may send again what it is not sure has arrived.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import Connection, Row, select

from compeer.annotate.items import OwnAnswers, Task, own_answers, questions_of, task_of
from compeer.annotate.people import Actor, Person, admin_writes, person_by_id, require
from compeer.annotate.projects import project_by_id
from compeer.annotate.questions import by_position, kept_answers
from compeer.annotate.queue import given_as
from compeer.annotate.schema import ITEMS, LABELS, LEASES, PASSES, PEOPLE, one_row
from compeer.annotate.store import Refused, Store, needed_row, text_of
from compeer.dialogue import Media

LONGEST_SECONDS = 1800  # time on one item beyond this is a break, not work
GivingBack = Literal["release", "skip", "decline", "flag"]
_WHY = {"release": "released", "skip": "skipped", "decline": "declined", "flag": "flagged"}


class OwnLabel(OwnAnswers):
    """One of a person's own labels."""

    at: int


def submit(
    store: Store,
    person: Person,
    item: int,
    answers: Mapping[str, Any],
    *,
    seconds: float = 0,
    remark: str = "",
    guideline: int | None = None,
) -> dict[str, Any] | None:
    """Gives or changes a label; returns a training item's answers. `guideline` is the version that the person read."""
    remark = remark.strip()
    with store.write(person.id) as writing:
        connection = writing.connection
        me = person_by_id(connection, person.id)
        require(me, "annotator", "adjudicator")
        row = needed_row(connection, ITEMS, "item", id=item)
        project = project_by_id(connection, row.project)
        role, order, label = _seat(connection, row, me)
        wanted = [question.name for question in questions_of(connection, project.task, item, role)]
        kept = kept_answers(project.task, answers, order, wanted)
        before = (label.answers, text_of(connection, label.remark) or "") if label else None
        if before != (kept, remark):
            until, erased = _correction(role, label, project.settings.correction_seconds, writing.at)
            body: dict[str, Any] = {"project": project.id, "role": role, "answers": kept}
            body["source"] = "llm" if me.program else "human"
            body |= {"guideline": min(max(guideline or project.guideline, 1), project.guideline), "until": until}
            body |= {"shown": order, "seconds": round(min(max(seconds, 0), LONGEST_SECONDS))}
            if remark:
                body["remark"] = writing.keep(remark, item=item, person=me.id)
            writing.record("labelled", body, item=item, erased=erased)
    return by_position(row.answers, order) if role == "training" else None


def save_draft(store: Store, person: Person, item: int, answers: Mapping[str, Any]) -> int:
    """Keeps answers that are not complete yet, and the item for longer; returns until when (milliseconds)."""
    with store.write(person.id) as writing:
        connection = writing.connection
        lease = one_row(connection, LEASES, item=item, person=person.id)
        if lease is None:
            _seat(connection, needed_row(connection, ITEMS, "item", id=item), person)
            raise Refused("conflict", "this item is no longer kept for you.", do="Ask for the next item.")
        project = project_by_id(connection, lease.project)
        kept = kept_answers(project.task, answers, lease.shown)
        length = project.settings.lease_minutes * 60_000
        if (lease.draft or {}) == kept and lease.expires - writing.at > length / 2:
            return int(lease.expires)
        writing.record("drafted", {"answers": kept, "expires": writing.at + length}, item=item)
        return writing.at + length


def own_labels(store: Store, person: Person, project: int | None = None, limit: int = 50) -> list[OwnLabel]:
    """A person's own labels, newest first; those in one project, or all."""
    wanted = select(LABELS).where(LABELS.c.person == person.id)
    if project is not None:
        wanted = wanted.where(LABELS.c.project == project)
    with store.read() as connection:
        rows, now = connection.execute(wanted.order_by(LABELS.c.at.desc()).limit(limit)).all(), store.now()
        return [OwnLabel(**own_answers(connection, row, now), guidelines=row.guideline, at=row.at) for row in rows]


def own_task(store: Store, person: Person, item: int) -> Task:
    key = {"item": item, "person": person.id}
    with store.read() as connection:
        seat = one_row(connection, LEASES, **key) or needed_row(connection, LABELS, "item", **key)
        return task_of(connection, project_by_id(connection, seat.project), seat, store.now())


def media_of(store: Store, person: Person, item: int, utterance: int, number: int) -> Media:
    """A picture or clip of an item's history, for those who hold or labelled the item, and for admins."""
    with store.read() as connection:
        row = needed_row(connection, ITEMS, "item", id=item)
        if "admin" not in person.roles:
            _seat(connection, row, person)
        content = json.loads(text_of(connection, row.content) or "{}")
    try:
        if min(utterance, number) < 0:
            raise IndexError
        return Media.model_validate(content["history"][utterance]["media"][number])
    except (IndexError, KeyError):
        raise Refused("missing", "there is no such picture or clip.") from None


_FREE = {"first": ("fresh", "half"), "adjudication": ("adjudicate",), "gold": ("gold",), "training": ("training",)}


def _seat(connection: Connection, item: Row[Any], me: Person) -> tuple[str, list[str], Row[Any] | None]:
    """The role in which a person may label an item, the order in which they got responses, and their label so far."""
    key = {"item": item.id, "person": me.id}
    if held := one_row(connection, LABELS, **key) or one_row(connection, LEASES, **key):
        return held.role, held.shown, None if "draft" in held._fields else held
    body = given_as(connection, item.id, me)
    if body is None:
        raise Refused("missing", "there is no such item.")
    if one_row(connection, PASSES, **key) or item.stage not in _FREE[body["role"]]:
        raise Refused("conflict", "this item is no longer kept for you.", do="Ask for the next item.")
    return body["role"], body["shown"], None


def _correction(role: str, label: Row[Any] | None, seconds: int, now: int) -> tuple[int | None, list[str]]:
    """Until when a label may be corrected (None: not at all), and the remark that a correction replaces."""
    if label is None:
        return (now + seconds * 1000 if seconds and role in ("first", "gold") else None), []
    if role == "training":
        raise Refused("conflict", "a training item is answered once; its answers have been revealed.")
    if now >= (label.until or 0):
        raise Refused("conflict", "the time in which this label could be corrected is over.")
    return int(label.until), [label.remark] if label.remark else []


def give_back(store: Store, person: Person, item: int, how: GivingBack, reason: str = "") -> None:
    """Gives an item back: `release` for a pause, `skip` and `decline` to somebody else, `flag` to an admin."""
    if how in ("skip", "flag") and not reason.strip():
        raise Refused("invalid", "a reason is missing.", do="Say in a few words what is wrong with the item.")
    with store.write(person.id) as writing:
        connection, key = writing.connection, {"item": item, "person": person.id}
        held = one_row(connection, LEASES, **key)
        if held is None:
            before = given_as(connection, item, person) if how == "release" else one_row(connection, PASSES, **key)
            if before is not None:
                return
            raise Refused("missing", "there is no such item in your hands.")
        real = needed_row(connection, ITEMS, "item", id=item).kind == "real"
        body: dict[str, Any] = {"why": _WHY[how if real or how != "flag" else "skip"]}
        if reason.strip():
            body["remark"] = writing.keep(reason.strip(), item=item, person=person.id)
        writing.record("lease_ended", body, item=item)


def settle_flag(store: Store, item: int, keep: bool, actor: Actor = None) -> None:
    """An admin's answer to a flag: the item goes back into the queue, or is dropped."""
    with admin_writes(store, actor) as writing:
        if needed_row(writing.connection, ITEMS, "item", id=item).held != "flagged":
            raise Refused("conflict", "this item is not flagged.")
        writing.record("held", {"how": None if keep else "dropped"}, item=item)


def passed_items(
    store: Store, actor: Actor = None, *, project: int | None = None, item: int | None = None
) -> list[dict[str, Any]]:
    """What was skipped, declined or flagged in a project, or of one item, with the reasons given; for admins."""
    require(actor, "admin")
    joined = PASSES.join(ITEMS, ITEMS.c.id == PASSES.c.item).join(PEOPLE, PEOPLE.c.id == PASSES.c.person)
    chosen = ITEMS.c.project == project if item is None else ITEMS.c.id == item
    wanted = select(PASSES, ITEMS.c.stage, PEOPLE.c.pseudonym).select_from(joined).where(chosen)
    with store.read() as connection:
        return [
            {"item": row.item, "annotator": row.pseudonym, "why": row.why, "stage": row.stage, "at": row.at}
            | {"reason": text_of(connection, row.remark)}
            for row in connection.execute(wanted.order_by(PASSES.c.at)).all()
        ]
