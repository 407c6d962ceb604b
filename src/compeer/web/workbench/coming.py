"""Coming and going: invitations taken up, logging in and out, what one sets for oneself, leaving."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from compeer.annotate.logins import begin_session, change_password, log_in, log_out, person_of
from compeer.annotate.people import Person, change_person, join, leave
from compeer.annotate.progress import today
from compeer.annotate.projects import projects
from compeer.annotate.store import Store
from compeer.web.description import refusals
from compeer.web.workbench.access import AccessHere, CallerHere, StoreHere, csrf_of
from compeer.web.workbench.access import Me as Myself
from compeer.web.workbench.answers import Me, PersonShown, Session, TodayShown
from compeer.web.workbench.forms import ChangedSelf, Join, Login, NewPassword

router = APIRouter(prefix="/api", tags=["coming and going"])
_GUESSES = refusals(400, 403, 408, 409, 413)


@router.post("/join", responses=_GUESSES)
async def take_up(body: Join, request: Request, response: Response, access: AccessHere) -> Session:
    """Takes up an invitation; the session begins at once."""

    def joined() -> tuple[Person, str]:
        person = join(access.store, body.invitation, body.name, body.password)
        return person, begin_session(access.store, person.id)

    person, token = await access.checked(request, f"invitation {body.invitation.partition('.')[0]}", joined)
    if not person.program:
        await access.keep(request, response, token, person)
    return _session(person, token)


@router.post("/login", responses=_GUESSES)
async def begin(body: Login, request: Request, response: Response, access: AccessHere) -> Session:
    """Begins a session: a cookie for a person, a token for a program. Guessing is slowed down."""

    def logged_in() -> tuple[Person, str]:
        token = log_in(access.store, body.name, body.password)
        return _person(access.store, token), token

    person, token = await access.checked(request, body.name, logged_in)
    if not person.program:
        await access.keep(request, response, token, person)
    return _session(person, token)


@router.post("/logout", status_code=204, responses=refusals(400, 401, 403))
def end(request: Request, response: Response, access: AccessHere, caller: CallerHere) -> None:
    """Ends this session."""
    log_out(access.store, caller.token)
    access.forget(request, response)


@router.get("/me", responses=refusals(401))
def who_am_i(store: StoreHere, caller: CallerHere) -> Me:
    """Who asks, the token for changes, and the day so far."""
    person = caller.person
    day = today(store, person)
    caps = [one.settings.daily_cap for one in projects(store) if one.settings.daily_cap is not None]
    lowest = min([*caps, *([day.cap] if day.cap is not None else [])], default=None) if not person.program else None
    shown = TodayShown(labels=day.labels, seconds=day.seconds, cap=lowest)
    return Me(person=PersonShown.model_validate(person), csrf=csrf_of(caller.token), today=shown)


@router.patch("/me", responses=refusals(400, 401, 403, 408, 413))
def change_myself(body: ChangedSelf, store: StoreHere, me: Myself) -> PersonShown:
    """Sets one's languages, a limit a day, whether items marked as crisis are given; fields may be left out."""
    return PersonShown.model_validate(change_person(store, me.id, me, **body.model_dump(exclude_unset=True)))


@router.post("/me/password", responses=refusals(400, 401, 403, 408, 413))
async def another_password(
    body: NewPassword, request: Request, response: Response, access: AccessHere, caller: CallerHere
) -> Session:
    """Sets another password; all other sessions end."""

    def changed() -> str:
        change_password(access.store, caller.person, body.old, body.new)
        return begin_session(access.store, caller.person.id)

    token = await access.checked(request, f"password of {caller.person.id}", changed)
    if not caller.person.program:
        await access.keep(request, response, token, caller.person)
    return _session(caller.person, token)


@router.post("/leave", status_code=204, responses=refusals(400, 401, 403, 409))
def go_for_good(request: Request, response: Response, access: AccessHere, caller: CallerHere) -> None:
    """Removes one's name and password for good; the labels stay, under a pseudonym."""
    leave(access.store, caller.person.id, caller.person)
    access.forget(request, response)


def _person(store: Store, token: str) -> Person:
    found = person_of(store, token)
    assert found is not None, "the session has just begun"
    return found


def _session(person: Person, token: str) -> Session:
    shown = PersonShown.model_validate(person)
    return Session(person=shown, csrf=csrf_of(token), token=token if person.program else None)
