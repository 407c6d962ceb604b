"""A curious annotator against the workbench: nothing that they are sent depends on what another answered.

Two worlds are played that are alike to the last random number and differ only in the other's answers (and so in whether
an adjudicator has work). The curious one tries every answer, waits, and asks every route that the workbench describes;
all that comes back, status, headers and body, is compared.
"""

import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from compeer.annotate.items import Task
from compeer.annotate.labels import give_back, own_labels, submit
from compeer.annotate.people import Person
from compeer.annotate.queue import next_task
from compeer.annotate.schema import ITEMS
from compeer.annotate.store import Refused, Store, create_store
from tests.support.annotation import (  # noqa: F401
    PASSWORD,
    Clock,
    cheap_hashes_fixture,
    new_postgres,
    person,
    postgres_fixture,
    steps_project,
)
from tests.support.workbench import Bench, Client, workbench

ITEMS_HERE = 3
YES = {"history": True, "emotion": True, "strategy": True, "preference": "both"}
NO = {"history": False, "emotion": False, "strategy": False, "preference": "neither"}
GUESSES: list[dict[str, Any]] = [{**YES, "history": False}, {**YES, "preference": "neither"}, NO, YES]
OF_THE_HOUR = ("date", "set-cookie")


@pytest.fixture(params=["sqlite", "postgresql"], name="new_database")
def new_database_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes empty databases of either kind."""
    if request.param == "sqlite":
        return lambda: str(tmp_path / f"{secrets.token_hex(8)}.sqlite")
    folder = request.getfixturevalue("postgres")
    return lambda: new_postgres(folder)


@pytest.fixture(name="same_luck")
def same_luck_fixture(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets all random numbers begin anew, the same ones each time."""

    def begin() -> None:
        draw, tokens = random.Random(7), random.Random(8)

        class Same(random.Random):
            def __init__(self) -> None:
                super().__init__(draw.random())

        monkeypatch.setattr(secrets, "randbits", draw.getrandbits)
        monkeypatch.setattr(secrets, "randbelow", draw.randrange)
        monkeypatch.setattr(secrets, "choice", draw.choice)
        monkeypatch.setattr(secrets, "token_hex", lambda size=32: draw.randbytes(size).hex())
        monkeypatch.setattr(secrets, "token_urlsafe", lambda size=32: tokens.randbytes(size).hex())
        monkeypatch.setattr(random, "SystemRandom", Same)

    return begin


class Curious:
    """An annotator who writes down all that they are sent."""

    def __init__(self, client: Client) -> None:
        self.client, self.sent = client, []

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client(method, path, body)
        headers = {name: value for name, value in answer.headers.items() if name not in OF_THE_HOUR}
        self.sent.append((method, path, body, answer.status_code, headers, answer.text))
        return answer.json() if answer.content else None

    def ask_everything(self, described: dict[str, Any], items: list[int]) -> None:
        """Every route that the workbench describes, with every item, but those that end the session."""
        for path, operations in sorted(described["paths"].items()):
            for method in sorted(operations):
                if (method, path) in ENDINGS or path == "/healthz":
                    continue
                for filled in _filled(path, items):
                    self.ask(method.upper(), filled.removeprefix("/api"), BODIES.get((method, path)))


ENDINGS = {("post", "/api/leave"), ("post", "/api/logout"), ("post", "/api/me/password")}
BODIES: dict[tuple[str, str], Any] = {
    ("post", "/api/next"): {},
    ("put", "/api/items/{item}/labels"): {"answers": YES},
    ("post", "/api/items/{item}/{how}"): {"reason": "no"},
    ("post", "/api/login"): {"name": "Ben", "password": "a guess of mine"},
    ("post", "/api/join"): {"invitation": "1.x", "name": "Eve", "password": PASSWORD},
    ("patch", "/api/me"): {"declines_crisis": False},
    ("post", "/api/projects"): {"name": "mine", "task": "steps"},
    ("post", "/api/invitations"): {"roles": ["admin"], "languages": ["en"]},
    ("put", "/api/projects/{project}/guidelines"): {"text": "Tell all."},
    ("put", "/api/projects/{project}/settings"): {"correction_seconds": 3600},
    ("patch", "/api/people/{person}"): {"roles": ["admin"]},
    ("post", "/api/items/{item}/settle"): {"keep": False},
}


