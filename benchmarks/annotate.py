"""How long "give me the next item" takes, for twenty annotators at once, as the number of items grows.

Stores of 1,000, 10,000 and 100,000 items are filled; in each, twenty annotators (threads of this process, as in the
server) ask for an item, label it, and ask again, one after another without a pause, or with one (`--pause`, seconds).
Half of the items, at most 5,000, have one label when the clock starts, so that the queue is not a fresh one. What is
timed is `next_task` alone, as seen by the one who waits for it: the writing of others is in it.

    python benchmarks/annotate.py [--url postgresql://…] [--items 100000] [--labels 2000] [--pause 0]

Without a URL the stores are SQLite files in a temporary folder; with one, the database must be empty, and only one size
is measured. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from compeer.annotate.items import NewItem, add_items
from compeer.annotate.labels import submit
from compeer.annotate.people import Person, add_person
from compeer.annotate.projects import Project, ProjectSettings, add_project
from compeer.annotate.queue import next_task
from compeer.annotate.store import Store, create_store

ANNOTATORS = 20
ANSWERS = {"history": True, "emotion": True, "strategy": True, "preference": "both"}
_TURN = {
    "history": {"text": "They tell of a loss. " * 4, "stage": "exploration"},
    "emotion": {"text": "They are sad. " * 4, "sentiment": "negative", "emotion": "sadness", "intensity": 3},
    "strategy": {"text": "A question helps. " * 4, "strategy": "Question"},
    "response": "That sounds heavy. What happened then? " * 3,
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--url", help="a PostgreSQL database; without it SQLite")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--labels", type=int, default=2000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that an annotator thinks")
    chosen = parser.parse_args()
    sizes = [chosen.items] if chosen.url else [size for size in (1_000, 10_000) if size < chosen.items] + [chosen.items]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            rows.append(measure(chosen.url or str(Path(folder) / f"{size}.sqlite"), size, chosen.labels, chosen.pause))
    found = {"database": "postgresql" if chosen.url else "sqlite", "annotators": ANNOTATORS, "pause": chosen.pause}
    found |= {"sizes": rows, "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    print(json.dumps(found | {"python": platform.python_version(), "machine": platform.machine()}, indent=1))


def measure(name: str, size: int, labels: int, pause: float) -> dict[str, Any]:
    """Fills a store and lets the annotators loose."""
    store = create_store(name)
    project = add_project(store, "benchmark", "steps", settings=ProjectSettings(daily_cap=None, correction_seconds=0))
    people = [add_person(store, f"N{number}", "a password", ["annotator"], ["en"]) for number in range(ANNOTATORS)]
    start = time.perf_counter()
    add_items(store, project, [_item(number) for number in range(size)])
    filling = time.perf_counter() - start
    half_done(store, project, people, min(size // 2, 5_000))
    alone = [_timed(store, people[0], project)[0] for _ in range(30)]
    waits: list[float] = []
    left = threading.Semaphore(labels)

    def work(who: Person) -> None:
        while left.acquire(blocking=False):
            seconds, more = _timed(store, who, project)
            waits.append(seconds)
            if not more:
                return
            time.sleep(pause)

    threads = [threading.Thread(target=work, args=(who,)) for who in people]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - start
    store.close()
    return {
        "items": size,
        "filling_seconds": round(filling, 1),
        "alone_median_ms": round(1000 * statistics.median(alone), 2),
        "median_ms": round(1000 * statistics.median(waits), 1),
        "p95_ms": round(1000 * statistics.quantiles(waits, n=20)[-1], 1),
        "labels_a_second": round(len(waits) / wall, 1),
    }


def _timed(store: Store, who: Person, project: Project) -> tuple[float, bool]:
    """Asks for an item and labels it; returns how long the asking took, and whether there was one."""
    start = time.perf_counter()
    task = next_task(store, who, project.id)
    seconds = time.perf_counter() - start
    if isinstance(task, str):
        return seconds, False
    submit(store, who, task.item, ANSWERS)
    return seconds, True


def half_done(store: Store, project: Project, people: list[Person], count: int) -> None:
    """Gives one label to so many items, in few transactions."""
    from sqlalchemy import select

    from compeer.annotate.schema import ITEMS

    with store.read() as connection:
        items = list(connection.execute(select(ITEMS.c.id).order_by(ITEMS.c.id).limit(count)).scalars())
    body = {"project": project.id, "role": "first", "source": "human", "answers": ANSWERS, "guideline": 1}
    for place, who in enumerate(people):
        with store.write(who.id) as writing:
            for item in items[place :: len(people)]:
                writing.record("labelled", body | {"shown": ["candidate", "reference"], "seconds": 20}, item=item)


def _item(number: int) -> NewItem:
    history = [{"speaker": "seeker", "text": f"I lost something, number {number}. " * 5}]
    content = {"id": f"r{number}", "dialogue": f"d{number // 5}", "history": history, "candidate": _TURN}
    return NewItem(content | {"reference": "I see."}, "en", "model")


if __name__ == "__main__":
    main()
