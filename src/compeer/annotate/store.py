"""The annotation store: one database in which every change is an event, on disk before anyone hears that it is done.

A `Writing` is one transaction. It holds the end of the chain from its first statement to its commit, so writers come
one after another: what a writer reads is still true when it writes. Only its owner may read a store, its journals, its
backups and what is exported: they hold what people wrote in distress.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Row, Table, create_engine, delete, func, insert, inspect, select, update
from sqlalchemy import event as hooks
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError

from compeer.annotate.events import Event
from compeer.annotate.schema import EVENTS, FROM_0001, HEAD, METADATA, REVISION, TEXTS, VERSION, one_row
from compeer.errors import InputError

START = "0" * 64  # the hash before the first event
MOST_CONNECTIONS = 60  # more than a server has threads, so that none of them waits for a connection


class Refused(InputError):
    """A request that the rules of annotation do not allow; `why` is its kind, for programs."""

    def __init__(self, why: Literal["forbidden", "missing", "conflict", "invalid"], what: str, do: str | None = None):
        super().__init__(what, do=do)
        self.why = why


def canonical(value: Any) -> str:
    """JSON in one form only, so that equal values have equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def event_hash(before: str, seq: int, at: int, actor: int | None, kind: str, item: int | None, body: str) -> str:
    return hashlib.sha256(canonical([before, seq, at, actor, kind, item, body]).encode()).hexdigest()


def text_hash(salt: str, value: str) -> str:
    """The hash by which an event knows a text; without the salt no guess can be checked."""
    return hashlib.sha256(f"{salt}\n{value}".encode()).hexdigest()


class InTurn:
    """A lock for which everyone waits in line."""

    def __init__(self) -> None:
        self._changed, self._line = threading.Condition(), deque[object]()

    def __enter__(self) -> None:
        mine = object()
        with self._changed:
            self._line.append(mine)
            self._changed.wait_for(lambda: self._line[0] is mine)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._line.popleft()
            self._changed.notify()  # whoever waits longest, who is the first in line now


class Store:
    """An open store. `clock` returns the seconds since 1970."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self.engine, self.clock = engine, clock
        self._sqlite = engine.dialect.name == "sqlite"
        self._reading = engine if self._sqlite else engine.execution_options(isolation_level="REPEATABLE READ")
        # SQLite makes waiting writers poll, and PostgreSQL is slow to hand on a row that many wait for: a lock of our
        # own lets the writers of one process come in turn.
        self._turn = InTurn()

    def now(self) -> int:
        return int(self.clock() * 1000)

    def length(self) -> int:
        """How many events there are: a number that changes with every change."""
        with self.read() as connection:
            return int(connection.execute(_HEAD).one().seq)

    def read(self) -> AbstractContextManager[Connection]:
        """A connection that reads one moment of the store, whatever is written meanwhile."""
        return self._reading.begin()

    @contextmanager
    def write(self, actor: int | None = None, *, lasting: bool = True) -> Iterator[Writing]:
        """One change: all of it is kept when the block ends, or nothing of it."""
        # What is not `lasting` (a lease) does not wait for the disk in SQLite: a loss of power may take it. PostgreSQL
        # always waits: a lease that is lost takes the label with it that its holder is about to give.
        engine = self.engine.execution_options(compeer_writes="FULL" if lasting else "NORMAL")
        with self._turn, engine.begin() as connection:
            head = connection.execute(_HEAD if self._sqlite else _HEAD.with_for_update()).one()
            writing = Writing(connection, actor, self.now(), head.seq, head.hash)
            yield writing
            if writing.seq != head.seq:
                connection.execute(_HEAD_MOVED, {"seq": writing.seq, "hash": writing.last})

    def after_erasing(self) -> None:
        """Makes sure that what was deleted leaves no trace in SQLite's journal either."""
        if self._sqlite:
            with self._turn, self.engine.connect() as connection:
                connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self.engine.dispose()


_HEAD = select(HEAD.c.seq, HEAD.c.hash).where(HEAD.c.id == 1)
_HEAD_MOVED = update(HEAD).where(HEAD.c.id == 1)


class Writing:
    """A transaction under way, made by one person (or none, for the store itself) at one time."""

    def __init__(self, connection: Connection, actor: int | None, at: int, seq: int, last: str) -> None:
        self.connection, self.actor, self.at = connection, actor, at
        self.seq, self.last = seq, last
        self._texts: dict[str, str] = {}

    def record(
        self, kind: str, body: Mapping[str, Any], *, item: int | None = None, erased: Sequence[str] = ()
    ) -> None:
        """Appends an event, removes the texts that it erases, and brings the tables up to date."""
        whole = {**body, "erased": sorted(erased)} if erased else dict(body)
        words = canonical(whole)
        self.seq += 1
        self.last = event_hash(self.last, self.seq, self.at, self.actor, kind, item, words)
        row = {"seq": self.seq, "at": self.at, "actor": self.actor, "kind": kind, "item": item, "body": words}
        self.connection.execute(insert(EVENTS), row | {"hash": self.last})
        for start in range(0, len(erased), 500):
            self.connection.execute(delete(TEXTS).where(TEXTS.c.id.in_(erased[start : start + 500])))
        Event(self.connection, kind, self.at, self.actor, item, whole, self._texts.get).apply()

    def next_id(self, table: Table) -> int:
        """The number that a new row of a table gets."""
        return int(self.connection.execute(select(func.max(table.c.id))).scalar() or 0) + 1

    def keep(self, value: str, *, item: int | None = None, person: int | None = None) -> dict[str, str]:
        """Keeps a text that can be erased later; what is returned goes into the event in its place."""
        return self.keep_all([(value, item, person)])[0]

    def keep_all(self, texts: Sequence[tuple[str, int | None, int | None]]) -> list[dict[str, str]]:
        """Keeps many texts, each with the item and the person it belongs to."""
        rows = [
            {"id": secrets.token_hex(12), "item": item, "person": person, "salt": secrets.token_hex(16)}
            # PostgreSQL takes no NUL, and neither database half a surrogate pair
            | {"value": value.replace("\0", "").encode("utf-8", "replace").decode()}
            for value, item, person in texts
        ]
        if rows:
            self.connection.execute(insert(TEXTS), rows)
        self._texts |= {str(row["id"]): str(row["value"]) for row in rows}
        return [{"text": str(row["id"]), "hash": text_hash(str(row["salt"]), str(row["value"]))} for row in rows]


