"""The workbench over HTTP: pages, and a JSON API that does all that the pages do.

Nothing is kept in this process but counts of wrong guesses and metrics that can be computed again: it may be killed at
any moment and started anew.
"""

import math
import mimetypes
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Request
from fastapi import Path as InPath
from jinja2 import Environment, PackageLoader
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.responses import FileResponse, JSONResponse, Response

from compeer.annotate import api_models as models
from compeer.annotate import labels, people, projects, results
from compeer.annotate.access import Access, AccessHere, Admin, Me, StoreHere, Worker, sign_in
from compeer.annotate.api_models import ItemNumber, Number, WhichProject, WorkbenchSettings
from compeer.annotate.items import ItemKind, Task, add_items, delete_dialogue, read_items
from compeer.annotate.projects import Guidelines, ProjectSettings, project_by_number
from compeer.annotate.queue import next_task, next_task_anywhere, progress, today
from compeer.annotate.store import Refused, Store
from compeer.errors import InputError
from compeer.io import table
from compeer.web.application import application, page_files, refusals
from compeer.web.errors import Refusal, from_input_error, refusal

_TABLE = table("annotate/api")
PAGES = {"/": "annotate.html", "/login": "login.html", "/join": "login.html", "/admin": "admin.html"}
ROWS_A_PAGE = 25

api = APIRouter()
_REFUSALS = refusals(400, 401, 403, 404, 408, 409, 413, 421, 429, 500, 503)


@api.get("/projects", tags=["work"])
def list_projects(store: StoreHere, me: Me) -> dict[Literal["projects"], list[models.ProjectState]]:
    """All projects, and how far one is in each."""
    return {"projects": [models.ProjectState.of(store, me, project) for project in projects.projects(store)]}


@api.get("/projects/{project}/guidelines", tags=["work"])
def read_guidelines(project: Number, store: StoreHere, _: Me, version: models.Version = None) -> Guidelines:
    """A project's guidelines in Markdown; the newest version unless one is named."""
    return projects.guidelines_of(store, project, version)


@api.post("/next", tags=["work"])
def give_next(body: models.NextRequest, store: StoreHere, me: Worker) -> models.NextTask:
    """The item to work on, kept for this person for a while; the same again until it is labelled or given back."""
    found = next_task(store, me, body.project) if body.project else next_task_anywhere(store, me)
    task, rest = (None, found) if isinstance(found, str) else (found, None)
    number = task.project if task else body.project
    chosen = [project for project in projects.projects(store) if number in (None, project.id)]
    far = [progress(store, me, project) for project in chosen]
    mine, left = (sum(one[part] for one in far) for part in (0, 1))
    day = today(store, me, *(chosen if number else []))
    return models.NextTask(task=task, rest=rest, today=day, mine=mine, left=left)


@api.get("/items/{item}", tags=["work"])
def read_item(item: ItemNumber, store: StoreHere, me: Worker) -> Task:
    """An item that one holds or has labelled, with one's own answers."""
    return labels.own_task(store, me, item)


@api.put("/items/{item}/labels", tags=["work"])
def label(item: ItemNumber, body: models.SentLabel, store: StoreHere, me: Worker) -> models.KeptLabel:
    """Gives a label or changes one's own; once this is answered, it is kept. The same again changes nothing."""
    if not body.final:
        return models.KeptLabel(item=item, final=False, expires=labels.save_draft(store, me, item, body.answers))
    more: dict[str, Any] = {"seconds": body.seconds, "remark": body.note, "guideline": body.guidelines}
    return models.KeptLabel(item=item, final=True, known=labels.submit(store, me, item, body.answers, **more))


@api.post("/items/{item}/settle", status_code=204, tags=["admin"])  # before the next, which would match it
def settle_flag(item: ItemNumber, body: models.SettledFlag, store: StoreHere, me: Admin) -> None:
    """An admin's answer to a flag: the item goes back into the queue, or is dropped."""
    labels.settle_flag(store, item, body.keep, me)


@api.post("/items/{item}/{how}", status_code=204, tags=["work"])
def give_back(
    item: ItemNumber, how: labels.GivingBack, store: StoreHere, me: Worker, body: models.GivenReason | None = None
) -> None:
    """Gives an item back: to somebody else (skip; decline, if it is too much), to an admin (flag), or for a pause."""
    reason = body.reason if body and how in ("skip", "flag") else ""  # nobody has to explain the other two
    labels.give_back(store, me, item, how, reason)


@api.get("/mine", tags=["work"])
def list_mine(
    store: StoreHere, me: Worker, project: models.AnyProject = None, limit: models.Limit = 50
) -> dict[Literal["labels"], list[labels.OwnLabel]]:
    """One's own labels, newest first, and whether they may still be changed."""
    return {"labels": labels.own_labels(store, me, project, limit)}


