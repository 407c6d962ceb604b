"""Who may do what on the server: signing in and out, who makes a request, and how fast somebody may guess.

A person's session is kept by a cookie that scripts cannot read and other sites cannot send; a change must also carry a
token that only our own page knows. A program sends its token in a header, which no page elsewhere can make a browser
do. Wrong guesses are counted for the address they come from, which is then refused for some seconds, and for the
account, which is never refused: people wait in a short line for it, one seat an address. A browser that was in before,
as a second cookie proves, has a count of its own. Few guesses are checked at a time, since each takes much memory.
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import anyio
from fastapi import APIRouter, Depends, Request
from sqlalchemy import Row, delete, insert
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Scope

from compeer.annotate import people
from compeer.annotate.api_models import ChangedSelf, Join, Login, Myself, NewPassword, SignedIn
from compeer.annotate.people import DAY, Person, Role, hashed_secret, is_secret, require
from compeer.annotate.projects import projects
from compeer.annotate.queue import today
from compeer.annotate.schema import PEOPLE, SESSIONS, one_row, remove_rows
from compeer.annotate.store import Refused, Store, needed_row, text_of
from compeer.io import text_hash
from compeer.web.errors import Refusal, refusal
from compeer.web.limits import Rate, client_of

COOKIE, DEVICE = "compeer_session", "compeer_device"
SESSION_DAYS, DEVICE_DAYS = 7, 365
LARGEST_IMPORT = 2**25  # bytes of a file of items; larger ones are for the command line
LARGEST_BODY = 2**21
WRONG_A_MINUTE = 10
LONGEST_LINE = 5  # addresses that wait for one account; a line is let through one by one, every few seconds
_HASHED_AT_ONCE, _MOST_WAITING = 2, 50
T = TypeVar("T")


def person_by_password(store: Store, name: str, password: str) -> Person:
    """Whose password this is; the same refusal whether the name or the password is wrong."""
    row, kept = _account(store, name)
    right = is_secret(kept, password)  # as slow for a name that nobody has
    if row is None or not right:
        with store.write() as writing:
            writing.record("login_failed", {"person": row.id if row else None})
        raise Refused("forbidden", "the name or the password is wrong.")
    return Person.model_validate(row, from_attributes=True)


def _account(store: Store, name: str | None) -> tuple[Row[Any] | None, str | None]:
    with store.read() as connection:
        row = one_row(connection, PEOPLE, name=name, active=True)
        return row, text_of(connection, row.secret) if row else None


def begin_session(store: Store, person: Person) -> str:
    """A token for a session of somebody who has proved who they are."""
    token = secrets.token_urlsafe(32)
    with store.write(person.id) as writing:
        writing.record("logged_in", {})
        writing.connection.execute(delete(SESSIONS).where(SESSIONS.c.expires < writing.at))
        session = {"token": text_hash(token), "person": person.id, "expires": writing.at + SESSION_DAYS * DAY}
        writing.connection.execute(insert(SESSIONS), session)
    return token


def end_session(store: Store, token: str) -> None:
    with store.write() as writing:
        remove_rows(writing.connection, SESSIONS, token=text_hash(token))


def person_of(store: Store, token: str) -> Person | None:
    with store.read() as connection:
        session = one_row(connection, SESSIONS, token=text_hash(token))
        if session is None or session.expires <= store.now():
            return None
        row = one_row(connection, PEOPLE, id=session.person, active=True)
    return Person.model_validate(row, from_attributes=True) if row else None


def change_password(store: Store, person: Person, old: str, new: str) -> Person:
    """Sets another password and ends all sessions."""
    hashed = hashed_secret(new)
    with store.write(person.id) as writing:
        secret = needed_row(writing.connection, PEOPLE, "person", id=person.id).secret
        if not is_secret(text_of(writing.connection, secret), old):
            raise Refused("forbidden", "the old password is wrong.")
        body = {"person": person.id, "secret": writing.keep(hashed, person=person.id)}
        writing.record("secret_changed", body, erased=[secret] if secret else [])
        remove_rows(writing.connection, SESSIONS, person=person.id)
    return person


def device_token(store: Store, name: str | None, nonce: str) -> str:
    """A token by which a device of this person can be known, until the password is changed; "" for nobody's."""
    _, kept = _account(store, name)
    if kept is None:
        return ""
    return f"{nonce}.{hmac.digest(kept.encode(), f'compeer device {nonce}'.encode(), 'sha256').hex()}"


