"""What the tests of annotation share: stores on SQLite and, where a server is at hand, on PostgreSQL; people; items.

A test module imports the fixtures it needs by their functions' names.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from compeer.annotate import people as hashing
from compeer.annotate.access import begin_session, person_by_password
from compeer.annotate.items import NewItem, add_items
from compeer.annotate.people import Person, add_person
from compeer.annotate.projects import Project, ProjectSettings, add_project
from compeer.annotate.store import Store, create_store
from compeer.reasoning import EmotionStep, HistoryStep, StrategyStep, SupportTurn
from compeer.ser.record import SerRecord

PASSWORD = "correct horse battery"
RIGHT = {"history": True, "emotion": True, "strategy": False, "preference": "both"}


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True, name="cheap_hashes")
def cheap_hashes_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that cost next to nothing, and so does that against which the password of nobody is held."""
    monkeypatch.setattr(hashing, "hasher", lambda: PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    monkeypatch.setattr(hashing, "DECOY", hashing.DECOY.replace("m=65536,t=3,p=4", "m=8,t=1,p=1"))


def _server_programs() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


@pytest.fixture(scope="session", name="postgres")
def postgres_fixture() -> Iterator[str]:
    """The folder of a private PostgreSQL server's socket."""
    programs = _server_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL server on this machine")
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    as_other: list[str] = []
    if os.geteuid() == 0:  # the server refuses to be root
        shutil.chown(folder, "nobody")
        as_other = ["runuser", "-u", "nobody", "--"]
    data = str(folder / "data")
    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
    start = [str(programs / "pg_ctl"), "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start"]
    make = [str(programs / "initdb"), "-D", data, "-U", "compeer", "-A", "trust", "-E", "UTF8", "--no-sync"]
    for command in (make, start):
        subprocess.run([*as_other, *command], check=True, stdout=subprocess.DEVNULL, cwd="/")
    try:
        yield str(folder)
    finally:
        stop = [str(programs / "pg_ctl"), "-D", data, "-m", "immediate", "stop"]
        subprocess.run([*as_other, *stop], check=False, stdout=subprocess.DEVNULL, cwd="/")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"], name="database")
def database_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The name of an empty database, of either kind."""
    if request.param == "sqlite":
        yield str(tmp_path / "store.sqlite")
        return
    yield new_postgres(request.getfixturevalue("postgres"))


def new_postgres(folder: str) -> str:
    """The URL of a part of its own of the private server's database."""
    import psycopg

    name = f"store_{secrets.token_hex(8)}"
    with psycopg.connect(f"host={folder} user=compeer dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")  # type: ignore[call-overload]
    return f"postgresql://compeer@/postgres?host={folder}&options=-csearch_path%3D{name}"


@pytest.fixture(name="clock")
def clock_fixture() -> Clock:
    return Clock()


@pytest.fixture(name="store")
def store_fixture(database: str, clock: Clock) -> Iterator[Store]:
    made = create_store(database, clock)
    yield made
    made.close()


def person(store: Store, name: str, *roles: str, languages: tuple[str, ...] = ("en",), **more: Any) -> Person:
    return add_person(store, name, PASSWORD, roles or ("annotator",), languages, **more)


def log_in(store: Store, name: str, password: str) -> str:
    """The token of a session that begins."""
    return begin_session(store, person_by_password(store, name, password))


def record(number: int, dialogue: str | None = None, language: str = "en", author: str = "model-a") -> SerRecord:
    turn = SupportTurn(
        history=HistoryStep(text=f"The seeker tells of matter {number}.", stage="exploration"),
        emotion=EmotionStep(text="They are sad.", sentiment="negative", emotion="sadness", intensity=3),
        strategy=StrategyStep(text="A question helps.", strategy="Question"),
        response=f"What happened then, in matter {number}?",
    )
    return SerRecord.model_validate(
        {
            "id": f"r{number}",
            "dialogue": dialogue or f"d{number}",
            "round": 1,
            "language": language,
            "source": "sample",
            "split": "reward",
            "history": [{"speaker": "seeker", "text": f"I feel low about matter {number}."}],
            "candidate": turn,
            "author": author,
            "reference": "I see.",
            "candidate_first": True,
        }
    )


def new_item(one: SerRecord, answers: dict[str, Any] | None = None, crisis: bool = False) -> NewItem:
    content = one.model_dump(mode="json", exclude_defaults=True)
    return NewItem(content, one.language, one.author, answers, crisis)


def steps_project(store: Store, count: int = 0, name: str = "steps", **settings: Any) -> Project:
    """A project of the task `steps` with some real items, none of them marked as crisis; labels count at once."""
    chosen = ProjectSettings(**{"correction_seconds": 0, **settings})
    project = add_project(store, name, "steps", "Be kind.", chosen)
    add_items(store, project, [new_item(record(number)) for number in range(count)])
    return project
