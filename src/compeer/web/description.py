"""The OpenAPI description, in the words that a reader needs who has never heard of us."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from compeer.web.errors import ErrorBody


class Health(BaseModel):
    """Whether the server takes requests."""

    status: Literal["ok"] = "ok"
    version: str


_REFUSALS = {
    400: "The request is not as described; the message says what to mend.",
    401: "A key is needed and is missing or wrong.",
    403: "This may not be done by whoever asks.",
    404: "There is no such thing here.",
    408: "The body took too long to arrive.",
    409: "It cannot be done any more, or not yet; the message says why.",
    413: "The body is too long.",
    421: "The Host header names another server.",
    429: "Too much is asked, by this client or by all; Retry-After says when to come back.",
    500: "A fault of the server's.",
    503: "The server cannot do it now; Retry-After says when to come back.",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Descriptions of refusals for a route."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        found[status] = {"model": ErrorBody, "description": _REFUSALS[status]}
        if status in (429, 503):
            found[status]["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return found


def describe(app: FastAPI, title: str, text: str) -> dict[str, Any]:
    """The description of an application; validation is answered with 400, not with the framework's 422."""
    found = get_openapi(title=title, version=app.version, description=text, routes=app.routes)
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        found["components"]["schemas"].pop(name, None)
    return found
