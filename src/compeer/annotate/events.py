"""What each kind of event does to the tables. The same code runs when something happens and when all is rebuilt.

Nothing here reads the clock, samples at random or refuses: that comes before something becomes an event. An item's
*stage* follows from its labels and leases only: fresh (nobody is on it), half (one person is), full (two are, until
both labels are frozen), adjudicate (two labels that differ), adjudicating, closed; or training, gold, flagged, dropped,
deleted. Items that wait stand in *lanes*, one for each stage, language, crisis mark and set of people already on them.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Table, insert

from compeer.annotate import schema
from compeer.annotate.schema import ITEMS, LABELS, LANES, LEASES, all_rows, change_rows, count_up, one_row, remove_rows


@dataclass(frozen=True)
class Event:
    """One event on its way into the tables; `texts` returns a kept text by its id, or None once it was erased."""

    connection: Connection
    kind: str
    at: int
    actor: int | None
    item: int | None
    body: Mapping[str, Any]
    texts: Callable[[str], str | None]

    @property
    def person(self) -> int | None:
        """The person it is about: the one named, else the one who acted."""
        found: int | None = self.body.get("person", self.actor)
        return found

    def apply(self) -> None:
        """Brings the tables up to date; kinds that are only for the record change nothing."""
        if handler := _HANDLERS.get(self.kind):
            handler(self)

    def add(self, table: Table, **values: Any) -> None:
        """Adds a row of these values and those that the body has."""
        self.connection.execute(insert(table), _row(table, self.body) | values)

    def change(self, table: Table, number: int | None, **values: Any) -> None:
        change_rows(self.connection, table, values, id=number)


def _row(table: Table, body: Mapping[str, Any]) -> dict[str, Any]:
    """What a body has under the names of a table's columns; of a text, its id."""
    found = {name: value for name, value in body.items() if name in table.c}
    return {name: value["text"] if is_text(value) else value for name, value in found.items()}


def is_text(value: Any) -> bool:
    """Whether this stands in an event for a text that is kept beside it."""
    return isinstance(value, Mapping) and value.keys() == {"text", "hash"}


def day_of(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).date().isoformat()


def _guidelines_set(event: Event) -> None:
    event.add(schema.GUIDELINES, text=event.body["words"]["text"], at=event.at)
    event.change(schema.PROJECTS, event.body["project"], guideline=event.body["version"])


def _joined(event: Event) -> None:
    name = event.texts(event.body["name"]["text"])
    event.add(schema.PEOPLE, id=event.person, name=name, daily_cap=None, declines_crisis=False, active=True)
    if (invitation := event.body.get("invitation")) is not None:
        event.change(schema.INVITATIONS, invitation, person=event.person, secret=None)


def _items_added(event: Event) -> None:
    rows, waiting, columns = [], Counter[str](), dict[str, dict[str, Any]]()
    project = event.body["project"]
    for given in event.body["items"]:
        content = json.loads(event.texts(given["content"]["text"]) or "{}")
        stage = "fresh" if given["kind"] == "real" else given["kind"]
        lane, its_columns = _lane(project, stage, given["language"], given["crisis"], ())
        columns[lane] = its_columns
        waiting[lane] += 1  # lanes of training and gold items only count them
        row = {"project": project, "record": content.get("id"), "dialogue": content.get("dialogue"), "held": None}
        rows.append(_row(ITEMS, given) | row | {"stage": stage, "lane": lane if stage == "fresh" else None})
    event.connection.execute(insert(ITEMS), rows)
    for lane, number in waiting.items():
        count_up(event.connection, LANES, {"key": lane}, {"waiting": number}, **columns[lane])


def _leased(event: Event) -> None:
    event.add(LEASES, item=event.item, person=event.person, draft=None)
    _move(event.connection, event.item)


def _lease_ended(event: Event) -> None:
    """A lease that expired or was given back; one that was skipped, declined or flagged keeps the item away."""
    key, why = {"item": event.item, "person": event.person}, event.body["why"]
    remove_rows(event.connection, LEASES, **key)
    if why not in ("expired", "released"):
        row = {"remark": None, "at": event.at} | _row(schema.PASSES, event.body)
        if not change_rows(event.connection, schema.PASSES, row, **key):
            event.connection.execute(insert(schema.PASSES), row | key)
    if why == "flagged":
        event.change(ITEMS, event.item, held="flagged")
    _move(event.connection, event.item)


