"""Annotators at full speed over HTTP, while the server is killed again and again: is everything still right?

A workbench is served by a process of its own. Simulated annotators (threads of this process) log in and ask for items,
save drafts, label, and change some labels again, without a pause; a third of them may adjudicate. Meanwhile the server
is killed (SIGKILL) several times and started anew; an annotator whose call got no answer, or was told that the database
is out of reach, makes it again, as the page does. After each start, and at the end, the store is compared with what the
annotators were told:

- everything acknowledged is there;
- no item has more than two first labels, and nobody labelled an item twice;
- an item was adjudicated, by a third person, exactly where its two labels differ;
- `verify` finds the store whole.

    python benchmarks/workbench.py [--url postgresql://…] [--annotators 30] [--items 2000] [--kills 10]

Without a URL the store is an SQLite file in a temporary folder; with one, the database must be empty. Prints one JSON
object; the exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from compeer.annotate.api_models import WorkbenchSettings
from compeer.annotate.app import workbench_app
from compeer.annotate.backup import verify
from compeer.annotate.items import NewItem, add_items
from compeer.annotate.people import add_person
from compeer.annotate.projects import ProjectSettings, add_project
from compeer.annotate.schema import EVENTS, ITEMS, LABELS
from compeer.annotate.store import Store, create_store
from compeer.web.serving import bound_socket, serve

PASSWORD = "a password for all"
DIFFERING = 0.3
"""So often an annotator answers a question unlike the others."""
CHANGING = 0.15
"""So often an annotator thinks again."""
_CANDIDATE, _REFERENCE = "What happened then?", "I see."
_TURN = {
    "history": {"text": "They tell of a loss.", "stage": "exploration"},
    "emotion": {"text": "They are sad.", "sentiment": "negative", "emotion": "sadness", "intensity": 3},
    "strategy": {"text": "A question helps.", "strategy": "Question"},
    "response": _CANDIDATE,
}
Answers = dict[str, Any]
TRIES = 20
"""So often a server is started that cannot open its database."""


def main() -> None:
    """Runs it and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--url", help="an empty PostgreSQL database; without it SQLite")
    parser.add_argument("--annotators", type=int, default=30)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=10)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        name = chosen.url or str(Path(folder) / "store.sqlite")
        found = simulate(name, chosen.annotators, chosen.items, chosen.kills)
    found |= {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    print(json.dumps(found | {"python": platform.python_version(), "machine": platform.machine()}, indent=1))
    sys.exit(1 if found["problems"] else 0)


def simulate(name: str, annotators: int, items: int, kills: int) -> dict[str, Any]:
    """Fills an empty store, lets annotators loose on it, kills the server so many times, and tells what was found."""
    store = create_store(name)
    project = add_project(store, "benchmark", "steps", settings=ProjectSettings(daily_cap=None, correction_seconds=2))
    for number in range(annotators):
        roles = ["annotator", "adjudicator"] if number % 3 == 0 or annotators < 9 else ["annotator"]
        add_person(store, f"N{number}", PASSWORD, roles, ["en"])
    add_items(store, project, [_item(number) for number in range(items)])
    server, told = Server(name), Told()
    threads = [
        threading.Thread(target=_work, args=(server.url, f"N{number}", number, told), daemon=True)
        for number in range(annotators)
    ]
    problems: list[str] = []
    server.start()
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for kill in range(kills):
        while told.count < (kill + 1) * 2 * items / (kills + 1) and any(thread.is_alive() for thread in threads):
            time.sleep(0.005)
        server.kill()
        acknowledged = told.acknowledged()
        server.start()
        problems += [f"after kill {kill + 1}: {one}" for one in lost_labels(store, told, acknowledged)]
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - start
    server.kill()
    problems += told.problems + lost_labels(store, told, told.acknowledged()) + broken_rules(store)
    problems += verify(store).problems
    with store.read() as connection:
        labels = Counter(connection.execute(select(LABELS.c.role)).scalars())
    store.close()
    return {
        "database": store.engine.dialect.name,
        "annotators": annotators,
        "items": items,
        "kills": kills,
        "first_labels": labels["first"],
        "adjudications": labels["adjudication"],
        "calls_made_again": told.again,
        "seconds": round(wall, 1),
        "labels_a_second": round(labels.total() / wall, 1),
        "next_median_ms": round(1000 * statistics.median(told.waits), 1),
        "next_p95_ms": round(1000 * statistics.quantiles(told.waits, n=20)[-1], 1),
        "start_seconds": round(statistics.mean(server.starts), 1),
        "problems": problems[:20],
    }


# --- the server -------------------------------------------------------------------------------------------------------


class Server:
    """A workbench in a process of its own, always on the same port."""

    def __init__(self, name: str) -> None:
        with bound_socket("127.0.0.1", 0) as sock:
            self._port = sock.getsockname()[1]
        self._name, self.url = name, f"http://127.0.0.1:{self._port}"
        self.starts: list[float] = []
        self._process: BaseProcess | None = None
        # Processes come from one that has loaded everything already, so that a start takes no longer than it must.
        self._made = multiprocessing.get_context("forkserver")
        self._made.set_forkserver_preload([__name__])

    def start(self) -> None:
        """Starts it, and waits until it answers; again where it gave up, as the database may be starting too."""
        start, tries = time.perf_counter(), 0
        self._begin()
        while True:
            try:
                httpx.get(f"{self.url}/healthz", timeout=5)
                break
            except httpx.TransportError:
                if not self._process.is_alive():
                    tries += 1
                    if tries > TRIES:
                        raise RuntimeError("the server did not start") from None
                    time.sleep(0.5)
                    self._begin()
                time.sleep(0.02)
        self.starts.append(time.perf_counter() - start)

    def _begin(self) -> None:
        self._process = self._made.Process(target=serve_store, args=(self._name, self._port), daemon=True)
        self._process.start()

    def kill(self) -> None:
        """Ends it at once, wherever it is."""
        assert self._process is not None
        self._process.kill()
        self._process.join()


def serve_store(name: str, port: int) -> None:
    """Serves a store until the end of the process."""
    from compeer.annotate.store import open_store

    sock = bound_socket("127.0.0.1", port)
    serve(workbench_app(open_store(name), WorkbenchSettings(rate=None)), sock, grace=5)


# --- the annotators ---------------------------------------------------------------------------------------------------


class Told:
    """What annotators sent for each person and item, in order, and what of it they know to be kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: defaultdict[tuple[str, int], list[Answers]] = defaultdict(list)
        self._kept: dict[tuple[str, int], int] = {}
        self.waits: list[float] = []
        self.problems: list[str] = []
        self.again = 0

    @property
    def count(self) -> int:
        """Labels that are known to be kept."""
        return len(self._kept)

    def sending(self, who: str, item: int, answers: Answers) -> int:
        """Notes a label that is about to be sent; returns its place."""
        with self._lock:
            self._sent[who, item].append(answers)
            return len(self._sent[who, item]) - 1

    def kept(self, who: str, item: int, place: int) -> None:
        """Notes that a label was acknowledged."""
        with self._lock:
            self._kept[who, item] = place

    def acknowledged(self) -> dict[tuple[str, int], int]:
        """What is known to be kept now."""
        with self._lock:
            return dict(self._kept)

    def possible(self, who: str, item: int, place: int) -> list[Answers]:
        """The labels that may be there once that one was acknowledged: it, and what was sent after it."""
        with self._lock:
            return self._sent[who, item][place:]


def _work(url: str, name: str, number: int, told: Told) -> None:
    try:
        _annotate(url, name, random.Random(number), told)
    except Exception as error:
        told.problems.append(f"{name} stopped: {type(error).__name__}: {error}")


def _annotate(url: str, name: str, rng: random.Random, told: Told) -> None:
    """Works until nothing is left."""
    with httpx.Client(base_url=f"{url}/api", timeout=60) as client:

        def call(method: str, path: str, body: dict[str, Any]) -> httpx.Response:
            return _surely(lambda: client.request(method, path, json=body), told)

        session = call("POST", "/login", {"name": name, "password": PASSWORD}).raise_for_status().json()
        client.headers["X-CSRF-Token"] = session["csrf"]
        while True:
            start = time.perf_counter()
            got = call("POST", "/next", {}).raise_for_status().json()
            told.waits.append(time.perf_counter() - start)
            task = got["task"]
            if task is None:
                if got["rest"] == "done":
                    return
                time.sleep(0.05)
                continue
            path = f"/items/{task['item']}/labels"
            if rng.random() < 0.1:
                call(
                    "PUT", path, {"answers": {task["questions"][0]["name"]: rng.choice([True, False])}, "final": False}
                )
            times = 2 if rng.random() < CHANGING else 1
            for _ in range(times):
                answers = {question["name"]: _answer(question["name"], rng) for question in task["questions"]}
                place = told.sending(name, task["item"], _kept(answers, task["responses"]))
                answer = call("PUT", path, {"answers": answers, "seconds": 20})
                if answer.status_code == 200:
                    told.kept(name, task["item"], place)
                elif answer.status_code not in (400, 409):  # closed, or in dispute about something else meanwhile
                    told.problems.append(f"{name}: {answer.status_code} {answer.text[:200]}")


def _surely(call: Callable[[], httpx.Response], told: Told) -> httpx.Response:
    """Makes a call until it is answered, less and less often."""
    for wait in itertools.chain((0.05, 0.1, 0.2), itertools.repeat(0.4)):
        try:
            answer = call()
            if answer.status_code < 500:
                return answer
            if "out_of_reach" not in answer.text:  # the database restarts, and the answer says to try again
                told.problems.append(f"{answer.status_code} {answer.text[:200]}")
        except httpx.TransportError:
            pass
        told.again += 1
        time.sleep(wait)
    raise AssertionError("there is always another time")


def _answer(question: str, rng: random.Random) -> Any:
    if question == "preference":
        return rng.choice(["first", "second", "neither"]) if rng.random() < DIFFERING else "both"
    return rng.random() >= DIFFERING


def _kept(answers: Answers, responses: list[str]) -> Answers:
    """The answers as they must be kept: by the response itself, not by the place where it was shown."""
    names = {_CANDIDATE: "candidate", _REFERENCE: "reference"}
    places = {"first": names[responses[0]], "second": names[responses[1]]}
    return {name: places.get(value, value) if isinstance(value, str) else value for name, value in answers.items()}


# --- what must hold ---------------------------------------------------------------------------------------------------


def lost_labels(store: Store, told: Told, acknowledged: dict[tuple[str, int], int]) -> list[str]:
    """Labels that were acknowledged and are not in the store."""
    from compeer.annotate.people import people

    names = {person.id: person.name for person in people(store)}
    with store.read() as connection:
        rows = connection.execute(select(LABELS)).all()
    there = {(names[row.person], row.item): (row.role, row.answers) for row in rows}
    lost = []
    for (who, item), place in acknowledged.items():
        if (who, item) not in there:
            lost.append(f"the label of {who} on {item} is lost")
        elif not any(_is_kept(*there[who, item], sent) for sent in told.possible(who, item, place)):
            lost.append(f"the label of {who} on {item} is not what was acknowledged")
    return lost


def _is_kept(role: str, there: Answers, sent: Answers) -> bool:
    """Whether a label is the one that was sent; of an adjudicator's only what is still in dispute is kept."""
    return there == sent or (role == "adjudication" and there.items() <= sent.items())


def broken_rules(store: Store) -> list[str]:
    """What the events and the tables hold that must not be."""
    problems = []
    firsts: defaultdict[int, set[int]] = defaultdict(set)
    thirds: defaultdict[int, set[int]] = defaultdict(set)
    with store.read() as connection:
        chosen = select(EVENTS.c.item, EVENTS.c.actor, EVENTS.c.body).where(EVENTS.c.kind == "labelled")
        for row in connection.execute(chosen):
            role = json.loads(row.body)["role"]
            (firsts if role == "first" else thirds)[row.item].add(row.actor)
        labels: defaultdict[int, list[Any]] = defaultdict(list)
        for row in connection.execute(select(LABELS)):
            labels[row.item].append(row)
        stages = {row.id: row.stage for row in connection.execute(select(ITEMS.c.id, ITEMS.c.stage))}
    for item, stage in stages.items():
        given = [label.answers for label in labels[item] if label.role == "first"]
        if stage != "closed":
            problems.append(f"{item} is left {stage}")
        if len(firsts[item]) != 2 or len(given) != 2:
            problems.append(f"{item} has {len(firsts[item])} first labels")
        elif (given[0] != given[1]) != bool(thirds[item]):
            problems.append(
                f"{item}: labels {'differ' if given[0] != given[1] else 'agree'}, adjudicated: {thirds[item]}"
            )
        if len(thirds[item]) > 1 or thirds[item] & firsts[item]:
            problems.append(f"{item} was adjudicated by {thirds[item]}, labelled by {firsts[item]}")
    return problems


def _item(number: int) -> NewItem:
    history = [{"speaker": "seeker", "text": f"I lost something, number {number}."}]
    content = {"id": f"r{number}", "dialogue": f"d{number}", "history": history, "candidate": _TURN}
    return NewItem(content | {"reference": _REFERENCE}, "en", "model")


if __name__ == "__main__":
    main()
