"""Everything at once for a while: clients talk and annotators label while upstream, servers and disk fail.

Three processes on the loopback: an upstream that streams turns, and two chat servers before it, which keep their
conversations on disk. One server lives all the time, and its memory is measured; the other is killed (SIGKILL) and
started again. Every few seconds something fails: the upstream dies for a while, the second server is killed, or the
disk under the conversations is full. Meanwhile annotators work on label stores whose server is killed too
(`benchmarks/workbench.py`). Clients ask again until they are answered, as the page does. At the end must hold:

- every message of danger got its help reply, whatever was broken at that moment;
- what the guard remembers of a conversation survived every kill, since it lives with the client;
- every turn that was answered is kept on disk, but for those answered while the disk was full;
- no label that was acknowledged is lost, and `verify` finds each store whole;
- the memory of the server that lived all the time is flat.

    python benchmarks/soak.py [--seconds 600] [--clients 50] [--annotators 6]

Prints one JSON object; the exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
from benchmarks.workbench import simulate

from compeer.web.serving import bound_socket, serve

TURN = """History: The job is gone and the rent is due. [exploration]
Emotion: Worry about the next weeks. [negative, anxiety, 4]
Strategy: First hear more of it. [Question]
Response: That is a lot at once. What worries you most about the next weeks?"""
ORDINARY = (
    "I lost my job and the rent is due.",
    "My sister does not talk to me any more.",
    "I cannot sleep before the exam.",
    "We argue every evening.",
)
DANGER = ("I am going to kill myself tonight.", "I want to end my life.", "我想自杀")
HELP = ("988", "12356")
"""Numbers of the help lines that a reply names in this place, in English and in Chinese."""
TURNS = 6
"""Turns of a conversation; then another begins."""
THINKING = 1.0
FAULT_SECONDS = 3.0
"""Seconds between two faults, and how long one lasts at most."""
WARM = 0.3
"""Share of the time after which memory counts: caches and pools have filled by then."""


PRELOAD = ["benchmarks.workbench", "compeer.chat.app", "compeer.chat.resolve", "compeer.chat.upstream"]


# --- the processes ----------------------------------------------------------------------------------------------------


class Process:
    """A process that listens on a port of its own, and can be killed and started again."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        with bound_socket("127.0.0.1", 0) as sock:
            self.port = sock.getsockname()[1]
        self._target, self._arguments = target, arguments
        # Processes come from one that has loaded everything already, so that a start takes no longer than it must.
        self._made = multiprocessing.get_context("forkserver")
        self._made.set_forkserver_preload(PRELOAD)
        self._process: BaseProcess | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self._process = self._made.Process(target=self._target, args=(self.port, *self._arguments), daemon=True)
        self._process.start()
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/healthz", timeout=5)
                return
            except httpx.TransportError:
                if not self._process.is_alive():
                    raise RuntimeError("a process did not start") from None
                time.sleep(0.05)

    def kill(self) -> None:
        """Ends it at once, wherever it is."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def megabytes(self) -> float:
        """The memory that it holds."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def upstream(port: int) -> None:
    """Streams the same turn to everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            try:
                for start in range(0, len(TURN), 40):
                    self._send(TURN[start : start + 40], None)
                    time.sleep(0.02)
                self._send("", "stop")
            except OSError:
                pass

        def _send(self, text: str, finish: str | None) -> None:
            chunk = {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

        def log_message(self, *_: Any) -> None: ...

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def chat_server(port: int, address: str, folder: str) -> None:
    """A chat server before the upstream, which keeps its conversations in a folder."""
    import logging

    from compeer.chat.app import ServeSettings, create_app
    from compeer.chat.resolve import resolve_supporter
    from compeer.chat.upstream import StreamCall
    from compeer.safety.detect import Detector
    from compeer.safety.guard import Guard

    logging.disable()
    guard = Guard(Detector(classifier=None), locale="en-US")  # the load is about everything around the models
    call = StreamCall(concurrency=64, stream_seconds=10.0)
    supporter = resolve_supporter(f"soak@{address}", guard, call=call)
    settings = ServeSettings(rate=None, keep=Path(folder))
    serve(create_app(supporter, settings=settings), bound_socket("127.0.0.1", port), grace=1)


# --- the clients ------------------------------------------------------------------------------------------------------


class Log:
    """What the clients met."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.seconds: list[float] = []
        self.answered: list[tuple[str, float, float]] = []
        """The id of each answer, and when its request was sent and answered."""


