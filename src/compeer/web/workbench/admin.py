"""Running a workbench: projects, people, what annotators agree on, and what was done."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from compeer.annotate.erase import delete_dialogue
from compeer.annotate.looking import disagreements, everything
from compeer.annotate.passing import passed_items, settle_flag
from compeer.annotate.people import audit_log, change_person, invitations, invite, leave, people, withdraw
from compeer.annotate.progress import today
from compeer.annotate.projects import (
    ProjectSettings,
    add_project,
    change_settings,
    project_by_number,
    set_guidelines,
)
from compeer.web.description import refusals
from compeer.web.workbench.access import AccessHere, Admin, StoreHere
from compeer.web.workbench.answers import (
    Deleted,
    Disagreement,
    Disagreements,
    GuidelinesShown,
    Invitations,
    InvitationShown,
    Invited,
    People,
    PersonAndDay,
    PersonShown,
    ProjectShown,
    Rows,
    TodayShown,
)
from compeer.web.workbench.figures import Figures
from compeer.web.workbench.forms import (
    ChangedPerson,
    DialogueId,
    Invitation,
    InvitationNumber,
    ItemNumber,
    NewGuidelines,
    NewProject,
    PersonNumber,
    ProjectNumber,
    Settled,
    WhichProject,
)
from compeer.web.workbench.showing import shown_history, shown_steps
from compeer.web.workbench.work import shown_project

router = APIRouter(prefix="/api", tags=["admin"])
ROWS_A_PAGE = 25
_READ = refusals(400, 401, 403, 404)
_CHANGE = refusals(400, 401, 403, 404, 408, 409, 413)


# --- projects ---------------------------------------------------------------------------------------------------------


@router.post("/projects", status_code=201, responses=_CHANGE)
def make_project(body: NewProject, store: StoreHere, me: Admin) -> ProjectShown:
    """Makes a project with the first version of its guidelines."""
    made = add_project(store, body.name, body.task, body.guidelines, body.settings, me)
    return shown_project(store, me, made)


@router.put("/projects/{project}/settings", responses=_CHANGE)
def change_project(project: ProjectNumber, body: ProjectSettings, store: StoreHere, me: Admin) -> ProjectShown:
    """Sets how a project is run from now on; what is left out gets its usual value."""
    change_settings(store, project, body, me)
    return shown_project(store, me, project_by_number(store, project))


@router.put("/projects/{project}/guidelines", responses=_CHANGE)
def write_guidelines(project: ProjectNumber, body: NewGuidelines, store: StoreHere, me: Admin) -> GuidelinesShown:
    """Sets new guidelines, which are a new version unless they are the same."""
    return GuidelinesShown(version=set_guidelines(store, project, body.text, me), text=body.text)


@router.delete("/dialogues/{dialogue:path}", responses=_CHANGE)
def remove_dialogue(dialogue: DialogueId, store: StoreHere, me: Admin) -> Deleted:
    """Deletes a dialogue in all projects, with all labels and remarks on it; backups and exports are not reached."""
    return Deleted(items=delete_dialogue(store, dialogue, me))


# --- people -----------------------------------------------------------------------------------------------------------


@router.post("/invitations", status_code=201, responses=_CHANGE)
def invite_somebody(body: Invitation, request: Request, access: AccessHere, me: Admin) -> Invited:
    """A link with which one person or program can join, once."""
    token = invite(access.store, body.roles, body.languages, program=body.program, days=body.days, actor=me)
    return Invited(invitation=token, link=f"{access.address(request)}/join#{token}", days=body.days)


@router.get("/invitations", responses=_READ)
def list_invitations(store: StoreHere, me: Admin) -> Invitations:
    """The invitations that can still be taken up, without their links."""
    return Invitations(invitations=[InvitationShown.model_validate(one) for one in invitations(store, me)])


@router.delete("/invitations/{invitation}", status_code=204, responses=_CHANGE)
def withdraw_invitation(invitation: InvitationNumber, store: StoreHere, me: Admin) -> None:
    """Withdraws an invitation that nobody took up."""
    withdraw(store, invitation, me)


@router.get("/people", responses=_READ)
def list_people(store: StoreHere, me: Admin) -> People:
    """Everyone who ever joined."""
    return People(
        people=[
            PersonAndDay(
                **PersonShown.model_validate(one).model_dump(), today=TodayShown.model_validate(today(store, one))
            )
            for one in people(store, me)
        ]
    )


@router.patch("/people/{person}", responses=_CHANGE)
def change_somebody(person: PersonNumber, body: ChangedPerson, store: StoreHere, me: Admin) -> PersonShown:
    """Sets somebody's roles, languages or limit a day; fields may be left out."""
    return PersonShown.model_validate(change_person(store, person, me, **body.model_dump(exclude_unset=True)))


@router.delete("/people/{person}", status_code=204, responses=_CHANGE)
def remove_somebody(person: PersonNumber, store: StoreHere, me: Admin) -> None:
    """Removes somebody's name and password; the labels stay, under a pseudonym."""
    leave(store, person, me)


@router.get("/audit", responses=_READ)
def read_audit(
    store: StoreHere,
    me: Admin,
    before: Annotated[int | None, Query(ge=0, lt=2**53, description="only what was before this event")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Rows:
    """What was done, newest first: when, by whom, what, on which item; never any text."""
    return Rows(rows=audit_log(store, me, before, limit))


# --- labels -----------------------------------------------------------------------------------------------------------


@router.get("/agreement", responses=_READ)
def read_agreement(project: WhichProject, request: Request, me: Admin) -> dict[str, Any]:
    """All figures of a project as it stands: agreement, gold, balance, pace, and what is left."""
    figures: Figures = request.app.state.figures
    return figures.of(project, me)


@router.get("/disagreements", responses=_READ)
def list_disagreements(
    project: WhichProject,
    question: Annotated[str, Query(max_length=40)],
    store: StoreHere,
    me: Admin,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Disagreements:
    """Items on which first labels differ in a question, newest first."""
    found = disagreements(store, project, question, me)
    rows = found[(page - 1) * ROWS_A_PAGE : page * ROWS_A_PAGE]
    return Disagreements(
        total=len(found),
        page=page,
        pages=max(1, math.ceil(len(found) / ROWS_A_PAGE)),
        rows=[Disagreement.model_validate(row) for row in rows],
    )


@router.get("/items/{item}/everything", responses=_READ | refusals(409))
def read_everything(item: ItemNumber, store: StoreHere, me: Admin) -> dict[str, Any]:
    """An item with its source, all its labels, and who passed it and why."""
    found = everything(store, item, me)
    return found | {"history": shown_history(item, found["history"]), "steps": shown_steps(found["steps"])}


@router.get("/passed", responses=_READ)
def list_passed(project: WhichProject, store: StoreHere, me: Admin) -> Rows:
    """What was skipped, declined or flagged, with the reasons given."""
    return Rows(rows=passed_items(store, project, me))


@router.post("/items/{item}/settle", status_code=204, responses=_CHANGE)
def settle(item: ItemNumber, body: Settled, store: StoreHere, me: Admin) -> None:
    """An admin's answer to a flag: the item goes back into the queue, or is dropped."""
    settle_flag(store, item, body.keep, me)