def _drafted(event: Event) -> None:
    values = {"draft": event.body["answers"], "expires": event.body["expires"]}
    change_rows(event.connection, LEASES, values, item=event.item, person=event.person)


def _labelled(event: Event) -> None:
    body, connection, key = event.body, event.connection, {"item": event.item, "person": event.person}
    remove_rows(connection, LEASES, **key)
    before = one_row(connection, LABELS, **key)
    row = {"remark": None, "until": None, "at": event.at} | _row(LABELS, body)
    row["seconds"] = body["seconds"] + (before.seconds if before else 0)
    if before:
        change_rows(connection, LABELS, row, **key)
    else:
        connection.execute(insert(LABELS), row | key)
    day = {"person": event.person, "day": day_of(event.at)}
    count_up(connection, schema.DAYS, day, {"labels": 0 if before else 1, "seconds": body["seconds"]})
    if body["role"] not in ("first", "adjudication"):
        return
    firsts = _move(connection, event.item)
    if body["role"] == "first" and not before and len(firsts) == 2:
        pair = {"project": body["project"], "one": firsts[0], "other": firsts[1]}
        count_up(connection, schema.PAIRS, pair, {"shared": 1})


def _frozen(event: Event) -> None:
    """A label that can no longer be corrected; only now does it count for what becomes of the item."""
    change_rows(event.connection, LABELS, {"until": None}, item=event.item, person=event.person)
    _move(event.connection, event.item)


def _held(event: Event) -> None:
    event.change(ITEMS, event.item, held=event.body["how"])
    if event.body["how"] is not None:
        remove_rows(event.connection, LEASES, item=event.item)
    _move(event.connection, event.item)


def _deleted(event: Event) -> None:
    for item in event.body["items"]:
        for table in (LEASES, LABELS, schema.PASSES):
            remove_rows(event.connection, table, item=item)
        event.change(ITEMS, item, record=None, dialogue=None, content=None, answers=None, held="deleted")
        _move(event.connection, item)


def _lane(project: int, stage: str, language: str, crisis: bool, people: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """The key of the lane in which such items wait, and its other columns."""
    occupants = ",".join(map(str, people))
    columns = {"project": project, "stage": stage, "language": language, "crisis": crisis, "occupants": occupants}
    return f"{project}|{stage}|{language}|{int(crisis)}|{occupants}", columns


def _move(connection: Connection, item: int | None) -> list[int]:
    """Moves an item to the stage and lane that its labels and leases ask for; returns who gave it first labels."""
    row = one_row(connection, ITEMS, id=item)
    assert row is not None, "an event about an item comes after the one that added it"
    labels, leases = all_rows(connection, LABELS, item=item), all_rows(connection, LEASES, item=item)
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
    key, columns = _lane(row.project, stage, row.language, row.crisis, occupants)
    lane = key if stage in ("fresh", "half", "adjudicate") else None
    if stage == "closed" and leases:
        remove_rows(connection, LEASES, item=item)
    if lane != row.lane or stage != row.stage:
        change_rows(connection, ITEMS, {"stage": stage, "lane": lane}, id=item)
    if lane != row.lane:
        if row.lane is not None:
            count_up(connection, LANES, {"key": row.lane}, {"waiting": -1})
        if lane is not None:
            count_up(connection, LANES, {"key": lane}, {"waiting": 1}, **columns)
    return firsts


_HANDLERS: dict[str, Callable[[Event], None]] = {
    "project_added": lambda event: event.add(schema.PROJECTS, id=event.body["project"], guideline=0),
    "project_changed": lambda event: event.change(
        schema.PROJECTS, event.body["project"], settings=event.body["settings"]
    ),
    "guidelines_set": _guidelines_set,
    "invited": lambda event: event.add(schema.INVITATIONS, id=event.body["invitation"], person=None),
    "withdrawn": lambda event: event.change(schema.INVITATIONS, event.body["invitation"], secret=None),
    "joined": _joined,
    "person_changed": lambda event: event.change(schema.PEOPLE, event.person, **event.body["values"]),
    "secret_changed": lambda event: event.change(schema.PEOPLE, event.person, secret=event.body["secret"]["text"]),
    "left": lambda event: event.change(schema.PEOPLE, event.person, name=None, secret=None, active=False),
    "items_added": _items_added,
    "leased": _leased,
    "lease_ended": _lease_ended,
    "drafted": _drafted,
    "labelled": _labelled,
    "frozen": _frozen,
    "held": _held,
    "deleted": _deleted,
}
