"""Gold items cannot be told from others: not by their numbers, their order, the counter, nor by what can be done."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from compeer.annotate.items import add_items
from compeer.annotate.projects import Project
from compeer.annotate.schema import ITEMS
from compeer.annotate.store import Store, create_store
from tests.support.annotation import (  # noqa: F401
    RIGHT,
    Clock,
    cheap_hashes_fixture,
    clock_fixture,
    new_item,
    record,
    steps_project,
)
from tests.support.workbench import Client, workbench


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path, clock: Clock) -> Store:
    return create_store(str(tmp_path / "store.sqlite"), clock)


def with_gold(store: Store, real: int, gold: int, **settings: Any) -> Project:
    project = steps_project(store, real, gold_every=2, daily_cap=None, **settings)
    hidden = [new_item(record(500 + number), RIGHT) for number in range(gold)]
    add_items(store, project, hidden, "gold")
    return project


def kinds(store: Store) -> dict[int, str]:
    with store.read() as connection:
        return dict(connection.execute(select(ITEMS.c.id, ITEMS.c.kind)).tuples().all())


def given(ann: Client) -> tuple[int, int]:
    """The next item, and how many are left besides it."""
    got = ann.got("POST", "/next", {})
    return int(got["task"]["item"]), int(got["left"])


def label(ann: Client, item: int) -> None:
    ann.got("PUT", f"/items/{item}/labels", {"answers": RIGHT})


def test_numbers_do_not_come_in_an_order_that_gold_would_break(store: Store) -> None:
    with_gold(store, 25, 0)
    with workbench(store) as bench:
        ann = bench.someone("Ann")
        numbers = []
        for _ in range(25):
            item, _left = given(ann)
            numbers.append(item)
            label(ann, item)
    assert numbers not in (sorted(numbers), sorted(numbers, reverse=True))


@pytest.mark.parametrize("gold", [1, 10])
def test_the_counter_goes_down_by_one_whatever_is_given(store: Store, gold: int) -> None:
    with_gold(store, 12, gold)
    with workbench(store) as bench:
        ann = bench.someone("Ann")
        before = ann.got("GET", "/projects")["projects"][0]["left"]
        assert before == 12 + gold
        kind, known = kinds(store), []
        while (got := ann.got("POST", "/next", {}))["task"]:
            item, left = int(got["task"]["item"]), got["left"]
            known.append(kind[item])
            assert left == (before - 1 if known.count("real") < 12 else 0)
            label(ann, item)
            assert ann.got("GET", "/projects")["projects"][0]["left"] == left, "a label changes nothing in it"
            before = left
        assert known.count("real") == 12


def test_whatever_is_done_with_it_a_gold_item_behaves_as_any_other(store: Store, clock: Clock) -> None:
    with_gold(store, 40, 40, correction_seconds=300)
    kind = kinds(store)
    behaved: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    with workbench(store) as bench:
        ann = bench.someone("Ann")
        for number in range(60):
            item, left = given(ann)
            how = ("skip", "flag", "decline", "release", "label")[number % 5]
            answered = _done(ann, item, how, clock)
            after = ann.got("GET", "/projects")["projects"][0]["left"]
            behaved[how][kind[item]].append((answered, after - left))
    for how, both in behaved.items():
        if {"real", "gold"} <= both.keys():
            assert {str(one) for one in both["real"]} == {str(one) for one in both["gold"]}, how
            assert len({str(one) for one in both["real"]}) == 1, how
    assert sum({"real", "gold"} <= both.keys() for both in behaved.values()) >= 3


def _done(ann: Client, item: int, how: str, clock: Clock) -> list[Any]:
    """Does something with an item, and returns all that is told of it, without what is its own."""
    if how != "label":
        answer = ann("POST", f"/items/{item}/{how}", {"reason": "odd"} if how in ("skip", "flag") else None)
        again = ann("POST", f"/items/{item}/{how}", {"reason": "odd"} if how in ("skip", "flag") else None)
        return [answer.status_code, again.status_code, ann("GET", f"/items/{item}").status_code]
    label(ann, item)
    first = [_bare(ann, item)]
    clock.seconds += 299
    first.append(_bare(ann, item))
    first.append(ann("PUT", f"/items/{item}/labels", {"answers": {**RIGHT, "history": False}}).status_code)
    clock.seconds += 1
    first.append(_bare(ann, item))
    first.append(ann("PUT", f"/items/{item}/labels", {"answers": RIGHT}).status_code)
    return first


def _bare(ann: Client, item: int) -> dict[str, Any]:
    own = {"item", "history", "steps", "responses", "at"}
    listed = next(one for one in ann.got("GET", "/mine?limit=500")["labels"] if one["item"] == item)
    displayed = ann.got("GET", f"/items/{item}")
    return {name: value for name, value in (listed | displayed).items() if name not in own}
