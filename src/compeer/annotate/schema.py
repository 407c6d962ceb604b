"""The tables of an annotation store.

`events` is what happened, each row chained to the one before it by a hash; it is never changed. `texts` holds what
people may ask to have removed (dialogues, names, remarks, hashed passwords). An event names a text only by its id and
salted hash, so a text can go and the chain still holds. `head` is the end of the chain; a writer holds its one row. All
other tables but `sessions` are the state that the events lead to: only `events.py` writes them, and they can be
rebuilt. Times are milliseconds since 1970.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Index, Integer, String, Text

METADATA = sa.MetaData()


class _Encoded(sa.TypeDecorator[Any]):
    """A value kept as text; what cannot be read, since somebody changed it, is returned as it is."""

    impl, cache_ok = Text, True

    def __init__(self, encode: Callable[[Any], str], decode: Callable[[str], Any]) -> None:
        super().__init__()
        self.encode, self.decode = encode, decode

    def process_bind_param(self, value: Any, _: sa.Dialect) -> str | None:
        return None if value is None else self.encode(value)

    def process_result_value(self, value: Any, _: sa.Dialect) -> Any:
        try:
            return None if value is None else self.decode(value)
        except ValueError:
            return value


Json = _Encoded(partial(json.dumps, sort_keys=True), json.loads)
WordList = _Encoded(",".join, lambda text: tuple(text.split(",")))


def _table(
    name: str,
    keys: Mapping[str, Any],
    required: Mapping[str, Any],
    optional: Mapping[str, Any] | None = None,
    indexed: Collection[str] = (),
    unique: Collection[str] = (),
    together: Collection[str] = (),
) -> sa.Table:
    """A table; the columns of `together` are unique as a group."""
    columns = [sa.Column(key, kind, primary_key=True, autoincrement=False) for key, kind in keys.items()]
    for given, nullable in ((required, False), (optional or {}, True)):
        columns += [
            sa.Column(key, kind, nullable=nullable, index=key in indexed or None, unique=key in unique or None)
            for key, kind in given.items()
        ]
    return sa.Table(name, METADATA, *columns, *([sa.UniqueConstraint(*together)] if together else []))


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

# the tables that the events lead to
STATE = (PROJECTS, GUIDELINES, PEOPLE, INVITATIONS, ITEMS, LANES, LEASES, LABELS, PASSES, PAIRS, DAYS)
KEPT = (EVENTS, HEAD, TEXTS)  # the tables that cannot be rebuilt

REVISION = "0002"  # the version of these tables, which a store keeps in the one row of `VERSION`
VERSION = sa.Table("alembic_version", sa.MetaData(), sa.Column("version_num", String(32), primary_key=True))
FROM_0001 = (
    "ALTER TABLE labels ADD COLUMN until BIGINT",
    "CREATE INDEX ix_labels_until ON labels (until)",
    "DROP INDEX items_waiting",
    "CREATE INDEX items_waiting ON items (lane, priority DESC, content)",
)
"""Brings an older store up to date: its labels are frozen, its items wait in the order of their contents' ids."""


# --- rows by the values of their columns ------------------------------------------------------------------------------
# Statements are built once: to put one together costs more than to execute it.


def one_row(connection: sa.Connection, table: sa.Table, **key: Any) -> sa.Row[Any] | None:
    found: sa.Row[Any] | None = connection.execute(_matching(sa.select, table, *key), _bound(key)).first()
    return found


def all_rows(connection: sa.Connection, table: sa.Table, **key: Any) -> Sequence[sa.Row[Any]]:
    found: Sequence[sa.Row[Any]] = connection.execute(_matching(sa.select, table, *key), _bound(key)).all()
    return found


def change_rows(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any], **key: Any) -> bool:
    """Sets columns of the rows with these values; False where there is none."""
    return bool(connection.execute(_matching(sa.update, table, *key), {**_bound(key), **values}).rowcount)


def remove_rows(connection: sa.Connection, table: sa.Table, **key: Any) -> None:
    connection.execute(_matching(sa.delete, table, *key), _bound(key))


def count_up(
    connection: sa.Connection, table: sa.Table, key: Mapping[str, Any], more: Mapping[str, int], **other: Any
) -> None:
    """Adds to counters of the row with this key; where it is missing, it is made, with the other columns."""
    values = _bound(key) | {f"more_{name}": number for name, number in more.items()}
    if not connection.execute(_adding(table, tuple(key), tuple(more)), values).rowcount:
        connection.execute(sa.insert(table), {**key, **more, **other})


def _bound(key: Mapping[str, Any]) -> dict[str, Any]:
    return {f"its_{name}": value for name, value in key.items()}


@cache
def _matching(statement: Callable[[sa.Table], Any], table: sa.Table, *key: str) -> Any:
    """A statement about the rows whose columns have the values bound to it."""
    return statement(table).where(*(table.c[name] == sa.bindparam(f"its_{name}") for name in key))


@cache
def _adding(table: sa.Table, key: tuple[str, ...], names: tuple[str, ...]) -> Any:
    sums = {name: table.c[name] + sa.bindparam(f"more_{name}") for name in names}
    return _matching(sa.update, table, *key).values(sums)
