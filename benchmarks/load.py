"""A server under load: many clients ask at once for some minutes, and all that can go wrong is counted.

Starts `compeer serve` as a process of its own. Each client sends a message of its own, reads the streamed answer to the
end, and sends the next; one that is told to come back (429) waits as it was told. Counted are answers, refusals and
errors, the time to the first token of accepted requests, and the server's memory every ten seconds. Afterwards some
messages are sent again, one at a time: an answer that was somebody else's would show, since each has its own number.

With `--sockets` so many connections more are held open all the while by somebody who means no good: silent ones, and
some that send a request byte by byte and never to its end. One that the server ends is opened anew. How they ended and
how many files the server had open, before, during and after, is told too.

    python benchmarks/load.py [--model supporter] [--clients 50] [--seconds 120] [--max-tokens 160] [--sockets 1000]

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
import psutil

from compeer.web.serving import more_files

THINGS = ("job", "exam", "cat", "sister", "flat", "friend", "boss", "neighbour", "knee", "car", "garden", "choir")
FEELINGS = ("tired", "angry", "sad", "worried", "ashamed", "lonely", "restless", "annoyed", "empty", "nervous")


def message(client: int, turn: int) -> str:
    """A message that no other client sends, in the first three turns of fifty clients also not in other words."""
    number = client + 50 * turn
    return (
        f"Case {number}: my {THINGS[number % 12]} is trouble again and I feel {FEELINGS[number // 12 % 10]} about it."
    )


_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
UNFINISHED = {
    "silent": b"",
    "half a head": _HEAD,
    "half a body": _HEAD + b"Content-Length: 900\r\n\r\n{",
    "half a head after an answer": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + _HEAD,
}
_DRIBBLE_SECONDS = 2.0
_SETTLE_SECONDS = 7.0
"""After the last request: the server lets connections stand for a while in case more is asked."""


class Idlers:
    """Connections that never ask for anything, and what the server did with them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.open = 0
        self.ended: dict[str, list[float]] = {kind: [] for kind in UNFINISHED}
        self.told: Counter[str] = Counter()

    async def hold(self, number: int, end: float) -> None:
        """Holds one connection open until the end, and opens it anew as often as the server ends it."""
        kind = list(UNFINISHED)[number % len(UNFINISHED)]
        while time.monotonic() < end:
            start = time.monotonic()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError as error:
                self.told[f"not opened: {type(error).__name__}"] += 1
                await asyncio.sleep(1)
                continue
            self.open += 1
            try:
                if await self._dribble(kind, reader, writer, end):
                    self.ended[kind].append(time.monotonic() - start)
            finally:
                self.open -= 1
                writer.close()

    async def _dribble(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, end: float) -> bool:
        """Whether the server ended it before we did."""
        try:
            writer.write(UNFINISHED[kind])
            while time.monotonic() < end:
                try:
                    async with asyncio.timeout(_DRIBBLE_SECONDS):
                        line = await reader.readline()
                except TimeoutError:
                    if UNFINISHED[kind]:
                        writer.write(b"x")
                    continue
                if not line:
                    return True
                if line.startswith(b"HTTP/"):
                    self.told[f"{kind}: {line.split()[1].decode()}"] += 1
        except OSError:
            return True
        return False

    def found(self) -> dict[str, object]:
        """How they ended, by kind."""
        ended = {
            kind: {
                "times": len(after),
                "median_s": _rounded(statistics.median(after)),
                "longest_s": _rounded(max(after)),
            }
            for kind, after in self.ended.items()
            if after
        }
        return {"ended_by_the_server": ended, "told": dict(sorted(self.told.items()))}