def _filled(path: str, items: list[int]) -> Iterator[str]:
    values = {"{project}": "1", "{person}": "2", "{invitation}": "1", "{dialogue}": "d1", "{utterance}": "0"}
    for name, value in (values | {"{number}": "0"}).items():
        path = path.replace(name, value)
    asked = {"/api/agreement": "?project=1", "/api/export": "?project=1", "/api/passed": "?project=1"}
    asked |= {"/api/disagreements": "?project=1&question=history", "/api/mine": "?limit=500"}
    for item in items if "{item}" in path else items[:1]:
        for how in ("decline", "flag", "release", "skip") if "{how}" in path else ("",):
            yield path.replace("{item}", str(item)).replace("{how}", how) + asked.get(path, "")


def _label(client: Client, **more: Any) -> int:
    task = client.got("POST", "/next", {})["task"]
    client.got("PUT", f"/items/{task['item']}/labels", {"answers": {**YES, **more}})
    return int(task["item"])


def _play(store: Store, clock: Clock, roles: tuple[str, ...], others: list[dict[str, Any]]) -> list[Any]:
    """One world: what the curious annotator is sent where the other gives these answers."""
    project = steps_project(store, ITEMS_HERE, correction_seconds=300, daily_cap=None)
    ben, cleo = person(store, "Ben"), person(store, "Cleo", "adjudicator")
    with workbench(store) as bench:
        described = Client(bench.url).http.get("/openapi.json").json()
        known = {path.replace("/api", "", 1) for path in described["paths"]}
        assert {"/next", "/mine", "/items/{item}", "/items/{item}/labels", "/projects", "/me"} <= known
        ann = Curious(bench.someone("Ann", *roles))
        items: list[int] = []
        for number, answers in enumerate(others):
            if number % 2:  # Ben is first on every second item
                _by_other(store, ben, project.id, answers)
                clock.seconds += 30
            task = ann.ask("POST", "/next", {})["task"]
            items.append(task["item"])
            ann.ask("PUT", f"/items/{task['item']}/labels", {"answers": YES})
            if not number % 2:
                clock.seconds += 30
                _by_other(store, ben, project.id, answers)
            for guess in GUESSES:  # each answer is tried, to see which one closes the item
                ann.ask("PUT", f"/items/{task['item']}/labels", {"answers": guess})
                for path in ("/mine", f"/items/{task['item']}", "/projects", "/me"):
                    ann.ask("GET", path)
            clock.seconds += 10
        for wait in (0, 400, 86_400):
            clock.seconds += wait
            ann.ask_everything(described, [items[0], items[1], items[0] + 1][: 2 if wait else 3])
            _adjudicates(store, cleo, project.id, leave_open=wait == 400)
        for item in items:
            for guess in GUESSES[1:]:
                ann.ask("PUT", f"/items/{item}/labels", {"answers": guess})
        ann.ask("POST", "/me/password", {"old": PASSWORD, "new": PASSWORD + "!"})
        ann.ask("POST", "/leave")
    return ann.sent


def _by_other(store: Store, who: Person, project: int, answers: dict[str, Any]) -> None:
    task = next_task(store, who, project)
    assert isinstance(task, Task)
    submit(store, who, task.item, answers)


def _adjudicates(store: Store, who: Person, project: int, leave_open: bool) -> None:
    """Settles some of what differs, flags some, and holds one item."""
    while isinstance(task := next_task(store, who, project), Task):
        if leave_open:
            give_back(store, who, task.item, "flag", "odd")
            return
        submit(store, who, task.item, {question.name: YES[question.name] for question in task.questions})
    assert isinstance(task, str)


