"""Any OpenAI-compatible server: vLLM, llama.cpp, Ollama, or a hosted service, asked many things at once.

All calls of `generate` share the model's places, caps and cache. What may pass (408, 409, 429, 5xx, broken connections,
timeouts, answers that cannot be read) is tried again after growing pauses, as long as the request's deadline allows;
what cannot pass (400, 401, 403, 404, 422, …) is not. A server that answers 429 or 503 and says when to come back holds
all requests until then, unless that is after the deadline. A request that fails for good gives a `Failure` and does not
disturb the others. The key is read from the environment and appears in no log, no error and no cache.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from compeer import __version__
from compeer.errors import InputError
from compeer.models.base import Failure, Generation, Request, Sampling
from compeer.models.cache import AnswerCache, Keeping, cache_key
from compeer.models.connections import Broken, Connections, Headers, Reply, Unreadable, checked_url, seconds_until
from compeer.models.counters import Counters
from compeer.models.estimate import prompt_tokens
from compeer.models.pace import Gate

LONGEST_PAUSE = 60.0
SHORTEST_SECRET = 8
"""A shorter "key" is a word such as `none`, which an answer may well contain."""


class CallSettings(BaseModel):
    """How a server is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_variable: str = Field(default="OPENAI_API_KEY", description="environment variable that holds the server's key")
    concurrency: int = Field(default=16, ge=1, description="calls under way at the same time")
    requests_per_minute: float | None = Field(default=None, gt=0, description="calls a minute at most; none: no cap")
    tokens_per_minute: float | None = Field(
        default=None, gt=0, description="prompt and answer tokens a minute at most; none: no cap"
    )
    timeout: float = Field(default=120.0, gt=0, description="seconds for one try")
    deadline: float = Field(
        default=900.0,
        gt=0,
        description="seconds for one request with all its tries and the pauses between them; waiting for a place, for "
        "the caps, or because the server holds everyone back is not counted",
    )
    retries: int = Field(default=6, ge=0, description="further tries after a failure that may pass")
    first_pause: float = Field(
        default=1.0, ge=0, description="seconds before the second try; doubles with each one, up to a minute"
    )
    constrain: Literal["off", "vllm", "llama.cpp"] = Field(
        default="off",
        description="whose way of holding an answer to a grammar the server knows; others refuse the request",
    )


class EndpointSettings(CallSettings):
    """A server, a model that it offers, and how it is called."""

    url: str = Field(description="the server's base URL, as http://host:8000/v1")
    model: str = Field(min_length=1, description="the model's name on the server")


