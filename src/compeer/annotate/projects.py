"""Projects: what annotators are asked, how an answer is kept, and by which guidelines.

There are three tasks: `steps` (each step of a supporter's turn true or false, and which of two responses is better),
`compare` (which of two models' responses is better) and `rating` (a whole conversation from 0 to 4 along ESC-Eval's
dimensions). Each annotator gets the two responses in a random order and answers "first" or "second"; what is kept names
the response itself. A label keeps the version of the guidelines it was given by.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import Field
from sqlalchemy import Connection, select

from compeer.annotate.people import Person, admin_writes
from compeer.annotate.schema import GUIDELINES, PROJECTS, one_row
from compeer.annotate.store import Refused, Store, Writing, needed_row, text_of
from compeer.errors import InputError
from compeer.io import Frozen
from compeer.reasoning import STEPS

TaskKind = Literal["steps", "compare", "rating"]
Answer = bool | str | int
Answers = Mapping[str, Answer]
DIMENSIONS = ("fluency", "expression", "empathy", "information", "skillful", "humanoid", "overall")
"""ESC-Eval's dimensions, by the names that its own room gives them."""
PREFERENCE = "preference"
POSITIONS = ("first", "second")
LONGEST_GUIDELINES = 200_000


@dataclass(frozen=True)
class LabelQuestion:
    """A question and the answers it takes; `ordered` says whether they have an order."""

    name: str
    values: tuple[Answer, ...]
    ordered: bool = False

    def asked(self) -> Self:
        """The question as annotators get it: a preference goes by position."""
        return replace(self, values=(*POSITIONS, "both", "neither")) if self.name == PREFERENCE else self


RESPONSES: dict[TaskKind, tuple[str, ...]] = {
    "steps": ("candidate", "reference"),
    "compare": ("one", "other"),
    "rating": (),
}
"""What the two responses of an item are called where answers are kept."""
QUESTIONS: dict[TaskKind, tuple[LabelQuestion, ...]] = {
    "steps": (
        *(LabelQuestion(step, (True, False)) for step in STEPS),
        LabelQuestion(PREFERENCE, (*RESPONSES["steps"], "both", "neither")),
    ),
    "compare": (LabelQuestion(PREFERENCE, (*RESPONSES["compare"], "both", "neither")),),
    "rating": tuple(LabelQuestion(name, (0, 1, 2, 3, 4), ordered=True) for name in DIMENSIONS),
}


def kept_answers(
    task: TaskKind, given: Mapping[str, Any], order: Sequence[str], wanted: Sequence[str] | None = None
) -> dict[str, Answer]:
    """The answers as they are kept; `wanted` are the questions that must be answered, without it any may be."""
    questions = {question.name: question.asked() for question in QUESTIONS[task]}
    names = dict(zip(POSITIONS, order, strict=False))
    kept: dict[str, Answer] = {}
    for name, value in given.items():
        if name not in questions:
            raise Refused("invalid", f"there is no question '{name}'.", do=f"Known: {', '.join(questions)}")
        choices = questions[name].values
        answer = next((one for one in choices if type(one) is type(value) and one == value), None)
        if answer is None:
            what = f"'{str(value)[:40]}' is no answer to '{name}'."
            raise Refused("invalid", what, do=f"Known: {', '.join(json.dumps(choice) for choice in choices)}")
        kept[name] = names.get(str(answer), answer) if name == PREFERENCE else answer
    if wanted is not None and (missing := [name for name in wanted if name not in kept]):
        raise Refused("invalid", f"'{missing[0]}' is not answered.", do="Answer all questions, or skip the item.")
    return {name: answer for name, answer in kept.items() if wanted is None or name in wanted}


def by_position(kept: Answers, order: Sequence[str]) -> dict[str, Answer]:
    """Kept answers for someone who gets the responses in this order."""
    positions = dict(zip(order, POSITIONS, strict=False))
    return {name: positions.get(str(value), value) if name == PREFERENCE else value for name, value in kept.items()}


def consensus(labels: Sequence[Answers], questions: Iterable[str]) -> dict[str, Answer | None]:
    """For each question the first answer that two labels share, or None."""

    def of(answers: Sequence[Answer]) -> Answer | None:
        return next((answer for index, answer in enumerate(answers) if answer in answers[index + 1 :]), None)

    return {question: of([label[question] for label in labels if question in label]) for question in questions}


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
    actor: Person | None = None,
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


def set_guidelines(store: Store, project: int, guidelines: str, actor: Person | None = None) -> int:
    """Sets new guidelines and returns their version; the same text again is no new version."""
    with admin_writes(store, actor) as writing:
        version = project_by_id(writing.connection, project).guideline
        if _guidelines(writing.connection, project, version) == guidelines:
            return version
        _add_guidelines(writing, project, version + 1, guidelines)
    return version + 1


def change_settings(store: Store, project: int, settings: ProjectSettings, actor: Person | None = None) -> Project:
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
