"""Projects: what is annotated, how, and by which guidelines.

Guidelines are Markdown; each new text is a new version, and a label keeps the version it was given by.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, Row, bindparam, func, select

from compeer.annotate.people import Person, require
from compeer.annotate.schema import GUIDELINES, PROJECTS
from compeer.annotate.store import Refused, Store, row_of, text_of
from compeer.annotate.tasks import TASKS, TaskKind

LONGEST_GUIDELINES = 200_000


class ProjectSettings(BaseModel):
    """How a project is run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease_minutes: int = Field(default=30, ge=1, le=1440, description="how long an item is kept for a person")
    correction_seconds: int = Field(
        default=300, ge=0, le=3600, description="how long a person may correct a label; it counts from then on"
    )
    gold_every: int = Field(default=12, ge=2, le=1000, description="one item in so many is a hidden gold item")
    daily_cap: int | None = Field(default=150, ge=1, description="labels a person may give a day; none: no limit")


@dataclass(frozen=True)
class Project:
    """A project as it stands."""

    id: int
    name: str
    task: TaskKind
    settings: ProjectSettings
    guideline: int


def add_project(
    store: Store,
    name: str,
    task: TaskKind,
    guidelines: str = "",
    settings: ProjectSettings | None = None,
    actor: Person | None = None,
) -> Project:
    """Makes a project with the first version of its guidelines."""
    require(actor, "admin")
    name = name.strip()
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise Refused("invalid", "a project's name has 1 to 100 printable characters.")
    if task not in TASKS:
        raise Refused("invalid", f"there is no task '{task}'.", do=f"Known: {', '.join(TASKS)}")
    with store.write(actor.id if actor else None) as writing:
        if writing.connection.execute(select(PROJECTS.c.id).where(PROJECTS.c.name == name)).first():
            raise Refused("conflict", f"there is a project '{name}' already.", do="Choose another name.")
        number = int(writing.connection.execute(select(func.max(PROJECTS.c.id))).scalar() or 0) + 1
        body = {"project": number, "name": name, "task": task}
        writing.record("project_added", body | {"settings": (settings or ProjectSettings()).model_dump()})
        words = writing.keep(_checked_guidelines(guidelines))
        writing.record("guidelines_set", {"project": number, "version": 1, "words": words})
        return project_by_id(writing.connection, number)


def set_guidelines(store: Store, project: int, guidelines: str, actor: Person | None = None) -> int:
    """Sets new guidelines and returns their version; the same text again is no new version."""
    require(actor, "admin")
    with store.write(actor.id if actor else None) as writing:
        version = project_by_id(writing.connection, project).guideline
        if _guidelines(writing.connection, project, version) == _checked_guidelines(guidelines):
            return version
        words = writing.keep(guidelines)
        writing.record("guidelines_set", {"project": project, "version": version + 1, "words": words})
    return version + 1


def change_settings(store: Store, project: int, settings: ProjectSettings, actor: Person | None = None) -> None:
    """Changes how a project is run from now on."""
    require(actor, "admin")
    with store.write(actor.id if actor else None) as writing:
        project_by_id(writing.connection, project)
        writing.record("project_changed", {"project": project, "settings": settings.model_dump()})


def guidelines_of(store: Store, project: int, version: int | None = None) -> str:
    """The guidelines of a project in Markdown; the newest unless a version is named."""
    with store.read() as connection:
        wanted = project_by_id(connection, project).guideline if version is None else version
        return _guidelines(connection, project, wanted)


def projects(store: Store) -> list[Project]:
    """All projects."""
    with store.read() as connection:
        return [_project(row) for row in connection.execute(select(PROJECTS).order_by(PROJECTS.c.id))]


def project_by_id(connection: Connection, number: int) -> Project:
    """A project by its number."""
    return _project(row_of(connection.execute(_PROJECT, {"p": number}).first(), "project"))


_PROJECT = select(PROJECTS).where(PROJECTS.c.id == bindparam("p"))


def project_by_number(store: Store, number: int) -> Project:
    """A project by its number, for those who read nothing else."""
    with store.read() as connection:
        return project_by_id(connection, number)


def project_by_name(store: Store, name: str) -> Project:
    """A project by its name."""
    with store.read() as connection:
        found = connection.execute(select(PROJECTS).where(PROJECTS.c.name == name)).first()
    if found is None:
        known = ", ".join(project.name for project in projects(store))
        raise Refused("missing", f"there is no project '{name}'.", do=f"Known: {known}" if known else None)
    return _project(found)


def _checked_guidelines(guidelines: str) -> str:
    if len(guidelines) > LONGEST_GUIDELINES:
        raise Refused("invalid", f"guidelines have at most {LONGEST_GUIDELINES:,} characters.")
    return guidelines


def _guidelines(connection: Connection, project: int, version: int) -> str:
    chosen = (GUIDELINES.c.project == project, GUIDELINES.c.version == version)
    row = row_of(connection.execute(select(GUIDELINES.c.text).where(*chosen)).first(), "version of the guidelines")
    return text_of(connection, row.text) or ""


def _project(row: Row[Any]) -> Project:
    return Project(row.id, row.name, row.task, _settings(row.settings), row.guideline)


@lru_cache(maxsize=64)
def _settings(kept: str) -> ProjectSettings:
    return ProjectSettings.model_validate(json.loads(kept))
