"""Who gets what next: two different people an item, a third where they differ, and nobody anything twice."""

import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select

from compeer.annotate.backup import verify
from compeer.annotate.items import Task, add_items
from compeer.annotate.labels import give_back, own_labels, own_task, passed_items, save_draft, settle_flag, submit
from compeer.annotate.people import Person, change_person
from compeer.annotate.projects import Project, set_guidelines
from compeer.annotate.queue import next_task
from compeer.annotate.schema import EVENTS, ITEMS, LABELS, LEASES
from compeer.annotate.store import Refused, Store
from tests.support.annotation import (  # noqa: F401
    RIGHT,
    Clock,
    cheap_hashes_fixture,
    clock_fixture,
    database_fixture,
    new_item,
    person,
    postgres_fixture,
    record,
    steps_project,
    store_fixture,
)


def given(store: Store, who: Person, project: Project) -> Task:
    task = next_task(store, who, project.id)
    assert isinstance(task, Task)
    return task


def stage(store: Store, item: int) -> str:
    with store.read() as connection:
        return str(connection.execute(select(ITEMS.c.stage).where(ITEMS.c.id == item)).scalar())


def test_two_people_agree_and_the_item_is_closed(store: Store) -> None:
    ann, ben, cleo = person(store, "Ann"), person(store, "Ben"), person(store, "Cleo", "annotator", "adjudicator")
    project = steps_project(store, 1)
    task = given(store, ann, project)
    assert given(store, ann, project).item == task.item, "what one holds comes again"
    assert given(store, ben, project).item == task.item
    assert next_task(store, cleo, project.id) == "waiting", "two seats, no third"
    submit(store, ann, task.item, RIGHT)
    assert next_task(store, ann, project.id) == "waiting"
    submit(store, ben, task.item, RIGHT)
    assert stage(store, task.item) == "closed"
    assert next_task(store, cleo, project.id) == "done"


def test_a_third_person_adjudicates_what_differs(store: Store) -> None:
    ann = person(store, "Ann", "annotator", "adjudicator")
    ben, cleo = person(store, "Ben"), person(store, "Cleo", "adjudicator")
    project = steps_project(store, 1)
    item = given(store, ann, project).item
    given(store, ben, project)
    submit(store, ann, item, RIGHT, remark="The plan is off.")
    submit(store, ben, item, {**RIGHT, "strategy": True, "emotion": False})
    assert stage(store, item) == "adjudicate"
    assert next_task(store, ann, project.id) == "done", "nobody settles their own dispute, or hears of it"
    task = given(store, cleo, project)
    assert (task.item, task.kind) == (item, "adjudication")
    assert [question.name for question in task.questions] == ["emotion", "strategy"]
    assert sorted(other.note or "" for other in task.others) == ["", "The plan is off."]
    assert all(set(dict(other)) == {"answers", "note"} for other in task.others), "no names"
    with pytest.raises(Refused, match="'strategy' is not answered"):
        submit(store, cleo, item, {"emotion": True})
    submit(store, cleo, item, {"emotion": True, "strategy": True})
    assert stage(store, item) == "closed"
    with pytest.raises(Refused, match="could be corrected is over"):
        submit(store, ann, item, {**RIGHT, "strategy": True})


def test_a_label_can_be_corrected_before_it_counts(store: Store, clock: Clock) -> None:
    ann, ben, cleo = person(store, "Ann"), person(store, "Ben"), person(store, "Cleo", "adjudicator")
    project = steps_project(store, 1, correction_seconds=300)
    item = given(store, ann, project).item
    given(store, ben, project)
    submit(store, ann, item, RIGHT)
    submit(store, ben, item, {**RIGHT, "history": False})
    set_guidelines(store, project.id, "Be kinder.")
    assert next_task(store, cleo, project.id) == "waiting"
    (own,) = own_labels(store, ben, project.id)
    assert own.changeable
    assert own.guidelines == 1
    assert own_task(store, ben, item).answers["history"] is False
    submit(store, ben, item, RIGHT)
    assert own_labels(store, ben, project.id)[0].guidelines == 2
    clock.seconds += 300
    assert next_task(store, cleo, project.id) == "done"
    assert stage(store, item) == "closed", "they agree now, and nobody need decide"
    assert verify(store).problems == ()


def test_the_order_of_responses_is_sampled_and_answers_name_the_response(store: Store) -> None:
    ann, ben = person(store, "Ann"), person(store, "Ben")
    project = steps_project(store, 16)
    orders = Counter()
    for _ in range(16):
        for who in (ann, ben):
            task = given(store, who, project)
            first = task.responses[0]
            orders[first == "I see."] += 1
            place = "first" if first == "I see." else "second"
            submit(store, who, task.item, {**RIGHT, "preference": place})
    assert min(orders.values()) > 4
    with store.read() as connection:
        kept = [row.answers["preference"] for row in connection.execute(select(LABELS.c.answers))]
        displayed = {tuple(row.shown) for row in connection.execute(select(LABELS.c.shown))}
        closed = connection.execute(select(ITEMS.c.id).where(ITEMS.c.stage == "closed")).all()
    assert set(kept) == {"reference"}
    assert displayed == {("candidate", "reference"), ("reference", "candidate")}
    assert len(closed) == 16


