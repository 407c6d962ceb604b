"""Refusals over HTTP, in the shape that OpenAI's clients read: a status, what is wrong, which field, and what to do.

An answer to a broken request never repeats what was sent: it may be somebody's words.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from compeer.errors import InputError
from compeer.io import readable, table

TABLE = table("web/answers")
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_LONGEST_FIELD = 200
TAG = "("  # begins the names of alternatives in a fault's location, so that they can be left out there


class ErrorDetail(BaseModel):
    """What is wrong."""

    message: str = Field(description="what is wrong, and what to do")
    type: str = Field(description="the kind of error, as OpenAI names it")
    param: str | None = Field(description="the field at fault, if it is one field's")
    code: str | None = Field(description="a short name of the error, for programs")


class ErrorBody(BaseModel):
    """The body of every refusal."""

    error: ErrorDetail


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is not served, and why; `retry_after` says in how many seconds it may be."""

    status: int
    message: str
    _: KW_ONLY
    field: str | None = None
    code: str | None = None
    retry_after: float | None = None

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        detail = ErrorDetail(message=self.message, type=kind, param=self.field, code=self.code)
        return ErrorBody(error=detail).model_dump()

    def response(self) -> JSONResponse:
        """The refusal as a response; 429 and 503 say when to come back."""
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == 408:
            headers["Connection"] = "close"  # the rest of the request may still come, and nobody waits for it
        return JSONResponse(self.body(), self.status, headers)


def refusal(name: str, retry_after: float | None = None, **values: object) -> Refusal:
    """A refusal in the words that `answers.toml` has for it."""
    status, code, message = TABLE["known"][name]
    return Refusal(status, message.format(**values), code=code, retry_after=retry_after)


def from_input_error(error: InputError, status: int = 400, code: str | None = None) -> Refusal:
    """An `InputError` as a refusal that says the same; a file is not named, since it is the server's own."""
    what = f"{error.what} {error.do}" if error.do else error.what
    if error.line is not None:
        what = f"line {error.line}{f', {error.field}' if error.field else ''}: {what}"
    return Refusal(status, readable(what), field=readable(error.field) if error.field else None, code=code)


def from_invalid(error: Exception) -> Refusal:
    """A body that does not have the described form as a refusal, by its first fault."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return refusal("no_json")
    parts = [str(part) for part in first["loc"] if part != "body"]
    field = readable(".".join(part for part in parts if not part.startswith(TAG)))[:_LONGEST_FIELD] or None
    if field is None and first["type"] in ("missing", "model_attributes_type", "dict_type"):
        return refusal("no_object")
    what = f"{field}: {first['msg']}." if field else f"{first['msg']}."
    return Refusal(400, readable(what), field=field, code=first["type"])


async def answer_invalid(_: Request, error: Exception) -> JSONResponse:
    return from_invalid(error).response()


async def answer_http(_: Request, error: Exception) -> JSONResponse:
    """Answers what the framework refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    whats = {404: "There is nothing here. /openapi.json describes what there is.", 405: "Not with this method."}
    answer = Refusal(error.status_code, whats.get(error.status_code, "The request cannot be read.")).response()
    answer.headers.update(error.headers or {})
    return answer
