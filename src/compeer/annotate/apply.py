"""What each kind of event does to the tables. The same code runs when something happens and when all is made again.

Nothing here looks at the clock, draws at random or refuses: whether something is allowed is asked before it becomes an
event. An item's *stage* follows from its labels and leases alone (`_place`): fresh (nobody is on it), half (one person
is), full (two are, until both labels are frozen), adjudicate (two labels that differ), adjudicating, closed; or
training, gold, flagged, dropped, deleted. Items that wait for somebody stand in *lanes*, a lane for each stage,
language, crisis mark and set of people who already are on its items; to find work for a person is to look at the first
item of each lane that is open to them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
"""Gives a kept text by its id, or None once it was erased."""


class Happening:
    """One event on its way into the tables."""

    def __init__(
        self,
        connection: Connection,
        at: int,
        actor: int | None,
        item: int | None,
        body: Mapping[str, Any],
        texts: Texts,
    ) -> None:
        self.connection, self.at, self.actor, self.body, self.texts = connection, at, actor, body, texts
        self._item = item

    @property
    def item(self) -> int:
        """The item it is about."""
        assert self._item is not None, "this kind of event is about an item"
        return self._item

    @property
    def person(self) -> int:
        """The person it is about: the one named, else the one who acted."""
        found = self.body.get("person", self.actor)
        assert isinstance(found, int), "this kind of event is about a person"
        return found

    def text(self, key: str) -> str | None:
        """The id of the text that stands under a key of the body."""
        found = self.body.get(key)
        return str(found["text"]) if found else None


def apply(
    connection: Connection,
    kind: str,
    at: int,
    actor: int | None,
    item: int | None,
    body: Mapping[str, Any],
    texts: Texts,
) -> None:
    """Brings the tables up to date with one event; kinds that only tell what was done change nothing."""
    if handler := _HANDLERS.get(kind):
        handler(Happening(connection, at, actor, item, body, texts))


def day_of(at: int) -> str:
    """The day of a time, in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()


# --- projects and people ----------------------------------------------------------------------------------------------


def _project_added(event: Happening) -> None:
    row = {"id": event.body["project"], "name": event.body["name"], "task": event.body["task"], "guideline": 0}
    event.connection.execute(insert(PROJECTS), row | {"settings": json.dumps(event.body["settings"], sort_keys=True)})


def _project_changed(event: Happening) -> None:
    settings = json.dumps(event.body["settings"], sort_keys=True)
    chosen = PROJECTS.c.id == event.body["project"]
    event.connection.execute(update(PROJECTS).where(chosen).values(settings=settings))


def _guidelines_set(event: Happening) -> None:
    project, version = event.body["project"], event.body["version"]
    row = {"project": project, "version": version, "text": event.text("words"), "at": event.at}
    event.connection.execute(insert(GUIDELINES), row)
    event.connection.execute(update(PROJECTS).where(PROJECTS.c.id == project).values(guideline=version))


def _invited(event: Happening) -> None:
    body = event.body
    row = {"id": body["invitation"], "secret": event.text("secret"), "program": body["program"], "person": None}
    row |= {"roles": ",".join(body["roles"]), "languages": ",".join(body["languages"]), "expires": body["expires"]}
    event.connection.execute(insert(INVITATIONS), row)


def _withdrawn(event: Happening) -> None:
    chosen = INVITATIONS.c.id == event.body["invitation"]
    event.connection.execute(update(INVITATIONS).where(chosen).values(secret=None))


def _joined(event: Happening) -> None:
    body = event.body
    name = event.text("name")
    row = {
        "id": event.person,
        "pseudonym": body["pseudonym"],
        "name": event.texts(name) if name else None,
        "secret": event.text("secret"),
        "roles": ",".join(body["roles"]),
        "languages": ",".join(body["languages"]),
        "program": body["program"],
        "daily_cap": None,
        "declines_crisis": False,
        "active": True,
    }
    event.connection.execute(insert(PEOPLE), row)
    if (invitation := body.get("invitation")) is not None:
        used = {"person": event.person, "secret": None}
        event.connection.execute(update(INVITATIONS).where(INVITATIONS.c.id == invitation).values(used))


def _person_changed(event: Happening) -> None:
    values = dict(event.body["values"])
    for key in ("roles", "languages"):
        if key in values:
            values[key] = ",".join(values[key])
    event.connection.execute(update(PEOPLE).where(PEOPLE.c.id == event.person).values(values))


def _secret_changed(event: Happening) -> None:
    chosen = PEOPLE.c.id == event.person
    event.connection.execute(update(PEOPLE).where(chosen).values(secret=event.text("secret")))


def _left(event: Happening) -> None:
    chosen = PEOPLE.c.id == event.person
    event.connection.execute(update(PEOPLE).where(chosen).values(name=None, secret=None, active=False))