def test_a_lease_runs_out_and_a_late_label_is_taken_only_where_there_is_room(store: Store, clock: Clock) -> None:
    people = [person(store, name) for name in ("Ann", "Ben", "Cleo")]
    ann, ben, cleo = people
    project = steps_project(store, 1, lease_minutes=10)
    item = given(store, ann, project).item
    given(store, ben, project)
    clock.seconds += 601
    assert given(store, cleo, project).item == item
    submit(store, ann, item, RIGHT)
    with pytest.raises(Refused, match="no longer kept"):
        submit(store, ben, item, RIGHT)
    submit(store, cleo, item, RIGHT)
    assert stage(store, item) == "closed"


def test_a_draft_is_kept_and_keeps_the_item(store: Store, clock: Clock) -> None:
    ann = person(store, "Ann")
    project = steps_project(store, 1, lease_minutes=10)
    item = given(store, ann, project).item
    clock.seconds += 500
    save_draft(store, ann, item, {"history": True, "preference": "first"})
    clock.seconds += 500
    task = given(store, ann, project)
    assert task.answers == {"history": True, "preference": "first"}
    assert task.expires > clock.seconds * 1000
    with pytest.raises(Refused, match="is no answer to 'history'"):
        save_draft(store, ann, item, {"history": 1})
    give_back(store, ann, item, "release")
    with pytest.raises(Refused, match="no longer kept"):
        save_draft(store, ann, item, {})


def test_skipped_declined_and_flagged_items_stay_away(store: Store, clock: Clock) -> None:
    ann, ben, boss = person(store, "Ann"), person(store, "Ben"), person(store, "Boss", "admin")
    project = steps_project(store, 3)
    first = given(store, ann, project).item
    with pytest.raises(Refused, match="reason"):
        give_back(store, ann, first, "skip", " ")
    give_back(store, ann, first, "skip", "I know this person.")
    second = given(store, ann, project).item
    clock.seconds += 1
    give_back(store, ann, second, "decline")
    clock.seconds += 1
    third = given(store, ann, project).item
    give_back(store, ann, third, "flag", "Not a conversation.")
    assert len({first, second, third}) == 3
    assert next_task(store, ann, project.id) == "waiting"
    assert {given(store, ben, project).item} < {first, second}, "the flagged one waits for an admin"
    listed = passed_items(store, boss, project=project.id)
    assert [(row["why"], row["reason"]) for row in listed] == [
        ("skipped", "I know this person."),
        ("declined", None),
        ("flagged", "Not a conversation."),
    ]
    settle_flag(store, third, keep=True, actor=boss)
    assert stage(store, third) == "fresh"
    with pytest.raises(Refused, match="not flagged"):
        settle_flag(store, third, keep=False, actor=boss)
    with pytest.raises(Refused, match="role admin"):
        settle_flag(store, third, keep=False, actor=ann)


def test_priority_language_crisis_and_the_daily_cap(store: Store, clock: Clock) -> None:
    ann = person(store, "Ann", languages=("en",))
    bao = person(store, "Bao", languages=("zh",))
    project = steps_project(store, 0, daily_cap=3)
    items = {
        "low": [new_item(record(number)) for number in (1, 2)],
        "high": [new_item(record(3))],
        "crisis": [new_item(record(4), crisis=True)],
        "zh": [new_item(record(5, language="zh-CN"))],
    }
    for name, new in items.items():
        priority = {"high": 5, "crisis": 9}.get(name, 0)
        add_items(store, project, new, priority=priority)
    ann = change_person(store, ann.id, ann, declines_crisis=True)
    received = []
    for _ in range(3):
        task = given(store, ann, project)
        received.append(task.history[0].text)
        submit(store, ann, task.item, RIGHT)
    assert received[0].endswith("matter 3."), "the highest priority that is not declined"
    assert next_task(store, ann, project.id) == "daily cap"
    clock.seconds += 86_400
    assert next_task(store, ann, project.id) == "waiting", "only the declined one and the other language are left"
    assert given(store, bao, project).history[0].text.endswith("matter 5.")


