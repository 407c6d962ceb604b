"""What every web application has: the door in front, refusals as answers, static files and pages, its description."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from compeer import __version__
from compeer.web.errors import Refusal, answer_http, answer_invalid, answer_refusal
from compeer.web.files import Files
from compeer.web.limits import Door


def application(
    title: str,
    files: Files,
    pages: Mapping[str, str],
    describe: Callable[[FastAPI], dict[str, Any]],
    close: Callable[[], object],
    **door: Any,
) -> FastAPI:
    """An application without routes of its own; `pages` are paths and their HTML, `door` the settings of `Door`.

    `close` is called at its end. The framework's own pages would load their scripts from elsewhere, and its telemetry
    reports errors in their words: both are off.
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
    app.add_exception_handler(Refusal, answer_refusal)
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
    app.openapi = cache(lambda: describe(app))  # type: ignore[method-assign]
    return app
