"""What each kind of event does to the tables. The same code runs when something happens and when all is rebuilt.

Nothing here reads the clock, draws at random or refuses: that comes before something becomes an event. An item's
*stage* follows from its labels and leases alone (`_place`): fresh (nobody is on it), half (one person is), full (two
are, until both labels are frozen), adjudicate (two labels that differ), adjudicating, closed; or training, gold,
flagged, dropped, deleted. Items that wait stand in *lanes*, one for each stage, language, crisis mark and set of people
who are already on its items. To find work for a person is to look at the first item of each lane open to them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table, Update, and_, bindparam, delete, insert, select, update

from compeer.annotate.schema import (
    DAYS,
    GUIDELINES,
    INVITATIONS,
    ITEMS,
    LABELS,
    LANES,
    LEASES,
    PAIRS,
    PASSES,
    PEOPLE,
    PROJECTS,
)

Texts = Callable[[str], str | None]
"""Returns a kept text by its id, or None once it was erased."""


@dataclass(frozen=True)
class Event:
    """One event on its way into the tables."""

    connection: Connection
    kind: str
    at: int
    actor: int | None
    about: int | None
    body: Mapping[str, Any]
    texts: Texts

    @property
    def item(self) -> int:
        """The item it is about."""
        assert self.about is not None, "this kind of event is about an item"
        return self.about

    @property
    def person(self) -> int:
        """The person it is about: the one named, else the one who acted."""
        found = self.body.get("person", self.actor)
        assert isinstance(found, int), "this kind of event is about a person"
        return found

    def text(self, key: str) -> str | None:
        """The id of the text under a key of the body."""
        found = self.body.get(key)
        return str(found["text"]) if found else None

    def apply(self) -> None:
        """Brings the tables up to date; kinds that are only for the record change nothing."""
        if handler := _HANDLERS.get(self.kind):
            handler(self)

    def change(self, table: Table, number: int, values: Mapping[str, Any]) -> None:
        """Sets columns of the row with this id."""
        self.connection.execute(update(table).where(table.c.id == number).values(values))


def _only(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: body[name] for name in names}


def day_of(at: int) -> str:
    """The day of a time, in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()


# --- projects and people ----------------------------------------------------------------------------------------------


def _project_added(event: Event) -> None:
    row = _only(event.body, "name", "task", "settings")
    event.connection.execute(insert(PROJECTS), row | {"id": event.body["project"], "guideline": 0})


def _guidelines_set(event: Event) -> None:
    project, version = event.body["project"], event.body["version"]
    row = {"project": project, "version": version, "text": event.text("words"), "at": event.at}
    event.connection.execute(insert(GUIDELINES), row)
    event.change(PROJECTS, project, {"guideline": version})


def _invited(event: Event) -> None:
    row = _only(event.body, "roles", "languages", "program", "expires")
    row |= {"id": event.body["invitation"], "secret": event.text("secret"), "person": None}
    event.connection.execute(insert(INVITATIONS), row)


def _joined(event: Event) -> None:
    name = event.text("name")
    row = _only(event.body, "pseudonym", "roles", "languages", "program")
    row |= {"id": event.person, "name": event.texts(name) if name else None, "secret": event.text("secret")}
    row |= {"daily_cap": None, "declines_crisis": False, "active": True}
    event.connection.execute(insert(PEOPLE), row)
    if (invitation := event.body.get("invitation")) is not None:
        event.change(INVITATIONS, invitation, {"person": event.person, "secret": None})


# --- items ------------------------------------------------------------------------------------------------------------


def _items_added(event: Event) -> None:
    rows, waiting = [], Counter[tuple[str, str, bool]]()
    project = event.body["project"]
    for given in event.body["items"]:
        content = json.loads(event.texts(given["content"]["text"]) or "{}")
        real = given["kind"] == "real"
        rows.append(
            _only(given, "id", "kind", "language", "crisis", "priority", "author", "answers")
            | {"project": project, "record": content.get("id"), "dialogue": content.get("dialogue")}
            | {"content": given["content"]["text"], "held": None, "stage": "fresh" if real else given["kind"]}
            | {"lane": lane_key(project, "fresh", given["language"], given["crisis"], ()) if real else None}
        )
        waiting["fresh" if real else given["kind"], given["language"], given["crisis"]] += 1
    event.connection.execute(insert(ITEMS), rows)
    for (stage, language, crisis), count in waiting.items():  # lanes of training and gold items only count them
        _count_lane(event.connection, project, stage, language, crisis, (), count)


