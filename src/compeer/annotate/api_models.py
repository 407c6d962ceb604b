"""What is sent to the workbench's API and what it answers, in the words of its description.

Where a thing of the store is answered as it is (`Person`, `Task`, `OwnLabel`, …), its own class is the description.
"""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from fastapi import Body, Path, Query
from pydantic import Field, StrictBool, StrictInt, StringConstraints

from compeer.annotate.items import LONGEST_ID, Task, Text
from compeer.annotate.people import Person, Role
from compeer.annotate.projects import LONGEST_GUIDELINES, Project, ProjectSettings
from compeer.annotate.questions import TaskKind
from compeer.annotate.queue import Reason, Today, progress, stage_counts
from compeer.annotate.store import Store
from compeer.io import Frozen

Number = Annotated[int, Path(ge=1, lt=2**31)]
ItemNumber = Annotated[int, Path(ge=0, lt=2**53, description="an item's number, which says nothing about the item")]
WhichProject = Annotated[int, Query(ge=1, lt=2**31, description="the project's number")]
AnyProject = Annotated[int | None, Query(ge=1, lt=2**31, description="the project's number; none: all")]
Version = Annotated[int | None, Query(ge=1, lt=2**31)]
Limit = Annotated[int, Query(ge=1, le=500)]
BeforeEvent = Annotated[int | None, Query(ge=0, lt=2**53, description="only what was before this event")]
PageNumber = Annotated[int, Query(ge=1, le=100_000)]
QuestionName = Annotated[str, Query(max_length=40)]
Priority = Annotated[int, Query(ge=-1000, le=1000, description="items with a higher number come first")]
FileFormat = Annotated[
    Literal["ours", "records"], Query(description="ours: a zip of all; records: SER records with the consensus")
]
SentFile = Annotated[bytes, Body(media_type="application/octet-stream", description="JSON lines (docs/annotate.md)")]
DialogueId = Annotated[Text, Path(min_length=1, max_length=LONGEST_ID)]
SentAnswer = StrictBool | Annotated[StrictInt, Field(ge=0, le=100)] | Annotated[str, Field(max_length=20)]
SentAnswers = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")], SentAnswer], Field(max_length=20)
]
Languages = Annotated[list[Annotated[str, Field(min_length=2, max_length=3)]], Field(min_length=1, max_length=50)]
Roles = Annotated[list[Role], Field(min_length=1, max_length=3)]
LONGEST_REMARK = 4000
DailyCap = Annotated[int, Field(ge=1, le=100_000)]


class Login(Frozen):
    """A name and a password."""

    name: Text = Field(min_length=1, max_length=100)
    password: Text = Field(min_length=1, max_length=200)


class Join(Login):
    """An invitation that is taken up."""

    invitation: Text = Field(min_length=1, max_length=200, description="what follows # in the invitation's link")


class NewPassword(Frozen):
    """Another password."""

    old: Text = Field(min_length=1, max_length=200)
    new: Text = Field(min_length=1, max_length=200)


class ChangedSelf(Frozen):
    """What everyone sets for themselves; what is left out stays."""

    declines_crisis: bool = Field(default=False, description="items marked as crisis are not given to this person")
    daily_cap: DailyCap | None = Field(default=None, description="labels a day; none: as the project says")
    languages: Languages = Field(default=["en"], description="ISO 639 codes of the languages this person speaks")


class ChangedPerson(ChangedSelf):
    """What an admin sets; what is left out stays."""

    roles: Roles = Field(default=["annotator"])


class NextRequest(Frozen):
    """A request for an item."""

    project: int | None = Field(default=None, ge=1, lt=2**31, description="none: whichever project has one")


class SentLabel(Frozen):
    """Answers to an item's questions; a preference goes by position, "first" or "second"."""

    answers: SentAnswers
    seconds: float = Field(default=0, ge=0, le=86_400, allow_inf_nan=False, description="work since the last label")
    guidelines: int | None = Field(default=None, ge=1, lt=2**31, description="the version that was read")
    note: Text = Field(default="", max_length=LONGEST_REMARK)
    final: bool = Field(default=True, description="false: a draft, which may be incomplete and counts for nothing")


class GivenReason(Frozen):
    """Why an item is given back."""

    reason: Text = Field(default="", max_length=LONGEST_REMARK, description="needed to skip or flag an item")


class NewProject(Frozen):
    """A project to be made."""

    name: Text = Field(min_length=1, max_length=100)
    task: TaskKind
    guidelines: Text = Field(default="", max_length=LONGEST_GUIDELINES)
    settings: ProjectSettings = ProjectSettings()


class NewGuidelines(Frozen):
    """A text that becomes the newest version."""

    text: Text = Field(max_length=LONGEST_GUIDELINES)


class NewInvitation(Frozen):
    """Who is invited."""

    roles: Roles
    languages: Languages
    program: bool = False
    days: int = Field(default=14, ge=1, le=365)


class SettledFlag(Frozen):
    """An admin's answer to a flag."""

    keep: bool = Field(description="whether the item goes back into the queue; it is dropped if not")


class WorkbenchSettings(Frozen):
    """How a workbench treats its visitors."""

    public_url: str | None = Field(default=None, description="where people reach it; none: as they ask for it")
    hosts: tuple[str, ...] = Field(default=(), description="names that the server goes by; none: any")
    rate: float | None = Field(default=6000, gt=0, description="requests a minute for each address; none: no limit")
    media: FilePath | None = Field(default=None, description="folder of the pictures and clips that items name")


class SignedIn(Frozen):
    """A session that has begun; a person's is kept by a cookie, a program's by its token."""

    person: Person
    csrf: str = Field(description="to be sent in the header X-CSRF-Token with every call that changes something")
    token: str | None = Field(description="for programs: to be sent in the header Authorization: Bearer TOKEN")


class Myself(Frozen):
    """Who asks, and their day."""

    person: Person
    csrf: str
    today: Today


class KeptLabel(Frozen):
    """What is kept now."""

    item: int
    final: bool
    expires: int | None = Field(default=None, description="of a draft: until when the item is kept for this person")
    known: dict[str, Any] | None = Field(default=None, description="of a training item: the right answers")


class NextTask(Frozen):
    """The next item, or why there is none."""

    task: Task | None
    rest: Reason | None
    today: Today
    mine: int = Field(description="labels that this person has given in the project, or in all")
    left: int = Field(description="items that are open to this person now")


class ProjectState(ProjectSettings):
    """A project, and how far this person is in it."""

    id: int
    name: str
    task: TaskKind
    guidelines: int = Field(description="the newest version")
    gold_every: int | None = Field(description="for admins")  # type: ignore[assignment]
    mine: int
    left: int
    stages: dict[str, int] | None = Field(description="for admins: how many items are in each stage")

    @classmethod
    def of(cls, store: Store, me: Person, project: Project) -> ProjectState:
        """A project as one person gets it."""
        (mine, left), admin = progress(store, me, project), "admin" in me.roles
        values = project.settings.model_dump() | ({} if admin else {"gold_every": None})
        values |= {"id": project.id, "name": project.name, "task": project.task, "guidelines": project.guideline}
        stages = stage_counts(store, project) if admin else None
        return cls(**values, mine=mine, left=left, stages=stages)


class Invited(Frozen):
    """An invitation, which is revealed this once."""

    invitation: str
    link: str
    days: int


class PersonAndDay(Person):
    """Somebody and their day so far."""

    today: Today


class Disagreements(Frozen):
    """A page of the items on which first labels differ in a question, newest first."""

    rows: list[dict[str, Any]]
    total: int
    page: int
    pages: int
