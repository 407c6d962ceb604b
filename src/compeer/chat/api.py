"""A chat request from its arrival to its end: what is asked for, the turn as it is made, the answer whole or in pieces.

Each turn runs in a task of its own, which feeds a queue. A client that leaves, or a server that stops, ends the task,
and with it the supporter's work and the files of the images.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.requests import Request

from compeer.chat.answer import Telling
from compeer.chat.answers import ChatAnswer
from compeer.chat.history import Sent, dropped_texts, read_history
from compeer.chat.keeping import Keeper
from compeer.chat.pictures import write_pictures
from compeer.chat.requests import ChatRequest
from compeer.chat.state import read_state
from compeer.chat.turn import SAMPLING, Busy, Done, Event, Supporter, Wish
from compeer.errors import InputError
from compeer.models.base import Sampling
from compeer.policy.control import Control
from compeer.safety.guard import GuardState
from compeer.web.errors import Refusal, busy, from_input_error, readable
from compeer.web.metrics import Metrics

_log = logging.getLogger("compeer.web")
_FIRST_WAIT = 15.0
"""Seconds in which a supporter that is busy says so, under load too; after that a stream begins, whatever comes."""
_STILL_HERE = 10.0
"""Seconds of silence after which a stream says that it is alive, or proxies would cut it."""
_PICTURES_AT_ONCE = 2


@dataclass(frozen=True)
class Asked:
    """What a chat request asks for."""

    wish: Wish
    sent: Sent
    telling: Telling


class Chats:
    """Answers chat requests with a supporter."""

    def __init__(self, supporter: Supporter, model: str, metrics: Metrics, keeper: Keeper | None = None) -> None:
        self._supporter, self._model, self._metrics, self._keeper = supporter, model, metrics, keeper
        self._unpacking = asyncio.Semaphore(_PICTURES_AT_ONCE)
        self._running: set[asyncio.Task[None]] = set()

    async def answer(self, request: ChatRequest, client: Request) -> ChatAnswer | None:
        """The answer in one piece; None if the client left before."""
        asked = self._asked(request)
        turn = self._start(asked)
        gone = asyncio.ensure_future(_gone(client))
        try:
            while True:
                coming = asyncio.ensure_future(turn.events.get())
                await asyncio.wait({coming, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    return None
                event = _checked(coming.result())
                for _ in asked.telling.chunks(event):
                    pass
                if isinstance(event, Done):
                    return asked.telling.answer(event)
        finally:
            gone.cancel()
            turn.task.cancel()

    async def stream(self, request: ChatRequest) -> AsyncIterator[bytes]:
        """The answer as server-sent events. What is refused at once is refused before the stream begins."""
        asked = self._asked(request)
        turn = self._start(asked)
        first: Event | Exception | None = None
        try:
            async with asyncio.timeout(_FIRST_WAIT):
                first = await turn.events.get()
        except TimeoutError:
            pass
        except BaseException:
            turn.task.cancel()
            raise
        if first is not None:
            _checked(first)
        usage = bool(request.stream_options and request.stream_options.include_usage)
        return self._pieces(asked, turn, first, usage)

    async def _pieces(
        self, asked: Asked, turn: _Turn, event: Event | Exception | None, usage: bool
    ) -> AsyncIterator[bytes]:
        try:
            yield _data(asked.telling.opening())
            while True:
                if event is None:
                    try:
                        async with asyncio.timeout(_STILL_HERE):
                            event = await turn.events.get()
                    except TimeoutError:
                        yield b": still here\n\n"
                        continue
                try:
                    event = _checked(event)
                except Refusal as refusal:
                    yield _data(refusal.body())
                    break
                for chunk in asked.telling.chunks(event):
                    yield _data(chunk)
                if isinstance(event, Done):
                    if usage:
                        yield _data(asked.telling.usage(event))
                    break
                event = None
            yield b"data: [DONE]\n\n"
        finally:
            turn.task.cancel()  # nothing happens if it has ended

    # --- one turn -------------------------------------------------------------------------------------------------

    def _asked(self, request: ChatRequest) -> Asked:
        if request.model is not None and request.model != self._model:
            what = f"There is no such model here. /v1/models lists what there is: {self._model}."
            raise Refusal(404, what, field="model", code="model_not_found")
        sent = read_history(request.messages, self._supporter.sees)
        ignored = [*sent.ignored, *map(readable, request.ignored())]
        state = read_state(request.state) if request.state else None
        if request.state and state is None:
            ignored.append("state (it cannot be read; the guard goes by what was said)")
        wish = Wish(
            history=sent.history,
            control=Control(
                strategy=request.strategy, stage=request.stage, emotion=request.emotion, persona=request.persona
            ),
            best_of=request.best_of or 1,
            sampling=_sampling(request),
            seed=secrets.randbelow(2**31) if request.seed is None else request.seed % 2**31,
            conversation=readable(request.conversation) if request.conversation else None,
            state=state or GuardState.of([one.text for one in sent.history if one.speaker == "supporter"]),
        )
        telling = Telling(self._model, request.show_reasoning is not False, ignored, dropped_texts(sent.dropped))
        return Asked(wish, sent, telling)

    def _start(self, asked: Asked) -> _Turn:
        events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        task = asyncio.create_task(self._run(asked, events))
        self._running.add(task)  # the loop itself keeps weak references only
        task.add_done_callback(self._running.discard)
        return _Turn(task, events)

    async def _run(self, asked: Asked, events: asyncio.Queue[Event | Exception]) -> None:
        """Feeds the queue with the turn's events, or with the one error that ends it."""
        start = time.monotonic()
        self._metrics.add("compeer_turns_open")
        try:
            with tempfile.TemporaryDirectory(prefix="compeer-") as folder:
                wish = await self._with_pictures(asked, Path(folder))
                first = True
                async for event in self._supporter.converse(wish):
                    if first:
                        self._metrics.observe("compeer_first_piece_seconds", time.monotonic() - start)
                        first = False
                    if isinstance(event, Done):
                        self._metrics.observe("compeer_turn_seconds", time.monotonic() - start)
                        self._note(asked.telling.id, wish, event)
                    events.put_nowait(event)
        except asyncio.CancelledError:
            self._metrics.add("compeer_turns_left_total")
            raise
        except Exception as error:
            events.put_nowait(error)
        finally:
            self._metrics.add("compeer_turns_open", -1)

    async def _with_pictures(self, asked: Asked, folder: Path) -> Wish:
        if not asked.sent.images:
            return asked.wish
        images = [(image.field, image.data) for image in asked.sent.images]
        async with self._unpacking:
            written = await asyncio.to_thread(write_pictures, images, folder)
        history, dropped = asked.sent.with_pictures(written)
        asked.telling.dropped = dropped_texts(dropped)
        return replace(asked.wish, history=history)

    def _note(self, answer: str, wish: Wish, done: Done) -> None:
        guarded = done.guarded
        self._metrics.add("compeer_turns_total", risk=guarded.risk.level)
        self._metrics.add("compeer_tokens_total", done.prompt_tokens, kind="prompt")
        self._metrics.add("compeer_tokens_total", done.tokens, kind="completion")
        if guarded.replaced:
            self._metrics.add("compeer_replaced_total", why=guarded.replaced.partition(":")[0])
        if guarded.degraded:
            self._metrics.add("compeer_degraded_total")
        if done.problems:
            self._metrics.add("compeer_problems_total")
        if self._keeper:
            try:
                self._keeper.keep(answer, wish, done)
            except OSError as error:
                _log.error("a turn could not be kept: %s", error.strerror)


