"""Who asks, and whether they may.

A person's session is kept by a cookie that scripts cannot read and other sites cannot send; every call that changes
something must also carry a token that only our own page knows. A program sends its token in a header, which no page
elsewhere can make a browser do. How fast somebody may guess says `guessing.py`; the cookie of a device tells it that
somebody has logged in there before, and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Scope

from compeer.annotate.logins import SESSION_DAYS, device_token, is_device, person_of
from compeer.annotate.people import Person
from compeer.annotate.store import Refused, Store
from compeer.web.errors import Refusal, from_input_error
from compeer.web.limits import client_of
from compeer.web.workbench.guessing import Guesses

COOKIE = "compeer_session"
DEVICE = "compeer_device"
_DEVICE_DAYS = 365
LARGEST_IMPORT = 2**25
"""Bytes of a file of items; larger ones are for the command line."""
_LONGEST_BODY = 2**21
_SAFE = ("GET", "HEAD", "OPTIONS")
_STATUS = {"forbidden": 403, "missing": 404, "conflict": 409, "invalid": 400}
T = TypeVar("T")


@dataclass(frozen=True)
class Caller:
    """Somebody who has shown who they are."""

    person: Person
    token: str


class Access:
    """Tells who asks."""

    def __init__(self, store: Store, public_url: str | None) -> None:
        self.store, self._public = store, public_url
        self.guesses = Guesses()

    def caller(self, request: Request) -> Caller:
        """Who asks; refuses whoever is not logged in, and a change that our page did not ask for."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        by_header = scheme.lower() == "bearer"
        token = given.strip() if by_header else request.cookies.get(COOKIE, "")
        person = person_of(self.store, token) if token else None
        if person is None or person.program != by_header:
            what = "Nobody is logged in. POST /api/login, or send the header Authorization: Bearer TOKEN."
            raise Refusal(401, what, code="not_logged_in")
        if not by_header and request.method not in _SAFE:
            sent = request.headers.get("x-csrf-token", "").encode("utf-8", "replace")
            if not hmac.compare_digest(sent, csrf_of(token).encode()):
                what = "The header X-CSRF-Token is missing or wrong: send what /api/me tells."
                raise Refusal(403, what, code="csrf")
        return Caller(person, token)

    async def checked(self, request: Request, name: str, check: Callable[[], T]) -> T:
        """The outcome of a check of something that can be guessed; a wrong guess is counted."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refusal(403, "This can only be asked from the workbench's own page.", code="csrf")
        device: str | None = request.cookies.get(DEVICE, "")
        if not device or not await run_in_threadpool(is_device, self.store, name, device):
            device = None
        return await self.guesses.checked(client_of(request.scope), name, device, check)

    async def keep(self, request: Request, response: Response, token: str, person: Person) -> None:
        """Sets the cookies of a session and of the device."""
        device = await run_in_threadpool(device_token, self.store, person)
        given = {COOKIE: (token, SESSION_DAYS), DEVICE: (device, _DEVICE_DAYS)}
        for name, (value, days) in given.items():
            response.set_cookie(
                name,
                value,
                max_age=days * 86_400,
                path="/",
                secure=self._is_https(request),
                httponly=True,
                samesite="strict",
            )

    def forget(self, request: Request, response: Response) -> None:
        """Removes the cookie of a session."""
        response.delete_cookie(COOKIE, path="/", secure=self._is_https(request), httponly=True, samesite="strict")

    def address(self, request: Request) -> str:
        """Where people reach the workbench, without a slash at the end."""
        return (self._public or str(request.base_url)).rstrip("/")

    def _is_https(self, request: Request) -> bool:
        return urlsplit(self._public or str(request.url)).scheme == "https"

    async def longest_body(self, scope: Scope) -> int:
        """How much a request may send: an admin a file of items, everyone else a little."""
        path = scope["path"].split("/")
        if path[1:3] != ["api", "projects"] or path[-1] != "items":
            return _LONGEST_BODY
        try:
            found = await run_in_threadpool(self.caller, Request(scope))
        except Refusal:
            return _LONGEST_BODY
        return LARGEST_IMPORT if "admin" in found.person.roles else _LONGEST_BODY


def csrf_of(token: str) -> str:
    """The token that changes must carry, for a session: whoever knows the session can tell it, nobody else can."""
    return hmac.digest(token.encode("utf-8", "replace"), b"compeer csrf", hashlib.sha256).hex()


def access_to(request: Request) -> Access:
    """The application's `Access`."""
    found: Access = request.app.state.access
    return found


def _caller(request: Request) -> Caller:
    return access_to(request).caller(request)


async def _access(request: Request) -> Access:  # what only looks something up needs no thread of its own
    return access_to(request)


async def _store(request: Request) -> Store:
    return access_to(request).store


async def _person(caller: Annotated[Caller, Depends(_caller)]) -> Person:
    return caller.person


async def _worker(caller: Annotated[Caller, Depends(_caller)]) -> Person:
    return _with_role(caller.person, "annotator", "adjudicator")


async def _admin(caller: Annotated[Caller, Depends(_caller)]) -> Person:
    return _with_role(caller.person, "admin")


def _with_role(person: Person, *roles: str) -> Person:
    """Asked before anything else of a request is looked at, and again where the thing is done."""
    if not set(roles) & set(person.roles):
        what = f"This needs the role {' or '.join(roles)}. Ask an admin of this workbench."
        raise Refusal(403, what, code="forbidden")
    return person


CallerHere = Annotated[Caller, Depends(_caller)]
AccessHere = Annotated[Access, Depends(_access)]
StoreHere = Annotated[Store, Depends(_store)]
Me = Annotated[Person, Depends(_person)]
Worker = Annotated[Person, Depends(_worker)]
Admin = Annotated[Person, Depends(_admin)]


def refused(error: Refused) -> Refusal:
    """What the rules of annotation do not allow, as an answer."""
    return from_input_error(error, _STATUS[error.why], code=error.why)
