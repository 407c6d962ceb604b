"""A bad upstream beside good ones: what a flooding and a silent server do to twenty conversations with a third.

Three servers of OpenAI's kind are started in processes of their own: one streams a turn at a steady pace, one floods,
one only says that it is still there. Twenty clients talk with the good one through the guard, first alone, then while
others talk with the bad ones, and so on in turn; each asks again a second after an answer. All of it runs on one event
loop, as in `compeer serve`. Measured are the time to the first word, the time to the end, and how late the loop itself
comes; the ratio of the medians with and without the bad ones is what counts.

    python benchmarks/upstream.py [--conversations 20] [--turns 2] [--bad 2] [--rounds 2]

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

from compeer.chat import ReplyPart, TurnDone, TurnRequest
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.resolve import resolve_supporter
from compeer.chat.upstream import StreamCall
from compeer.dialogue import Utterance
from compeer.safety.detect import Detector
from compeer.safety.guard import Guard

TURN = """History: The job is gone and the rent is due. [exploration]
Emotion: Worry about the next weeks. [negative, anxiety, 4]
Strategy: First hear more of it. [Question]
Response: That is a lot at once. What worries you most about the next weeks?"""
PACE = 0.02
"""Seconds between two pieces of a good server."""
THINKING = 1.0
"""Seconds until somebody who was answered asks again."""


def serve(how: str, ready: Connection) -> None:
    """A server that streams a turn (good), without an end (floods), or nothing (silent)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            try:
                if how == "good":
                    for start in range(0, len(TURN), 8):
                        self._send(TURN[start : start + 8], None)
                        time.sleep(PACE)
                    self._send("", "stop")
                for number in itertools.count() if how != "good" else ():
                    if how == "floods":
                        self._send(f"{TURN} " if not number else f"And this is sentence number {number}. ", None)
                    else:
                        self.wfile.write(b": still here\n\n")
                        time.sleep(0.05)
            except OSError:
                pass

        def _send(self, text: str, finish: str | None) -> None:
            chunk = {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.send(server.server_port)
    server.serve_forever()


async def talk(supporter: GuardedSupporter, number: int) -> tuple[float, float]:
    """One turn: seconds to the first word of the reply, and to the end."""
    start = time.perf_counter()
    first = 0.0
    said = Utterance(speaker="seeker", text=f"Case {number}: I lost my job and the rent is due.")
    async for event in supporter.converse(TurnRequest((said,), seed=number)):
        if isinstance(event, ReplyPart) and not first:
            first = time.perf_counter() - start
        if isinstance(event, TurnDone):
            break
    return first, time.perf_counter() - start


async def lateness(found: list[float]) -> None:
    """How much later than asked for the loop comes back, again and again."""
    while True:
        start = time.perf_counter()
        await asyncio.sleep(0.01)
        found.append(time.perf_counter() - start - 0.01)


async def measure(good: GuardedSupporter, bad: list[GuardedSupporter], conversations: int, turns: int) -> Any:
    """Times of all turns of the good conversations, while as many others as given talk with bad servers."""
    late: list[float] = []

    async def disturb(supporter: GuardedSupporter) -> None:
        for number in itertools.count(10**6):
            await talk(supporter, number)
            await asyncio.sleep(THINKING)

    async def converse(client: int) -> list[tuple[float, float]]:
        times = []
        for turn in range(turns):
            await asyncio.sleep(THINKING * ((client / conversations) if not turn else 1))
            times.append(await talk(good, client * 1000 + turn))
        return times

    others = [asyncio.ensure_future(disturb(one)) for one in bad] + [asyncio.ensure_future(lateness(late))]
    await asyncio.sleep(0.5)
    times = await asyncio.gather(*(converse(client) for client in range(conversations)))
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return [one for many in times for one in many], late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--bad", type=int, default=2, help="conversations with each of the two bad servers")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    ports: dict[str, int] = {}
    running = []
    for how in ("good", "floods", "silent"):
        here, there = multiprocessing.Pipe()
        running.append(multiprocessing.Process(target=serve, args=(how, there), daemon=True))
        running[-1].start()
        ports[how] = here.recv()
    guard = Guard(Detector(classifier=None))

    def supporter(how: str) -> GuardedSupporter:
        call = StreamCall(concurrency=64, stream_seconds=5.0)
        return resolve_supporter(f"{how}@http://127.0.0.1:{ports[how]}/v1", guard, call=call)

    good, bad = supporter("good"), [supporter(how) for how in ("floods", "silent") for _ in range(given.bad)]
    asyncio.run(measure(good, [], 2, 1))  # rules and weights are read
    found: dict[str, list[Any]] = {"without": [], "with": []}
    for _ in range(given.rounds):
        found["without"].append(asyncio.run(measure(good, [], given.conversations, given.turns)))
        found["with"].append(asyncio.run(measure(good, bad, given.conversations, given.turns)))
    for process in running:
        process.terminate()

    def median(which: str, pick: Callable[[tuple[float, float]], float]) -> float:
        return statistics.median(pick(one) for times, _ in found[which] for one in times)

    result: dict[str, Any] = {"conversations": given.conversations, "turns": given.turns, "bad": 2 * given.bad}
    for name, place in (("first_word", 0), ("whole_turn", 1)):
        alone, beside = (median(which, lambda one, place=place: one[place]) for which in ("without", "with"))
        result[name] = {"without_s": round(alone, 3), "with_s": round(beside, 3), "ratio": round(beside / alone, 3)}
    result["loop_late_ms"] = {
        which: round(1000 * max(late for _, lates in found[which] for late in lates), 1) for which in found
    }
    print(json.dumps({**result, "machine": platform.machine(), "python": platform.python_version()}))


if __name__ == "__main__":
    main()
