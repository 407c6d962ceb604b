"""Who gets what next, and how far somebody is.

A person gets the item they already hold, else a new one: training first, then what two annotators disagree on (to
adjudicators who gave neither label), now and then a gold item, then whatever has the highest priority. Of equal
priority, an item that somebody has begun comes before a fresh one, unless the two already share more items than others
do, so that agreement is known for each pair. Nobody gets an item twice, in a language they do not speak, or one they
passed. The cost is a query for the first item of each lane (see `events.py`).
"""

import json
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import Connection, Row, Select, and_, bindparam, exists, func, or_, select

from compeer.annotate.events import day_of
from compeer.annotate.items import Task, task_of
from compeer.annotate.people import Person, person_by_id, require
from compeer.annotate.projects import Project, project_by_id, projects
from compeer.annotate.questions import RESPONSES
from compeer.annotate.schema import DAYS, EVENTS, ITEMS, LABELS, LANES, LEASES, PAIRS, PASSES, one_row
from compeer.annotate.store import Store, Writing, needed_row

UNEVEN = 1  # items that one pair may share more than another before a fresh item is begun instead
Reason = Literal["daily cap", "waiting", "no language", "done", "no project"]  # to do nothing now, the best one first


@dataclass(frozen=True)
class Today:
    """A person's labels and seconds of work today, and how many labels a day they may give; None is no limit."""

    labels: int
    seconds: int
    cap: int | None


def next_task(store: Store, person: Person, project: int) -> Task | Reason:
    """The item that this person works on next, kept for them until the lease expires; or why there is none."""
    with store.write(person.id, lasting=False) as writing:
        connection = writing.connection
        me, chosen = person_by_id(connection, person.id), project_by_id(connection, project)
        require(me, "annotator", "adjudicator")
        for lease in connection.execute(_OVER, {"now": writing.at, "limit": 20}).all():
            writing.record("lease_ended", {"person": lease.person, "why": "expired"}, item=lease.item)
        _freeze(writing, limit=20)
        held = one_row(connection, LEASES, person=me.id, project=project)
        if held is None:
            cap, day = _cap(me, chosen), one_row(connection, DAYS, person=me.id, day=day_of(writing.at))
            if cap is not None and day is not None and day.labels >= cap:
                return "daily cap"
            found = _find(connection, me, chosen)
            if isinstance(found, str):
                return found
            item, role = found
            order = list(RESPONSES[chosen.task])
            random.SystemRandom().shuffle(order)
            expires = writing.at + chosen.settings.lease_minutes * 60_000
            body = {"project": project, "role": role, "expires": expires, "shown": order}
            writing.record("leased", body, item=item)
            held = needed_row(connection, LEASES, "lease", item=item, person=me.id)
        return task_of(connection, chosen, held, writing.at)


def next_task_anywhere(store: Store, person: Person) -> Task | Reason:
    """The same in whichever project there is one, first of all where this person holds an item already."""
    with store.read() as connection:
        own = select(LEASES.c.project).where(LEASES.c.person == person.id).order_by(LEASES.c.expires)
        held = connection.execute(own).scalars().all()
    reasons = []
    for number in dict.fromkeys([*held, *(project.id for project in projects(store))]):
        found = next_task(store, person, number)
        if isinstance(found, Task):
            return found
        reasons.append(found)
    return min(reasons, key=get_args(Reason).index, default="no project")


def freeze_all(store: Store) -> None:
    """Freezes all labels whose time for corrections is over, for whoever needs what the labels lead to."""
    with store.read() as connection:
        due = connection.execute(_DUE, {"now": store.now(), "limit": 1}).first()
    if due:
        with store.write(lasting=False) as writing:
            _freeze(writing, limit=1_000_000)


def _freeze(writing: Writing, limit: int) -> None:
    """Freezes some labels that are due, so that they count; a few at a time, so that nobody waits for many."""
    for label in writing.connection.execute(_DUE, {"now": writing.at, "limit": limit}).all():
        writing.record("frozen", {"person": label.person}, item=label.item)


