"""Connections to one HTTP server, kept open between calls: a body is posted, a reply comes back whole.

The ready-made clients spend more time on a call than a fast server does (on a slow core 2.8 ms with `openai`, 1.3 with
`httpx2`), so that 64 calls in flight could not be kept up. This is asyncio with `h11`, which knows HTTP/1.1 and does no
input or output itself: 0.2 ms. The usual proxy variables (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`) are obeyed.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from math import isfinite
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import h11

from compeer.errors import InputError

LARGEST_REPLY = 32 * 2**20
Headers = list[tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    """What the server said."""

    status: int
    retry_after: str | None
    body: bytes


class Broken(Exception):
    """The connection could not be made, or broke before the reply was whole; says how."""


class Unreadable(Exception):
    """What came back is not HTTP, or has no end."""


class Connections:
    """Posts to one URL, over as many connections as there are calls at the same time."""

    def __init__(self, url: str, headers: Headers) -> None:
        self._parts = urlsplit(url)
        self._proxy = proxy_for(self._parts)
        self._ssl = _trusted() if self._parts.scheme == "https" else None
        target, login = self._parts.path, []
        if self._proxy and not self._ssl:  # a proxy is asked for the whole address
            target, login = url, _proxy_login(self._proxy)
        self._head = _head("POST", target, [("Host", self._parts.netloc), *headers, *login])
        self._idle: list[_Connection] = []

    async def post(self, body: bytes) -> Reply:
        """The reply to one call. A call that is cancelled, or fails, takes its connection with it."""
        connection = self._take_idle() or await self._open()
        try:
            return await connection.ask(_POST, b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body))
        finally:
            if connection.start_next():
                self._idle.append(connection)
            else:
                connection.close()

    async def close(self) -> None:
        """Closes the connections that no call is using."""
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # the loop closes the sockets in its next round

    def _take_idle(self) -> _Connection | None:
        """A connection that the server has not closed in the meantime, or None."""
        while self._idle:
            if not (connection := self._idle.pop()).closed:
                return connection
        return None

    async def _open(self) -> _Connection:
        address = self._proxy or self._parts
        host = address.hostname or ""
        port = address.port or (443 if address.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        try:
            if self._proxy is None or self._ssl is None:
                return (await loop.create_connection(_Connection, host, port, ssl=self._ssl))[1]
            _, tunnel = await loop.create_connection(_Connection, host, port)
            try:
                return await self._through(tunnel, self._proxy, self._ssl)
            except BaseException:
                tunnel.close()
                raise
        except ssl.SSLCertVerificationError as error:
            raise Broken("its certificate is not trusted") from error
        except (OSError, UnicodeError) as error:  # a host name that cannot be one gives a UnicodeError
            raise Broken("it cannot be reached; is the server running?") from error

    async def _through(self, tunnel: _Connection, proxy: SplitResult, context: ssl.SSLContext) -> _Connection:
        """Asks the proxy for a connection to the server, and speaks TLS through it."""
        there = f"{self._parts.hostname}:{self._parts.port or 443}"
        head = _head("CONNECT", there, [("Host", there), *_proxy_login(proxy)])
        reply = await tunnel.ask(_CONNECT, head + b"\r\n")
        if reply.status != 200:
            raise Broken(f"the proxy answered {reply.status}")
        connection = _Connection()
        tunnel.transport.set_protocol(connection)
        transport = await asyncio.get_running_loop().start_tls(
            tunnel.transport, connection, context, server_hostname=self._parts.hostname
        )
        if transport is None:
            raise Broken("it hung up")
        connection.connection_made(transport)
        return connection


class _Connection(asyncio.Protocol):
    """One connection, for one call after another."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.closed = False
        self._http = h11.Connection(h11.CLIENT)
        self._reply: asyncio.Future[Reply] | None = None

    def ask(self, like: h11.Request, data: bytes) -> asyncio.Future[Reply]:
        """Sends a call; the reply comes as the future's result. `like` says to h11 what kind of reply to expect."""
        self._reply = asyncio.get_running_loop().create_future()
        self._head: h11.Response | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._http.send(like)
        self._http.send(h11.EndOfMessage())
        self.transport.write(data)
        return self._reply

    def start_next(self) -> bool:
        """Gets ready for another call; False if this connection cannot be used again."""
        self._reply = None
        states = {self._http.our_state, self._http.their_state}
        if self.closed or states != {h11.DONE} or self._http.trailing_data[0]:
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        self.closed = True
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._reply is None:  # nobody asked: the next call must not take this for its reply
            self.close()
        else:
            self._receive(data, Unreadable())

    def eof_received(self) -> None:
        self.closed = True
        if self._reply is not None:
            self._receive(b"", Broken("it hung up"))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._fail(Broken("it hung up"))

    def _receive(self, data: bytes, otherwise: Exception) -> None:
        """Takes up what came; where that cannot be, the call fails with `otherwise`."""
        try:
            self._http.receive_data(data)
            while self._reply is not None and not self._reply.done():
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                self._take(event, self._reply)
        except h11.RemoteProtocolError:
            self._fail(otherwise)

    def _take(self, event: Any, reply: asyncio.Future[Reply]) -> None:
        if isinstance(event, h11.Data):
            self._parts.append(bytes(event.data))
            self._size += len(event.data)
            if self._size > LARGEST_REPLY:
                self._fail(Unreadable())
        elif isinstance(event, h11.ConnectionClosed):
            self._fail(Broken("it hung up"))
        elif isinstance(event, h11.Response):
            self._head = event
        tunnelled = self._http.their_state is h11.SWITCHED_PROTOCOL  # after CONNECT: there is no body to wait for
        if self._head is not None and (isinstance(event, h11.EndOfMessage) or tunnelled):
            after = next((value for name, value in self._head.headers if name == b"retry-after"), None)
            body = b"".join(self._parts)
            reply.set_result(Reply(self._head.status_code, after.decode("latin-1") if after else None, body))

    def _fail(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)


def _head(method: str, target: str, headers: Headers) -> bytes:
    """The lines that open a call; made once, since h11 would take half of its time to check them for every call."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), ""]
    return "\r\n".join(lines).encode("ascii")


_POST = h11.Request(method="POST", target="/", headers=[("Host", "-"), ("Content-Length", "0")])
_CONNECT = h11.Request(method="CONNECT", target="-", headers=[("Host", "-")])


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
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if isfinite(seconds) else None


def proxy_for(parts: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for this server, or None."""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    found = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if found.scheme != "http" or not found.hostname:
        raise InputError(
            f"the proxy set for {parts.scheme} is not of the kind http://host:port.",
            field=f"{parts.scheme}_proxy",
            do="Set another one in the environment, or name the server in NO_PROXY.",
        )
    return found


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates that this machine trusts; reading them takes a while."""
    return ssl.create_default_context()


def _proxy_login(proxy: SplitResult) -> Headers:
    if proxy.username is None:
        return []
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return [("Proxy-Authorization", "Basic " + base64.b64encode(login.encode()).decode())]