async def client(number: int, ports: list[int], until: float, log: Log) -> None:
    """Holds one conversation after another until the time is over."""
    rng = random.Random(number)
    async with httpx.AsyncClient(timeout=30) as http:
        while time.time() < until:
            port = ports[number % len(ports)]
            await conversation(http, f"http://127.0.0.1:{port}/v1/chat/completions", rng, until, log)


async def conversation(http: httpx.AsyncClient, url: str, rng: random.Random, until: float, log: Log) -> None:
    messages: list[dict[str, str]] = []
    state, crises = "", 0
    for _ in range(TURNS):
        await asyncio.sleep(rng.uniform(0.5, 1.5) * THINKING)
        if time.time() >= until:
            return
        danger = rng.random() < 1 / TURNS
        messages.append({"role": "user", "content": rng.choice(DANGER if danger else ORDINARY)})
        body = {"messages": messages, "stream": rng.random() < 0.5} | ({"state": state} if state else {})
        reply, own = await answered(http, url, body, log)
        log.counts["turns"] += 1
        crises += danger
        if danger:
            log.counts["crisis_messages"] += 1
            helped = own["risk"] == "crisis" and any(number in reply for number in HELP)
            log.counts["crisis_helped"] += helped
            if not helped:
                log.problems.append(f"danger without help: {own['risk']}: {reply[:80]}")
        elif own.get("replaced") == "no reply":
            log.counts["safe_replies"] += 1
        if not reply.strip():
            log.problems.append("an empty reply")
        state = own["state"]
        remembered = len(json.loads(base64.urlsafe_b64decode(state))["answered"])
        if remembered < crises or (crises and not own["hide_reasoning"]):
            log.problems.append(f"the guard forgot: {remembered} of {crises}")
        messages.append({"role": "assistant", "content": reply})
    log.counts["conversations"] += 1


async def answered(http: httpx.AsyncClient, url: str, body: dict[str, Any], log: Log) -> tuple[str, dict[str, Any]]:
    """The reply and our own part of the answer, asked for again until there is one."""
    start = time.time()
    wait = 0.1
    while True:
        sent = time.time()
        try:
            answer = await http.post(url, json=body)
            if answer.status_code == 200 and (found := read(answer, bool(body["stream"]))) is not None:
                name, reply, own = found
                log.seconds.append(time.time() - start)
                log.answered.append((name, sent, time.time()))
                return reply, own
            log.counts[f"status {answer.status_code}"] += 1
            if answer.status_code not in (200, 429, 503):
                log.problems.append(f"{answer.status_code}: {answer.text[:200]}")
            wait = float(answer.headers.get("retry-after", wait))
        except httpx.TransportError:
            log.counts["asked_again"] += 1
        await asyncio.sleep(min(wait, 1.0))
        wait *= 2


def read(answer: httpx.Response, stream: bool) -> tuple[str, str, dict[str, Any]] | None:
    """The id, the reply and our own part of an answer; None if its stream broke off."""
    if not stream:
        found = answer.json()
        return found["id"], found["choices"][0]["message"]["content"], found["compeer"]
    reply, own, name = "", None, ""
    for line in answer.text.splitlines():
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            return None
        name, choice = chunk["id"], chunk["choices"][0]
        if chunk.get("compeer", {}).get("retracted"):
            reply = ""
        else:
            reply += choice["delta"].get("content") or ""
        if choice["finish_reason"]:
            own = {"replaced": None, "hide_reasoning": False} | chunk["compeer"]
    return (name, reply, own) if own is not None else None


# --- the faults -------------------------------------------------------------------------------------------------------


class Faults:
    """Lets something fail every few seconds, in turn."""

    def __init__(self, upstream: Process, second: Process, kept: list[Path], until: float) -> None:
        self._upstream, self._second, self._kept, self._until = upstream, second, kept, until
        self.counts: Counter[str] = Counter()
        self.full: list[tuple[float, float]] = []
        """When the disk was full."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failed: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        kinds = [("upstream died", self._cut), ("server killed", self._kill), ("disk full", self._fill)]
        number = 0
        while time.time() + 2 * FAULT_SECONDS < self._until:
            time.sleep(FAULT_SECONDS * (0.5 + random.random()))
            name, fault = kinds[number % len(kinds)]
            try:
                fault()
            except Exception as error:
                self.failed.append(f"{name}: {type(error).__name__}: {error}")
                return
            self.counts[name] += 1
            number += 1

    def _cut(self) -> None:
        self._upstream.kill()
        time.sleep(FAULT_SECONDS / 2)
        self._upstream.start()

    def _kill(self) -> None:
        self._second.kill()
        self._second.start()

    def _fill(self) -> None:
        """The day's files lead to /dev/full for a while, where every write finds no room."""
        start = time.time()
        name = f"{datetime.now(UTC):%Y-%m-%d}.jsonl"
        for number, folder in enumerate(self._kept):
            aside = folder / f"{name}.{number}.aside"
            if (folder / name).exists():
                os.replace(folder / name, aside)
            (folder / name).symlink_to("/dev/full")
        time.sleep(FAULT_SECONDS / 2)
        for number, folder in enumerate(self._kept):
            (folder / name).unlink()
            aside = folder / f"{name}.{number}.aside"
            if aside.exists():
                os.replace(aside, folder / name)
        self.full.append((start, time.time()))


