"""What every web application has: the door in front, refusals as answers, static files and pages, its description."""

import mimetypes
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from compeer import __version__
from compeer.web.errors import TABLE, ErrorBody, Refusal, answer_http, answer_invalid
from compeer.web.limits import Door


class Health(BaseModel):
    """Whether the server takes requests."""

    status: Literal["ok"] = "ok"
    version: str


class Files:
    """The pages' own files by their exact names: the shared ones, and below a folder's name another package's."""

    def __init__(self, **packages: str) -> None:
        self._found: dict[str, bytes] = {}
        for folder, package in {"": "compeer.web", **packages}.items():
            pages = Path(str(files(package).joinpath("pages")))
            found = [path for path in pages.rglob("*") if path.is_file()]
            self._found |= {str(folder / path.relative_to(pages)): path.read_bytes() for path in found}

    def text(self, name: str) -> str:
        return self._found[name].decode()

    def response(self, name: str) -> Response:
        """A file as an answer; browsers ask anew each time, so that page and server always fit."""
        if name not in self._found:
            raise Refusal(404, "There is no such file.")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(self._found[name], media_type=kind, headers={"Cache-Control": "no-cache"})


def application(
    title: str,
    text: str,
    files: Files,
    pages: Mapping[str, str],
    secure: Callable[[dict[str, Any]], object],
    close: Callable[[], object],
    **door: Any,
) -> FastAPI:
    """An application without routes of its own; `pages` are paths and their HTML, `door` the settings of `Door`.

    `secure` adds to the description which keys are needed; `close` is called at the end. The door answers a `Refusal`.
    The framework's own pages would load scripts from elsewhere, and its telemetry reports errors in their words.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(close)

    app = FastAPI(
        title=title,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        lifespan=life,
    )
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_middleware(Door, **door)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(name: str) -> Response:
        return files.response(name)

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> dict[str, Any]:
        return app.openapi()

    async def page(request: Request) -> Response:
        return HTMLResponse(pages[request.url.path], headers={"Cache-Control": "no-cache"})

    for path in pages:
        app.add_api_route(path, page, include_in_schema=False)

    @cache
    def described() -> dict[str, Any]:
        """Validation is answered with 400, not with the framework's 422."""
        found = get_openapi(title=title, version=__version__, description=text, routes=app.routes)
        for path in found["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            found["components"]["schemas"].pop(name, None)
        secure(found)
        return found

    app.openapi = described  # type: ignore[method-assign]
    return app


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        found[status] = {"model": ErrorBody, "description": TABLE["refusals"][str(status)]}
        if status in (429, 503):
            found[status]["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return found