_OVER = select(LEASES.c.item, LEASES.c.person).where(LEASES.c.expires < bindparam("now"))
_OVER = _OVER.order_by(LEASES.c.expires).limit(bindparam("limit"))
_DUE = select(LABELS.c.item, LABELS.c.person).where(LABELS.c.until <= bindparam("now"))
_DUE = _DUE.order_by(LABELS.c.until).limit(bindparam("limit"))
# Lanes of every pair that ever disagreed would be many; all others show who is at work, even when nothing waits there.
_LANES = select(LANES).where(LANES.c.project == bindparam("j"), or_(LANES.c.stage != "adjudicate", LANES.c.waiting > 0))
_PAIRS = select(PAIRS).where(or_(PAIRS.c.one == bindparam("p"), PAIRS.c.other == bindparam("p")))
_PAIRS = _PAIRS.where(PAIRS.c.project == bindparam("j"))
_OTHER = ITEMS.alias("other")
_PASSED = exists().where(PASSES.c.person == bindparam("me"), PASSES.c.item == _OTHER.c.id)
_FIRST = select(_OTHER.c.id).where(_OTHER.c.lane == LANES.c.key, ~_PASSED).correlate(LANES).limit(1)
_FIRST = _FIRST.order_by(_OTHER.c.priority.desc(), _OTHER.c.content)  # of each lane that this person has not passed
_HEADS = select(ITEMS.c.id, ITEMS.c.priority, ITEMS.c.lane, ITEMS.c.content)
_HEADS = _HEADS.select_from(LANES.join(ITEMS, ITEMS.c.id == _FIRST.scalar_subquery()))
_HEADS = _HEADS.where(LANES.c.key.in_(bindparam("keys", expanding=True)))


def today(store: Store, person: Person, *within: Project) -> Today:
    """A person's day so far; the limit is their own, or that of the projects where it is lower."""
    with store.read() as connection:
        row = one_row(connection, DAYS, person=person.id, day=day_of(store.now()))
    return Today(row.labels if row else 0, row.seconds if row else 0, _cap(person, *within))


def _cap(person: Person, *within: Project) -> int | None:
    """How many labels a day a person may give; programs have no limit."""
    caps = [person.daily_cap, *(project.settings.daily_cap for project in within)]
    return min((cap for cap in caps if cap is not None), default=None) if not person.program else None


def progress(store: Store, me: Person, project: Project) -> tuple[int, int]:
    """How many labels a person has given in a project, and how many items they may get besides the one they hold."""
    own = select(func.count()).where(LABELS.c.person == me.id, LABELS.c.project == project.id)
    with store.read() as connection:
        lanes = connection.execute(_LANES, {"j": project.id}).all()
        waiting = {lane.key: lane.waiting for lane in lanes if _is_open(me, lane)}
        passed = select(func.count()).select_from(PASSES.join(ITEMS, ITEMS.c.id == PASSES.c.item))
        passed = passed.where(PASSES.c.person == me.id, ITEMS.c.lane.in_(list(waiting)))
        left = sum(waiting.values()) - connection.execute(passed).scalar_one()
        if "annotator" in me.roles:
            # A gold item counts, or the counter would reveal it; once nothing else is left, none will come.
            for stage in ("training", "gold") if left else ("training",):
                known = _known(me, project, stage).with_only_columns(func.count()).order_by(None)
                left += connection.execute(known).scalar_one()
        return connection.execute(own).scalar_one(), left


def stage_counts(store: Store, project: Project) -> dict[str, int]:
    freeze_all(store)
    counted = select(ITEMS.c.stage, func.count()).where(ITEMS.c.project == project.id, ITEMS.c.stage != "deleted")
    with store.read() as connection:
        return dict(connection.execute(counted.group_by(ITEMS.c.stage)).tuples().all())


