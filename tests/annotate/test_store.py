"""The store: what is acknowledged is kept, what was tampered with is found, what is deleted is gone."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text

from compeer.annotate.backup import backup, restore, verify
from compeer.annotate.items import delete_dialogue
from compeer.annotate.labels import give_back, submit
from compeer.annotate.people import leave
from compeer.annotate.projects import add_project, project_by_name, set_guidelines
from compeer.annotate.queue import next_task
from compeer.annotate.results import export_project
from compeer.annotate.schema import EVENTS, ITEMS, KEPT, LABELS, METADATA, STATE, TEXTS
from compeer.annotate.store import Refused, Store, create_store, open_store
from compeer.errors import InputError
from tests.support.annotation import (  # noqa: F401
    RIGHT,
    Clock,
    cheap_hashes_fixture,
    clock_fixture,
    database_fixture,
    new_postgres,
    person,
    postgres_fixture,
    steps_project,
    store_fixture,
)


def lived(store: Store) -> list[int]:
    """Some life in a store: labels, disputes, a skip, new guidelines, somebody who leaves. Returns the items."""
    ann, ben, cleo = person(store, "Ann"), person(store, "Ben"), person(store, "Cleo", "adjudicator", "admin")
    project = steps_project(store, 4)
    for number, who in enumerate((ann, ben, ann, ben, cleo)):
        task = next_task(store, who, project.id)
        assert not isinstance(task, str)
        answers: dict[str, Any] = {**RIGHT, "history": number % 2 == 0, "preference": "first"}
        submit(
            store,
            who,
            task.item,
            {question.name: answers[question.name] for question in task.questions},
            remark=f"Remark {number}.",
        )
    task = next_task(store, ann, project.id)
    assert not isinstance(task, str)
    give_back(store, ann, task.item, "skip", "Too short.")
    set_guidelines(store, project.id, "Be brief.", cleo)
    leave(store, ben.id, ben)
    with store.read() as connection:
        return list(connection.execute(select(ITEMS.c.id).order_by(ITEMS.c.id)).scalars())


def differences_from_the_schema(store: Store) -> list[Any]:
    with store.engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), METADATA))


def test_a_new_store_has_the_schema(store: Store) -> None:
    assert differences_from_the_schema(store) == []
    names = {table.name for table in (*KEPT, *STATE)}
    assert names == set(METADATA.tables) - {"sessions"}, "a new table is either kept or made again"


def test_an_older_store_is_brought_up_to_date_whole(store: Store, database: str) -> None:
    lived(store)
    older = (
        "DROP INDEX items_waiting",
        "CREATE INDEX items_waiting ON items (lane, priority DESC, id)",
        "DROP INDEX ix_labels_until",
        "ALTER TABLE labels DROP COLUMN until",
        "UPDATE alembic_version SET version_num = '0001'",
    )
    with store.engine.connect().execution_options(compeer_writes="FULL") as connection, connection.begin():
        for statement in older:
            connection.exec_driver_sql(statement)
    with pytest.raises(InputError, match=r"schema 0001, .* reads"):
        open_store(database)
    again = create_store(database)
    assert differences_from_the_schema(again) == []
    with again.engine.connect() as connection:
        indexes = inspect(connection).get_indexes("items")
        (queue,) = [index for index in indexes if index["name"] == "items_waiting"]
    assert "content" in str(queue)
    assert verify(again).problems == ()
    again.close()


def test_all_tables_follow_from_the_events(store: Store) -> None:
    lived(store)
    found = verify(store)
    assert found.problems == ()
    assert found.events > 15
    with store.read() as connection:
        kept = "\n".join(connection.execute(select(EVENTS.c.body)).scalars())
        names = list(connection.execute(select(TEXTS.c.value)).scalars())
    for private in ("Ann", "matter", "Remark", "argon2", "Too short"):
        assert private not in kept, "an event holds no text of people or dialogues"
    assert "Ann" in names
    assert "Ben" not in names, "who left is forgotten"


@pytest.mark.parametrize(
    ("tampering", "reported"),
    [
        ("UPDATE labels SET answers = '{}' WHERE role = 'adjudication'", "'answers' is not what the events say"),
        ("DELETE FROM labels WHERE role = 'adjudication'", "is missing"),
        ("INSERT INTO pairs VALUES (9, 1, 2, 3)", "pairs 9, 1, 2 follows from no event"),
        ("UPDATE events SET body = replace(body, 'true', 'false') WHERE kind = 'labelled'", "its hash does not fit"),
        ("UPDATE events SET at = at + 1 WHERE seq = 3", "event 3"),
        ("DELETE FROM events WHERE seq = 5", "event 5 is missing"),
        ("DELETE FROM events WHERE seq > 8", "its end was cut off"),
        ("UPDATE texts SET value = 'Be rude.' WHERE value = 'Be kind.'", "was changed"),
        ("DELETE FROM texts WHERE value = 'Be kind.'", "is missing"),
        ("DELETE FROM head", "the table 'head' is empty"),
        ("UPDATE lanes SET waiting = waiting + 1", "'waiting' is not what the events say"),
    ],
)
def test_tampering_is_found_and_named(tmp_path: Path, clock: Clock, tampering: str, reported: str) -> None:
    store = create_store(str(tmp_path / "store.sqlite"), clock)
    lived(store)
    with store.engine.connect() as connection:
        connection.execute(text(tampering))
        connection.commit()
    problems = verify(store).problems
    assert problems
    assert reported in problems[0]


def test_an_end_cut_off_without_a_trace_is_found_by_an_earlier_head(store: Store) -> None:
    before = verify(store).head
    person(store, "Ann")
    after = verify(store, before)
    assert after.problems == ()
    with store.engine.connect() as connection:
        for statement in ("DELETE FROM events", "DELETE FROM texts", "DELETE FROM people"):
            connection.execute(text(statement))
        connection.execute(text("UPDATE head SET seq = 0, hash = :hash"), {"hash": before})
        connection.commit()
    assert verify(store).problems == ()
    assert "it held before" in verify(store, after.head).problems[0]


def test_a_damaged_file_is_an_error_that_says_so(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.sqlite"
    store = create_store(str(path), clock)
    lived(store)
    store.close()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    try:
        problems = verify(open_store(str(path))).problems
    except InputError as error:
        problems = (str(error),)
    assert "cannot be" in problems[0]


def test_a_dialogue_is_deleted_everywhere(store: Store, database: str) -> None:
    lived(store)
    with store.read() as connection:
        labelled = connection.execute(select(LABELS.c.item)).scalars().first()
        chosen = connection.execute(select(ITEMS.c.dialogue).where(ITEMS.c.id == labelled)).scalar()
    words = f"matter {str(chosen)[1:]}."
    assert delete_dialogue(store, str(chosen)) == 1
    assert verify(store).problems == ()
    with store.engine.connect() as connection:
        for table in METADATA.sorted_tables:
            for row in connection.execute(select(table)):
                assert words not in str(row)
                assert str(chosen) not in [str(value) for value in row]
        assert not connection.execute(select(LABELS).where(LABELS.c.item == labelled)).all()
    if not database.startswith("postgresql"):
        for path in Path(database).parent.iterdir():
            assert words.encode() not in path.read_bytes(), f"{path.name} still has it"
    with pytest.raises(Refused, match="no such dialogue"):
        delete_dialogue(store, str(chosen))


def test_a_backup_while_others_write_is_consistent_and_restores(store: Store, tmp_path: Path, database: str) -> None:
    items = lived(store)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            add_project(store, f"p{number}", "rating")
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = backup(store, tmp_path / "copy.sqlite")
    finally:
        stop.set()
        writer.join()
    assert found.problems == ()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("copy")] == ["copy.sqlite"]
    assert verify(store, found.head).problems == (), "the store went on from where the copy was made"
    with pytest.raises(InputError, match="not empty"):
        restore(tmp_path / "copy.sqlite", database)
    again = restore(tmp_path / "copy.sqlite", str(tmp_path / "again.sqlite"))
    assert verify(again, found.head).problems == ()
    with again.read() as connection:
        assert list(connection.execute(select(ITEMS.c.id).order_by(ITEMS.c.id)).scalars()) == items
    person(again, "Dora")
    assert verify(again).problems == ()
    with pytest.raises(InputError, match="there already"):
        backup(store, tmp_path / "copy.sqlite")


KILLED = """
import sys
from compeer.annotate.labels import submit
from compeer.annotate.people import person_by_id
from compeer.annotate.queue import next_task
from compeer.annotate.store import open_store

