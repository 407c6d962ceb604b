"""Requests from their arrival to their end: a turn, answered whole or as a stream, and a turn to be judged.

Each turn runs in a task of its own, which feeds a queue. A client that leaves, or a server that stops, ends the task,
and with it the supporter's work and the files of the images. Conversations are stored only for a service that asks for
it (`Keeper`).
"""

import asyncio
import errno
import fcntl
import json
import logging
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from starlette.requests import Request

from compeer.chat.answer import AnswerBuilder, score_answer
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.history import SentHistory, read_history, read_state, refused, until_the_seeker
from compeer.chat.metrics import Metrics
from compeer.chat.schemas import ChatAnswer, ChatRequest, JudgeAnswer, JudgeRequest, ResponseVerdict, StepVerdict
from compeer.chat.turn import SAMPLING, Busy, Event, TurnDone, TurnRequest
from compeer.errors import InputError
from compeer.io import json_line, readable
from compeer.models.base import Sampling
from compeer.policy.control import Control
from compeer.reasoning import STEPS, parse_turn, render_turn
from compeer.reward.conversation import Case
from compeer.reward.score import Judge, Judgment, Score, Unscored, score
from compeer.safety.guard import GuardState
from compeer.web.errors import Refusal, from_input_error, refusal

_log = logging.getLogger("compeer.web")
_FIRST_WAIT = 15.0  # seconds in which a busy supporter says so, under load too; then a stream begins, whatever comes
_STILL_HERE = 10.0  # seconds of silence after which a stream sends a comment, or proxies would cut it
_PICTURES_AT_ONCE = 2
_MOST_WAITING = 16
_RETRY_AFTER = 5.0


class Keeper:
    """Stores turns in a folder: one JSON object a turn, a file a day, readable by the owner only. Images are not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"cannot be written to: {error.strerror}.", file=folder, do="Give a folder.") from None

    def keep(self, answer: str, request: TurnRequest, done: TurnDone) -> None:
        now = datetime.now(UTC)
        stored = {
            "at": now.isoformat(timespec="seconds"),
            "id": answer,
            "conversation": request.conversation,
            "history": [{"speaker": one.speaker, "text": one.text} for one in request.history],
            "control": request.control.requested(),
            "reply": done.reply,
            "turn": done.turn.model_dump() if done.turn else None,
            "risk": done.guarded.risk.level,
            "replaced": done.guarded.replaced,
            "problems": list(done.problems),
        }
        path = self._folder / f"{now:%Y-%m-%d}.jsonl"
        line = (json_line(stored) + "\n").encode("utf-8", "replace")
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = os.fstat(file.fileno()).st_size
            if os.write(file.fileno(), line) < len(line):  # the disk is full; half a line would spoil the next one
                os.ftruncate(file.fileno(), end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass
class OpenTurn:
    """A turn under way: what is asked for, the answer so far, the task's events, and None if the client has left."""

    request: TurnRequest
    sent: SentHistory
    answer: AnswerBuilder
    events: asyncio.Queue[Event | Exception | None] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] = field(init=False)