def _find(connection: Connection, me: Person, project: Project) -> tuple[int, str] | Reason:
    lanes = connection.execute(_LANES, {"j": project.id}).all()
    kinds = {lane.stage for lane in lanes} if "annotator" in me.roles else set()
    training = _known(me, project, "training").limit(1)
    if "training" in kinds and (first := connection.execute(training).first()):
        return first.id, "training"
    open_to = {lane.key: lane for lane in lanes if lane.waiting > 0 and _is_open(me, lane)}
    gold_is_due = "gold" in kinds and open_to and secrets.randbelow(project.settings.gold_every) == 0
    if gold_is_due and (gold := connection.execute(_known(me, project, "gold").limit(50)).scalars().all()):
        return secrets.choice(gold), "gold"
    heads = connection.execute(_HEADS, {"keys": list(open_to), "me": me.id}).all() if open_to else []
    if not heads:
        return _nothing(connection, me, project, lanes)
    pairs = connection.execute(_PAIRS, {"j": project.id, "p": me.id}).all()
    shared = {str(row.other if row.one == me.id else row.one): row.shared for row in pairs}
    at_work = {lane.occupants for lane in lanes if lane.stage == "half" and _is_open(me, lane)}
    fewest = min((shared.get(other, 0) for other in at_work), default=0)

    def order(head: Any) -> tuple[Any, ...]:
        lane = open_to[head.lane]
        if lane.stage == "adjudicate":
            return (0, -head.priority, head.content)
        together = shared.get(lane.occupants, 0)
        turn = 1 if lane.stage == "fresh" else 0 if together <= fewest + UNEVEN else 2
        return (1, -head.priority, turn, together, head.content)

    best = min(heads, key=order)
    return best.id, "adjudication" if open_to[best.lane].stage == "adjudicate" else "first"


def _is_open(me: Person, lane: Row[Any]) -> bool:
    role = {"fresh": "annotator", "half": "annotator", "adjudicate": "adjudicator"}.get(lane.stage)
    if role not in me.roles or (lane.crisis and me.declines_crisis):
        return False
    return _speaks(me, lane.language) and str(me.id) not in lane.occupants.split(",")


def _speaks(me: Person, language: str) -> bool:
    return language.lower().partition("-")[0] in me.languages


def _known(me: Person, project: Project, stage: str) -> Select[Any]:
    """Asks for the training or gold items that this person has neither labelled nor passed, and does not hold."""
    wanted = select(ITEMS.c.id).where(ITEMS.c.project == project.id, ITEMS.c.stage == stage)
    wanted = wanted.where(or_(*(ITEMS.c.language.ilike(f"{language}%") for language in me.languages)))
    for table in (LABELS, PASSES, LEASES):
        wanted = wanted.where(~exists().where(table.c.item == ITEMS.c.id, table.c.person == me.id))
    if me.declines_crisis:
        wanted = wanted.where(~ITEMS.c.crisis)
    return wanted.order_by(ITEMS.c.priority.desc(), ITEMS.c.content)


def _nothing(connection: Connection, me: Person, project: Project, lanes: Sequence[Row[Any]]) -> Reason:
    """Why there is nothing; only adjudicators learn whether two labels differ, and only of items they did not label."""
    if lanes and not any(_speaks(me, lane.language) for lane in lanes):
        return "no language"
    firsts = select(func.count()).where(LABELS.c.item == ITEMS.c.id, LABELS.c.role == "first").scalar_subquery()
    unfinished = or_(ITEMS.c.stage.in_(("fresh", "half", "full")), and_(ITEMS.c.stage == "flagged", firsts < 2))
    if "adjudicator" in me.roles:
        mine = exists().where(LABELS.c.item == ITEMS.c.id, LABELS.c.person == me.id)
        disputed = ITEMS.c.stage.in_(("adjudicate", "adjudicating", "flagged"))
        unfinished = or_(unfinished, and_(disputed, ~mine))
    left = connection.execute(select(ITEMS.c.id).where(ITEMS.c.project == project.id, unfinished).limit(1)).first()
    return "waiting" if left else "done"


def given_as(connection: Connection, item: int, person: Person) -> dict[str, Any] | None:
    """How an item was last given to a person, held or not: their role and the order; None if it never was."""
    chosen = (EVENTS.c.item == item, EVENTS.c.kind == "leased", EVENTS.c.actor == person.id)
    last = connection.execute(select(EVENTS.c.body).where(*chosen).order_by(EVENTS.c.seq.desc()).limit(1)).scalar()
    return json.loads(last) if last is not None else None
