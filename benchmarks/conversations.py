"""How busy an evaluation keeps a server: 200 conversations at once against one that is slow and sometimes fails.

A server in a process of its own answers `--slots` calls at a time, each after `--seconds`; one call in twenty fails at
its first try, one in twenty takes five times as long. `compeer evaluate esc-eval` plays all its roles there. The share
of the server's slots that was in use between its first call and its last is what counts: 1 is all that it can give. The
last conversations cannot fill all slots, so it is never quite reached.

    python benchmarks/conversations.py [--dialogues 200] [--rounds 5] [--slots 16] [--seconds 0.1]

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from compeer.evaluate.answers import DIMENSIONS


class Server:
    """Answers so many calls at a time, and keeps count."""

    def __init__(self, slots: int, seconds: float) -> None:
        self._slots, self._seconds = asyncio.Semaphore(slots), seconds
        self._tried: Counter[bytes] = Counter()
        self.told: dict[str, float] = {"calls": 0, "errors": 0, "busy": 0.0, "first": 0.0, "last": 0.0, "twice": 0}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        while head := await _head(reader):
            if head[0].startswith(b"GET"):
                status, data = 200, json.dumps(self.told).encode()
            else:
                size = next(int(line.split(b":")[1]) for line in head if line.lower().startswith(b"content-length"))
                status, data = await self._answer(await reader.readexactly(size))
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)

    async def _answer(self, body: bytes) -> tuple[int, bytes]:
        asked = json.loads(body)
        kind = asked["seed"] % 20
        self._tried[body] += 1
        async with self._slots:
            start = time.monotonic()
            self.told["first"] = self.told["first"] or start
            await asyncio.sleep(self._seconds * (5 if kind == 7 else 1))
            self.told["last"] = time.monotonic()
            self.told["busy"] += self.told["last"] - start
        self.told["calls"] += 1
        if kind == 3 and self._tried[body] == 1:
            self.told["errors"] += 1
            return 500, b"{}"
        self.told["twice"] += self._tried[body] - (kind == 3) > 1
        text = f"Words {asked['seed']}."
        if "fluency" in asked["messages"][-1]["content"]:
            text = json.dumps({"reason": "so", **dict.fromkeys(DIMENSIONS, asked["seed"] % 5)})
        answer = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
        return 200, json.dumps(answer | {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}).encode()


async def _head(reader: asyncio.StreamReader) -> list[bytes]:
    lines = []
    while (line := await reader.readline()) not in (b"\r\n", b""):
        lines.append(line)
    return lines


async def _serve(slots: int, seconds: float) -> None:
    server = await asyncio.start_server(Server(slots, seconds).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _told(port: int) -> dict[str, Any]:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--dialogues", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=0.1, help="that a call takes")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(options.slots, options.seconds))
        return
    serving = [sys.executable, __file__, "--serve", "--slots", str(options.slots), "--seconds", str(options.seconds)]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout
        port = int(server.stdout.readline())
        cards = Path(folder) / "cards.json"
        people = [{"id": number, "base": f"Person {number}.", "language": "en"} for number in range(options.dialogues)]
        cards.write_text(json.dumps(people), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "compeer",
            "evaluate",
            "esc-eval",
            "--endpoint",
            f"m@http://127.0.0.1:{port}/v1",
        ]
        command += ["--cards", str(cards), "--rounds", str(options.rounds), "--one-call", "--yes"]
        command += ["--at-once", str(options.slots), "--out", str(Path(folder) / "run"), "--call", "first_pause=0.05"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        told = _told(port)
        server.kill()
        scores = [json.loads(line) for line in (Path(folder) / "run" / "scores.jsonl").read_text().splitlines()]
    wall = told["last"] - told["first"]
    found = {
        "settings": {key: value for key, value in vars(options).items() if key != "serve"},
        "dialogues_scored": sum(not one["failed"] for one in scores),
        "calls": told["calls"],
        "errors": told["errors"],
        "answered_twice": told["twice"],
        "seconds": round(wall, 2),
        "busy_share": round(told["busy"] / (options.slots * wall), 3),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
