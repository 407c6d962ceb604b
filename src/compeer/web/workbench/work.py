"""The work itself: the next item, labels, passing items on, one's own labels, pictures and clips."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from starlette.responses import FileResponse, Response

from compeer.annotate.labels import media_of, own_labels, own_task, save_draft, submit
from compeer.annotate.passing import decline, flag, release, skip
from compeer.annotate.people import Person
from compeer.annotate.progress import progress, stage_counts, today
from compeer.annotate.projects import Project, guidelines_of, project_by_number, projects
from compeer.annotate.queue import Rest, next_task, next_task_anywhere
from compeer.annotate.store import Store
from compeer.web.description import refusals
from compeer.web.errors import Refusal
from compeer.web.workbench.access import Me, StoreHere, Worker
from compeer.web.workbench.answers import (
    GuidelinesShown,
    Kept,
    Mine,
    NextShown,
    OwnLabelShown,
    ProjectShown,
    ProjectsShown,
    TaskShown,
    TodayShown,
)
from compeer.web.workbench.forms import AnyProject, ItemNumber, Label, Next, Passing, ProjectNumber
from compeer.web.workbench.showing import shown_task

router = APIRouter(prefix="/api", tags=["work"])
_READ = refusals(400, 401, 403, 404)
_CHANGE = refusals(400, 401, 403, 404, 408, 409, 413)
_Place = Annotated[int, InPath(ge=0, le=100_000)]


@router.get("/projects", responses=refusals(401))
def list_projects(store: StoreHere, me: Me) -> ProjectsShown:
    """All projects, and how far one is in each."""
    return ProjectsShown(projects=[shown_project(store, me, project) for project in projects(store)])


@router.get("/projects/{project}/guidelines", responses=_READ)
def read_guidelines(
    project: ProjectNumber, store: StoreHere, _: Me, version: Annotated[int | None, Query(ge=1, lt=2**31)] = None
) -> GuidelinesShown:
    """A project's guidelines in Markdown; the newest version unless one is named."""
    wanted = version or project_by_number(store, project).guideline
    return GuidelinesShown(version=wanted, text=guidelines_of(store, project, wanted))


@router.post("/next", responses=_CHANGE)
def give_next(body: Next, store: StoreHere, me: Worker) -> NextShown:
    """The item to work on, kept for this person for a while; the same again until it is labelled or given back."""
    found = next_task(store, me, body.project) if body.project else next_task_anywhere(store, me)
    number = body.project if isinstance(found, Rest) else found.project
    chosen = [project_by_number(store, number)] if number else projects(store)
    far = [progress(store, me, project) for project in chosen]
    return NextShown(
        task=None if isinstance(found, Rest) else shown_task(found),
        rest=found.reason if isinstance(found, Rest) else None,
        today=TodayShown.model_validate(today(store, me, chosen[0] if number else None)),
        mine=sum(one.mine for one in far),
        left=sum(one.left for one in far),
    )


@router.get("/items/{item}", responses=_READ)
def read_item(item: ItemNumber, store: StoreHere, me: Worker) -> TaskShown:
    """An item that one holds or has labelled, with one's own answers."""
    return shown_task(own_task(store, me, item))


@router.put("/items/{item}/labels", responses=_CHANGE)
def label(item: ItemNumber, body: Label, store: StoreHere, me: Worker) -> Kept:
    """Gives a label or changes one's own; once this is answered, it is kept. The same again changes nothing."""
    if not body.final:
        expires = save_draft(store, me, item, body.answers)
        return Kept(item=item, final=False, expires=expires, known=None)
    saved = submit(store, me, item, body.answers, seconds=body.seconds, remark=body.note, guideline=body.guidelines)
    return Kept(item=item, final=True, expires=None, known=dict(saved.known) if saved.known else None)


@router.post("/items/{item}/skip", status_code=204, responses=_CHANGE)
def skip_item(item: ItemNumber, body: Passing, store: StoreHere, me: Worker) -> None:
    """Passes an item on to somebody else."""
    skip(store, me, item, body.reason)


@router.post("/items/{item}/flag", status_code=204, responses=_CHANGE)
def flag_item(item: ItemNumber, body: Passing, store: StoreHere, me: Worker) -> None:
    """Takes an item out of the queue until an admin has looked at it."""
    flag(store, me, item, body.reason)


@router.post("/items/{item}/decline", status_code=204, responses=_CHANGE)
def decline_item(item: ItemNumber, store: StoreHere, me: Worker) -> None:
    """Passes on an item whose content is too much; no reason is asked."""
    decline(store, me, item)


@router.post("/items/{item}/release", status_code=204, responses=_CHANGE)
def release_item(item: ItemNumber, store: StoreHere, me: Worker) -> None:
    """Gives an item back, for a pause; it may come again."""
    release(store, me, item)


@router.get("/mine", responses=_READ)
def list_mine(
    store: StoreHere, me: Worker, project: AnyProject = None, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> Mine:
    """One's own labels, newest first, and whether they may still be changed."""
    return Mine(
        labels=[
            OwnLabelShown(
                item=one.item,
                project=one.project,
                kind=one.role,
                answers=dict(one.answers),
                note=one.remark,
                guidelines=one.guideline,
                at=one.at,
                changeable=one.changeable,
            )
            for one in own_labels(store, me, project, limit)
        ]
    )


@router.get(
    "/media/{item}/{utterance}/{number}",
    response_class=Response,
    responses={200: {"content": {"image/*": {}, "video/*": {}, "audio/*": {}}}} | _READ,  # type: ignore[operator]
)
def read_media(
    item: ItemNumber, utterance: _Place, number: _Place, request: Request, store: StoreHere, me: Me
) -> Response:
    """A picture, clip or recording of an item that one holds or has labelled."""
    media = media_of(store, me, item, utterance, number)
    folder: Path | None = request.app.state.media
    found = (folder / media.path).resolve() if folder else None
    kind = mimetypes.guess_type(media.path)[0] or ""
    # An admin may import any path: only files of these kinds in the folder that the server was given are sent.
    if folder is None or found is None or not found.is_relative_to(folder.resolve()) or not found.is_file():
        raise Refusal(404, "This server does not have the file.", code="missing")
    if kind.partition("/")[0] not in ("image", "video", "audio") or "svg" in kind:
        raise Refusal(404, "This is no picture, clip or recording.", code="missing")
    return FileResponse(found, media_type=kind, headers={"Cache-Control": "private, no-store"})


def shown_project(store: Store, me: Person, project: Project) -> ProjectShown:
    """A project as one person sees it."""
    far = progress(store, me, project)
    admin = "admin" in me.roles
    return ProjectShown(
        id=project.id,
        name=project.name,
        task=project.task,
        guidelines=project.guideline,
        lease_minutes=project.settings.lease_minutes,
        correction_seconds=project.settings.correction_seconds,
        daily_cap=project.settings.daily_cap,
        gold_every=project.settings.gold_every if admin else None,
        mine=far.mine,
        left=far.left,
        stages=stage_counts(store, project) if admin else None,
    )