def text_of(connection: Connection, text_id: str | None) -> str | None:
    """A kept text, or None where it was erased."""
    row = one_row(connection, TEXTS, id=text_id) if text_id is not None else None
    return row.value if row else None


def needed_row(connection: Connection, table: Table, what: str, **key: Any) -> Row[Any]:
    """The row with these values, or a refusal that names what is missing."""
    row = one_row(connection, table, **key)
    if row is None:
        raise Refused("missing", f"there is no such {what}.")
    return row


def create_store(name: str, clock: Callable[[], float] = time.time) -> Store:
    """Makes a store, or brings an older one up to the newest schema, and opens it."""
    if (file := _file_of(name)) and not file.absolute().parent.is_dir():
        raise InputError("there is no such folder.", file=file.parent, do="Make it first.")
    with _engine(name) as engine, engine.execution_options(compeer_writes="FULL").begin() as connection:
        METADATA.create_all(connection)
        VERSION.create(connection, checkfirst=True)
        found = connection.execute(select(VERSION)).scalar()
        if found not in (None, "0001", REVISION):
            raise _of_another_version(name, found)
        for statement in FROM_0001 if found == "0001" else ():
            connection.exec_driver_sql(statement)
        connection.execute(delete(VERSION))
        connection.execute(insert(VERSION), {"version_num": REVISION})
        if connection.execute(_HEAD).first() is None:
            connection.execute(insert(HEAD), {"id": 1, "seq": 0, "hash": START})
    return Store(engine, clock)


def open_store(name: str) -> Store:
    """Opens a store that is there; another schema than this version's is refused."""
    do = f"Make one: compeer annotate init {name}"
    if (file := _file_of(name)) and not file.is_file():
        raise InputError("there is no such annotation store.", file=name, do=do)
    with _engine(name) as engine, engine.connect() as connection:
        if not inspect(connection).has_table("head"):
            raise InputError("this is no annotation store.", file=_printable(name), do=do)
        found = connection.execute(select(VERSION)).scalar()
    if found != REVISION:
        raise _of_another_version(name, found)
    return Store(engine)


def _of_another_version(name: str, found: str | None) -> InputError:
    what = f"the store has schema {found}, this version of compeer reads {REVISION}."
    do = f"Back it up, then: compeer annotate init {_printable(name)}"
    return InputError(what, file=_printable(name), do=do if found == "0001" else "Use the version that made it.")


def make_private(*paths: Path) -> None:
    """Takes others' permissions from files and folders that are there, where they are ours to change."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if path.stat().st_mode & 0o077:
                path.chmod(0o700 if path.is_dir() else 0o600)


def make_private_folder(folder: Path) -> None:
    """Makes a folder that only its owner may read, with all that is in it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    make_private(folder, *folder.iterdir())


def _url(name: str) -> str:
    """A database's URL: the name itself if it is one, else SQLite in a file of that name."""
    if "://" not in name:
        return f"sqlite:///{Path(name)}"
    return name.replace("postgresql://", "postgresql+psycopg://", 1).replace("postgres://", "postgresql+psycopg://", 1)


def _file_of(name: str) -> Path | None:
    url = make_url(_url(name))
    return Path(url.database or "") if url.drivername == "sqlite" else None


def _printable(name: str) -> str:
    """The store's name without a password."""
    return make_url(name).render_as_string(hide_password=True) if "://" in name else name


@contextmanager
def _engine(name: str) -> Iterator[Engine]:
    """How a database is reached; what it says against the first statements is an error that a person can mend."""
    if file := _file_of(name):  # SQLite gives its journals the permissions of the database
        try:
            if not file.exists():
                file.touch(mode=0o600)
        except OSError as error:
            raise InputError(f"the database cannot be opened: {error.strerror}", file=file) from None
        make_private(*(file.with_name(file.name + journal) for journal in ("", "-wal", "-shm", "-journal")))
    sqlite = _url(name).startswith("sqlite")
    pool: dict[str, Any] = {"pool_size": 10, "max_overflow": MOST_CONNECTIONS - 10, "pool_pre_ping": not sqlite}
    pool["connect_args"] = {"timeout": 60, "check_same_thread": False} if sqlite else {}
    try:
        engine = create_engine(_url(name), **pool)
        if sqlite:
            hooks.listen(engine, "connect", _prepare)
            hooks.listen(engine, "begin", _begin)
        yield engine
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        do = "Give a file's name, or postgresql://person:password@host/database (pip install 'psycopg[binary]')."
        raise InputError(f"this is no database that can be used: {error}", do=do) from None
    except DatabaseError as error:
        first = str(error.orig).strip().partition("\n")[0]
        raise InputError(f"the database cannot be opened: {first}", file=_printable(name)) from None


def _prepare(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin` says, not where the driver guesses
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=60000", "secure_delete=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A writer must hold the lock before it reads: one that begins as a reader can be too late to become a writer.
    writes = connection.get_execution_options().get("compeer_writes")
    if writes:
        connection.exec_driver_sql(f"PRAGMA synchronous={writes}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