def _leased(event: Event) -> None:
    row = _only(event.body, "project", "role", "expires", "shown")
    event.connection.execute(_NEW_LEASE, row | {"item": event.item, "person": event.person, "draft": None})
    _place(event.connection, event.item)


def _lease_ended(event: Event) -> None:
    """A lease that expired or was given back; one that was skipped, declined or flagged keeps the item away."""
    event.connection.execute(_LEASE_ENDED, {"i": event.item, "p": event.person})
    why = event.body["why"]
    if why not in ("expired", "released"):
        chosen = and_(PASSES.c.person == event.person, PASSES.c.item == event.item)
        row = {"why": why, "remark": event.text("remark"), "at": event.at}
        if not event.connection.execute(update(PASSES).where(chosen).values(row)).rowcount:
            event.connection.execute(insert(PASSES), row | {"person": event.person, "item": event.item})
    if why == "flagged":
        event.change(ITEMS, event.item, {"held": "flagged"})
    _place(event.connection, event.item)


def _drafted(event: Event) -> None:
    chosen = and_(LEASES.c.item == event.item, LEASES.c.person == event.person)
    values = {"draft": event.body["answers"], "expires": event.body["expires"]}
    event.connection.execute(update(LEASES).where(chosen).values(values))


def _labelled(event: Event) -> None:
    body, connection = event.body, event.connection
    connection.execute(_LEASE_ENDED, {"i": event.item, "p": event.person})
    row = _only(body, "project", "role", "source", "guideline", "answers", "shown")
    row |= {"remark": event.text("remark"), "at": event.at, "until": body.get("until")}
    values = {f"b_{name}": value for name, value in row.items() if name != "project"}
    values |= {"i": event.item, "p": event.person, "more": body["seconds"]}
    changed = connection.execute(_LABEL_CHANGED, values).rowcount
    if not changed:
        connection.execute(_NEW_LABEL, row | {"item": event.item, "person": event.person, "seconds": body["seconds"]})
    day = {"person": event.person, "day": day_of(event.at)}
    _count(connection, DAYS, day, {"labels": 0 if changed else 1, "seconds": body["seconds"]})
    if body["role"] not in ("first", "adjudication"):
        return
    firsts = _place(connection, event.item)
    if body["role"] == "first" and not changed and len(firsts) == 2:
        _count(connection, PAIRS, {"project": body["project"], "one": firsts[0], "other": firsts[1]}, {"shared": 1})


def _frozen(event: Event) -> None:
    """A label that can no longer be corrected; only now does it count for what becomes of the item."""
    event.connection.execute(_LABEL_FROZEN, {"i": event.item, "p": event.person})
    _place(event.connection, event.item)


def _held(event: Event) -> None:
    event.change(ITEMS, event.item, {"held": event.body["how"]})
    if event.body["how"] is not None:
        event.connection.execute(delete(LEASES).where(LEASES.c.item == event.item))
    _place(event.connection, event.item)


def _deleted(event: Event) -> None:
    for item in event.body["items"]:
        for table in (LEASES, LABELS, PASSES):
            event.connection.execute(delete(table).where(table.c.item == item))
        gone = {"record": None, "dialogue": None, "content": None, "answers": None, "held": "deleted"}
        event.change(ITEMS, item, gone)
        _place(event.connection, item)


# --- stages and lanes -------------------------------------------------------------------------------------------------

# Built once: to put a statement together costs more than to execute it.
_ITEM = select(ITEMS).where(ITEMS.c.id == bindparam("i"))
_ITS_LABELS = select(LABELS.c.person, LABELS.c.role, LABELS.c.answers, LABELS.c.until).where(
    LABELS.c.item == bindparam("i")
)
_ITS_LEASES = select(LEASES.c.person, LEASES.c.role).where(LEASES.c.item == bindparam("i"))
_LEASE_ENDED = delete(LEASES).where(LEASES.c.item == bindparam("i"), LEASES.c.person == bindparam("p"))
_MOVED = update(ITEMS).where(ITEMS.c.id == bindparam("i")).values(stage=bindparam("s"), lane=bindparam("l"))
_LANE_COUNT = update(LANES).where(LANES.c.key == bindparam("k")).values(waiting=LANES.c.waiting + bindparam("n"))
_NEW_LEASE, _NEW_LABEL = insert(LEASES), insert(LABELS)
_OWN_LABEL = update(LABELS).where(LABELS.c.item == bindparam("i"), LABELS.c.person == bindparam("p"))
_CHANGED = ("answers", "guideline", "shown", "remark", "source", "role", "at", "until")
_LABEL_CHANGED = _OWN_LABEL.values(
    {name: bindparam(f"b_{name}") for name in _CHANGED} | {"seconds": LABELS.c.seconds + bindparam("more")}
)
_LABEL_FROZEN = _OWN_LABEL.values(until=None)


