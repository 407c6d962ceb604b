"""What every web application has: the door in front, refusals as answers, static files and pages, its description."""

import mimetypes
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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


def page_files(**packages: str) -> dict[str, bytes]:
    """The pages' own files by their exact names: the shared ones, and below a folder's name another package's."""
    found: dict[str, bytes] = {}
    for folder, package in {"": "compeer.web", **packages}.items():
        pages = Path(str(files(package).joinpath("pages")))
        paths = [path for path in pages.rglob("*") if path.is_file()]
        found |= {str(folder / path.relative_to(pages)): path.read_bytes() for path in paths}
    return found


def application(
    title: str,
    text: str,
    static: Mapping[str, bytes],
    pages: Mapping[str, str],
    schemes: Mapping[str, Any],
    needed: Callable[[str, str], Sequence[str]],
    *,
    check: Callable[[], object],
    close: Callable[[], object],
    **door: Any,
) -> FastAPI:
    """An application without routes of its own; `pages` are paths and their HTML, `door` the settings of `Door`.

    `static` are files by name, for which browsers ask anew each time, so that page and server always fit. `schemes`
    are ways to identify oneself, `needed` says which a path and a method need ("a b": both); `check` fails where the
    server cannot work, `close` is called at the end. The door answers a `Refusal`. The framework's own pages would load
    scripts from elsewhere, and its telemetry reports errors in their words.
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
    async def static_file(name: str) -> Response:
        if name not in static:
            raise Refusal(404, "There is no such file.")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(static[name], media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> dict[str, Any]:
        return app.openapi()

    async def page(request: Request) -> Response:
        return HTMLResponse(pages[request.url.path], headers={"Cache-Control": "no-cache"})

    for path in pages:
        app.add_api_route(path, page, include_in_schema=False)

    @app.get("/healthz", tags=["operation"], responses=refusals(421, 503))
    def health() -> Health:
        """Whether the server takes requests, and reaches what it needs."""
        check()
        return Health(version=__version__)

    @cache
    def described() -> dict[str, Any]:
        """Validation is answered with 400, not with the framework's 422."""
        found = get_openapi(title=title, version=__version__, description=text, routes=app.routes)
        for path, operations in found["paths"].items():
            for method, operation in operations.items():
                operation["responses"].pop("422", None)
                if ways := needed(path, method):
                    operation["security"] = [{scheme: [] for scheme in way.split()} for way in ways]
        for name in ("HTTPValidationError", "ValidationError"):
            found["components"]["schemas"].pop(name, None)
        return found | {"components": found["components"] | ({"securitySchemes": schemes} if schemes else {})}

    app.openapi = described  # type: ignore[method-assign]
    return app


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        found[status] = {"model": ErrorBody, "description": TABLE["refusals"][str(status)]}
        if status in (429, 503):
            found[status]["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return found