class Chats:
    """Answers chat requests with a supporter."""

    def __init__(self, supporter: GuardedSupporter, model: str, metrics: Metrics, keeper: Keeper | None) -> None:
        self._supporter, self._model, self._metrics, self._keeper = supporter, model, metrics, keeper
        self._unpacking = asyncio.Semaphore(_PICTURES_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, body: ChatRequest, client: Request, refusal: Refusal | None = None) -> ChatAnswer | None:
        """The answer in one piece; None if the client left before. A `refusal` is raised unless the guard answers."""
        turn = self._start(body, refusal)
        gone = asyncio.ensure_future(_gone(client))
        gone.add_done_callback(lambda _: turn.events.put_nowait(None))
        try:
            while (event := await turn.events.get()) is not None:
                found = _checked(event)
                for _ in turn.answer.chunks(found):
                    pass
                if isinstance(found, TurnDone):
                    return turn.answer.answer(found)
            return None
        finally:
            gone.cancel()
            turn.task.cancel()

    async def stream(self, body: ChatRequest, refusal: Refusal | None = None) -> AsyncIterator[bytes]:
        """The answer as server-sent events. What is refused at once is refused before the stream begins."""
        turn = self._start(body, refusal)
        first: Event | None = None
        try:
            with suppress(TimeoutError):
                first = _checked(await asyncio.wait_for(turn.events.get(), _FIRST_WAIT))
        except BaseException:
            turn.task.cancel()
            raise
        return self._pieces(turn, first, bool(body.stream_options and body.stream_options.include_usage))

    async def _pieces(self, turn: OpenTurn, event: Event | None, usage: bool) -> AsyncIterator[bytes]:
        try:
            yield _data(turn.answer.first())
            while True:
                try:
                    event = event or _checked(await asyncio.wait_for(turn.events.get(), _STILL_HERE))
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                except Refusal as refusal:
                    yield _data(refusal.body())
                    break
                for chunk in turn.answer.chunks(event):
                    yield _data(chunk)
                if isinstance(event, TurnDone):
                    if usage:
                        yield _data(turn.answer.usage(event))
                    break
                event = None
            yield b"data: [DONE]\n\n"
        finally:
            turn.task.cancel()

    def _start(self, body: ChatRequest, refusal: Refusal | None) -> OpenTurn:
        if body.model is not None and body.model != self._model:
            refusal = refused("model_not_found", "model", 404, self._model)
        try:
            sent = read_history(body.messages, self._supporter.multimodal)
        except Refusal as error:
            if not (kept := until_the_seeker(body.messages)):
                raise
            sent, refusal = read_history(kept, self._supporter.multimodal), refusal or error
        ignored = [*sent.ignored, *map(readable, body.ignored())]
        state = read_state(body.state) if body.state else None
        if body.state and state is None:
            ignored.append("state (it cannot be read; the guard goes by what was said)")
        request = TurnRequest(
            history=sent.utterances,
            control=Control(strategy=body.strategy, stage=body.stage, emotion=body.emotion, persona=body.persona),
            best_of=body.best_of or 1,
            sampling=_sampling(body),
            seed=secrets.randbelow(2**31) if body.seed is None else body.seed % 2**31,
            conversation=readable(body.conversation) if body.conversation else None,
            state=state or GuardState.of([one.text for one in sent.utterances if one.speaker == "supporter"]),
            refusal=refusal,
        )
        answer = AnswerBuilder(self._model, body.show_reasoning is not False, ignored, sent.dropped_texts())
        turn = OpenTurn(request, sent, answer)
        turn.task = asyncio.create_task(self._run(turn))
        self._tasks.add(turn.task)  # the loop itself keeps weak references only
        turn.task.add_done_callback(self._tasks.discard)
        return turn

    async def _run(self, turn: OpenTurn) -> None:
        """Feeds the queue with the turn's events, or with the one error that ends it."""
        start = time.monotonic()
        self._metrics.add("compeer_turns_open")
        try:
            with tempfile.TemporaryDirectory(prefix="compeer-") as folder:
                request = await self._with_pictures(turn, Path(folder))
                first = True
                async for event in self._supporter.converse(request):
                    if first:
                        self._metrics.observe("compeer_first_piece_seconds", time.monotonic() - start)
                        first = False
                    if isinstance(event, TurnDone):
                        self._metrics.observe("compeer_turn_seconds", time.monotonic() - start)
                        self._record(turn.answer.id, request, event)
                    turn.events.put_nowait(event)
        except asyncio.CancelledError:
            self._metrics.add("compeer_turns_left_total")
            raise
        except Exception as error:
            turn.events.put_nowait(error)
        finally:
            self._metrics.add("compeer_turns_open", -1)

    async def _with_pictures(self, turn: OpenTurn, folder: Path) -> TurnRequest:
        if not turn.sent.images:
            return turn.request
        async with self._unpacking:
            sent = await asyncio.to_thread(turn.sent.with_pictures, folder)
        turn.answer.dropped = sent.dropped_texts()
        return replace(turn.request, history=sent.utterances)

    def _record(self, answer: str, request: TurnRequest, done: TurnDone) -> None:
        guarded = done.guarded
        self._metrics.add("compeer_turns_total", risk=guarded.risk.level)
        self._metrics.add("compeer_tokens_total", done.prompt_tokens, kind="prompt")
        self._metrics.add("compeer_tokens_total", done.tokens, kind="completion")
        if guarded.replaced:
            self._metrics.add("compeer_replaced_total", why=guarded.replaced.partition(":")[0])
        self._metrics.add("compeer_degraded_total", bool(guarded.degraded))
        self._metrics.add("compeer_problems_total", bool(done.problems))
        if self._keeper:
            try:
                self._keeper.keep(answer, request, done)
            except OSError as error:
                _log.error("a turn could not be kept: %s", error.strerror)


