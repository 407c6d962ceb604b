"""Giving labels, and correcting one's own for a few minutes.

A label freezes a fixed time after it was given, whatever others have done by then, and only a frozen label counts for
what becomes of its item. So an annotator who changes an answer, or is refused to, learns nothing of the other's: who
could see an item close would only have to try each answer until it does.

A label is given by whoever holds the item. One that comes after the lease ran out (a page that was offline for a while)
is still taken if the place is free. The same label twice is one label, so that a page may send again what it is not
sure has arrived.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from compeer.annotate.consensus import disputed
from compeer.annotate.passing import LONGEST_REMARK
from compeer.annotate.people import Person, person_by_id, require
from compeer.annotate.projects import Project, project_by_id
from compeer.annotate.queue import LEASE, Task, first_labels, given_as, held_task, task_of
from compeer.annotate.schema import ITEMS, LABELS, PASSES
from compeer.annotate.store import Refused, Store, row_of, text_of
from compeer.annotate.tasks import QUESTIONS, kept_answers, shown_answers
from compeer.dialogue import Media

LONGEST_SECONDS = 1800
"""Time on one item beyond this is a break, not work."""


@dataclass(frozen=True)
class Saved:
    """A label that is kept; `known` are the right answers of a training item, as shown."""

    item: int
    known: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class OwnLabel:
    """One of a person's own labels, by the order in which the responses were shown to them."""

    item: int
    project: int
    role: str
    answers: Mapping[str, Any]
    remark: str | None
    guideline: int
    at: int
    changeable: bool


@dataclass(frozen=True)
class _Place:
    """In which role somebody labels an item, and how it was shown to them."""

    role: str
    shown: tuple[str, ...]
    label: Row[Any] | None = None


def submit(
    store: Store,
    person: Person,
    item: int,
    answers: Mapping[str, Any],
    *,
    seconds: float = 0,
    remark: str = "",
    guideline: int | None = None,
) -> Saved:
    """Gives a label, or changes one's own; when this returns, it is kept.

    Answers to a preference go by place, "first" or "second". `guideline` is the version that was shown.
    """
    if len(remark) > LONGEST_REMARK:
        raise Refused("invalid", f"a remark has at most {LONGEST_REMARK:,} characters.")
    with store.write(person.id) as writing:
        connection = writing.connection
        me = person_by_id(connection, person.id)
        require(me, "annotator", "adjudicator")
        row = row_of(connection.execute(_ITEM, {"i": item}).first(), "item")
        project = project_by_id(connection, row.project)
        place = _place_of(connection, row, me)
        kept = kept_answers(project.task, answers, place.shown, _wanted(connection, project, item, place))
        remark = remark.strip()
        if place.label is None or not _is_same(connection, place.label, kept, remark):
            if place.label is not None:
                _require_changeable(place.label, writing.at)
            body: dict[str, Any] = {"project": project.id, "role": place.role, "source": me.source, "answers": kept}
            body |= {"guideline": min(max(guideline or project.guideline, 1), project.guideline)}
            body |= {"shown": list(place.shown), "seconds": round(min(max(seconds, 0), LONGEST_SECONDS))}
            body |= {"until": _until(project, place, writing.at)}
            if remark:
                body["remark"] = writing.keep(remark, item=item, person=me.id)
            before = place.label.remark if place.label is not None else None
            writing.record("labelled", body, item=item, erased=[before] if before else [])
    known = shown_answers(json.loads(row.answers), place.shown) if place.role == "training" else None
    return Saved(item, known)


def save_draft(store: Store, person: Person, item: int, answers: Mapping[str, Any]) -> int:
    """Keeps answers that are not complete yet, and the item for longer; returns until when (milliseconds)."""
    with store.write(person.id) as writing:
        connection = writing.connection
        lease = connection.execute(LEASE, {"i": item, "p": person.id}).first()
        if lease is None:
            _place_of(connection, row_of(connection.execute(_ITEM, {"i": item}).first(), "item"), person)
            raise Refused("conflict", "this item is no longer kept for you.", do="Ask for the next item.")
        project = project_by_id(connection, lease.project)
        kept = kept_answers(project.task, answers, json.loads(lease.shown))
        length = project.settings.lease_minutes * 60_000
        if json.loads(lease.draft or "{}") == kept and lease.expires - writing.at > length / 2:
            return int(lease.expires)
        writing.record("drafted", {"answers": kept, "expires": writing.at + length}, item=item)
        return writing.at + length