@dataclass(frozen=True)
class _Turn:
    """A turn under way."""

    task: asyncio.Task[None]
    events: asyncio.Queue[Event | Exception]


def _checked(event: Event | Exception) -> Event:
    """The event, unless it is an error: then that is raised as a refusal."""
    match event:
        case Refusal():
            raise event
        case Busy():
            raise busy(event.retry_after)
        case InputError():
            raise from_input_error(event)
        case Exception():
            _log.error("%s while a turn was made", type(event).__name__)
            raise Refusal(500, "Something went wrong on the server.", code="internal")
        case _:
            return event


def _sampling(request: ChatRequest) -> Sampling:
    """How the answer is drawn: as asked for, but never longer than turns are here."""
    wanted = request.max_completion_tokens or request.max_tokens or SAMPLING.max_tokens
    return SAMPLING.model_copy(
        update={
            "temperature": SAMPLING.temperature if request.temperature is None else request.temperature,
            "top_p": SAMPLING.top_p if request.top_p is None else request.top_p,
            "max_tokens": min(wanted, SAMPLING.max_tokens),
        }
    )


def _data(chunk: dict[str, object]) -> bytes:
    """A server-sent event. All in ASCII: some clients split lines at any of Unicode's line ends."""
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


async def _gone(client: Request) -> None:
    """Returns when the client has left."""
    while (await client.receive())["type"] != "http.disconnect":
        pass
