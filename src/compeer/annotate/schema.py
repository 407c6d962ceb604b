"""The tables of an annotation store (`schema.toml`), and rows by the values of their columns.

`events` is what happened, each row chained to the one before it by a hash; it is never changed. `texts` holds what
people may ask to have removed (dialogues, names, remarks, hashed passwords). An event names a text only by its id and
salted hash, so a text can go and the chain still holds. `head` is the end of the chain; a writer holds its one row. All
other tables but `sessions` are the state that the events lead to: only `events.py` writes them, and they can be
rebuilt. Times are milliseconds since 1970.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import sqlalchemy as sa

from compeer.io import table

METADATA = sa.MetaData()


class _Encoded(sa.TypeDecorator[Any]):
    """A value kept as text; what cannot be read, since somebody changed it, is returned as it is."""

    impl, cache_ok = sa.Text, True

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


_KINDS: dict[str, Any] = {"long": sa.BigInteger, "int": sa.Integer, "bool": sa.Boolean, "text": sa.Text}
_KINDS["json"] = _Encoded(partial(json.dumps, sort_keys=True), json.loads)
_KINDS["words"] = _Encoded(",".join, lambda text: tuple(text.split(",")))


def _column(name: str, described: str) -> sa.Column[Any]:
    kind, *marks = described.split()
    marked: dict[str, Any] = {"primary_key": "key" in marks, "nullable": "optional" in marks, "autoincrement": False}
    marked |= {mark: mark in marks or None for mark in ("index", "unique")}
    return sa.Column(name, _KINDS.get(kind) or sa.String(int(kind)), **marked)


_TABLES = tuple(
    sa.Table(name, METADATA, *map(_column, columns.keys(), columns.values()))
    for name, columns in table("annotate/schema").items()
)
EVENTS, HEAD, TEXTS, SESSIONS, *_ = _TABLES
KEPT, STATE = _TABLES[:3], _TABLES[4:]  # the tables that cannot be rebuilt, and those that the events lead to
PROJECTS, GUIDELINES, PEOPLE, INVITATIONS, ITEMS, LANES, LEASES, LABELS, PASSES, PAIRS, DAYS = STATE
ITEMS.append_constraint(sa.UniqueConstraint("project", "record"))
LEASES.append_constraint(sa.UniqueConstraint("person", "project"))
sa.Index("events_item", EVENTS.c.item, EVENTS.c.seq)
sa.Index("items_waiting", ITEMS.c.lane, ITEMS.c.priority.desc(), ITEMS.c.content)
sa.Index("items_stage", ITEMS.c.project, ITEMS.c.stage)
sa.Index("labels_of_person", LABELS.c.person, LABELS.c.project, LABELS.c.role, LABELS.c.at)
sa.Index("passes_item", PASSES.c.item)

REVISION = "0002"  # the version of these tables, which a store keeps in the one row of `VERSION`
VERSION = sa.Table("alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True))
FROM_0001 = (  # brings an older store up to date: labels are frozen, items wait in the order of their contents' ids
    "ALTER TABLE labels ADD COLUMN until BIGINT",
    "CREATE INDEX ix_labels_until ON labels (until)",
    "DROP INDEX items_waiting",
    "CREATE INDEX items_waiting ON items (lane, priority DESC, content)",
)


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
    """A statement about rows by values bound to it, built once: that costs more than to execute it."""
    return statement(table).where(*(table.c[name] == sa.bindparam(f"its_{name}") for name in key))


@cache
def _adding(table: sa.Table, key: tuple[str, ...], names: tuple[str, ...]) -> Any:
    sums = {name: table.c[name] + sa.bindparam(f"more_{name}") for name in names}
    return _matching(sa.update, table, *key).values(sums)