def own_labels(store: Store, person: Person, project: int | None = None, limit: int = 50) -> list[OwnLabel]:
    """A person's own labels, newest first; those in one project, or all."""
    wanted = select(LABELS).where(LABELS.c.person == person.id)
    if project is not None:
        wanted = wanted.where(LABELS.c.project == project)
    with store.read() as connection:
        rows = connection.execute(wanted.order_by(LABELS.c.at.desc()).limit(limit)).all()
        return [
            OwnLabel(
                item=row.item,
                project=row.project,
                role="first" if row.role == "gold" else row.role,
                answers=shown_answers(json.loads(row.answers), json.loads(row.shown)),
                remark=text_of(connection, row.remark),
                guideline=row.guideline,
                at=row.at,
                changeable=_is_changeable(row, store.now()),
            )
            for row in rows
        ]


def own_task(store: Store, person: Person, item: int) -> Task:
    """An item that this person holds or has labelled, with their answers, as it was shown to them."""
    with store.read() as connection:
        if lease := connection.execute(LEASE, {"i": item, "p": person.id}).first():
            return held_task(connection, project_by_id(connection, lease.project), lease, person)
        label = row_of(connection.execute(_MINE, {"i": item, "p": person.id}).first(), "item")
        project = project_by_id(connection, label.project)
        shown, answers = json.loads(label.shown), json.loads(label.answers)
        task = task_of(connection, project, item, label.role, shown, 0, answers, person)
        remark, changeable = text_of(connection, label.remark), _is_changeable(label, store.now())
        return replace(task, labelled=True, changeable=changeable, remark=remark)


def media_of(store: Store, person: Person, item: int, utterance: int, number: int) -> Media:
    """A picture or clip of an item's history, for those who hold or labelled the item, and for admins."""
    with store.read() as connection:
        row = row_of(connection.execute(select(ITEMS).where(ITEMS.c.id == item)).first(), "item")
        if "admin" not in person.roles:
            _place_of(connection, row, person)
        content = json.loads(text_of(connection, row.content) or "{}")
    try:
        if min(utterance, number) < 0:
            raise IndexError
        return Media.model_validate(content["history"][utterance]["media"][number])
    except (IndexError, KeyError):
        raise Refused("missing", "there is no such picture or clip.") from None


# --- what may be labelled ---------------------------------------------------------------------------------------------

_ITEM = select(ITEMS).where(ITEMS.c.id == bindparam("i"))
_MINE = select(LABELS).where(LABELS.c.item == bindparam("i"), LABELS.c.person == bindparam("p"))


def _place_of(connection: Connection, item: Row[Any], me: Person) -> _Place:
    """The role in which a person may label an item; refused as if there were none when it was never given to them."""
    if label := connection.execute(_MINE, {"i": item.id, "p": me.id}).first():
        return _Place(label.role, tuple(json.loads(label.shown)), label)
    if lease := connection.execute(LEASE, {"i": item.id, "p": me.id}).first():
        return _Place(lease.role, tuple(json.loads(lease.shown)))
    body = given_as(connection, item.id, me)
    if body is None:
        raise Refused("missing", "there is no such item.")
    passed = connection.execute(select(PASSES.c.item).where(PASSES.c.item == item.id, PASSES.c.person == me.id)).first()
    free = {"first": ("fresh", "half"), "adjudication": ("adjudicate",), "gold": ("gold",), "training": ("training",)}
    if passed or item.stage not in free[body["role"]]:
        raise Refused("conflict", "this item is no longer kept for you.", do="Ask for the next item.")
    return _Place(body["role"], tuple(body["shown"]))


def _wanted(connection: Connection, project: Project, item: int, place: _Place) -> Sequence[str]:
    """The questions that must be answered: all of them, or for an adjudicator those in dispute."""
    questions = [question.name for question in QUESTIONS[project.task]]
    if place.role != "adjudication":
        return questions
    one, other = (json.loads(label.answers) for label in first_labels(connection, item))
    differ = disputed(one, other)
    return [name for name in questions if name in differ]


def _is_same(connection: Connection, label: Row[Any], kept: Mapping[str, Any], remark: str) -> bool:
    return json.loads(label.answers) == kept and (text_of(connection, label.remark) or "") == remark


def _until(project: Project, place: _Place, at: int) -> int | None:
    """Until when a label may be corrected: counted from when it was first given; None is not at all."""
    if place.label is not None:
        return int(place.label.until)
    seconds = project.settings.correction_seconds if place.role in ("first", "gold") else 0
    return at + seconds * 1000 if seconds else None


def _is_changeable(label: Row[Any], now: int) -> bool:
    """By the time alone: anything else would tell what others have answered."""
    return label.until is not None and now < label.until


def _require_changeable(label: Row[Any], now: int) -> None:
    if label.role == "training":
        raise Refused("conflict", "a training item is answered once; its answers have been told.")
    if not _is_changeable(label, now):
        raise Refused("conflict", "the time in which this label could be corrected is over.")
