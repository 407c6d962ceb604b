"""The client of OpenAI-compatible servers: vLLM, llama.cpp, Ollama, or a hosted service.

`Endpoint` is one server over `httpx`: what is sent to it, and what comes back. `EndpointModel` asks it many things at
once; all calls of `generate` share the limits on calls, the cap and the cache. What may pass (408, 409, 429, 5xx,
broken connections, timeouts, answers that cannot be read) is tried again after growing pauses, as long as the request's
deadline allows. A server that answers 429 or 503 with `Retry-After` holds all requests until then, unless that is after
the deadline.

The key is read from the environment and appears in no log, no error and no cache. Proxy variables are obeyed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from compeer import __version__
from compeer.errors import InputError
from compeer.models.base import CallSettings, Failure, FailureKind, Generation, Request, Sampling, gathered
from compeer.models.cache import AnswerCache, cache_key
from compeer.models.costs import Counters, Gate

if TYPE_CHECKING:
    import httpx

_KINDS: dict[int, FailureKind] = {408: "timeout", 409: "server", 429: "rate limit"}  # others: `refused`, or `server`
_KINDS |= dict.fromkeys((401, 402, 403, 404, 405, 407), "access")
_HUNG_UP = ("Server disconnected", "peer closed")  # how `httpx` says it where it has no exception of its own for that
_trusted = cache(ssl.create_default_context)  # reading the certificates that this machine trusts takes a while
LARGEST_REPLY = 32 * 2**20
LONGEST_PAUSE = 60.0
SHORTEST_SECRET = 8  # a shorter "key" is a word such as `none`, which an answer may well contain


class CallError(Exception):
    """There was no answer, or it broke off."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.failure = Failure(kind, reason)


@dataclass
class _Loop:
    """What belongs to one event loop."""

    closing: AsyncGenerator[None, None]
    limit: asyncio.Semaphore
    idle: list[httpx.AsyncClient] = field(default_factory=list)  # one connection each: quicker than many in one
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    under_way: dict[str, asyncio.Future[Generation | Failure]] = field(default_factory=dict)