class Load:
    """What happened to all requests."""

    def __init__(self, url: str, max_tokens: int) -> None:
        self.url, self.max_tokens = url, max_tokens
        self.first: list[float] = []
        self.whole: list[float] = []
        self.answers: dict[str, str] = {}
        self.refused = 0
        self.errors: list[str] = []

    async def ask(self, http: httpx.AsyncClient, said: str) -> float | None:
        """Asks once; None, or after how many seconds to ask again."""
        body = {
            "messages": [{"role": "user", "content": said}],
            "stream": True,
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        start, ids, text, ended = time.perf_counter(), set(), "", False
        try:
            async with http.stream("POST", f"{self.url}/v1/chat/completions", json=body) as response:
                if response.status_code == 429:
                    self.refused += 1
                    return float(response.headers["retry-after"])
                if response.status_code != 200:
                    self.errors.append(f"status {response.status_code}")
                    return 1.0
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        ended = True
                    elif line.startswith("data: "):
                        chunk = json.loads(line.removeprefix("data: "))
                        if "error" in chunk:
                            self.errors.append(str(chunk["error"].get("code")))
                            return 1.0
                        ids.add(chunk["id"])
                        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
                        piece = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
                        if piece and not text:
                            self.first.append(time.perf_counter() - start)
                        text += piece
        except httpx.HTTPError as error:
            self.errors.append(type(error).__name__)
            return 1.0
        if not ended or len(ids) != 1:
            self.errors.append("an answer without an end" if not ended else "two answers in one")
        else:
            self.whole.append(time.perf_counter() - start)
            self.answers[said] = text
        return None

    async def client(self, http: httpx.AsyncClient, number: int, end: float) -> None:
        turn = 0
        while time.monotonic() < end:
            wait = await self.ask(http, message(number, turn))
            if wait is None:
                turn += 1
            else:
                await asyncio.sleep(wait)


@dataclass
class Watched:
    """What was seen of the server, every ten seconds."""

    memory_mb: list[float] = field(default_factory=list)
    open_files: list[int] = field(default_factory=list)
    idlers_open: list[int] = field(default_factory=list)


async def loaded(
    load: Load, clients: int, seconds: float, idlers: Idlers, sockets: int, server: psutil.Process
) -> Watched:
    """Runs the clients, and as many idlers as there are to be."""
    seen = Watched()
    end = time.monotonic() + seconds

    async def watch() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(min(10, max(0, end - time.monotonic())))
            seen.memory_mb.append(round(server.memory_info().rss / 1e6))
            seen.open_files.append(server.num_fds())
            seen.idlers_open.append(idlers.open)

    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(timeout=300, limits=limits, trust_env=False) as http:
        await asyncio.gather(
            watch(),
            *(load.client(http, number, end) for number in range(clients)),
            *(idlers.hold(number, end) for number in range(sockets)),
        )
    return seen


async def replayed(load: Load, count: int) -> dict[str, int]:
    """Sends some of the messages again, alone: whether the answers are the same, or at least of the same matter."""
    alone = Load(load.url, load.max_tokens)
    chosen = list(load.answers)[:: max(1, len(load.answers) // count)][:count]
    async with httpx.AsyncClient(timeout=300, trust_env=False) as http:
        for said in chosen:
            while (wait := await alone.ask(http, said)) is not None:
                await asyncio.sleep(wait)
    found = {"sent_again": len(chosen), "same": 0, "of_another": 0}
    for said in chosen:
        found["same"] += load.answers[said] == alone.answers.get(said)
        others = {other for other in load.answers if other != said and load.answers[other] == alone.answers.get(said)}
        found["of_another"] += bool(others) and load.answers[said] != alone.answers.get(said)
    return found


def mixed_up(answers: dict[str, str]) -> int:
    """Answers that quote the number of a case which is not theirs."""
    return sum(
        any(found != said.split(":")[0].split()[1] for found in re.findall(r"[Cc]ase (\d+)", text))
        for said, text in answers.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="supporter")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--sockets", type=int, default=0, help="connections more that never finish a request")
    parser.add_argument("--again", type=int, default=8, help="messages that are sent again, alone")
    told = parser.parse_args()
    command = [sys.executable, "-m", "compeer", "serve", "--model", told.model, "--judge", "none"]
    process = subprocess.Popen([*command, "--port", "8765", "--rate", "0"], stdout=subprocess.DEVNULL)
    load, idlers = Load("http://127.0.0.1:8765", told.max_tokens), Idlers(8765)
    server = psutil.Process(process.pid)
    more_files()
    try:
        _wait(load.url)
        asyncio.run(_warm_up(load.url, told.max_tokens))
        before = server.num_fds()
        seen = asyncio.run(loaded(load, told.clients, told.seconds, idlers, told.sockets, server))
        again = asyncio.run(replayed(load, told.again))
        time.sleep(_SETTLE_SECONDS)
        files = {"before": before, "during": seen.open_files, "after": server.num_fds()}
        healthy = httpx.get(f"{load.url}/healthz", trust_env=False).json()["status"]
    finally:
        process.terminate()
        process.wait(60)
    first = sorted(load.first)
    print(
        json.dumps(
            {
                "command": " ".join(["python", *sys.argv]),
                "settings": vars(told),
                "answers": len(load.answers),
                "refused": load.refused,
                "errors": {name: load.errors.count(name) for name in set(load.errors)},
                "quoting_another_case": mixed_up(load.answers),
                **again,
                "first_token_s": {
                    "median": round(statistics.median(first), 2),
                    "p95": round(first[int(0.95 * len(first))], 2),
                    "longest": round(first[-1], 2),
                },
                "whole_answer_median_s": round(statistics.median(load.whole), 2),
                "memory_mb": seen.memory_mb,
                "server_open_files": files,
                "sockets": {"open": seen.idlers_open, **idlers.found()} if told.sockets else None,
                "healthz_afterwards": healthy,
                "machine": platform.machine(),
                "stopped_with": process.returncode,
            },
            indent=1,
        )
    )


def _rounded(seconds: float) -> float:
    return round(seconds, 1)


def _wait(url: str) -> None:
    for _ in range(240):
        try:
            if httpx.get(f"{url}/healthz", trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise SystemExit("the server did not start")


async def _warm_up(url: str, max_tokens: int) -> None:
    async with httpx.AsyncClient(timeout=300, trust_env=False) as http:
        await Load(url, max_tokens).ask(http, "Hello there.")


if __name__ == "__main__":
    main()