class EndpointModel:
    """Asks a model behind a URL; answers come from the cache where there is one that has them."""

    def __init__(self, settings: EndpointSettings, cache: AnswerCache | None = None) -> None:
        self._settings, self._cache = settings, cache
        self._url = checked_url(settings.url)
        self._key = _checked_key(settings.key_variable)
        self._gate = Gate(settings.requests_per_minute, settings.tokens_per_minute)
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}
        self.counters = Counters()

    @property
    def name(self) -> str:
        return self._settings.model

    @property
    def batch_size(self) -> int:
        return 1

    @property
    def at_once(self) -> int:
        return 4 * self._settings.concurrency

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        if len(requests) == 1:  # what stages do: no need for a task of its own
            return [await self._answer(requests[0], sampling)]
        tasks = [asyncio.ensure_future(self._answer(request, sampling)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # those that are left when one could not be stored, say
                task.cancel()

    def remembered(self, requests: Sequence[Request], sampling: Sampling) -> list[bool]:
        """For each request, whether it needs no call of its own: the cache has it, or it was named before."""
        seen: set[str] = set()
        found = []
        for request in requests:
            key = self._cache_key(request, self._body(request, sampling))
            found.append(key in seen or self._cached(key) is not None)
            seen.add(key)
        return found

    # --- one request ----------------------------------------------------------------------------------------------

    async def _answer(self, request: Request, sampling: Sampling) -> Generation | Failure:
        """From the cache, from the same request under way, or from the server; stored before it is returned."""
        self.counters.requests += 1
        body = self._body(request, sampling)
        key = self._cache_key(request, body)
        if found := self._cached(key):
            self.counters.cached += 1
            return found
        session = await self._session()
        while same := session.under_way.get(key):
            await asyncio.wait([same])
            if not same.cancelled():
                self.counters.shared += 1
                return same.result()
        session.under_way[key] = future = asyncio.get_running_loop().create_future()
        try:
            async with session.places:
                answer = await self._ask(session, request, sampling, body)
            if session.keeping and isinstance(answer, Generation):
                await session.keeping.put(key, answer)
            future.set_result(answer)
            return answer
        finally:
            future.cancel()  # nothing happens if it has its result
            del session.under_way[key]

    async def _ask(self, session: _Session, request: Request, sampling: Sampling, body: bytes) -> Generation | Failure:
        """Calls until there is an answer or no sense in another try."""
        tokens = prompt_tokens(request) + sampling.max_tokens if self._settings.tokens_per_minute else 0
        deadline = time.monotonic() + self._settings.deadline
        pause, tries_left = self._settings.first_pause, self._settings.retries
        while True:
            deadline += await self._enter(session, tokens)
            found, wait = await self._call(session, body, request.prefix, deadline - time.monotonic())
            if isinstance(found, Generation):
                self.counters.successes += 1
                self.counters.prompt_tokens += found.prompt_tokens
                self.counters.completion_tokens += found.tokens
                if used := found.prompt_tokens + found.tokens:
                    self._gate.correct(used - tokens)
                return found
            wait = max(wait or 0.0, pause * random.uniform(0.5, 1.0))
            if not tries_left or found.kind in ("access", "refused") or time.monotonic() + wait >= deadline:
                self.counters.failed[found.kind] += 1
                return found
            self.counters.retried[found.kind] += 1
            await asyncio.sleep(wait)
            pause, tries_left = min(2 * pause, LONGEST_PAUSE), tries_left - 1

    async def _enter(self, session: _Session, tokens: int) -> float:
        """Waits until the caps and the server let a call through, and says how long that took."""
        start = time.monotonic()
        async with session.turn:
            await self._gate.enter(tokens, self.counters)
        return time.monotonic() - start

    async def _call(
        self, session: _Session, body: bytes, prefix: str, seconds_left: float
    ) -> tuple[Generation | Failure, float | None]:
        """One call over the wire, and the seconds after which the server wants to be asked again, if it said so."""
        self.counters.calls += 1
        try:
            async with asyncio.timeout(min(self._settings.timeout, seconds_left)):
                reply = await session.connections.post(body)
        except TimeoutError:
            return Failure("timeout", f"{self._url} did not answer in time"), None
        except Broken as error:
            return Failure("connection", f"no answer from {self._url}: {error}"), None
        except Unreadable:
            return Failure("answer", f"{self._url} gave an answer that cannot be read"), None
        except BaseException:
            self.counters.failed["stopped"] += 1
            raise
        if reply.status == 200:
            return self._read(reply, prefix), None
        reason = f"{self._url} answered {reply.status}"
        wait = seconds_until(reply.retry_after)
        if wait is not None and reply.status in (429, 503):
            reason += f" and wants to be left alone for {wait:.0f} s"
            if wait < seconds_left:
                self._gate.hold(wait)
        return Failure(_kind(reply.status), reason), wait

    def _read(self, reply: Reply, prefix: str) -> Generation | Failure:
        try:
            answer = json.loads(reply.body)
            choice = answer["choices"][0]
            text = prefix + (choice["message"]["content"] or "")
            cut_off = choice.get("finish_reason") == "length"
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            return Failure("answer", f"{self._url} gave an answer that cannot be read ({type(error).__name__})")
        if len(text) == len(prefix):
            return Failure("answer", f"{self._url} gave an empty answer")
        if self._key and len(self._key) >= SHORTEST_SECRET and self._key in text:
            return Failure("answer", f"{self._url} gave an answer that repeats the key")
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a character cannot be written
        return Generation(text, cut_off, _used(answer, "prompt_tokens"), _used(answer, "completion_tokens"))

    # --- what is sent, and what stands for it in the cache --------------------------------------------------------

    def _body(self, request: Request, sampling: Sampling) -> bytes:
        """What is sent. A grammar goes along only without a prefix, since servers hold the *new* text to it."""
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": list(request.messages),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.prefix:
            body["messages"].append({"role": "assistant", "content": request.prefix})
            if self._settings.constrain == "vllm":
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        elif request.grammar and self._settings.constrain == "vllm":
            body["structured_outputs"] = {"grammar": request.grammar}
        elif request.grammar and self._settings.constrain == "llama.cpp":
            # the first line tells a llama.cpp built with LLGuidance that this is Lark, not its own notation
            body["grammar"] = f"%llguidance {{}}\n{request.grammar}"
        return json.dumps(body, sort_keys=True).encode()

    def _cache_key(self, request: Request, body: bytes) -> str:
        return cache_key(self._url, body, request.prefix.encode("utf-8", "surrogatepass"))

    def _cached(self, key: str) -> Generation | None:
        found = self._cache.get(key, 1) if self._cache else None
        return found[0] if found else None

    # --- what belongs to one event loop ---------------------------------------------------------------------------

    async def _session(self) -> _Session:
        """Connections and places of the running loop, made on first use and closed with the loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            headers: Headers = [
                ("User-Agent", f"compeer/{__version__}"),
                ("Content-Type", "application/json"),
                ("Accept", "application/json"),
                ("Accept-Encoding", "identity"),
            ]
            if self._key:
                headers.append(("Authorization", f"Bearer {self._key}"))
            connections = Connections(f"{self._url}/chat/completions", headers)
            self._sessions[loop] = session = _Session(
                connections=connections,
                places=asyncio.Semaphore(self._settings.concurrency),
                keeping=Keeping(self._cache) if self._cache else None,
                closing=self._close_in_the_end(loop),
            )
            await anext(session.closing)
        return self._sessions[loop]

    async def _close_in_the_end(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Waits to be closed: `asyncio.run` does that to a loop's generators at its end, and so to our connections."""
        try:
            yield
        finally:
            await self._sessions.pop(loop).connections.close()


@dataclass
class _Session:
    """What belongs to one event loop."""

    connections: Connections
    places: asyncio.Semaphore
    keeping: Keeping | None
    closing: AsyncGenerator[None, None]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    under_way: dict[str, asyncio.Future[Generation | Failure]] = field(default_factory=dict)


def _used(answer: dict[str, Any], what: str) -> int:
    """The tokens that an answer says it took; 0 where it does not say so in a number."""
    usage = answer.get("usage")
    count = usage.get(what) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count > 0 else 0


def _kind(status: int) -> Literal["timeout", "rate limit", "server", "access", "refused"]:
    match status:
        case 408:
            return "timeout"
        case 429:
            return "rate limit"
        case 409:
            return "server"
        case 401 | 402 | 403 | 404 | 405 | 407:
            return "access"
    return "server" if status >= 500 else "refused"


def _checked_key(variable: str) -> str | None:
    """The key that the environment holds; it is never shown, even where it cannot be one."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            "the key in this environment variable has characters that cannot be sent.",
            field=variable,
            do="Set it again.",
        )
    return key or None
