"""The application: a store, the routes, the door in front of them, and the pages.

    app = workbench_app(open_store("labels.db"), WorkbenchSettings())

Nothing is kept in this process but counts of wrong guesses and figures that can be worked out again: it may be killed
at any moment and started anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from compeer import __version__
from compeer.annotate.store import Refused, Store
from compeer.errors import InputError
from compeer.web.description import Health, describe, refusals
from compeer.web.errors import Refusal, answer_http, answer_invalid, answer_refusal, from_input_error
from compeer.web.files import Files
from compeer.web.limits import Door
from compeer.web.metrics import Metrics
from compeer.web.workbench import admin, coming, transfer, work
from compeer.web.workbench.access import COOKIE, Access, refused
from compeer.web.workbench.figures import Figures

TITLE = "compeer annotate"
TEXT = """Annotation of emotional support by people and programs: blind, double, adjudicated.

A person's session is a cookie, set by `/api/login`; calls that change something carry the header `X-CSRF-Token` with
what `/api/me` tells. A program sends `Authorization: Bearer TOKEN` with the token that `/api/login` gave it; its labels
have the source `llm`. Times are milliseconds since 1970. What belongs to somebody else is answered as if it were not
there."""
PAGES = {
    "/": "workbench/annotate.html",
    "/login": "workbench/login.html",
    "/join": "workbench/login.html",
    "/admin": "workbench/admin.html",
}


class WorkbenchSettings(BaseModel):
    """How a workbench treats those who come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    public_url: str | None = Field(default=None, description="where people reach it; none: as they ask for it")
    hosts: tuple[str, ...] = Field(default=(), description="names that the server goes by; none: any")
    rate: float | None = Field(default=6000, gt=0, description="requests a minute for each address; none: no limit")
    media: Path | None = Field(default=None, description="folder of the pictures and clips that items name")


def workbench_app(store: Store, settings: WorkbenchSettings | None = None) -> FastAPI:
    """The application around a store, which is closed at its end."""
    settings = settings or WorkbenchSettings()
    access, files = Access(store, settings.public_url), Files()

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(store.close)

    app = FastAPI(
        title=TITLE,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        lifespan=life,
    )
    app.state.access, app.state.figures, app.state.media = access, Figures(store), settings.media
    app.add_exception_handler(Refusal, answer_refusal)
    app.add_exception_handler(InputError, _answer_input_error)
    app.add_exception_handler(OperationalError, _answer_out_of_reach)
    app.add_exception_handler(NoConnection, _answer_out_of_reach)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_middleware(
        Door, metrics=Metrics(), hosts=settings.hosts, rate=settings.rate, longest_body=access.longest_body
    )
    for part in (coming, work, admin, transfer):
        app.include_router(part.router, responses=refusals(421, 429, 500, 503))

    @app.get("/healthz", tags=["operation"], responses=refusals(421, 503))
    def health() -> Health:
        """Whether the server takes requests, and reaches its store."""
        store.length()
        return Health(version=__version__)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(name: str) -> Response:
        return files.response(name)

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> dict[str, Any]:
        return app.openapi()

    async def page(request: Request) -> Response:
        return files.response(PAGES[request.url.path])

    for path in PAGES:
        app.add_api_route(path, page, include_in_schema=False)
    app.openapi = cache(lambda: _described(app))  # type: ignore[method-assign]
    return app


async def _answer_input_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InputError)
    return (refused(error) if isinstance(error, Refused) else from_input_error(error)).response()


async def _answer_out_of_reach(_: Request, _error: Exception) -> JSONResponse:
    what = "The store cannot be reached now. Nothing was changed; try again after the seconds that Retry-After says."
    return Refusal(503, what, code="out_of_reach", retry_after=5).response()


def _described(app: FastAPI) -> dict[str, Any]:
    found = describe(app, TITLE, TEXT)
    found["components"]["securitySchemes"] = {
        "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
        "csrf": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token"},
        "token": {"type": "http", "scheme": "bearer"},
    }
    for name, path in found["paths"].items():
        for method, operation in path.items():
            if name not in ("/api/login", "/api/join", "/healthz"):
                needed = ("session",) if method == "get" else ("session", "csrf")
                operation["security"] = [{one: [] for one in needed}, {"token": []}]
    return found
