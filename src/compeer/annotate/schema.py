"""The tables of an annotation store.

`events` is what happened, in order, each row chained to the one before it by a hash; it is never changed. `texts` holds
what people may ask to have removed (dialogues, names, remarks, hashed passwords). An event names a text only by its id
and salted hash, so a text can go and the chain still holds. `head` is the end of the chain; a writer holds its one row.
`sessions` are sign-ins, which may be lost. All other tables are the state that the events lead to: only `events.py`
writes them, and they can be rebuilt. Times are milliseconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

METADATA = MetaData()


class Json(TypeDecorator[Any]):
    """A value as JSON; what cannot be read, since somebody changed it, is returned as it is."""

    impl, cache_ok = Text, True

    def process_bind_param(self, value: Any, _: Dialect) -> str | None:
        return None if value is None else json.dumps(value, sort_keys=True)

    def process_result_value(self, value: Any, _: Dialect) -> Any:
        try:
            return None if value is None else json.loads(value)
        except ValueError:
            return value


class WordList(TypeDecorator[tuple[str, ...]]):
    """WordList with commas between them."""

    impl, cache_ok = Text, True

    def process_bind_param(self, value: Any, _: Dialect) -> str | None:
        return None if value is None else ",".join(value)

    def process_result_value(self, value: Any, _: Dialect) -> tuple[str, ...] | None:
        return None if value is None else tuple(value.split(","))


def _table(
    name: str,
    keys: Mapping[str, Any],
    required: Mapping[str, Any],
    optional: Mapping[str, Any] | None = None,
    indexed: Collection[str] = (),
    unique: Collection[str] = (),
    together: Collection[str] = (),
) -> Table:
    """A table; the columns of `together` are unique as a group."""
    columns = [Column(key, kind, primary_key=True, autoincrement=False) for key, kind in keys.items()]
    for given, nullable in ((required, False), (optional or {}, True)):
        columns += [
            Column(key, kind, nullable=nullable, index=key in indexed or None, unique=key in unique or None)
            for key, kind in given.items()
        ]
    return Table(name, METADATA, *columns, *([UniqueConstraint(*together)] if together else []))


EVENTS = _table(
    "events",
    {"seq": BigInteger},
    {"at": BigInteger, "kind": String(40), "body": Text, "hash": String(64)},
    {"actor": Integer, "item": BigInteger},
)
Index("events_item", EVENTS.c.item, EVENTS.c.seq)
HEAD = _table("head", {"id": Integer}, {"seq": BigInteger, "hash": String(64)})
TEXTS = _table(
    "texts",
    {"id": String(32)},
    {"salt": String(32), "value": Text},
    {"item": BigInteger, "person": Integer},
    indexed=["item", "person"],
)
SESSIONS = _table("sessions", {"token": String(64)}, {"person": Integer, "expires": BigInteger}, indexed=["person"])

PROJECTS = _table(
    "projects",
    {"id": Integer},
    {"name": String(200), "task": String(20), "settings": Json, "guideline": Integer},
    unique=["name"],
)
GUIDELINES = _table("guidelines", {"project": Integer, "version": Integer}, {"text": String(32), "at": BigInteger})
PEOPLE = _table(
    "people",
    {"id": Integer},
    {"pseudonym": String(20), "roles": WordList, "languages": WordList}
    | {"program": Boolean, "declines_crisis": Boolean, "active": Boolean},
    {"name": String(200), "secret": String(32), "daily_cap": Integer},
    unique=["pseudonym", "name"],
)
INVITATIONS = _table(
    "invitations",
    {"id": Integer},
    {"roles": WordList, "languages": WordList, "program": Boolean, "expires": BigInteger},
    {"secret": String(32), "person": Integer},
)
ITEMS = _table(
    "items",
    {"id": BigInteger},
    {"project": Integer, "kind": String(10), "language": String(20), "crisis": Boolean, "priority": Integer}
    | {"author": String(200), "stage": String(12)},
    {"record": String(500), "dialogue": String(500), "content": String(32), "answers": Json}
    | {"held": String(10), "lane": String(300)},
    indexed=["dialogue"],
    together=["project", "record"],
)
Index("items_waiting", ITEMS.c.lane, ITEMS.c.priority.desc(), ITEMS.c.content)
Index("items_stage", ITEMS.c.project, ITEMS.c.stage)
LANES = _table(
    "lanes",
    {"key": String(300)},
    {"project": Integer, "stage": String(12), "language": String(20), "crisis": Boolean}
    | {"occupants": String(60), "waiting": Integer},
    indexed=["project"],
)
LEASES = _table(
    "leases",
    {"item": BigInteger, "person": Integer},
    {"project": Integer, "role": String(12), "expires": BigInteger, "shown": Json},
    {"draft": Json},
    indexed=["expires"],
    together=["person", "project"],
)
LABELS = _table(
    "labels",
    {"item": BigInteger, "person": Integer},
    {"project": Integer, "role": String(12), "source": String(10), "answers": Json, "guideline": Integer}
    | {"shown": Json, "seconds": Integer, "at": BigInteger},
    {"remark": String(32), "until": BigInteger},  # until: when it freezes; none: it is frozen
    indexed=["until"],
)
Index("labels_of_person", LABELS.c.person, LABELS.c.project, LABELS.c.role, LABELS.c.at)
PASSES = _table(
    "passes", {"person": Integer, "item": BigInteger}, {"why": String(10), "at": BigInteger}, {"remark": String(32)}
)
Index("passes_item", PASSES.c.item)
PAIRS = _table("pairs", {"project": Integer, "one": Integer, "other": Integer}, {"shared": Integer})
DAYS = _table("days", {"person": Integer, "day": String(10)}, {"labels": Integer, "seconds": Integer})

STATE = (PROJECTS, GUIDELINES, PEOPLE, INVITATIONS, ITEMS, LANES, LEASES, LABELS, PASSES, PAIRS, DAYS)
"""The tables that the events lead to."""
KEPT = (EVENTS, HEAD, TEXTS)
"""The tables that cannot be rebuilt."""
