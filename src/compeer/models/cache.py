"""Answers that were paid for once, kept on disk: an SQLite file that several processes and threads may share.

A row's key is a SHA-256 of everything that the answer depends on; its value is the answer. The file holds no failure,
no prompt and no key of any service. An answer is in the file before anyone gets to see it, so a run that is killed at
any moment asks only for what it had not received. (A power cut may take the last few rows, but not harm the others.)
A row carries a digest of key and answer together: an answer that stands under another's key, or was altered, is not
given but asked for again. That finds mistakes and clumsy hands; whoever may write the file and knows how can forge it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compeer.errors import InputError
from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.models.costs import Counters

_APPLICATION = 0x636F6D70
"""SQLite's mark for whose file this is: "comp"."""
_TABLE = "CREATE TABLE answers (key TEXT PRIMARY KEY, answers TEXT NOT NULL, digest TEXT) WITHOUT ROWID"
_VERSION = 1
"""0 had no digests; its rows get theirs when it is opened."""


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
        self._path, self._busy_seconds = Path(path), busy_seconds
        self._read_lock, self._write_lock = threading.Lock(), threading.Lock()
        with self._readable_errors():
            self._writer = self._connected()
            try:
                self._prepare_in_turn()
            except BaseException:
                self._writer.close()
                raise
            self._reader = self._connected()  # so that reading need not wait for the disk to write

    def get(self, key: str, count: int | None = None) -> list[Generation] | None:
        """The answers kept under a key; None if there are none, not `count` of them, or they are not what was put."""
        with self._read_lock, self._readable_errors():
            row = self._reader.execute("SELECT answers, digest FROM answers WHERE key = ?", (key,)).fetchone()
        try:
            if row is None or row[1] != _digest(key, row[0]).encode():
                return None
            found = _generations(json.loads(row[0]))
        except (ValueError, TypeError, AttributeError):
            return None
        return found if count is None or len(found) == count else None

    def put(self, answers: Mapping[str, Sequence[Generation]]) -> None:
        """Keeps answers by their keys; they are in the file when this returns."""
        texts = {key: json.dumps([asdict(answer) for answer in kept]) for key, kept in answers.items()}
        rows = [(key, text, _digest(key, text.encode())) for key, text in texts.items()]
        with self._write_lock, self._readable_errors(), self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", rows)

    def count(self) -> int:
        """How many rows there are."""
        with self._read_lock, self._readable_errors():
            return int(self._reader.execute("SELECT count(*) FROM answers").fetchone()[0])

    def close(self) -> None:
        """Closes the file."""
        with self._read_lock, self._write_lock:
            self._reader.close()
            self._writer.close()

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = bytes  # text that is not UTF-8 must not be an error
        return connection

    def _prepare_in_turn(self) -> None:
        """Prepares the file; where others do so at this moment, SQLite does not wait for them, so we do."""
        patience = time.monotonic() + self._busy_seconds
        while True:
            try:
                return self._prepare()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                    raise
            time.sleep(0.01)

    def _prepare(self) -> None:
        """Makes sure that the file is ours, and that many can use it."""
        with self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            mark = self._writer.execute("PRAGMA application_id").fetchone()[0]
            tables = self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if mark != _APPLICATION and (mark or tables):
                do = "Give another name for the cache."
                raise InputError("this database belongs to another program.", file=self._path, do=do)
            if not tables:
                self._writer.execute(_TABLE)
            elif self._writer.execute("PRAGMA user_version").fetchone()[0] < _VERSION:
                self._add_digests()
            self._writer.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._writer.execute(f"PRAGMA user_version = {_VERSION}")
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = NORMAL")

    def _add_digests(self) -> None:
        def digest(key: bytes, answers: bytes) -> str:
            return _digest(key.decode(errors="replace"), answers)

        self._writer.create_function("digest_of", 2, digest, deterministic=True)
        self._writer.execute("ALTER TABLE answers ADD COLUMN digest TEXT")
        self._writer.execute("UPDATE answers SET digest = digest_of(CAST(key AS BLOB), CAST(answers AS BLOB))")

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Turns what SQLite says into an error that names the file and what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            do = "See that its folder exists and can be written, and that the disk has room; then run again."
            raise InputError(f"the cache cannot be used: {error}.", file=self._path, do=do) from error
        except sqlite3.DatabaseError as error:
            do = "Move it away, or give another name for the cache; what it held will be asked again."
            raise InputError(f"this is no readable cache: {error}.", file=self._path, do=do) from error


def _digest(key: str, answers: bytes) -> str:
    return cache_key("answers", key, answers)


def _generations(stored: Any) -> list[Generation]:
    """Answers as they were stored; an error if it is anything else."""
    types = {"text": str, "cut_off": bool, "prompt_tokens": int, "tokens": int}
    if not isinstance(stored, list):
        raise ValueError
    for answer in stored:
        if answer.keys() != types.keys() or any(type(answer[name]) is not kind for name, kind in types.items()):
            raise ValueError
    return [Generation(**answer) for answer in stored]


class CachedModel:
    """A model with its answers kept, batch by batch: a batch is taken from the cache whole or asked whole.

    For models whose last bits depend on which requests share a batch: what is asked together never depends on what the
    cache holds. A batch in which a request failed is not kept.
    """

    def __init__(self, model: TextModel, cache: AnswerCache, identity: str = "") -> None:
        """`identity` tells models of the same name apart, such as a hash of the weights."""
        self._model, self._cache, self._identity = model, cache, identity
        self.name, self.batch_size, self.at_once = model.name, model.batch_size, model.at_once
        self.counters = Counters()

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        found: list[Generation | Failure] = []
        for batch in self._batches(requests):
            self.counters.requests += len(batch)
            key = self._key(batch, sampling)
            kept = self._cache.get(key, len(batch))
            if kept is not None:
                self.counters.cached += len(batch)
                found += kept
                continue
            answers = await self._model.generate(batch, sampling)
            good = [answer for answer in answers if isinstance(answer, Generation)]
            if len(good) == len(batch):
                self._cache.put({key: good})
            self.counters.calls += len(answers)
            for answer in answers:
                self.counters.count(answer)
            found += answers
        return found

    def remembered(self, requests: Sequence[Request], sampling: Sampling) -> list[bool]:
        """For each request, whether the cache has its batch."""
        found = []
        for batch in self._batches(requests):
            found += [self._cache.get(self._key(batch, sampling), len(batch)) is not None] * len(batch)
        return found

    def _batches(self, requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
        for start in range(0, len(requests), self.batch_size):
            yield requests[start : start + self.batch_size]

    def _key(self, batch: Sequence[Request], sampling: Sampling) -> str:
        asked = json.dumps([asdict(request) for request in batch], sort_keys=True)
        return cache_key(self.name, self._identity, sampling.model_dump_json(), asked)
