"""Answers that were paid for once, kept on disk: an SQLite file that several processes and threads may share.

A row's key is a SHA-256 of everything that the answer depends on. The file holds no failure, no prompt and no key of
any service. An answer is in the file before anyone gets to see it, so a run that is killed at any moment asks only for
what it had not received. (A power cut may take the last few rows.) A row carries a digest of key and answer together:
an answer that stands under another's key, or was altered, is asked for again. That finds mistakes, not forgeries.
"""

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from compeer.errors import InputError
from compeer.models.base import Generation

_APPLICATION = 0x636F6D70  # SQLite's mark for whose file this is: "comp"
_VERSION = 1  # of the table; 0 had no digests
_TABLE = "CREATE TABLE answers (key TEXT PRIMARY KEY, answers TEXT NOT NULL, digest TEXT) WITHOUT ROWID"


def cache_key(*parts: str | bytes) -> str:
    """A key for what is asked: the same parts in the same order give the same key, and nothing else does."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d " % len(data) + data)
    return digest.hexdigest()


class AnswerCache:
    """Answers by key, in the file given; it is made if it is not there."""

    def __init__(self, path: str | Path, busy_seconds: float = 60.0) -> None:
        self._path, self._busy_seconds, self._lock = Path(path), busy_seconds, threading.Lock()
        with self._readable_errors(), ExitStack() as undo:
            self._file = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
            self._file.text_factory = bytes  # text that is not UTF-8 must not be an error
            undo.callback(self._file.close)
            self._prepare()
            undo.pop_all()

    def get(self, key: str) -> Generation | None:
        """The answer kept under a key; None if there is none, or it is not what was put there."""
        with self._lock, self._readable_errors():
            row = self._file.execute("SELECT answers, digest FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None or not isinstance(row[0], bytes) or row[1] != cache_key("answers", key, row[0]).encode():
            return None
        (answer,) = json.loads(row[0])
        return Generation(**answer)

    def put(self, key: str, answer: Generation) -> None:
        """Keeps an answer; it is in the file when this returns."""
        text = json.dumps([asdict(answer)])
        with self._lock, self._readable_errors(), self._file:
            self._file.execute("BEGIN IMMEDIATE")
            row = (key, text, cache_key("answers", key, text))
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", row)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _prepare(self) -> None:
        """Makes sure that the file is ours and that many can use it."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            marks = "pragma_application_id, pragma_user_version, (SELECT count(*) FROM sqlite_master)"
            mark, version, tables = self._file.execute(f"SELECT * FROM {marks}").fetchone()
            do = "Give another name for the cache."
            if (mark or tables) and (mark, version) != (_APPLICATION, _VERSION):
                what = "this database belongs to another program, or another version of compeer."
                raise InputError(what, file=self._path, do=do)
            if not tables:
                self._file.execute(_TABLE)
                self._file.execute(f"PRAGMA application_id = {_APPLICATION}")
                self._file.execute(f"PRAGMA user_version = {_VERSION}")
        patience = time.monotonic() + self._busy_seconds
        while True:  # where others do so at this moment, SQLite does not wait for them, so we do
            try:
                self._file.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                    raise
            time.sleep(0.01)
        self._file.execute("PRAGMA synchronous = NORMAL")

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Turns an error of SQLite into one that names the file and what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            do = "See that its folder exists and can be written, and that the disk has room; then run again."
            raise InputError(f"the cache cannot be used: {error}.", file=self._path, do=do) from error
        except sqlite3.DatabaseError as error:
            do = "Move it away, or give another name for the cache; what it held will be asked again."
            raise InputError(f"this is no readable cache: {error}.", file=self._path, do=do) from error