class Endpoint:
    """A model on one server. It may be used from several event loops, each with its own connections, closed with it."""

    def __init__(self, url: str, model: str, settings: CallSettings) -> None:
        self.url, self.model, self.settings = checked_url(url), model, settings
        self.key = checked_key(settings.key_variable)
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    def body(self, request: Request, sampling: Sampling, **more: Any) -> bytes:
        """What is sent. A grammar goes along only without a prefix, since servers hold the *new* text to it."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(request.messages),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed,
            **more,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.prefix:
            body["messages"].append({"role": "assistant", "content": request.prefix})
            if self.settings.constrain == "vllm":
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        elif request.grammar and self.settings.constrain == "vllm":
            body["structured_outputs"] = {"grammar": request.grammar}
        elif request.grammar and self.settings.constrain == "llama.cpp":
            # the first line lets a llama.cpp built with LLGuidance know that this is Lark, not its own notation
            body["grammar"] = f"%llguidance {{}}\n{request.grammar}"
        return json.dumps(body, sort_keys=True).encode()

    @asynccontextmanager
    async def stream(
        self, body: bytes, accept: str = "text/event-stream", timeout: float | None = None
    ) -> AsyncIterator[httpx.Response]:
        """The answer as it arrives, whatever its status, or `CallError`; `timeout` is for each wait, not for all."""
        import httpx

        idle = (await self.loop()).idle
        client = idle.pop() if idle else self._made()
        try:
            target, headers = f"{self.url}/chat/completions", {"Accept": accept, "Content-Type": "application/json"}
            async with client.stream("POST", target, content=body, headers=headers, timeout=timeout) as reply:
                yield reply
        except httpx.TimeoutException:
            raise CallError("timeout", f"{self.url} did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # a host name that cannot be one: Unicode
            why = "it cannot be reached; is the server running?"
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                why = "its certificate is not trusted"
            elif isinstance(error, httpx.ProxyError):
                why = f"the proxy answered {error}"
            elif isinstance(error, httpx.ReadError | httpx.WriteError) or str(error).startswith(_HUNG_UP):
                why = "it hung up"
            elif isinstance(error, httpx.RemoteProtocolError | httpx.DecodingError):
                raise CallError("answer", f"{self.url} gave an answer that cannot be read") from None
            raise CallError("connection", f"no answer from {self.url}: {why}") from None
        finally:
            idle.append(client)

    async def post(self, body: bytes) -> tuple[httpx.Response, bytes]:
        """The answer and its whole body. A call that is cancelled, or fails, takes its connection with it."""
        parts, size = [], 0
        async with self.stream(body, "application/json") as reply:
            async for part in reply.aiter_bytes():
                parts.append(part)
                size += len(part)
                if size > LARGEST_REPLY:
                    raise CallError("answer", f"{self.url} gave an answer without an end")
        return reply, b"".join(parts)

    async def loop(self) -> _Loop:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            limit = asyncio.Semaphore(self.settings.concurrency)
            self._loops[loop] = _Loop(self._close_in_the_end(loop), limit)
            await anext(self._loops[loop].closing)
        return self._loops[loop]

    def _made(self) -> httpx.AsyncClient:
        import httpx

        headers = {"User-Agent": f"compeer/{__version__}", "Accept-Encoding": "identity"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        limits = httpx.Limits(keepalive_expiry=60)
        verify = _trusted() if self.url.startswith("https:") else False
        try:
            return httpx.AsyncClient(headers=headers, limits=limits, timeout=None, verify=verify)
        except (ImportError, ValueError) as error:
            what = "the proxy that is set cannot be used; give one as http://host:port."
            do = "Set another one in the environment, or name the server in NO_PROXY."
            raise InputError(what, field="proxy", do=do) from error

    async def _close_in_the_end(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Waits to be closed: `asyncio.run` does that to a loop's generators at its end, and so to our connections."""
        try:
            yield
        finally:
            for client in self._loops.pop(loop).idle:
                await client.aclose()


