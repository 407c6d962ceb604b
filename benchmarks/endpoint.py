"""How busy the endpoint client keeps a server that takes 300 ms for every answer, with 64 calls in flight.

The server is a process of its own that does next to nothing: it waits and sends prebuilt bytes. It could finish
64 / 0.3 = 213 requests a second; the share of that which it is given is the metric:

    busy = requests x 0.3 s / (64 x wall time)

Everything that a run does is in it: tasks, limits, the cache's keys and, unless told otherwise, storing every answer.

    python benchmarks/endpoint.py [--requests 2560] [--latency 0.3] [--no-cache]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from compeer.models import AnswerCache, CallSettings, EndpointModel, Generation, Request, Sampling

IN_FLIGHT = 64
WARM_UP = 4 * IN_FLIGHT
_BODY = json.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "That sounds heavy. What happened then? " * 8},
            }
        ],
        "usage": {"prompt_tokens": 300, "completion_tokens": 80, "total_tokens": 380},
    }
).encode()
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)


class _Slow(asyncio.Protocol):
    """Reads requests and answers each after the latency, with as little work as can be."""

    def __init__(self, latency: float) -> None:
        self._latency = latency

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._buffer = transport, b""
        self._later = asyncio.get_running_loop().call_later

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            length = int(head[head.index(b"content-length:") + 15 :].split(b"\r\n", 1)[0])
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._later(self._latency, self._transport.write, _REPLY)


def _serve(tell: Connection, latency: float) -> None:
    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(
            partial(_Slow, latency), "127.0.0.1", 0, backlog=4 * IN_FLIGHT
        )
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(forever())


@contextmanager
def slow_server(latency: float) -> Iterator[str]:
    """The base URL of a server in another process, which ends with the context."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, latency), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/v1"
    finally:
        process.kill()
        process.join()


async def _ask_all(model: EndpointModel, numbers: Iterator[int]) -> int:
    """Asks as a stage does: one request a call of `generate`, `at_once` of them under way."""

    async def work() -> int:
        good = 0
        for number in numbers:
            content = f"{number}. Seeker: I have not slept for days, and the rent is due on Friday. " * 15
            (answer,) = await model.generate(
                [Request(({"role": "user", "content": content},), seed=number)], Sampling()
            )
            good += isinstance(answer, Generation)
        return good

    return sum(await asyncio.gather(*(work() for _ in range(model.at_once))))


def measure(requests: int = 2_560, latency: float = 0.3, cached: bool = True) -> dict[str, Any]:
    """The busy share and what it was measured with."""

    async def timed(model: EndpointModel) -> tuple[float, float]:
        await _ask_all(model, iter(range(WARM_UP)))
        wall, cpu = time.perf_counter(), time.process_time()
        good = await _ask_all(model, iter(range(WARM_UP, WARM_UP + requests)))
        assert good == requests, model.counters
        return time.perf_counter() - wall, time.process_time() - cpu

    with slow_server(latency) as url, tempfile.TemporaryDirectory() as folder:
        cache = AnswerCache(Path(folder) / "answers.sqlite") if cached else None
        settings = CallSettings(concurrency=IN_FLIGHT, retries=0)
        wall, cpu = asyncio.run(timed(EndpointModel(url, "m", settings, cache)))
        if cache:
            cache.close()
    return {
        "busy_share": round(requests * latency / (IN_FLIGHT * wall), 4),
        "requests": requests,
        "in_flight": IN_FLIGHT,
        "latency_seconds": latency,
        "cached": cached,
        "wall_seconds": round(wall, 3),
        "requests_per_second": round(requests / wall, 1),
        "client_cpu_milliseconds_per_request": round(1000 * cpu / requests, 3),
        "load_average": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_560)
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--no-cache", action="store_true")
    arguments = parser.parse_args()
    json.dump(measure(arguments.requests, arguments.latency, not arguments.no_cache), sys.stdout, indent=1)
    print()
