"""What is sent to the workbench, in the words of the API's description."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StringConstraints

from compeer.annotate.items import LONGEST_ID
from compeer.annotate.passing import LONGEST_REMARK
from compeer.annotate.people import Role
from compeer.annotate.projects import LONGEST_GUIDELINES, ProjectSettings
from compeer.annotate.tasks import TaskKind


def _storable(text: str) -> str:
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ValueError("holds a character that cannot be kept")
    return text


Text = Annotated[str, AfterValidator(_storable)]
ItemNumber = Annotated[int, Path(ge=0, lt=2**53, description="an item's number, which says nothing about the item")]
PersonNumber = Annotated[int, Path(ge=1, lt=2**31)]
InvitationNumber = Annotated[int, Path(ge=1, lt=2**31)]
ProjectNumber = Annotated[int, Path(ge=1, lt=2**31)]
WhichProject = Annotated[int, Query(ge=1, lt=2**31, description="the project's number")]
AnyProject = Annotated[int | None, Query(ge=1, lt=2**31, description="the project's number; none: all")]
DialogueId = Annotated[Text, Path(min_length=1, max_length=LONGEST_ID)]
Answer = StrictBool | Annotated[StrictInt, Field(ge=0, le=100)] | Annotated[str, Field(max_length=20)]
Answers = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")], Answer], Field(min_length=0, max_length=20)
]
Languages = Annotated[list[Annotated[str, Field(min_length=2, max_length=3)]], Field(min_length=1, max_length=50)]
Roles = Annotated[list[Role], Field(min_length=1, max_length=3)]
DailyCap = Annotated[int, Field(ge=1, le=100_000)]
Reason = Annotated[Text, Field(min_length=1, max_length=LONGEST_REMARK)]


class Form(BaseModel):
    """A request's body; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class Login(Form):
    """A name and a password."""

    name: Text = Field(min_length=1, max_length=100)
    password: Text = Field(min_length=1, max_length=200)


class Join(Login):
    """An invitation that is taken up."""

    invitation: Text = Field(min_length=1, max_length=200, description="what follows # in the invitation's link")


class NewPassword(Form):
    """Another password."""

    old: Text = Field(min_length=1, max_length=200)
    new: Text = Field(min_length=1, max_length=200)


class ChangedSelf(Form):
    """What everyone sets for themselves; what is left out stays."""

    declines_crisis: bool = Field(default=False, description="items marked as crisis are not given to this person")
    daily_cap: DailyCap | None = Field(default=None, description="labels a day; none: as the project says")
    languages: Languages = Field(default=["en"], description="ISO 639 codes of the languages this person speaks")


class ChangedPerson(ChangedSelf):
    """What an admin sets; what is left out stays."""

    roles: Roles = Field(default=["annotator"])


class Next(Form):
    """A wish for an item."""

    project: int | None = Field(default=None, ge=1, lt=2**31, description="none: whichever project has one")


class Label(Form):
    """Answers to an item's questions; a preference goes by place, "first" or "second"."""

    answers: Answers
    seconds: float = Field(default=0, ge=0, le=86_400, allow_inf_nan=False, description="work since the last label")
    guidelines: int | None = Field(default=None, ge=1, lt=2**31, description="the version that was shown")
    note: Text = Field(default="", max_length=LONGEST_REMARK)
    final: bool = Field(default=True, description="false: a draft, which may be incomplete and counts for nothing")


class Passing(Form):
    """Why an item is passed on."""

    reason: Reason


class NewProject(Form):
    """A project to be made."""

    name: Text = Field(min_length=1, max_length=100)
    task: TaskKind
    guidelines: Text = Field(default="", max_length=LONGEST_GUIDELINES)
    settings: ProjectSettings = ProjectSettings()


class NewGuidelines(Form):
    """A text that becomes the newest version."""

    text: Text = Field(max_length=LONGEST_GUIDELINES)


class Invitation(Form):
    """Who is invited."""

    roles: Roles
    languages: Languages
    program: bool = False
    days: int = Field(default=14, ge=1, le=365)


class Settled(Form):
    """An admin's answer to a flag."""

    keep: bool = Field(description="whether the item goes back into the queue; it is dropped if not")