# --- items ------------------------------------------------------------------------------------------------------------


def _items_added(event: Happening) -> None:
    rows, waiting = [], Counter[tuple[str, str, bool]]()
    project = event.body["project"]
    for given in event.body["items"]:
        content = json.loads(event.texts(given["content"]["text"]) or "{}")
        real = given["kind"] == "real"
        rows.append(
            {name: given[name] for name in ("id", "kind", "language", "crisis", "priority", "author")}
            | {"project": project, "record": content.get("id"), "dialogue": content.get("dialogue")}
            | {"content": given["content"]["text"], "held": None, "stage": "fresh" if real else given["kind"]}
            | {"answers": json.dumps(given["answers"], sort_keys=True) if given["answers"] is not None else None}
            | {"lane": lane_key(project, "fresh", given["language"], given["crisis"], ()) if real else None}
        )
        waiting["fresh" if real else given["kind"], given["language"], given["crisis"]] += 1
    event.connection.execute(insert(ITEMS), rows)
    for (stage, language, crisis), count in waiting.items():  # lanes of training and gold items only count them
        _count_lane(event.connection, project, stage, language, crisis, (), count)


def _leased(event: Happening) -> None:
    row = {name: event.body[name] for name in ("project", "role", "expires")}
    row |= {"item": event.item, "person": event.person, "shown": json.dumps(event.body["shown"]), "draft": None}
    event.connection.execute(_NEW_LEASE, row)
    _place(event.connection, event.item)


def _lease_ended(event: Happening) -> None:
    """A lease that ran out or was given back; one that was skipped, declined or flagged keeps the item away."""
    _end_lease(event.connection, event.item, event.person)
    why = event.body["why"]
    if why not in ("expired", "released"):
        chosen = and_(PASSES.c.person == event.person, PASSES.c.item == event.item)
        row = {"why": why, "remark": event.text("remark"), "at": event.at}
        if not event.connection.execute(update(PASSES).where(chosen).values(row)).rowcount:
            event.connection.execute(insert(PASSES), row | {"person": event.person, "item": event.item})
    if why == "flagged":
        event.connection.execute(update(ITEMS).where(ITEMS.c.id == event.item).values(held="flagged"))
    _place(event.connection, event.item)


def _drafted(event: Happening) -> None:
    chosen = and_(LEASES.c.item == event.item, LEASES.c.person == event.person)
    values = {"draft": json.dumps(event.body["answers"], sort_keys=True), "expires": event.body["expires"]}
    event.connection.execute(update(LEASES).where(chosen).values(values))


def _labelled(event: Happening) -> None:
    body, connection = event.body, event.connection
    _end_lease(connection, event.item, event.person)
    row = {name: body[name] for name in ("project", "role", "source", "guideline")}
    row |= {"answers": json.dumps(body["answers"], sort_keys=True), "shown": json.dumps(body["shown"])}
    row |= {"remark": event.text("remark"), "at": event.at, "until": body.get("until")}
    told = {f"b_{name}": value for name, value in row.items() if name != "project"}
    told |= {"i": event.item, "p": event.person, "more": body["seconds"]}
    changed = connection.execute(_LABEL_CHANGED, told).rowcount
    if not changed:
        owned = {"item": event.item, "person": event.person, "seconds": body["seconds"]}
        connection.execute(_NEW_LABEL, row | owned)
    day = {"person": event.person, "day": day_of(event.at)}
    _count(connection, DAYS, day, {"labels": 0 if changed else 1, "seconds": body["seconds"]})
    if body["role"] != "first" and body["role"] != "adjudication":
        return
    on_it = _place(connection, event.item)
    if body["role"] == "first" and not changed and len(on_it) == 2:
        _count(connection, PAIRS, {"project": body["project"], "one": on_it[0], "other": on_it[1]}, {"shared": 1})


def _frozen(event: Happening) -> None:
    """A label whose giver can no longer correct it; only now does it count for what becomes of the item."""
    event.connection.execute(_LABEL_FROZEN, {"i": event.item, "p": event.person})
    _place(event.connection, event.item)


def _held(event: Happening) -> None:
    chosen = ITEMS.c.id == event.item
    event.connection.execute(update(ITEMS).where(chosen).values(held=event.body["how"]))
    if event.body["how"] is not None:
        event.connection.execute(delete(LEASES).where(LEASES.c.item == event.item))
    _place(event.connection, event.item)


def _deleted(event: Happening) -> None:
    for item in event.body["items"]:
        for table in (LEASES, LABELS, PASSES):
            event.connection.execute(delete(table).where(table.c.item == item))
        gone = {"record": None, "dialogue": None, "content": None, "answers": None, "held": "deleted"}
        event.connection.execute(update(ITEMS).where(ITEMS.c.id == item).values(gone))
        _place(event.connection, item)