def test_training_comes_first_and_tells_the_answers_and_gold_stays_hidden(store: Store) -> None:
    ann, ben = person(store, "Ann"), person(store, "Ben")
    project = steps_project(store, 20, gold_every=2, daily_cap=None)
    known = {"history": True, "emotion": True, "strategy": True, "preference": "candidate"}
    add_items(store, project, [new_item(record(100), known)], "training")
    add_items(store, project, [new_item(record(200 + n), known) for n in range(3)], "gold")
    for who in (ann, ben):
        task = given(store, who, project)
        assert task.kind == "training"
        answered = submit(store, who, task.item, RIGHT)
        assert answered is not None
        assert task.responses[0 if answered["preference"] == "first" else 1].endswith("matter 100?")
        with pytest.raises(Refused, match="answered once"):
            submit(store, who, task.item, {**RIGHT, "strategy": True})
    roles = []
    for _ in range(22):
        task = given(store, ann, project)
        roles.append(task.kind)
        assert submit(store, ann, task.item, RIGHT) is None
    assert set(roles) == {"first"}
    with store.read() as connection:
        counts = Counter(connection.execute(select(LABELS.c.role).where(LABELS.c.person == ann.id)).scalars())
    assert counts["training"] == 1
    assert counts["gold"] in (2, 3), "drawn with a chance of one half at each of 20 items"


def test_pairs_are_balanced(store: Store) -> None:
    people = [person(store, name) for name in "ABCD"]
    project = steps_project(store, 24)
    for _ in range(12):
        for who in people:
            task = given(store, who, project)
            submit(store, who, task.item, RIGHT)
    with store.read() as connection:
        rows = connection.execute(select(LABELS.c.item, LABELS.c.person).where(LABELS.c.role == "first")).all()
    together: dict[int, list[int]] = {}
    for row in rows:
        together.setdefault(row.item, []).append(row.person)
    pairs = Counter(tuple(sorted(pair)) for pair in together.values() if len(pair) == 2)
    assert len(pairs) == 6
    assert max(pairs.values()) - min(pairs.values()) <= 3


def test_what_was_not_given_cannot_be_labelled(store: Store) -> None:
    ann, ben = person(store, "Ann"), person(store, "Ben")
    project = steps_project(store, 1)
    item = given(store, ann, project).item
    for guess in (item, 12345):
        with pytest.raises(Refused, match="no such item"):
            submit(store, ben, guess, RIGHT)
        with pytest.raises(Refused, match="no such"):
            own_task(store, ben, guess)
        with pytest.raises(Refused, match="no such"):
            give_back(store, ben, guess, "skip", "why")
    with pytest.raises(Refused, match="no question 'mood'"):
        submit(store, ann, item, {**RIGHT, "mood": 1})


def test_the_same_label_twice_is_one(store: Store) -> None:
    ann = person(store, "Ann")
    project = steps_project(store, 1)
    item = given(store, ann, project).item
    for _ in range(3):
        submit(store, ann, item, RIGHT, seconds=9, remark="Odd.")
    with store.read() as connection:
        events = connection.execute(select(EVENTS.c.seq).where(EVENTS.c.kind == "labelled")).all()
    assert len(events) == 1


def test_many_at_once_break_no_rule(store: Store) -> None:
    count = 20
    people = [person(store, f"N{n}", "annotator", *(["adjudicator"] if n < 3 else [])) for n in range(6)]
    project = steps_project(store, count, daily_cap=None)
    acknowledged: list[tuple[int, int, str]] = []
    failures: list[BaseException] = []

    def work(who: Person) -> None:
        draw = random.Random(who.id)
        try:
            idle = 0
            while idle < 5000:  # a hundred seconds: only a task that is never done would need them
                task = next_task(store, who, project.id)
                if isinstance(task, str):
                    if task == "done":
                        return
                    idle += 1
                    time.sleep(0.02)
                    continue
                answers: dict[str, Any] = {**RIGHT, "history": draw.random() < 0.7, "strategy": draw.random() < 0.7}
                answers["preference"] = draw.choice(["first", "second", "both"])
                submit(store, who, task.item, {question.name: answers[question.name] for question in task.questions})
                acknowledged.append((task.item, who.id, task.kind))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(who,)) for who in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    with store.read() as connection:
        labels = connection.execute(select(LABELS)).all()
        stages = Counter(connection.execute(select(ITEMS.c.stage)).scalars())
        assert not connection.execute(select(LEASES)).all()
    assert {(row.item, row.person, row.role) for row in labels} == set(acknowledged), "nothing lost, nothing invented"
    assert len(acknowledged) == len(set(acknowledged))
    assert stages == {"closed": count}
    firsts: dict[int, list[Any]] = {}
    for row in labels:
        if row.role == "first":
            firsts.setdefault(row.item, []).append(row)
    adjudicated = {row.item for row in labels if row.role == "adjudication"}
    for item, pair in firsts.items():
        assert len(pair) == 2
        assert len({row.person for row in pair}) == 2
        assert (pair[0].answers != pair[1].answers) == (item in adjudicated)