def _compare(databases: list[str], same_luck: Callable[[], None], roles: tuple[str, ...]) -> None:
    """Plays a world in which the other always agrees and one in which they never do."""
    sent, ends = [], []
    for database, others in zip(databases, ([YES] * ITEMS_HERE, [NO, NO, {**YES, "history": False}]), strict=True):
        same_luck()
        clock = Clock()
        sent.append(_play(create_store(database, clock), clock, roles, others))
        again = create_store(database)  # the workbench has closed the other
        with again.read() as connection:
            ends.append(sorted(connection.execute(select(ITEMS.c.stage)).scalars()))
        again.close()
    assert ends[0] == ["closed"] * ITEMS_HERE
    assert ends[0] != ends[1], "the worlds do differ"
    for one, other in zip(*sent, strict=True):
        assert one == other


def test_nothing_that_an_annotator_is_sent_depends_on_the_other(
    new_database: Callable[[], str], same_luck: Callable[[], None]
) -> None:
    _compare([new_database(), new_database()], same_luck, ("annotator",))


def test_nor_does_it_where_the_annotator_adjudicates_too(tmp_path: Path, same_luck: Callable[[], None]) -> None:
    databases = [str(tmp_path / "one.sqlite"), str(tmp_path / "other.sqlite")]
    _compare(databases, same_luck, ("annotator", "adjudicator"))


def test_a_label_can_be_corrected_for_a_while_and_counts_after_it(tmp_path: Path) -> None:
    clock = Clock()
    store = create_store(str(tmp_path / "store.sqlite"), clock)
    project = steps_project(store, 1, correction_seconds=300)
    ann, ben, cleo = person(store, "Ann"), person(store, "Ben"), person(store, "Cleo", "adjudicator")
    _by_other(store, ben, project.id, NO)
    clock.seconds += 299
    _by_other(store, ann, project.id, YES)
    (item,) = (own.item for own in own_labels(store, ann))

    def stage() -> str:
        with store.read() as connection:
            return str(connection.execute(select(ITEMS.c.stage)).scalar())

    assert (stage(), own_labels(store, ann)[0].changeable) == ("full", True)
    submit(store, ben, item, YES)
    assert next_task(store, cleo, project.id) == "waiting"
    clock.seconds += 1
    assert not own_labels(store, ben)[0].changeable, "from when it was first given, and not from when it was changed"
    with pytest.raises(Refused, match="time in which this label could be corrected is over"):
        submit(store, ben, item, NO)
    submit(store, ben, item, YES)  # a page may send again what it is not sure has arrived
    submit(store, ann, item, {**YES, "history": False})
    assert (next_task(store, cleo, project.id), stage()) == ("waiting", "full")
    clock.seconds += 299
    task = next_task(store, cleo, project.id)
    assert isinstance(task, Task)
    assert (task.kind, [one.name for one in task.questions], stage()) == ("adjudication", ["history"], "adjudicating")
    store.close()


def test_an_admin_who_annotates_cannot_try_answers_either(tmp_path: Path, same_luck: Callable[[], None]) -> None:
    answered = []
    for other in (YES, NO):
        same_luck()
        clock = Clock()
        store = create_store(str(tmp_path / f"{len(answered)}.sqlite"), clock)
        project = steps_project(store, 1, correction_seconds=300)
        ben = person(store, "Ben")
        with workbench(store) as bench:
            both = _both(bench)
            _by_other(store, ben, project.id, other)
            item = _label(both)
            paths = ("/projects", "/disagreements?project=1&question=history", f"/items/{item}/everything")
            answered.append([both("GET", path).text for path in paths])
            measured = both.got("GET", "/agreement?project=1")
            answered[-1] += [measured["stages"], measured["pairs"], measured["questions"]["history"]["percent"]]
    assert answered[0] == answered[1]


def _both(bench: Bench) -> Client:
    return bench.someone("Both", "admin", "annotator")
