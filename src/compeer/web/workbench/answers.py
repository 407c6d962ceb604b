"""What the workbench answers, in the words of the API's description."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from compeer.annotate.queue import Reason
from compeer.annotate.tasks import TaskKind


class PersonShown(BaseModel):
    """Somebody who works here; the name is gone once they have left."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    name: str | None
    pseudonym: str
    roles: list[str]
    languages: list[str]
    program: bool = Field(description="labels of a program have the source llm")
    daily_cap: int | None
    declines_crisis: bool
    active: bool


class TodayShown(BaseModel):
    """A person's day so far."""

    model_config = ConfigDict(from_attributes=True)

    labels: int
    seconds: int
    cap: int | None = Field(description="labels that may be given a day; none: no limit")


class Session(BaseModel):
    """A session that has begun; a person's is kept by a cookie, a program's by its token."""

    person: PersonShown
    csrf: str = Field(description="to be sent in the header X-CSRF-Token with every call that changes something")
    token: str | None = Field(description="for programs: to be sent in the header Authorization: Bearer TOKEN")


class Me(BaseModel):
    """Who asks, and their day."""

    person: PersonShown
    csrf: str
    today: TodayShown


class Kept(BaseModel):
    """What is kept now."""

    item: int
    final: bool
    expires: int | None = Field(description="of a draft: until when the item is kept for this person")
    known: dict[str, Any] | None = Field(description="of a training item: the right answers")


class MediaShown(BaseModel):
    """A picture, clip or recording."""

    kind: Literal["image", "video", "audio"]
    url: str


class Said(BaseModel):
    """A message of the history."""

    speaker: Literal["seeker", "supporter"]
    text: str
    media: list[MediaShown]


class StepShown(BaseModel):
    """A step of the supporter's reasoning with its decisions."""

    name: str
    text: str
    decisions: dict[str, Any]


class QuestionShown(BaseModel):
    """A question and the answers it takes."""

    name: str
    values: list[bool | int | str]
    ordered: bool


class OtherLabel(BaseModel):
    """What one of two annotators said, for the one who adjudicates."""

    answers: dict[str, Any]
    note: str | None


class TaskShown(BaseModel):
    """An item in front of one person."""

    item: int
    project: int
    task: TaskKind
    kind: Literal["first", "adjudication", "training"]
    language: str
    crisis: bool = Field(description="the seeker seems to be in danger; the item may be declined")
    expires: int = Field(description="until when it is kept for this person; 0 once it is labelled")
    guidelines: int
    history: list[Said]
    steps: list[StepShown]
    responses: list[str] = Field(description="in the order drawn for this person")
    questions: list[QuestionShown]
    answers: dict[str, Any] = Field(description="this person's own, so far")
    note: str | None
    others: list[OtherLabel]
    labelled: bool
    changeable: bool = Field(
        description="whether one's own label may still be corrected: for a while after it was given"
    )


class NextShown(BaseModel):
    """The next item, or why there is none."""

    task: TaskShown | None
    rest: Reason | None
    today: TodayShown
    mine: int = Field(description="labels that this person has given in the project, or in all")
    left: int = Field(description="items that are open to this person now")


class OwnLabelShown(BaseModel):
    """One of a person's own labels."""

    item: int
    project: int
    kind: str
    answers: dict[str, Any]
    note: str | None
    guidelines: int
    at: int
    changeable: bool


class Mine(BaseModel):
    """A person's own labels, newest first."""

    labels: list[OwnLabelShown]


class GuidelinesShown(BaseModel):
    """Guidelines in Markdown."""

    version: int
    text: str


class ProjectShown(BaseModel):
    """A project, and how far this person is in it."""

    id: int
    name: str
    task: TaskKind
    guidelines: int = Field(description="the newest version")
    lease_minutes: int
    correction_seconds: int = Field(description="how long a label may be corrected")
    daily_cap: int | None
    gold_every: int | None = Field(description="for admins")
    mine: int
    left: int
    stages: dict[str, int] | None = Field(description="for admins: how many items stand where")


class ProjectsShown(BaseModel):
    """All projects."""

    projects: list[ProjectShown]


class Invited(BaseModel):
    """An invitation, which is told this once."""

    invitation: str
    link: str
    days: int


class InvitationShown(BaseModel):
    """An invitation that can still be taken up."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    roles: list[str]
    languages: list[str]
    program: bool
    expires: int = Field(description="milliseconds since 1970")


class Invitations(BaseModel):
    """All invitations that can still be taken up."""

    invitations: list[InvitationShown]


class PersonAndDay(PersonShown):
    """Somebody and their day so far."""

    today: TodayShown


class People(BaseModel):
    """Everyone who ever joined."""

    people: list[PersonAndDay]


class Counts(BaseModel):
    """What was taken in, and what was not."""

    counts: dict[str, int]


class Deleted(BaseModel):
    """How many items were deleted."""

    items: int


class Disagreement(BaseModel):
    """An item on which first labels differ in a question."""

    item: int
    author: str
    stage: str
    answers: dict[str, Any]
    consensus: bool | int | str | None
    at: int


class Disagreements(BaseModel):
    """A page of them, newest first."""

    total: int
    page: int
    pages: int
    rows: list[Disagreement]


class Rows(BaseModel):
    """Lines of a list."""

    rows: list[dict[str, Any]]