def csrf_of(token: str) -> str:
    """The token that changes must carry, for a session: it follows from the session's, and reveals nothing of it."""
    return hmac.digest(token.encode("utf-8", "replace"), b"compeer csrf", "sha256").hex()


class Guesses:
    """Counts wrong guesses, and lets a check be made when it is due. `sleep` waits for some seconds."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        self._sleep = sleep
        self._wrong = Rate(WRONG_A_MINUTE)
        self._hashing = anyio.CapacityLimiter(_HASHED_AT_ONCE)
        self._lines: dict[str, tuple[anyio.Lock, list[str]]] = {}

    async def checked(self, address: str, account: str, device: str | None, check: Callable[[], T]) -> T:
        """The outcome of a check; a wrong guess is counted. `device` is a browser that knows the account."""
        own, name = f"device {device}" if device else f"from {address}", f"as {account}"
        if self._hashing.statistics().tasks_waiting >= _MOST_WAITING:
            raise refusal("busy", 2)
        async with self._hashing:
            if device or self._wait(own) or not self._wait(name):
                return await self._check(check, own, name)
        turn, line = self._lines.setdefault(account, (anyio.Lock(), []))
        if address in line or len(line) >= LONGEST_LINE:
            raise refusal("guesses", 60 / WRONG_A_MINUTE)
        line.append(address)
        try:
            async with turn:
                await self._sleep(self._wait(name))
                async with self._hashing:
                    return await self._check(check, own, name)
        finally:
            line.remove(address)
            if not line:
                del self._lines[account]

    async def _check(self, check: Callable[[], T], own: str, name: str) -> T:
        if wait := self._wait(own):
            raise refusal("guesses", wait)
        try:
            return await run_in_threadpool(check)
        except Refused as error:
            if error.why == "forbidden":
                for key in (own,) if own.startswith("device ") else (own, name):
                    self._wrong.wait(key, monotonic())
            raise

    def _wait(self, key: str) -> float:
        return self._wrong.peek(key, monotonic())


def token_of(request: Request) -> tuple[str, bool]:
    """The session's token that a request carries, and whether it comes in the header, as a program's does."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    by_header = scheme.lower() == "bearer"
    return given.strip() if by_header else request.cookies.get(COOKIE, ""), by_header