store = open_store(sys.argv[1])
with store.read() as connection:
    who = person_by_id(connection, int(sys.argv[2]))
print("ready", flush=True)
while not isinstance(task := next_task(store, who, 1), str):
    submit(store, who, task.item, {"history": True, "emotion": True, "strategy": True, "preference": "both"})
    print(task.item, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(database: str) -> None:
    store = create_store(database)
    ann = person(store, "Ann")
    steps_project(store, 2000, daily_cap=None)
    acknowledged: list[int] = []
    for _ in range(2):
        command = [sys.executable, "-c", KILLED, database, str(ann.id)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
            acknowledged += [int(worker.stdout.readline()) for _ in range(15)]
            os.kill(worker.pid, signal.SIGKILL)
            acknowledged += [int(line) for line in worker.stdout.read().splitlines(keepends=True) if line[-1] == "\n"]
    with store.read() as connection:
        kept = list(connection.execute(select(LABELS.c.item)).scalars())
    assert set(acknowledged) <= set(kept)
    assert len(acknowledged) == len(set(acknowledged)) >= 30
    assert len(kept) <= len(acknowledged) + 2, "at most one a kill was kept and not told"
    assert verify(store).problems == ()
    store.close()


HALF_RESTORED = """
import sys, time
from pathlib import Path
from compeer.annotate import backup

rows = backup._rows

def slow(connection, table):
    for row in rows(connection, table):
        yield row
        if table.name == "labels":  # events and texts are written by now
            print("half", flush=True)
            time.sleep(600)

backup.verify = lambda *_: backup.Verified(0, "", ())  # its reading is not to be stopped
backup._rows = slow
backup.restore(Path(sys.argv[1]), sys.argv[2])
"""


def test_a_restore_killed_half_way_leaves_an_empty_store_that_can_be_filled(
    store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    lived(store)
    whole = backup(store, tmp_path / "copy.backup")
    sqlite = store.engine.dialect.name == "sqlite"
    target = str(tmp_path / "again.sqlite") if sqlite else new_postgres(request.getfixturevalue("postgres"))
    command = [sys.executable, "-c", HALF_RESTORED, str(tmp_path / "copy.backup"), target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "half\n"
        os.kill(worker.pid, signal.SIGKILL)
    left = open_store(target)
    with left.read() as connection:
        for table in (EVENTS, TEXTS, LABELS):
            assert connection.execute(select(table)).first() is None, "all of it or nothing"
    left.close()
    again = restore(tmp_path / "copy.backup", target)
    assert verify(again) == whole
    again.close()


def test_opening_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such annotation store"):
        open_store(str(tmp_path / "none.sqlite"))
    with pytest.raises(InputError, match="no such folder"):
        create_store(str(tmp_path / "none" / "store.sqlite"))
    (tmp_path / "text.sqlite").write_text("hello " * 1000)
    with pytest.raises(InputError, match="cannot be opened"):
        open_store(str(tmp_path / "text.sqlite"))
    sqlite3.connect(tmp_path / "other.sqlite").execute("CREATE TABLE a (b)").connection.close()
    with pytest.raises(InputError, match="no annotation store"):
        open_store(str(tmp_path / "other.sqlite"))
    with pytest.raises(InputError, match="no database that can be used"):
        open_store("oracle://x")
    create_store(str(tmp_path / "old.sqlite")).close()
    with sqlite3.connect(tmp_path / "old.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    for opened in (open_store, create_store):
        with pytest.raises(InputError, match="schema 0000"):
            opened(str(tmp_path / "old.sqlite"))


def test_the_order_of_keys_does_not_change_a_hash(store: Store) -> None:
    with store.write() as writing:
        writing.record("told", {"b": 1, "a": "ü\u0000\ud800"})
    assert verify(store).problems == ()
    with store.read() as connection:
        assert json.loads(str(connection.execute(select(EVENTS.c.body)).scalar()))["b"] == 1


def test_only_the_owner_can_read_a_store_its_backups_and_exports(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = create_store(str(tmp_path / "labels.db"))
        lived(store)
        made = {path.name for path in tmp_path.iterdir()}
        assert {"labels.db", "labels.db-wal", "labels.db-shm"} <= made
        backup(store, tmp_path / "copy.backup")
        project = project_by_name(store, "steps")
        (tmp_path / "there").mkdir(mode=0o755)
        for folder in ("out", "there"):
            export_project(store, project, tmp_path / folder)
        copy = restore(tmp_path / "copy.backup", str(tmp_path / "again.db"))
        modes = {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
        assert len(modes) > 10
        assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}, modes
        assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}, modes
        for one in (store, copy):
            one.close()
        for path in tmp_path.glob("labels.db*"):
            path.chmod(0o644)
        open_store(str(tmp_path / "labels.db")).close()
        assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("labels.db*")} == {0o600}, "an older store too"
    finally:
        os.umask(before)