def _checked(event: Event | Exception | None) -> Event:
    """The event, unless it is an error: then that is raised as a refusal."""
    assert event is not None, "only a whole answer waits for its client"
    match event:
        case Refusal():
            raise event
        case Busy():
            raise refusal("busy", event.retry_after)
        case InputError():
            raise from_input_error(event)
        case Exception():
            _log.error("%s while a turn was made", type(event).__name__)
            raise refusal("fault")
        case _:
            return event


def _sampling(body: ChatRequest) -> Sampling:
    """How the answer is sampled: as asked for, but never longer than turns are here."""
    longest = body.max_completion_tokens or body.max_tokens or SAMPLING.max_tokens
    asked = body.model_dump(include={"temperature", "top_p"}, exclude_none=True)
    return SAMPLING.model_copy(update={**asked, "max_tokens": min(longest, SAMPLING.max_tokens)})


def _data(chunk: dict[str, object]) -> bytes:
    """A server-sent event. All in ASCII: some clients split lines at any of Unicode's line ends."""
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


async def _gone(client: Request) -> None:
    """Returns when the client has left."""
    while (await client.receive())["type"] != "http.disconnect":
        pass


class Judging:
    def __init__(self, judge: Judge | None, metrics: Metrics) -> None:
        self._judge, self._metrics = judge, metrics
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def present(self) -> Judge:
        """The judge; a refusal where there is none."""
        if self._judge is None:
            raise refused("no_judge", status=404)
        return self._judge

    async def judge(self, cases: Sequence[Case]) -> list[tuple[Judgment | Unscored, Score]]:
        """The judge's verdicts on cases and the scores they make, one batch after the other."""
        judge = self.present
        if self._waiting >= _MOST_WAITING:
            raise refusal("busy", _RETRY_AFTER)
        self._waiting += 1
        try:
            async with self._turn:
                found = await judge.ajudge(cases)
        finally:
            self._waiting -= 1
        judged = [(verdicts, score(case.output, verdicts)) for case, verdicts in zip(cases, found, strict=True)]
        for _, result in judged:
            self._metrics.add("compeer_judgments_total", scored="no" if result.unscored else "yes")
        return judged

    async def answer(self, request: JudgeRequest) -> JudgeAnswer:
        name = self.present.name
        if (request.turn is None) == (request.output is None):
            raise refused("turn_or_output", "turn")
        output = parse_turn(render_turn(request.turn) if request.turn else readable(request.output or ""))
        sent = read_history(request.messages, multimodal=False)
        if sent.dropped:  # nobody waits for help here, and half a conversation is not what was to be judged
            raise sent.dropped[0]
        reference = readable(request.reference) if request.reference is not None else None
        ((verdicts, result),) = await self.judge([Case(sent.utterances, output, reference)])
        found = verdicts if isinstance(verdicts, Judgment) else Judgment({})
        response = None
        if preferred := found.preferred():
            probabilities = {str(value): one for value, one in (found.response or {}).items()}
            reason = found.reasons.get("response")
            response = ResponseVerdict(preferred=preferred, probabilities=probabilities, reason=reason)
        return JudgeAnswer(
            judge=name,
            steps={
                part: StepVerdict(right=found.step(part), probability=found.steps[part], reason=found.reasons.get(part))
                for part in STEPS
                if part in found.steps
            },
            response=response,
            score=score_answer(result),
            missing=output.missing,
            problems=list(output.problems),
        )
