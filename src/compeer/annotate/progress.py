"""How far somebody is: what they did today, what they did in a project, and what is open to them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from compeer.annotate.apply import day_of
from compeer.annotate.people import Person
from compeer.annotate.projects import Project
from compeer.annotate.queue import count_open, freeze_all
from compeer.annotate.schema import DAYS, ITEMS, LABELS
from compeer.annotate.store import Store


@dataclass(frozen=True)
class Today:
    """A person's labels and seconds of work today, and how many labels a day they may give; None is no limit."""

    labels: int
    seconds: int
    cap: int | None


@dataclass(frozen=True)
class Progress:
    """How many labels a person has given in a project, and how many items are open to them now."""

    mine: int
    left: int


def today(store: Store, person: Person, project: Project | None = None) -> Today:
    """A person's day so far; the limit is their own, or the project's where that is lower."""
    with store.read() as connection:
        chosen = (DAYS.c.person == person.id, DAYS.c.day == day_of(store.now()))
        row = connection.execute(select(DAYS.c.labels, DAYS.c.seconds).where(*chosen)).first()
    caps = [person.daily_cap, project.settings.daily_cap if project else None]
    cap = min((one for one in caps if one is not None), default=None) if not person.program else None
    return Today(row.labels, row.seconds, cap) if row else Today(0, 0, cap)


def progress(store: Store, person: Person, project: Project) -> Progress:
    """How far a person is in a project."""
    own = select(func.count()).where(LABELS.c.person == person.id, LABELS.c.project == project.id)
    with store.read() as connection:
        mine = int(connection.execute(own).scalar() or 0)
        return Progress(mine, count_open(connection, person, project))


def stage_counts(store: Store, project: Project) -> dict[str, int]:
    """How many items of a project stand where."""
    freeze_all(store)
    counted = select(ITEMS.c.stage, func.count()).where(ITEMS.c.project == project.id, ITEMS.c.stage != "deleted")
    with store.read() as connection:
        return dict(connection.execute(counted.group_by(ITEMS.c.stage)).tuples().all())