class EndpointModel:
    """Asks a model behind a URL; answers come from the cache where there is one that has them."""

    def __init__(self, url: str, model: str, settings: CallSettings, cache: AnswerCache | None = None) -> None:
        self._settings, self._cache = settings, cache
        self._endpoint = Endpoint(url, model, settings)
        self._gate = Gate(settings.requests_per_minute)
        self.counters = Counters()
        self.name, self.batch_size, self.at_once = model, 1, 4 * settings.concurrency

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        return await gathered(self._answer(request, sampling) for request in requests)

    async def _answer(self, request: Request, sampling: Sampling) -> Generation | Failure:
        """From the cache, from the same request under way, or from the server; stored before it is returned."""
        self.counters.requests += 1
        body = self._endpoint.body(request, sampling)
        key = cache_key(self._endpoint.url, body, request.prefix.encode("utf-8", "surrogatepass"))
        if self._cache and (found := self._cache.get(key)):
            self.counters.cached += 1
            return found
        loop = await self._endpoint.loop()
        while same := loop.under_way.get(key):
            await asyncio.wait([same])
            if not same.cancelled():
                self.counters.shared += 1
                return same.result()
        loop.under_way[key] = future = asyncio.get_running_loop().create_future()
        try:
            async with loop.limit:
                answer = await self._ask(loop.turn, request, body)
            self.counters.count(answer)
            if self._cache and isinstance(answer, Generation):
                await asyncio.to_thread(self._cache.put, key, answer)  # the disk does not hold up the others
            future.set_result(answer)
            return answer
        finally:
            future.cancel()  # nothing happens if it has its result
            del loop.under_way[key]

    async def _ask(self, turn: asyncio.Lock, request: Request, body: bytes) -> Generation | Failure:
        """Calls until there is an answer or no sense in another try."""
        deadline = time.monotonic() + self._settings.deadline
        pause, tries_left = self._settings.first_pause, self._settings.retries
        while True:
            start = time.monotonic()
            async with turn:
                await self._gate.enter(self.counters)
            deadline += time.monotonic() - start  # waiting for the cap and the server is not counted
            found, wait = await self._call(body, request.prefix, deadline - time.monotonic())
            wait = max(wait or 0.0, pause * random.uniform(0.5, 1.0))
            late = not tries_left or time.monotonic() + wait >= deadline
            if isinstance(found, Generation) or late or found.kind in ("access", "refused"):
                return found
            self.counters.retried[found.kind] += 1
            await asyncio.sleep(wait)
            pause, tries_left = min(2 * pause, LONGEST_PAUSE), tries_left - 1

    async def _call(self, body: bytes, prefix: str, seconds_left: float) -> tuple[Generation | Failure, float | None]:
        """One call over the wire, and the seconds after which the server wants to be asked again, if it names them."""
        self.counters.calls += 1
        url = self._endpoint.url
        try:
            async with asyncio.timeout(min(self._settings.timeout, seconds_left)):
                reply, answer = await self._endpoint.post(body)
        except TimeoutError:
            return Failure("timeout", f"{url} did not answer in time"), None
        except CallError as error:
            return error.failure, None
        except BaseException:
            self.counters.failed["stopped"] += 1
            raise
        status = reply.status_code
        if status == 200:
            return self._read(answer, prefix), None
        reason = f"{url} answered {status}"
        wait = seconds_until(reply.headers.get("retry-after"))
        if wait is not None and status in (429, 503):
            reason += f" and wants to be left alone for {wait:.0f} s"
            if wait < seconds_left:
                self._gate.hold(wait)
        return Failure(_KINDS.get(status) or ("server" if status >= 500 else "refused"), reason), wait

    def _read(self, body: bytes, prefix: str) -> Generation | Failure:
        url, key = self._endpoint.url, self._endpoint.key
        try:
            answer = json.loads(body)
            choice = answer["choices"][0]
            text = prefix + (choice["message"]["content"] or "")
            cut_off = choice.get("finish_reason") == "length"
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            return Failure("answer", f"{url} gave an answer that cannot be read ({type(error).__name__})")
        if len(text) == len(prefix):
            return Failure("answer", f"{url} gave an empty answer")
        if key and len(key) >= SHORTEST_SECRET and key in text:
            return Failure("answer", f"{url} gave an answer that repeats the key")
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a character cannot be written
        usage = answer.get("usage")
        return Generation(text, cut_off, used_tokens(usage, "prompt_tokens"), used_tokens(usage, "completion_tokens"))


def used_tokens(usage: Any, what: str) -> int:
    """The tokens that an answer's `usage` names; 0 where it does not do so in a number."""
    count = usage.get(what) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count > 0 else 0


def checked_key(variable: str) -> str | None:
    """The key that the environment holds; it is never printed, even where it cannot be one."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        what = "the key in this environment variable has characters that cannot be sent."
        raise InputError(what, field=variable, do="Set it again.")
    return key or None


def checked_url(url: str) -> str:
    """The URL without a slash at its end; an error if it is none, or holds more than an address."""
    do = "Give the server's base URL, as http://host:8000/v1"
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise InputError("this is no URL.", field="url", do=do)
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError("a name, a key or options in the URL would end up in logs.", field="url", do=do)
    return url.rstrip("/")


def seconds_until(retry_after: str | None) -> float | None:
    """The pause that a Retry-After header asks for, in seconds or as a date; None without one that can be read."""
    try:
        seconds = float(retry_after or "nan")
    except ValueError:
        try:
            seconds = parsedate_to_datetime(str(retry_after)).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if isfinite(seconds) else None
