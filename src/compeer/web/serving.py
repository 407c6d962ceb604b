"""Runs an application on a port until it is stopped, and then to the end of the open answers.

The first Ctrl-C or SIGTERM stops new connections and lets open answers finish; the second Ctrl-C ends at once. Silent
and half-open connections are closed, and there are never so many that no file can be opened.
"""

import asyncio
import ipaddress
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from rich.markup import escape
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from compeer.errors import InputError
from compeer.progress import console
from compeer.web.errors import TABLE

HEAD_SECONDS = 10.0  # so long may a connection take to say what it wants, when it is new and after each answer
_KEPT_FILES = 256  # files that the server itself may have open; connections share the others that the system allows
_AT_ONCE = 32  # connections that are taken on before the ones taken on are counted
_IN_LINE = 1024  # connections that wait with the system until they are taken on
_HEAD, _FULL = (TABLE["full"][part].encode() for part in ("head", "body"))  # of the answer to one too many
_LONGEST_HEAD = 2**16


class WatchedProtocol(H11Protocol):
    """HTTP over a connection that is closed if no request has come in time, and refused if there are too many."""

    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.write(_HEAD % (len(_FULL), round(HEAD_SECONDS)) + _FULL)
            transport.close()
            return
        self._watch_anew()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch:
            self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._watch_anew()  # the server's own limit between two requests ends with the first byte of the second
        super().on_response_complete()

    def _watch_anew(self) -> None:
        if self._watch:
            self._watch.cancel()
        self._watch = self.loop.call_later(HEAD_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


OnStart = Callable[[], object] | None


def serve(
    app: ASGIApp, sock: socket.socket, *, grace: float, on_start: OnStart = None, proxies: Sequence[str] = ()
) -> None:
    """Serves on a bound socket; open answers get `grace` seconds to finish when it is to stop."""
    more_files()
    asyncio.run(server_for(app, grace, on_start, proxies).serve([sock]))


def serve_announced(
    app: ASGIApp, sock: socket.socket, what: str, lines: Sequence[str], notes: Sequence[str], grace: float, proxies: Any
) -> None:
    """Serves until it is stopped; prints what, where, and what whoever starts it should know."""

    def started() -> None:
        console.print(f"[bold green]Serving[/] {escape(what)}", highlight=False, soft_wrap=True)
        for line in lines:
            console.print(escape(f"  {line}"), highlight=False, soft_wrap=True)
        for text in notes:
            console.print(f"  [yellow]•[/] {escape(text)}", highlight=False, soft_wrap=True)

    serve(app, sock, grace=grace, on_start=started, proxies=proxies)
    console.print("Stopped.", highlight=False)


def server_for(app: ASGIApp, grace: float, on_start: OnStart = None, proxies: Sequence[str] = ()) -> uvicorn.Server:
    """The server, not yet started; it logs no requests. X-Forwarded-For is read only from `proxies` (or networks)."""
    config = uvicorn.Config(
        app,
        http=WatchedProtocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=[*proxies],
        h11_max_incomplete_event_size=_LONGEST_HEAD,
        backlog=_AT_ONCE,
        timeout_graceful_shutdown=max(1, round(grace)),
    )
    return _Server(config, on_start)


class _Server(uvicorn.Server):
    """A server that reports its start, and ends without raising the signal again that stopped it."""

    def __init__(self, config: uvicorn.Config, on_start: OnStart) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_IN_LINE)  # the loop has only one number for this and for how many it takes on at once
        if self.started and self._on_start:
            self._on_start()

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # it has been heard: nobody need stop a second time


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket for a host and a port; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError) as error:
        what = f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}."
        raise InputError(what, field="port", do="Give another with --host or --port; 0 takes a free port.") from None
    return found


def checked_proxies(given: Sequence[str]) -> tuple[str, ...]:
    """Addresses or networks of proxies that may say whom they ask for."""
    for one in given:
        try:
            ipaddress.ip_network(one)
        except ValueError:
            do = "Give one such as 127.0.0.1 or 10.0.0.0/8."
            raise InputError(f"'{one[:60]}' is no address or network.", field="proxy", do=do) from None
    return tuple(given)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host's address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def served_address(host: str, sock: socket.socket) -> str:
    """Where a server that listens on this socket is reached."""
    return f"http://{'[' + host + ']' if ':' in host else host}:{sock.getsockname()[1]}"


def served_hosts(host: str, more: Sequence[str]) -> tuple[str, ...]:
    """The names that the server goes by: on loopback this machine's only, so that no other page can borrow one."""
    own = ("localhost", "127.0.0.1", "::1", host) if is_loopback(host) else ()
    return (*own, *more)


def most_connections() -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if files == resource.RLIM_INFINITY else max(files - _KEPT_FILES, files // 2)


def more_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
