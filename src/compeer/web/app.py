"""The application: which path does what. The parts that do it stand in files of their own.

    app = create_app(open_supporter("embedded"), judge=None, settings=ServeSettings())

`limits` is the door that every request passes, `chat` and `judging` answer, `telling` words the answer, `files` holds
the page. Nothing is kept between two requests but counts: a conversation lives with its client.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

from compeer import __version__
from compeer.policy.control import PERSONAS
from compeer.reasoning import EMOTIONS, STAGES, STRATEGIES
from compeer.reward.form import Judge
from compeer.talk.turn import Supporter
from compeer.web.answers import Health, JudgeAnswer, ModelCard, ModelList
from compeer.web.chat import Chats
from compeer.web.description import chat_answers, describe_chat, refusals
from compeer.web.errors import Refusal, answer_http, answer_invalid, answer_refusal
from compeer.web.files import PAGE, Files
from compeer.web.judging import Judging
from compeer.web.keeping import Keeper
from compeer.web.limits import Door
from compeer.web.metrics import Metrics
from compeer.web.pictures import LARGEST_IMAGE, MOST_IMAGES
from compeer.web.requests import MOST_CANDIDATES, ChatRequest, JudgeRequest
from compeer.web.scoring import register_scoring

LONGEST_BODY = 2**20 + (MOST_IMAGES + 2) * LARGEST_IMAGE * 4 // 3
"""Bytes of text, and of more images than are looked at: what is too much is dropped after the text was read."""
_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""A proxy that buffers would hold the stream back."""


class ServeSettings(BaseModel):
    """How a server treats those who come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = Field(default=None, description="what the supporter is called; none: by its own name")
    keys: tuple[str, ...] = Field(default=(), repr=False, description="keys that let in; none: everybody may come")
    hosts: tuple[str, ...] = Field(default=(), description="names that the server goes by; none: any")
    rate: float | None = Field(default=120, gt=0, description="requests a minute for each client; none: no limit")
    longest_body: int | None = Field(
        default=None, ge=1024, description="bytes of a body; none: 33 MiB, as much as images need"
    )
    keep: Path | None = Field(default=None, description="folder in which conversations are kept; none: they are not")


def create_app(
    supporter: Supporter,
    *,
    judge: Judge | None = None,
    settings: ServeSettings | None = None,
    on_close: Callable[[], object] | None = None,
) -> FastAPI:
    """The application around a supporter; at its end the supporter is closed, and then `on_close` is called."""
    settings = settings or ServeSettings()
    metrics, files, started = Metrics(), Files(), int(time.time())
    model = settings.name or supporter.name
    chats = Chats(supporter, model, metrics, Keeper(settings.keep) if settings.keep else None)
    judging = Judging(judge, metrics)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(supporter.close)
        if on_close:
            await run_in_threadpool(on_close)

    # The framework's own pages would load their scripts from elsewhere, and its telemetry tells errors in their words.
    app = FastAPI(
        title="compeer",
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
    app.add_middleware(
        Door,
        metrics=metrics,
        keys=settings.keys,
        hosts=settings.hosts,
        rate=settings.rate,
        longest_body=settings.longest_body or LONGEST_BODY,
    )
    card = ModelCard(
        id=model,
        created=started,
        sees=supporter.sees,
        language=supporter.language,
        guard=supporter.guarded,
        judge=judge is not None,
        keeps=settings.keep is not None,
        max_best_of=MOST_CANDIDATES if supporter.judges else 1,
        controls={
            "strategy": list(STRATEGIES),
            "stage": list(STAGES),
            "emotion": list(EMOTIONS),
            "persona": list(PERSONAS),
        },
    )
    outside = refusals(401, 421, 429, 500)

    @app.post("/v1/chat/completions", response_model=None, responses=chat_answers(), tags=["chat"])
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """The next turn of a conversation: three steps of reasoning and a reply."""
        if body.stream:
            pieces = await chats.stream(body)
            return StreamingResponse(pieces, media_type="text/event-stream", headers=_STREAM_HEADERS)
        answer = await chats.answer(body, request)
        return JSONResponse(answer.model_dump()) if answer else Response(status_code=499)

    @app.post("/v1/judge", responses=refusals(400, 401, 404, 408, 413, 421, 429, 500), tags=["judge"])
    async def judge_turn(body: JudgeRequest) -> JudgeAnswer:
        """Verdicts on a turn and its score: each step, and the response where there is a reference."""
        return await judging.answer(body)

    register_scoring(app, judging)

    @app.get("/v1/models", responses=outside, tags=["models"])
    async def models() -> ModelList:
        """The supporter that this server offers, and what can be asked of it."""
        return ModelList(data=[card])

    @app.get("/v1/models/{name:path}", responses=outside | refusals(404), tags=["models"])
    async def one_model(name: str) -> ModelCard:
        """The supporter of that name."""
        if name != model:
            raise Refusal(404, "There is no such model here. /v1/models lists what there is.", code="model_not_found")
        return card

    @app.get("/healthz", tags=["operation"])
    async def health() -> Health:
        """Whether the server takes requests."""
        return Health(version=__version__)

    @app.get("/metrics", response_class=PlainTextResponse, responses=outside, tags=["operation"])
    async def counts() -> Response:
        """Counts in Prometheus' text format, without any dialogue's text."""
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> Response:
        return files.response(PAGE)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(name: str) -> Response:
        return files.response(name)

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> dict[str, Any]:
        return app.openapi()

    described = describe_chat(app, keyed=bool(settings.keys))
    app.openapi = lambda: described  # type: ignore[method-assign]
    return app