class Access:
    """Finds out who makes a request."""

    def __init__(self, store: Store, public_url: str | None) -> None:
        self.store, self._public = store, public_url
        self.guesses = Guesses()

    def caller(self, request: Request) -> Person:
        """Who asks; refuses whoever is not signed in, and a change that our page did not ask for."""
        token, by_header = token_of(request)
        person = person_of(self.store, token) if token else None
        if person is None or person.program != by_header:
            raise refusal("login")
        if not by_header and request.method not in ("GET", "HEAD", "OPTIONS"):
            sent = request.headers.get("x-csrf-token", "").encode("utf-8", "replace")
            if not hmac.compare_digest(sent, csrf_of(token).encode()):
                raise refusal("csrf")
        return person

    async def sign_in(self, request: Request, response: Response, name: str, check: Callable[[], Person]) -> SignedIn:
        """Begins the session of whoever passes a check of what can be guessed, and sets the cookies of a person."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise refusal("foreign")
        device = request.cookies.get(DEVICE, "")
        right = await run_in_threadpool(device_token, self.store, name, device.partition(".")[0]) if device else ""
        known = device if hmac.compare_digest(right.encode(), device.encode("utf-8", "replace")) else ""
        person = await self.guesses.checked(client_of(request.scope), name, known or None, check)
        token = await run_in_threadpool(begin_session, self.store, person)
        if not person.program:
            device = await run_in_threadpool(device_token, self.store, person.name, secrets.token_hex(16))
            for cookie, value, days in ((COOKIE, token, SESSION_DAYS), (DEVICE, device, DEVICE_DAYS)):
                response.set_cookie(cookie, value, max_age=days * 86_400, **self._unread(request))
        return SignedIn(person=person, csrf=csrf_of(token), token=token if person.program else None)

    def forget(self, request: Request, response: Response) -> None:
        response.delete_cookie(COOKIE, **self._unread(request))

    def _unread(self, request: Request) -> dict[str, Any]:
        """What keeps a cookie from scripts, from other sites, and from being sent in the clear."""
        secure = urlsplit(self.address(request)).scheme == "https"
        return {"secure": secure, "httponly": True, "samesite": "strict"}

    def address(self, request: Request) -> str:
        """Where people reach the workbench, without a slash at the end."""
        return (self._public or str(request.base_url)).rstrip("/")

    async def longest_body(self, scope: Scope) -> int:
        """How much a request may send: an admin a file of items, everyone else a little."""
        path = scope["path"].split("/")
        if path[1:3] != ["api", "projects"] or path[-1] != "items":
            return LARGEST_BODY
        try:
            found = await run_in_threadpool(self.caller, Request(scope))
        except Refusal:
            return LARGEST_BODY
        return LARGEST_IMPORT if "admin" in found.roles else LARGEST_BODY


async def _access(request: Request) -> Any:  # what only looks something up needs no thread of its own
    return request.app.state.access


AccessHere = Annotated[Access, Depends(_access)]


async def _store(access: AccessHere) -> Store:
    return access.store


def _with_role(*roles: Role) -> Callable[[Request, Access], Person]:
    """Checks the role before anything else of a request is read; it is checked again where the thing is done."""

    def person(request: Request, access: AccessHere) -> Person:
        found = access.caller(request)
        if roles:
            require(found, *roles)
        return found

    return person


StoreHere = Annotated[Store, Depends(_store)]
Me = Annotated[Person, Depends(_with_role())]
Worker = Annotated[Person, Depends(_with_role("annotator", "adjudicator"))]
Admin = Annotated[Person, Depends(_with_role("admin"))]


sign_in = APIRouter(tags=["sign-in"])


@sign_in.post("/join")
async def join(body: Join, request: Request, response: Response, access: AccessHere) -> SignedIn:
    """Takes up an invitation; the session begins at once."""
    name = f"invitation {body.invitation.partition('.')[0]}"
    check = partial(people.join, access.store, body.invitation, body.name, body.password)
    return await access.sign_in(request, response, name, check)


@sign_in.post("/login")
async def begin(body: Login, request: Request, response: Response, access: AccessHere) -> SignedIn:
    """Begins a session: a cookie for a person, a token for a program. Guessing is slowed down."""
    check = partial(person_by_password, access.store, body.name, body.password)
    return await access.sign_in(request, response, body.name, check)


@sign_in.post("/me/password")
async def replace_password(
    body: NewPassword, request: Request, response: Response, access: AccessHere, me: Me
) -> SignedIn:
    """Sets another password; all other sessions end."""
    check = partial(change_password, access.store, me, body.old, body.new)
    return await access.sign_in(request, response, f"password of {me.id}", check)


@sign_in.post("/logout", status_code=204)
def end(request: Request, response: Response, access: AccessHere, _: Me) -> None:
    """Ends this session."""
    end_session(access.store, token_of(request)[0])
    access.forget(request, response)


@sign_in.post("/leave", status_code=204)
def leave(request: Request, response: Response, access: AccessHere, me: Me) -> None:
    """Removes one's name and password for good; the labels stay, under a pseudonym."""
    people.leave(access.store, me.id, me)
    access.forget(request, response)


@sign_in.get("/me")
def read_me(request: Request, store: StoreHere, me: Me) -> Myself:
    """Who asks, the token for changes, and the day so far; the limit is the lowest of all projects."""
    return Myself(person=me, csrf=csrf_of(token_of(request)[0]), today=today(store, me, *projects(store)))


@sign_in.patch("/me")
def change_me(body: ChangedSelf, store: StoreHere, me: Me) -> Person:
    """Sets one's languages, a limit a day, whether items marked as crisis are given; fields may be left out."""
    return people.change_person(store, me.id, me, **body.model_dump(exclude_unset=True))
