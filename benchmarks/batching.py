"""What batching gains: conversations answered one at a time against answered together, guard and all.

The same messages are sent by `--clients` clients at the same time, twice: to a supporter that writes one output at a
time, and to one that writes `--rows` together. Counted are the tokens that were written in a second, from the first
question to the last answer, and how long each client waited for the first sign of its answer. Drawn by the same seeds,
both should say the same; how often they do is reported, since rounding can turn a close draw. Where others use the
machine too, `cpu_seconds` tells more than the clock.

    python benchmarks/batching.py [--model embedded] [--clients 16] [--rows 8] [--max-tokens 160] [--turns 1]

Prints one JSON object; on a machine with a GPU the model is on it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from typing import Any

import torch

from compeer.chat import TurnDone, TurnRequest
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.local import LocalWriter
from compeer.corpora import read_corpus
from compeer.dialogue import Utterance, rounds_of
from compeer.engine.network import best_device
from compeer.models import Sampling
from compeer.safety import Guard


def histories(count: int, last: int = 3) -> list[tuple[Utterance, ...]]:
    """Histories of the sample corpus that no danger is found in, cut to their last utterances."""
    guard = Guard()
    found = []
    for one in (one for dialogue in read_corpus("sample") for one in rounds_of(dialogue)):
        said = [utterance.text for utterance in one.history[-last:] if utterance.speaker == "seeker"]
        if said and one.history[-1].speaker == "seeker" and guard.before(said).risk.level == "none":
            found.append(one.history[-last:])
        if len(found) == count:
            break
    return found


async def measured(supporter: GuardedSupporter, requests: list[TurnRequest], clients: int) -> dict[str, Any]:
    """All requests, by clients that each ask the next one when theirs is answered."""
    waiting = list(reversed(list(enumerate(requests))))
    done: dict[int, TurnDone] = {}
    first: list[float] = []

    async def client() -> None:
        while waiting:
            number, request = waiting.pop()
            asked, heard = time.perf_counter(), False
            async for event in supporter.converse(request):
                if not heard:
                    heard = True
                    first.append(time.perf_counter() - asked)
                if isinstance(event, TurnDone):
                    done[number] = event

    start, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds, used = time.perf_counter() - start, time.process_time() - used
    tokens = sum(one.tokens for one in done.values())
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(used, 2),
        "tokens": tokens,
        "tokens_a_second": round(tokens / seconds, 1),
        "first_sign_median_s": round(statistics.median(first), 2),
        "first_sign_longest_s": round(max(first), 2),
        "outputs": [one.reply for _, one in sorted(done.items())],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--turns", type=int, default=1, help="how many messages each client sends")
    told = parser.parse_args()
    sampling = Sampling(temperature=0.7, max_tokens=told.max_tokens)
    asked = histories(told.clients * told.turns)
    requests = [TurnRequest(history, sampling=sampling, seed=number) for number, history in enumerate(asked)]
    found: dict[str, Any] = {}
    for name, rows in (("one at a time", 1), ("together", told.rows)):
        supporter = LocalWriter(told.model, rows).supporter(Guard(), waiting=len(requests))
        warm_up = [TurnRequest(asked[0], sampling=Sampling(max_tokens=4))] * rows
        asyncio.run(measured(supporter, warm_up, rows))
        found[name] = asyncio.run(measured(supporter, requests, told.clients))
        supporter.close()
    alone, together = (found[name].pop("outputs") for name in ("one at a time", "together"))
    device = best_device()
    print(
        json.dumps(
            {
                "model": told.model,
                "clients": told.clients,
                "rows": told.rows,
                "max_tokens": told.max_tokens,
                **found,
                "gain": round(found["together"]["tokens_a_second"] / found["one at a time"]["tokens_a_second"], 2),
                "same_replies": sum(a == b for a, b in zip(alone, together, strict=True)) / len(alone),
                "device": torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU",
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
