"""Lets the packaged supporter answer histories as people get it: quantised base, CPU engine, grammar and guard.

    python research/supporter/in_use.py WORK/use-contexts.jsonl OUT.jsonl [--model supporter-1.5b] [--count 40]
        [--best-of 4] [--share 2/5] [--at-once 3]

Languages take turns, so that a run that is ended early has both; it goes on where it was ended. `--share 2/5` answers
every fifth history from the second on, so that five processes share a file of contexts; `--at-once 3` answers three
histories together, as a service does. Each line is {"id", "number", "supporter", "text", "seconds", "replaced"}:
`replaced` says that the guard replied instead or held back a step. `reading.py` reads the file beside what a GPU wrote.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks for a GPU: people have none

from compeer.chat import GuardedSupporter, TurnDone, TurnRequest
from compeer.chat.resolve import resolve_judge, resolve_supporter
from compeer.chat.turn import SAMPLING
from compeer.dialogue import Utterance
from compeer.reasoning import render_turn
from compeer.safety import Guard


async def answer(supporter: GuardedSupporter, context: dict[str, Any], best_of: int) -> dict[str, Any]:
    """One turn, whole."""
    history = tuple(Utterance.model_validate(one) for one in context["history"])
    sampling = SAMPLING.model_copy(update={"temperature": 0.7}) if best_of > 1 else SAMPLING
    start = time.perf_counter()
    async for event in supporter.converse(TurnRequest(history, best_of=best_of, sampling=sampling)):
        if isinstance(event, TurnDone):
            text = render_turn(event.turn) if event.turn else f"Response: {event.reply}"
            seconds = round(time.perf_counter() - start, 1)
            return {"text": text, "replaced": event.turn is None, "seconds": seconds}
    raise RuntimeError("the turn did not end")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contexts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="supporter-1.5b")
    parser.add_argument("--count", type=int, default=40, help="histories of each language")
    parser.add_argument("--best-of", type=int, default=1, help="outputs that the packaged judge chooses from")
    parser.add_argument("--share", default="1/1", help="which part of the histories, of how many")
    parser.add_argument("--at-once", type=int, default=1, help="histories answered together")
    options = parser.parse_args()
    first, parts = map(int, options.share.split("/"))
    rows = [json.loads(line) for line in options.contexts.read_text(encoding="utf-8").splitlines()]
    chosen = [[row for row in rows if row["language"] == language][: options.count] for language in ("en", "zh")]
    done = {json.loads(line)["id"] for line in options.out.open(encoding="utf-8")} if options.out.is_file() else set()
    judge = resolve_judge("judge-1.5b") if options.best_of > 1 else None
    supporter = resolve_supporter(options.model, Guard(), judge)
    left = list(chain.from_iterable(zip(*chosen, strict=False)))[first - 1 :: parts]
    contexts = (row for row in left if row["id"] not in done)

    async def work(file: TextIO) -> None:
        for context in contexts:
            row = {"id": context["id"], "number": 0, "supporter": options.model}
            row |= await answer(supporter, context, options.best_of)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()

    async def all_of_it(file: TextIO) -> None:
        await asyncio.gather(*(work(file) for _ in range(options.at_once)))

    with options.out.open("a", encoding="utf-8") as file:
        asyncio.run(all_of_it(file))
    supporter.close()


if __name__ == "__main__":
    main()
