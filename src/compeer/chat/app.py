"""The chat application: its routes, settings and OpenAPI description.

    app = create_app(resolve_supporter("embedded"), judge=None, settings=ServeSettings())

Nothing is kept between two requests but counts: a conversation lives with its client.
"""

import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from compeer.chat.api import Chats, Judging, Keeper
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.history import LARGEST_IMAGE, MOST_IMAGES, readable_request, refused
from compeer.chat.metrics import Metrics
from compeer.chat.schemas import MOST_OUTPUTS, ChatAnswer, ChatRequest, JudgeAnswer, JudgeRequest, ModelCard, ModelList
from compeer.chat.scoring import register_scoring
from compeer.io import Frozen
from compeer.policy.control import VALUES
from compeer.reward.score import Judge
from compeer.web.application import application, page_files, refusals
from compeer.web.errors import Refusal, from_invalid

CHAT = "/v1/chat/completions"
TEXT, _STREAM = (files("compeer.chat").joinpath(name).read_text("utf-8") for name in ("description.md", "stream.txt"))
_WHAT = "The answer, in one piece or (with `stream`) as server-sent events that end with [DONE]."
_ANSWER = {"model": ChatAnswer, "description": _WHAT, "content": {"text/event-stream": {"example": _STREAM}}}
# Bytes of text, and of more images than are looked at: what is too much is dropped after the text was read.
LONGEST_BODY = 2**20 + (MOST_IMAGES + 2) * LARGEST_IMAGE * 4 // 3
_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # or a proxy may hold the stream back


class ServeSettings(Frozen):
    """How a server treats those who come."""

    name: str | None = Field(None, description="what the supporter is called; none: by its own name")
    keys: tuple[str, ...] = Field((), repr=False, description="keys that let in; none: everybody may come")
    hosts: tuple[str, ...] = Field((), description="names that the server goes by; none: any")
    rate: float | None = Field(120, gt=0, description="requests a minute for each client; none: no limit")
    longest_body: int | None = Field(None, ge=1024, description="bytes of a body; none: 33 MiB, as much as images need")
    keep: Path | None = Field(None, description="folder in which conversations are kept; none: they are not")


def create_app(
    supporter: GuardedSupporter,
    *,
    judge: Judge | None = None,
    settings: ServeSettings | None = None,
    on_close: Callable[[], object] | None = None,
) -> FastAPI:
    """The application around a supporter; at its end the supporter is closed, and then `on_close` is called."""
    settings = settings or ServeSettings()
    metrics, static, started = Metrics(), page_files(), int(time.time())
    model = settings.name or supporter.name
    chats = Chats(supporter, model, metrics, Keeper(settings.keep) if settings.keep else None)
    judging = Judging(judge, metrics)

    def close() -> None:
        supporter.close()
        if on_close:
            on_close()

    app = application(
        "compeer",
        TEXT.strip(),
        static,
        {"/": static["chat.html"].decode()},
        {"key": {"type": "http", "scheme": "bearer"}} if settings.keys else {},
        lambda path, _: ["key"] if settings.keys and (path.startswith("/v1/") or path == "/metrics") else [],
        check=lambda: None,
        close=close,
        on_response=lambda route, status: metrics.add("compeer_requests_total", route=route, status=str(status)),
        longest_body=settings.longest_body or LONGEST_BODY,
        **settings.model_dump(include={"keys", "hosts", "rate"}),
    )
    card = ModelCard(
        id=model,
        created=started,
        sees=supporter.multimodal,
        language=supporter.language,
        guard=supporter.guarded,
        judge=judge is not None,
        keeps=settings.keep is not None,
        max_best_of=MOST_OUTPUTS if supporter.judges else 1,
        controls={field: list(values) for field, values in VALUES.items()},
    )
    outside, refused_by = refusals(401, 421, 429, 500), refusals(400, 401, 404, 408, 413, 421, 429, 500)

    @app.post(CHAT, response_model=None, responses={200: _ANSWER, **refused_by}, tags=["chat"])
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """The next turn of a conversation: three steps of reasoning and a reply."""
        return await completion(body, request)

    async def completion(body: ChatRequest, request: Request, refusal: Refusal | None = None) -> Response:
        if body.stream:
            pieces = await chats.stream(body, refusal)
            return StreamingResponse(pieces, media_type="text/event-stream", headers=_STREAM_HEADERS)
        answer = await chats.answer(body, request, refusal)
        return JSONResponse(answer.model_dump()) if answer else Response(status_code=499)

    async def invalid(request: Request, error: Exception) -> Response:
        """Refuses a body that is not as described, after the guard has read the messages of a chat."""
        refusal = from_invalid(error)
        body = readable_request(getattr(error, "body", None)) if request.url.path == CHAT else None
        return await completion(body, request, refusal) if body else refusal.response()

    app.add_exception_handler(RequestValidationError, invalid)

    @app.post("/v1/judge", responses=refused_by, tags=["judge"])
    async def judge_turn(body: JudgeRequest) -> JudgeAnswer:
        """Verdicts on a turn and its score: each step, and the response where there is a reference."""
        return await judging.answer(body)

    register_scoring(app, judging, refused_by)

    @app.get("/v1/models", responses=outside, tags=["models"])
    async def models() -> ModelList:
        """The supporter that this server offers, and what can be asked of it."""
        return ModelList(data=[card])

    @app.get("/v1/models/{name:path}", responses=outside | refusals(404), tags=["models"])
    async def one_model(name: str) -> ModelCard:
        """The supporter of that name."""
        if name != model:
            raise refused("model_not_found", status=404, model=model)
        return card

    @app.get("/metrics", response_class=PlainTextResponse, responses=outside, tags=["operation"])
    async def counts() -> Response:
        """Counts in Prometheus' text format, without any dialogue's text."""
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
