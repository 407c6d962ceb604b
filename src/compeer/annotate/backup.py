"""Copies of a store, and the proof that a store is whole.

A backup is an SQLite file, whatever the database: one moment of it, checked before it gets its name. It is a store
itself, or fills an empty one. `verify` follows the chain of events, finds their texts, and rebuilds all tables.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, create_engine, delete, insert, select
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import StaticPool

from compeer.annotate.events import Event, is_text
from compeer.annotate.people import Actor, admin_writes
from compeer.annotate.schema import EVENTS, HEAD, KEPT, METADATA, STATE, TEXTS
from compeer.annotate.store import START, Store, create_store, event_hash, open_store, text_hash
from compeer.errors import InputError
from compeer.io import atomic
from compeer.pipeline import in_blocks

AT_ONCE = 1000
MOST_PROBLEMS = 50


@dataclass(frozen=True)
class Verified:
    """What `verify` found: how many events there are, the end of the chain, and what is wrong."""

    events: int
    head: str
    problems: tuple[str, ...]


def backup(store: Store, path: Path, actor: Actor = None) -> Verified:
    """Writes a copy of the store as it is at this moment, and checks it."""
    if path.exists():
        raise InputError("this is there already.", file=path, do="Give another name.")
    with admin_writes(store, actor) as writing:
        writing.record("backed_up", {})
    with atomic(path) as unfinished:
        copy = create_store(str(unfinished))
        try:
            with store.read() as source:
                _fill(copy, source)
            found = verify(copy)
            with copy.engine.connect() as connection:  # one file, without a journal beside it
                connection.connection.cursor().execute("PRAGMA journal_mode=DELETE")
        finally:
            copy.close()
        if found.problems:
            do = "compeer annotate verify says more."
            raise InputError(f"the copy is not whole: {found.problems[0]}", file=path, do=do)
    return found


def restore(path: Path, name: str) -> Store:
    """Fills an empty store, of either kind, from a backup, once that has proved to be whole."""
    source = open_store(str(path))
    found = verify(source)
    if found.problems:
        raise InputError(f"this backup is not whole: {found.problems[0]}", file=path)
    made = create_store(name)
    if made.length():
        raise InputError("this store is not empty.", do="Give the name of a new one.")
    with source.read() as connection:
        _fill(made, connection)
    source.close()
    return made


def _fill(target: Store, source: Connection) -> None:
    with target.engine.execution_options(compeer_writes="FULL").begin() as connection:
        connection.execute(delete(HEAD))
        for table in (*KEPT, *STATE):
            for rows in in_blocks(_rows(source, table), AT_ONCE):
                connection.execute(insert(table), rows)


def _rows(connection: Connection, table: Table) -> Iterator[dict[str, Any]]:
    """All rows of a table by their key, read some at a time."""
    ordered = select(table).order_by(*table.primary_key.columns)
    return map(dict, connection.execution_options(yield_per=AT_ONCE).execute(ordered).mappings())


def verify(store: Store, head: str | None = None) -> Verified:
    """Proves the store whole, or says what is wrong; by an earlier `head`, also a chain cut or written anew."""
    problems: list[str] = []
    hashes = [START]
    try:
        with store.read() as connection:
            problems += _check_chain(connection, hashes)
            for check in (_check_texts, _check_tables):
                if not problems:  # a broken chain cannot be followed
                    problems += check(connection)
    except DatabaseError as error:
        problems.append(f"the database cannot be read: {str(error.orig).strip()}")
    if head is not None and head not in hashes:
        problems.append(f"the chain does not hold {head[:12]}…, which it held before: events are missing or changed")
    return Verified(len(hashes) - 1, hashes[-1], tuple(problems[:MOST_PROBLEMS]))


def _check_chain(connection: Connection, hashes: list[str]) -> Iterator[str]:
    for row in _rows(connection, EVENTS):
        count = len(hashes)
        if row["seq"] != count:
            yield f"event {count} is missing: event {row['seq']} stands in its place"
            return
        event = (row["seq"], row["at"], row["actor"], row["kind"], row["item"], row["body"])
        if event_hash(hashes[-1], *event) != row["hash"]:
            yield f"event {count} ({row['kind']}) or one before it was changed: its hash does not fit"
            return
        hashes.append(row["hash"])
    end, count = connection.execute(select(HEAD.c.seq, HEAD.c.hash)).first(), len(hashes) - 1
    if end is None:
        yield "the end of the chain is not known: the table 'head' is empty"
    elif (end.seq, end.hash) != (count, hashes[-1]):
        yield f"the chain has {count} events, and should have {end.seq}: its end was cut off or changed"


def _check_texts(connection: Connection) -> Iterator[str]:
    """Every text that an event names is there as it was, unless an event erased it; and there are no others."""
    named: dict[str, str] = {}
    erased: set[str] = set()
    for row in _rows(connection, EVENTS):
        body = json.loads(row["body"])
        named.update(_named(body))
        erased.update(body.get("erased", ()))
    there: set[str] = set()
    for row in _rows(connection, TEXTS):
        there.add(row["id"])
        if row["id"] not in named:
            yield f"text {row['id']} belongs to no event"
        elif text_hash(row["salt"], row["value"]) != named[row["id"]]:
            yield f"text {row['id']} was changed: its hash does not fit"
        elif row["id"] in erased:
            yield f"text {row['id']} was erased, and is there"
    yield from (f"text {text} is missing" for text in sorted(named.keys() - erased - there))


def _named(value: Any) -> Iterator[tuple[str, str]]:
    """The texts that an event's body names, with their hashes."""
    if is_text(value):
        yield value["text"], value["hash"]
    elif isinstance(value, (Mapping, list)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _named(one)


def _check_tables(connection: Connection) -> Iterator[str]:
    """Rebuilds all tables, in memory, and compares them with those that are there."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    METADATA.create_all(engine)
    texts = {row["id"]: row["value"] for row in _rows(connection, TEXTS)}
    with engine.begin() as again:
        for row in _rows(connection, EVENTS):
            body = json.loads(row["body"])
            Event(again, row["kind"], row["at"], row["actor"], row["item"], body, texts.get).apply()
        for table in STATE:
            yield from _differences(table, again, connection)
    engine.dispose()


def _differences(table: Table, *connections: Connection) -> Iterator[str]:
    """In what a table differs between two connections, the rebuilt one first."""
    keys = [column.name for column in table.primary_key.columns]
    wanted, found = ({tuple(row[key] for key in keys): row for row in _rows(one, table)} for one in connections)
    for key in sorted(wanted.keys() | found.keys()):
        row = f"{table.name} {', '.join(map(str, key))}"
        if key not in found:
            yield f"{row} is missing"
        elif key not in wanted:
            yield f"{row} follows from no event"
        else:
            for name, value in wanted[key].items():
                if found[key][name] != value:
                    yield f"{row}: '{name}' is not what the events say"