# --- stages and lanes -------------------------------------------------------------------------------------------------


# Made once: to put a statement together costs more than to carry it out.
_ITEM = select(ITEMS).where(ITEMS.c.id == bindparam("i"))
_ITS_LABELS = select(LABELS.c.person, LABELS.c.role, LABELS.c.answers, LABELS.c.until).where(
    LABELS.c.item == bindparam("i")
)
_ITS_LEASES = select(LEASES.c.person, LEASES.c.role).where(LEASES.c.item == bindparam("i"))
_LEASE_GONE = delete(LEASES).where(LEASES.c.item == bindparam("i"), LEASES.c.person == bindparam("p"))
_MOVED = update(ITEMS).where(ITEMS.c.id == bindparam("i")).values(stage=bindparam("s"), lane=bindparam("l"))
_LANE_COUNT = update(LANES).where(LANES.c.key == bindparam("k")).values(waiting=LANES.c.waiting + bindparam("n"))
_NEW_LEASE, _NEW_LABEL = insert(LEASES), insert(LABELS)
_LABEL_CHANGED = (
    update(LABELS)
    .where(LABELS.c.item == bindparam("i"), LABELS.c.person == bindparam("p"))
    .values(
        {
            name: bindparam(f"b_{name}")
            for name in ("answers", "guideline", "shown", "remark", "source", "role", "at", "until")
        }
        | {"seconds": LABELS.c.seconds + bindparam("more")}
    )
)
_LABEL_FROZEN = (
    update(LABELS).where(LABELS.c.item == bindparam("i"), LABELS.c.person == bindparam("p")).values(until=None)
)


def lane_key(project: int, stage: str, language: str, crisis: bool, occupants: Sequence[int]) -> str:
    """The name of the lane in which such items wait."""
    return f"{project}|{stage}|{language}|{int(crisis)}|{','.join(map(str, occupants))}"


def _place(connection: Connection, item: int) -> list[int]:
    """Moves an item to the stage and lane that its labels and leases ask for; returns who gave it first labels."""
    row = connection.execute(_ITEM, {"i": item}).one()
    labels = connection.execute(_ITS_LABELS, {"i": item}).all()
    leases = connection.execute(_ITS_LEASES, {"i": item}).all()
    firsts = sorted(label.person for label in labels if label.role == "first")
    seats = sorted({*firsts, *(lease.person for lease in leases if lease.role == "first")})
    occupants: Sequence[int] = seats
    if row.held or row.kind != "real":
        stage = row.held or row.kind
    elif len(firsts) == 2 and not any(label.until for label in labels):
        occupants = firsts
        same = len({label.answers for label in labels if label.role == "first"}) == 1
        if same or any(label.role == "adjudication" for label in labels):
            stage = "closed"
        else:
            stage = "adjudicating" if any(lease.role == "adjudication" for lease in leases) else "adjudicate"
    else:
        stage = ("fresh", "half", "full")[len(seats)]
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
    if connection.execute(_LANE_COUNT, {"k": key, "n": more}).rowcount:
        return
    row = {"key": key, "project": project, "stage": stage, "language": language, "crisis": crisis, "waiting": more}
    connection.execute(insert(LANES), row | {"occupants": ",".join(map(str, occupants))})


def _count(connection: Connection, table: Table, key: Mapping[str, Any], more: Mapping[str, int]) -> None:
    """Adds to the counters of one row, which is made where it is missing."""
    added = _adding(table, tuple(key), tuple(more))
    told = {f"b_{name}": value for name, value in (*key.items(), *more.items())}
    if not connection.execute(added, told).rowcount:
        connection.execute(insert(table), {**key, **more})


@cache
def _adding(table: Table, key: tuple[str, ...], more: tuple[str, ...]) -> Update:
    chosen = and_(*(table.c[name] == bindparam(f"b_{name}") for name in key))
    return update(table).where(chosen).values({name: table.c[name] + bindparam(f"b_{name}") for name in more})


def _end_lease(connection: Connection, item: int, person: int) -> None:
    connection.execute(_LEASE_GONE, {"i": item, "p": person})


_HANDLERS: dict[str, Callable[[Happening], None]] = {
    "project_added": _project_added,
    "project_changed": _project_changed,
    "guidelines_set": _guidelines_set,
    "invited": _invited,
    "withdrawn": _withdrawn,
    "joined": _joined,
    "person_changed": _person_changed,
    "secret_changed": _secret_changed,
    "left": _left,
    "items_added": _items_added,
    "leased": _leased,
    "lease_ended": _lease_ended,
    "drafted": _drafted,
    "labelled": _labelled,
    "frozen": _frozen,
    "held": _held,
    "deleted": _deleted,
}