_Index = Annotated[int, InPath(ge=0, le=100_000)]


@api.get("/media/{item}/{utterance}/{number}", tags=["work"], response_class=Response, responses=_TABLE["media"])
def read_media(
    item: ItemNumber, utterance: _Index, number: _Index, request: Request, store: StoreHere, me: Me
) -> Response:
    """A picture, clip or recording of an item that one holds or has labelled."""
    media = labels.media_of(store, me, item, utterance, number)
    folder: Path | None = request.app.state.media
    found = (folder / media.path).resolve() if folder else None
    kind = mimetypes.guess_type(media.path)[0] or ""
    # An admin may import any path: only files of these kinds in the folder that the server was given are sent.
    if folder is None or found is None or not found.is_relative_to(folder.resolve()) or not found.is_file():
        raise refusal("no_file")
    if kind.partition("/")[0] not in ("image", "video", "audio") or "svg" in kind:
        raise refusal("no_media")
    return FileResponse(found, media_type=kind, headers={"Cache-Control": "private, no-store"})


@api.post("/projects", status_code=201, tags=["admin"])
def make_project(body: models.NewProject, store: StoreHere, me: Admin) -> models.ProjectState:
    """Makes a project with the first version of its guidelines."""
    made = projects.add_project(store, body.name, body.task, body.guidelines, body.settings, me)
    return models.ProjectState.of(store, me, made)


@api.put("/projects/{project}/settings", tags=["admin"])
def change_project(project: Number, body: ProjectSettings, store: StoreHere, me: Admin) -> models.ProjectState:
    """Sets how a project is run from now on; what is left out gets its usual value."""
    return models.ProjectState.of(store, me, projects.change_settings(store, project, body, me))


@api.put("/projects/{project}/guidelines", tags=["admin"])
def write_guidelines(project: Number, body: models.NewGuidelines, store: StoreHere, me: Admin) -> Guidelines:
    """Sets new guidelines, which are a new version unless they are the same."""
    return Guidelines(version=projects.set_guidelines(store, project, body.text, me), text=body.text)


@api.delete("/dialogues/{dialogue:path}", tags=["admin"])
def remove_dialogue(dialogue: models.DialogueId, store: StoreHere, me: Admin) -> dict[Literal["items"], int]:
    """Deletes a dialogue in all projects, with all labels and remarks on it; backups and exports are not reached."""
    return {"items": delete_dialogue(store, dialogue, me)}


@api.post("/invitations", status_code=201, tags=["admin"])
def invite(body: models.NewInvitation, request: Request, access: AccessHere, me: Admin) -> models.Invited:
    """A link with which one person or program can join, once."""
    token = people.invite(access.store, body.roles, body.languages, program=body.program, days=body.days, actor=me)
    return models.Invited(invitation=token, link=f"{access.address(request)}/join#{token}", days=body.days)


@api.get("/invitations", tags=["admin"])
def list_invitations(store: StoreHere, me: Admin) -> dict[Literal["invitations"], list[people.Invitation]]:
    """The invitations that can still be taken up, without their links."""
    return {"invitations": people.invitations(store, me)}


@api.delete("/invitations/{invitation}", status_code=204, tags=["admin"])
def withdraw_invitation(invitation: Number, store: StoreHere, me: Admin) -> None:
    """Withdraws an invitation that nobody took up."""
    people.withdraw(store, invitation, me)


@api.get("/people", tags=["admin"])
def list_people(store: StoreHere, me: Admin) -> dict[Literal["people"], list[models.PersonAndDay]]:
    """Everyone who ever joined."""
    found = people.people(store, me)
    return {"people": [models.PersonAndDay(**dict(one), today=today(store, one)) for one in found]}


@api.patch("/people/{person}", tags=["admin"])
def change_person(person: Number, body: models.ChangedPerson, store: StoreHere, me: Admin) -> people.Person:
    """Sets somebody's roles, languages or limit a day; fields may be left out."""
    return people.change_person(store, person, me, **body.model_dump(exclude_unset=True))


@api.delete("/people/{person}", status_code=204, tags=["admin"])
def remove_person(person: Number, store: StoreHere, me: Admin) -> None:
    """Removes somebody's name and password; the labels stay, under a pseudonym."""
    people.leave(store, person, me)


@api.get("/audit", tags=["admin"])
def read_audit(
    store: StoreHere, me: Admin, before: models.BeforeEvent = None, limit: models.Limit = 100
) -> dict[Literal["rows"], list[dict[str, Any]]]:
    """What was done, newest first: when, by whom, what, on which item; never any text."""
    return {"rows": people.audit_log(store, me, before, limit)}


