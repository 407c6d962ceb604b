"""The middleware in front of an application: host, key, rate and body limits; security headers, counts, faults.

A body is read here, within a size, a time and a budget for all bodies together. A fault of our own becomes a 500 and a
line in the log with its place, never its text.
"""

import asyncio
import hmac
import ipaddress
import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from compeer.io import text_hash
from compeer.web.errors import TABLE, Refusal, refusal

_log = logging.getLogger("compeer.web")

OPEN_PATHS = ("/", "/healthz", "/openapi.json")  # need no key, like the page's files; where one is set, others do
BODY_SECONDS = 30.0  # so long may a body take to arrive
BODIES_AT_ONCE = 2**26  # bytes of bodies held at the same time, all clients together
_DRAINED = 2**26  # bytes of an over-long body that are thrown away, so that the client is there to read the refusal
_CLIENTS = 10_000  # clients whose requests are counted; the one that asked longest ago is forgotten first
SECURITY_HEADERS: dict[str, str] = TABLE["headers"]


class Rate:
    """How often each client may ask: `a_minute` requests at once, and then as they are refilled."""

    def __init__(self, a_minute: float) -> None:
        self._most, self._a_second = max(1.0, a_minute), a_minute / 60
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float) -> float:
        """Seconds until this client may ask again; 0 lets the request through and counts it."""
        left = self._refilled(client, now)
        self._left.pop(client, None)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return max(0.0, (1 - left) / self._a_second)

    def peek(self, client: str, now: float) -> float:
        return max(0.0, (1 - self._refilled(client, now)) / self._a_second)

    def _refilled(self, client: str, now: float) -> float:
        left, since = self._left.get(client, (self._most, now))
        return min(self._most, left + (now - since) * self._a_second)


class Door:
    """An ASGI application in front of another."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Sequence[str] = (),
        hosts: Sequence[str] = (),
        rate: float | None = None,
        longest_body: int | Callable[[Scope], Awaitable[int]],
        on_response: Callable[[str, int], object] = lambda route, status: None,
    ) -> None:
        """`on_response` is called with the route and the status of each answer."""
        self._app, self._longest, self._on_response = app, longest_body, on_response
        self._keys = [text_hash(key) for key in keys]
        self._hosts = {host.lower() for host in hosts}
        self._rate = Rate(rate) if rate else None
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, ended = 0, False

        async def sending(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            else:
                ended = not message.get("more_body", False)
            await send(message)

        try:
            await self._enter(scope, receive, sending)
        except Refusal as error:
            await error.response()(scope, receive, sending)
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            if not started:
                await refusal("stopping", 5).response()(scope, receive, sending)
            elif not ended:
                await sending({"type": "http.response.body", "body": b""})
        except Exception as error:
            _log.error("%s in %s", type(error).__name__, _location(error))
            if not started:
                await refusal("fault").response()(scope, receive, sending)
        finally:
            route = str(getattr(scope.get("route"), "path", "other"))  # one name for all that is not there
            self._on_response(route, started or 499)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if self._hosts and _host(headers.get("host", "")) not in self._hosts:
            raise refusal("host")
        key = self._key(headers)
        open_to_all = scope["path"] in OPEN_PATHS or scope["path"].startswith("/static/")
        limited = self._rate if not open_to_all else None
        if limited and (wait := limited.wait(key or client_of(scope), time.monotonic())):
            raise refusal("too_many", wait)
        if self._keys and not key and not open_to_all:
            raise refusal("key")
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        longest = self._longest if isinstance(self._longest, int) else await self._longest(scope)
        body = await self._body(receive, int(length) if length.isdecimal() else 0, longest)
        try:
            await self._app(scope, _replayed(body, receive), send)
        finally:
            self._held -= len(body)

    def _key(self, headers: Headers) -> str | None:
        """The digest of the key that a request carries, if it is one of ours; all are compared, in constant time."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        digest = text_hash(given.strip()) if scheme.lower() == "bearer" else ""
        return next(iter([key for key in self._keys if hmac.compare_digest(key, digest)]), None)

    async def _body(self, receive: Receive, announced: int, longest: int) -> bytes:
        """The whole body, which counts as held from now on."""
        pieces: list[bytes] = []
        size, too_long = 0, announced > longest
        crowded = self._held + announced > BODIES_AT_ONCE
        try:
            async with asyncio.timeout(BODY_SECONDS):
                more = True
                while more and size <= _DRAINED:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise refusal("cut_body")
                    piece = message.get("body", b"")
                    size, more = size + len(piece), message.get("more_body", False)
                    too_long = too_long or size > longest
                    crowded = crowded or self._held + len(piece) > BODIES_AT_ONCE
                    if too_long or crowded:
                        self._held -= sum(map(len, pieces))
                        pieces.clear()
                    else:
                        pieces.append(piece)
                        self._held += len(piece)
            if too_long:
                raise refusal("long_body", longest=longest)
            if crowded:
                raise refusal("busy", 1)
        except BaseException as error:
            self._held -= sum(map(len, pieces))
            if isinstance(error, TimeoutError):
                raise refusal("late_body") from None
            raise
        return b"".join(pieces)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, and then whatever the client does next, which is to leave."""
    waiting: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return replayed


def _host(header: str) -> str:
    name = header.lower()
    return name.partition("]")[0].removeprefix("[") if name.startswith("[") else name.partition(":")[0]


def client_of(scope: Scope) -> str:
    """Whom a request is counted for: an address, or the network of one for IPv6, where a client has many."""
    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(ipaddress.ip_network(f"{host}/64", strict=False)) if address.version == 6 else host


def _location(error: BaseException) -> str:
    """Where an error was raised: its message could quote a dialogue, its place cannot."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
