"""Projects: which task people are given, how it is run, and by which guidelines, of which labels keep the version."""

from dataclasses import dataclass

from pydantic import Field
from sqlalchemy import Connection, select

from compeer.annotate.people import Actor, admin_writes
from compeer.annotate.questions import TaskKind
from compeer.annotate.schema import GUIDELINES, PROJECTS, one_row
from compeer.annotate.store import Refused, Store, Writing, needed_row, text_of
from compeer.errors import InputError
from compeer.io import Frozen

LONGEST_GUIDELINES = 200_000


class ProjectSettings(Frozen):
    """How a project is run."""

    lease_minutes: int = Field(default=30, ge=1, le=1440, description="how long an item is kept for a person")
    correction_seconds: int = Field(
        default=300, ge=0, le=3600, description="how long a person may correct a label; it counts from then on"
    )
    gold_every: int = Field(default=12, ge=2, le=1000, description="one item in so many is a hidden gold item")
    daily_cap: int | None = Field(default=150, ge=1, description="labels a person may give a day; none: no limit")


@dataclass(frozen=True)
class Guidelines:
    """Guidelines in Markdown."""

    version: int
    text: str


class Project(Frozen):
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
    actor: Actor = None,
) -> Project:
    name = name.strip()
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise Refused("invalid", "a project's name has 1 to 100 printable characters.")
    with admin_writes(store, actor) as writing:
        if one_row(writing.connection, PROJECTS, name=name):
            raise Refused("conflict", f"there is a project '{name}' already.", do="Choose another name.")
        number = writing.next_id(PROJECTS)
        body = {"project": number, "name": name, "task": task}
        writing.record("project_added", body | {"settings": (settings or ProjectSettings()).model_dump()})
        _add_guidelines(writing, number, 1, guidelines)
        return project_by_id(writing.connection, number)


def set_guidelines(store: Store, project: int, guidelines: str, actor: Actor = None) -> int:
    """Sets new guidelines and returns their version; the same text again is no new version."""
    with admin_writes(store, actor) as writing:
        version = project_by_id(writing.connection, project).guideline
        if _guidelines(writing.connection, project, version) == guidelines:
            return version
        _add_guidelines(writing, project, version + 1, guidelines)
    return version + 1


def change_settings(store: Store, project: int, settings: ProjectSettings, actor: Actor = None) -> Project:
    with admin_writes(store, actor) as writing:
        project_by_id(writing.connection, project)
        writing.record("project_changed", {"project": project, "settings": settings.model_dump()})
        return project_by_id(writing.connection, project)


def guidelines_of(store: Store, project: int, version: int | None = None) -> Guidelines:
    """A version of the guidelines; the newest unless one is named."""
    with store.read() as connection:
        wanted = project_by_id(connection, project).guideline if version is None else version
        return Guidelines(wanted, _guidelines(connection, project, wanted))


def projects(store: Store) -> list[Project]:
    with store.read() as connection:
        rows = connection.execute(select(PROJECTS).order_by(PROJECTS.c.id))
        return [Project.model_validate(row, from_attributes=True) for row in rows]


def project_by_id(connection: Connection, number: int) -> Project:
    return Project.model_validate(needed_row(connection, PROJECTS, "project", id=number), from_attributes=True)


def project_by_number(store: Store, number: int) -> Project:
    with store.read() as connection:
        return project_by_id(connection, number)


def project_by_name(store: Store, name: str | None = None) -> Project:
    """A project by its name, which may be left out where there is only one."""
    known = {project.name: project for project in projects(store)}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name is None:
        do = f"Name one with --project: {', '.join(known)}" if known else "Make one: compeer annotate import"
        raise InputError(f"there are {len(known)} projects.", field="project", do=do)
    if name not in known:
        raise Refused("missing", f"there is no project '{name}'.", do=f"Known: {', '.join(known)}" if known else None)
    return known[name]


def _add_guidelines(writing: Writing, project: int, version: int, guidelines: str) -> None:
    if len(guidelines) > LONGEST_GUIDELINES:
        raise Refused("invalid", f"guidelines have at most {LONGEST_GUIDELINES:,} characters.")
    writing.record("guidelines_set", {"project": project, "version": version, "words": writing.keep(guidelines)})


def _guidelines(connection: Connection, project: int, version: int) -> str:
    row = needed_row(connection, GUIDELINES, "version of the guidelines", project=project, version=version)
    return text_of(connection, row.text) or ""