# --- all of it --------------------------------------------------------------------------------------------------------


def soak(seconds: float, clients: int, annotators: int) -> dict[str, Any]:
    """Runs all of it for so long, and says what was found."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        kept = [Path(folder) / "first", Path(folder) / "second"]
        source = Process(upstream)
        address = f"http://127.0.0.1:{source.port}/v1"
        servers = [Process(chat_server, address, str(one)) for one in kept]
        try:
            for process in (source, *servers):
                process.start()
            return _soaked(seconds, clients, annotators, source, servers, kept, Path(folder))
        finally:
            for process in (source, *servers):
                process.kill()


def _warm(servers: list[Process]) -> None:
    """The first turn of a server reads the guard's rules and weights."""
    for server in servers:
        body = {"messages": [{"role": "user", "content": ORDINARY[0]}]}
        httpx.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body, timeout=120).raise_for_status()


def _soaked(
    seconds: float,
    clients: int,
    annotators: int,
    source: Process,
    servers: list[Process],
    kept: list[Path],
    folder: Path,
) -> dict[str, Any]:
    _warm(servers)
    until, log = time.time() + seconds, Log()
    faults = Faults(source, servers[1], kept, until)
    memory: list[float] = []
    labels: list[dict[str, Any]] = []

    def annotate() -> None:
        while time.time() < until:
            name = str(folder / f"labels-{len(labels)}.sqlite")
            labels.append(simulate(name, annotators, items=5 * annotators, kills=2))

    async def talk() -> None:
        ports = [server.port for server in servers]
        talking = asyncio.gather(*(client(number, ports, until, log) for number in range(clients)))
        while not talking.done():
            memory.append(servers[0].megabytes())
            await asyncio.wait({talking}, timeout=1)
        await talking

    annotating = threading.Thread(target=annotate, daemon=True)
    annotating.start()
    faults.start()
    asyncio.run(talk())
    faults.join()
    annotating.join()
    time.sleep(0.5)
    return _found(log, faults, memory, labels, kept) | {"seconds": seconds, "clients": clients}


def _found(
    log: Log, faults: Faults, memory: list[float], labels: list[dict[str, Any]], kept: list[Path]
) -> dict[str, Any]:
    there = {
        json.loads(line)["id"]
        for one in kept
        for path in one.iterdir()
        for line in path.read_text(encoding="utf-8").splitlines()
    }
    due = [
        name for name, sent, at in log.answered if not any(sent <= end and at >= begin for begin, end in faults.full)
    ]
    lost = [name for name in due if name not in there]
    problems = [*log.problems, *faults.failed, *(problem for one in labels for problem in one["problems"])]
    problems += [f"{len(lost)} turns were answered and not kept"] if lost else []
    warm = memory[int(WARM * len(memory)) :]
    early, late = (statistics.median(part) for part in (warm[: len(warm) // 3 or 1], warm[-(len(warm) // 3 or 1) :]))
    return {
        **dict(sorted(log.counts.items())),
        "faults": dict(sorted(faults.counts.items())),
        "turns_kept": len(due) - len(lost),
        "turns_lost": len(lost),
        "turns_while_the_disk_was_full": len(log.answered) - len(due),
        "first_labels": sum(one["first_labels"] for one in labels),
        "label_servers_killed": sum(one["kills"] for one in labels),
        "turn_median_seconds": round(statistics.median(log.seconds), 2),
        "turn_p95_seconds": round(statistics.quantiles(log.seconds, n=20)[-1], 2),
        "memory_early_mb": round(early, 1),
        "memory_late_mb": round(late, 1),
        "problems": problems[:20],
    }


def main() -> None:
    """Runs it and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--annotators", type=int, default=6)
    given = parser.parse_args()
    found = soak(given.seconds, given.clients, given.annotators)
    if found["memory_late_mb"] > 1.1 * found["memory_early_mb"]:
        found["problems"].append("the memory grows")
    found |= {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    print(json.dumps(found | {"python": platform.python_version(), "machine": platform.machine()}, indent=1))
    sys.exit(1 if found["problems"] else 0)


if __name__ == "__main__":
    main()