def lane_key(project: int, stage: str, language: str, crisis: bool, occupants: Sequence[int]) -> str:
    """The name of the lane in which such items wait."""
    return f"{project}|{stage}|{language}|{int(crisis)}|{','.join(map(str, occupants))}"


def _place(connection: Connection, item: int) -> list[int]:
    """Moves an item to the stage and lane that its labels and leases ask for; returns who gave it first labels."""
    row = connection.execute(_ITEM, {"i": item}).one()
    labels = connection.execute(_ITS_LABELS, {"i": item}).all()
    leases = connection.execute(_ITS_LEASES, {"i": item}).all()
    firsts = sorted(label.person for label in labels if label.role == "first")
    occupants = sorted({*firsts, *(lease.person for lease in leases if lease.role == "first")})
    if row.held or row.kind != "real":
        stage = row.held or row.kind
    elif len(firsts) == 2 and not any(label.until for label in labels):
        occupants = firsts
        one, other = (label.answers for label in labels if label.role == "first")
        if one == other or any(label.role == "adjudication" for label in labels):
            stage = "closed"
        else:
            stage = "adjudicating" if any(lease.role == "adjudication" for lease in leases) else "adjudicate"
    else:
        stage = ("fresh", "half", "full")[len(occupants)]
    waits = stage in ("fresh", "half", "adjudicate")
    lane = lane_key(row.project, stage, row.language, row.crisis, occupants) if waits else None
    if stage == "closed" and leases:
        connection.execute(delete(LEASES).where(LEASES.c.item == item))
    if lane != row.lane or stage != row.stage:
        connection.execute(_MOVED, {"i": item, "s": stage, "l": lane})
    if lane != row.lane:
        if row.lane is not None:
            connection.execute(_LANE_COUNT, {"k": row.lane, "n": -1})
        if lane is not None:
            _count_lane(connection, row.project, stage, row.language, row.crisis, occupants, 1)
    return firsts


def _count_lane(
    connection: Connection, project: int, stage: str, language: str, crisis: bool, occupants: Sequence[int], more: int
) -> None:
    key = lane_key(project, stage, language, crisis, occupants)
    if not connection.execute(_LANE_COUNT, {"k": key, "n": more}).rowcount:
        row = {"key": key, "project": project, "stage": stage, "language": language, "crisis": crisis}
        connection.execute(insert(LANES), row | {"waiting": more, "occupants": ",".join(map(str, occupants))})


def _count(connection: Connection, table: Table, key: Mapping[str, Any], more: Mapping[str, int]) -> None:
    """Adds to the counters of one row, which is made where it is missing."""
    values = {f"b_{name}": value for name, value in (*key.items(), *more.items())}
    if not connection.execute(_adding(table, tuple(key), tuple(more)), values).rowcount:
        connection.execute(insert(table), {**key, **more})


@cache
def _adding(table: Table, key: tuple[str, ...], more: tuple[str, ...]) -> Update:
    chosen = and_(*(table.c[name] == bindparam(f"b_{name}") for name in key))
    return update(table).where(chosen).values({name: table.c[name] + bindparam(f"b_{name}") for name in more})


_HANDLERS: dict[str, Callable[[Event], None]] = {
    "project_added": _project_added,
    "project_changed": lambda event: event.change(PROJECTS, event.body["project"], _only(event.body, "settings")),
    "guidelines_set": _guidelines_set,
    "invited": _invited,
    "withdrawn": lambda event: event.change(INVITATIONS, event.body["invitation"], {"secret": None}),
    "joined": _joined,
    "person_changed": lambda event: event.change(PEOPLE, event.person, event.body["values"]),
    "secret_changed": lambda event: event.change(PEOPLE, event.person, {"secret": event.text("secret")}),
    "left": lambda event: event.change(PEOPLE, event.person, {"name": None, "secret": None, "active": False}),
    "items_added": _items_added,
    "leased": _leased,
    "lease_ended": _lease_ended,
    "drafted": _drafted,
    "labelled": _labelled,
    "frozen": _frozen,
    "held": _held,
    "deleted": _deleted,
}
