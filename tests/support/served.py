"""An application on a real port, in a thread of its own, for tests; and how its answers are read."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
import uvicorn.server
from starlette.types import ASGIApp

from compeer.chat.app import ServeSettings
from compeer.web.serving import bound_socket, server_for

FREE = ServeSettings(rate=None)
Post = Callable[..., httpx.Response]
http = httpx.Client(verify=False, timeout=60)
"""One for all: to make a client takes longer than to ask."""


class _Impatient:
    """What uvicorn has for `asyncio`. It looks ten times a second whether it is to stop; here it looks more often."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = _Impatient()  # type: ignore[assignment]


@dataclass
class Served:
    """A running server."""

    url: str
    port: int
    server: uvicorn.Server
    thread: threading.Thread

    def stop(self) -> None:
        """Tells it to stop, as a signal would; returns at once."""
        self.server.should_exit = True

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextmanager
def served(app: ASGIApp, grace: float = 5, proxies: Sequence[str] = ()) -> Iterator[Served]:
    """Serves an application until the block ends."""
    sock = bound_socket("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = server_for(app, grace, proxies=proxies)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while not server.started and time.monotonic() < end:
        time.sleep(0.002)
    assert server.started, "the server did not start"
    try:
        yield Served(f"http://127.0.0.1:{port}", port, server, thread)
    finally:
        server.should_exit = True
        thread.join(60)


def poster(server: Served) -> Post:
    """Posts one message of the seeker, with more fields."""

    def posted(said: str = "Hello.", path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": said}], **more}
        return http.post(server.url + path, json=body)

    return posted


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end as agreed."""
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def text(chunks: list[dict[str, Any]], field: str = "content") -> str:
    """What a stream says, joined."""
    return "".join(chunk["choices"][0]["delta"].get(field) or "" for chunk in chunks if chunk["choices"])
