"""A server under load: many clients ask at once for some minutes, and all that can go wrong is counted.

Starts `compeer serve` as a process of its own. Each client sends a message of its own, reads the streamed answer to the
end, and sends the next; one that is told to come back (429) waits as it was told. Counted are answers, refusals and
errors, the time to the first token of accepted requests, and the server's memory every ten seconds. Afterwards some
messages are sent again, one at a time: an answer that was somebody else's would show, since each has its own number.

    python benchmarks/load.py [--model supporter] [--clients 50] [--seconds 120] [--max-tokens 160]

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

import httpx
import psutil

THINGS = ("job", "exam", "cat", "sister", "flat", "friend", "boss", "neighbour", "knee", "car", "garden", "choir")
FEELINGS = ("tired", "angry", "sad", "worried", "ashamed", "lonely", "restless", "annoyed", "empty", "nervous")


def message(client: int, turn: int) -> str:
    """A message that no other client sends, in the first three turns of fifty clients also not in other words."""
    number = client + 50 * turn
    return (
        f"Case {number}: my {THINGS[number % 12]} is trouble again and I feel {FEELINGS[number // 12 % 10]} about it."
    )


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


async def loaded(load: Load, clients: int, seconds: float, server: psutil.Process) -> list[float]:
    """Runs the clients; the server's memory in megabytes, every ten seconds."""
    memory: list[float] = []
    end = time.monotonic() + seconds

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(round(server.memory_info().rss / 1e6))
            await asyncio.sleep(10)

    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(timeout=300, limits=limits, trust_env=False) as http:
        await asyncio.gather(watch(), *(load.client(http, number, end) for number in range(clients)))
    return memory


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
    parser.add_argument("--again", type=int, default=8, help="messages that are sent again, alone")
    told = parser.parse_args()
    command = [sys.executable, "-m", "compeer", "serve", "--model", told.model, "--judge", "none"]
    process = subprocess.Popen([*command, "--port", "8765", "--rate", "0"], stdout=subprocess.DEVNULL)
    load = Load("http://127.0.0.1:8765", told.max_tokens)
    try:
        _wait(load.url)
        asyncio.run(_warm_up(load.url, told.max_tokens))
        memory = asyncio.run(loaded(load, told.clients, told.seconds, psutil.Process(process.pid)))
        again = asyncio.run(replayed(load, told.again))
    finally:
        process.terminate()
        process.wait(60)
    first = sorted(load.first)
    print(
        json.dumps(
            {
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
                "memory_mb": memory,
                "machine": platform.machine(),
                "stopped_with": process.returncode,
            },
            indent=1,
        )
    )


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