@api.get("/agreement", tags=["admin"])
def read_agreement(project: WhichProject, store: StoreHere, me: Admin) -> dict[str, Any]:
    """All metrics of a project as it stands: agreement, gold, balance, pace, and what is left."""
    return results.dashboard(store, project, me)


@api.get("/disagreements", tags=["admin"])
def list_disagreements(
    project: WhichProject, question: models.QuestionName, store: StoreHere, me: Admin, page: models.PageNumber = 1
) -> models.Disagreements:
    """Items on which first labels differ in a question, newest first."""
    found = results.disagreements(store, project, question, me)
    rows, pages = found[(page - 1) * ROWS_A_PAGE : page * ROWS_A_PAGE], max(1, math.ceil(len(found) / ROWS_A_PAGE))
    return models.Disagreements(total=len(found), page=page, pages=pages, rows=rows)


@api.get("/items/{item}/everything", tags=["admin"])
def read_everything(item: ItemNumber, store: StoreHere, me: Admin) -> dict[str, Any]:
    """An item with its source, all its labels, and who passed it and why."""
    return results.everything(store, item, me)


@api.get("/passed", tags=["admin"])
def list_passed(project: WhichProject, store: StoreHere, me: Admin) -> dict[Literal["rows"], list[dict[str, Any]]]:
    """What was skipped, declined or flagged, with the reasons given."""
    return {"rows": labels.passed_items(store, me, project=project)}


@api.post("/projects/{project}/items", tags=["transfer"])
def import_file(
    project: Number,
    store: StoreHere,
    me: Admin,
    kind: ItemKind = "real",
    priority: models.Priority = 0,
    file: models.SentFile = b"",
) -> dict[Literal["counts"], dict[str, int]]:
    """Adds the items of a file, or nothing of it where it is wrong somewhere; items that are there are left out."""
    if not file:
        raise refusal("no_body")
    chosen = project_by_number(store, project)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.jsonl"
        path.write_bytes(file)
        items = read_items(path, chosen.task, known=kind != "real")
        return {"counts": add_items(store, chosen, items, kind, priority, me)}


@api.get("/export", tags=["transfer"], response_class=Response, responses=_TABLE["file"])
def export_file(project: WhichProject, store: StoreHere, me: Admin, format: models.FileFormat = "ours") -> Response:
    """A project's labels as a file: records with the consensus, every label by itself, the agreement."""
    chosen = project_by_number(store, project)
    if format == "records" and chosen.task != "steps":
        raise Refusal(400, "Only the task 'steps' makes records. Ask for format=ours.", field="format")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        results.export_project(store, chosen, out, me)
        if format == "records":
            content, kind, name = (out / "records.jsonl").read_bytes(), "application/x-ndjson", "-records.jsonl"
        else:
            archive = Path(shutil.make_archive(f"{folder}/all", "zip", out))
            content, kind, name = archive.read_bytes(), "application/zip", ".zip"
    attached = {"Content-Disposition": f'attachment; filename="project-{project}{name}"'}
    return Response(content, media_type=kind, headers=attached)


def workbench_app(store: Store, settings: WorkbenchSettings) -> FastAPI:
    access = Access(store, settings.public_url)
    door: dict[str, Any] = {"hosts": settings.hosts, "rate": settings.rate, "longest_body": access.longest_body}
    templates = Environment(loader=PackageLoader("compeer.annotate", "pages"), autoescape=True)
    pages = {path: templates.get_template(name).render() for path, name in PAGES.items()}
    title, about, schemes = (_TABLE[name] for name in ("title", "description", "security"))
    static = page_files(workbench="compeer.annotate")
    app = application(title, about, static, pages, schemes, _needed, check=store.length, close=store.close, **door)
    app.state.access, app.state.media = access, settings.media
    app.add_exception_handler(InputError, _answer_input_error)
    app.add_exception_handler(OperationalError, _answer_out_of_reach)
    app.add_exception_handler(NoConnection, _answer_out_of_reach)
    for router in (sign_in, api):
        app.include_router(router, prefix="/api", responses=_REFUSALS)
    return app


async def _answer_input_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InputError)
    why = error.why if isinstance(error, Refused) else None
    return from_input_error(error, _TABLE["status"][why or "invalid"], code=why).response()


async def _answer_out_of_reach(_: Request, _error: Exception) -> JSONResponse:
    return refusal("out_of_reach", 5).response()


def _needed(path: str, method: str) -> tuple[str, ...]:
    """The ways to be let in to a route: a session or a token."""
    if path in ("/api/login", "/api/join", "/healthz"):
        return ()
    return "session" if method == "get" else "session csrf", "token"
