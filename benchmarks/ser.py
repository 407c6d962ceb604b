"""How the stages without a model grow with the corpus, and how busy the endpoint client keeps a server.

Two corpora are made up, one ten times the size of the other, and each is built in a process of its own: screen, split,
sample, silver. Time should grow tenfold, memory should not grow. Memory is the greatest sum over the process and its
workers of what each has in memory for itself (USS, where the system tells).

    python benchmarks/ser.py [--dialogues 10000 100000] [--workers 2] [--skip-endpoint]

Neighbours are found by words, not by the sentence model, whose time is constant for a text and would hide the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from compeer.corpora import read_corpus
from compeer.dialogue import Dialogue
from compeer.reasoning import EMOTIONS, STRATEGIES

ROUNDS_SAMPLED = 2
_BUILD = """
import sys
from pathlib import Path
from compeer.ser.build import BuildSettings, build_records
if __name__ == "__main__":
    settings = BuildSettings(embedder="words", rounds=int(sys.argv[4]))
    build_records([sys.argv[1]], Path(sys.argv[2]), settings, 0, workers=int(sys.argv[3]))
"""


def made_up(count: int, path: Path) -> None:
    """A corpus of dialogues whose sentences are those of the sample corpus, their words shuffled among them."""
    rng = random.Random(count)
    said = [
        (utterance.text.split(), dialogue.language)
        for dialogue in read_corpus("sample")
        for utterance in dialogue.utterances
        if dialogue.language == "en"
    ]
    vocabulary = [word for words, _ in said for word in words]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            utterances: list[dict[str, Any]] = []
            for _ in range(rng.randint(4, 7)):
                for speaker in ("seeker", "supporter"):
                    text = " ".join(rng.choices(vocabulary, k=rng.randint(5, 20))) + rng.choice(
                        [".", "?", ". And so on it goes."]
                    )
                    labels = {"strategy": rng.choice(STRATEGIES)} if speaker == "supporter" else {}
                    utterances.append({"speaker": speaker, "text": text, **labels})
            value = {
                "id": f"made-{number}",
                "language": "en",
                "source": "made-up",
                "emotion": rng.choice(EMOTIONS),
                "intensity": {"initial": rng.randint(3, 5), "final": rng.randint(1, 2)},
                "utterances": utterances,
            }
            file.write(Dialogue.model_validate(value).model_dump_json(exclude_defaults=True) + "\n")


def _memory(process: psutil.Process) -> int:
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().uss
        except psutil.Error:  # it ended meanwhile
            continue
    return total


def build(count: int, workers: int) -> dict[str, float]:
    """Seconds and greatest memory of one build."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, out, code = Path(folder) / "corpus.jsonl", Path(folder) / "out", Path(folder) / "build.py"
        out.mkdir()
        code.write_text(_BUILD, encoding="utf-8")
        made_up(count, corpus)
        most, done = 0, threading.Event()
        start = time.monotonic()
        command = [sys.executable, str(code), str(corpus), str(out), str(workers), str(ROUNDS_SAMPLED)]
        running = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        process = psutil.Process(running.pid)

        def watch() -> None:
            nonlocal most
            while not done.wait(0.25):
                try:
                    most = max(most, _memory(process))
                except psutil.Error:
                    return

        thread = threading.Thread(target=watch)
        thread.start()
        code_returned = running.wait()
        seconds = time.monotonic() - start
        done.set()
        thread.join()
        if code_returned:
            raise SystemExit("the build failed")
        lines = sum(1 for _ in (out / "records.jsonl").open("rb"))
    return {"dialogues": count, "records": lines, "seconds": round(seconds, 1), "memory_mb": round(most / 2**20, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, nargs=2, default=[10_000, 100_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--skip-endpoint", action="store_true")
    given = parser.parse_args()
    small, large = (build(count, given.workers) for count in given.dialogues)
    found: dict[str, Any] = {
        "builds": [small, large],
        "time_ratio": round(large["seconds"] / small["seconds"], 2),
        "memory_ratio": round(large["memory_mb"] / small["memory_mb"], 2),
        "workers": given.workers,
        "machine": {"platform": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
    }
    if not given.skip_endpoint:
        from endpoint import measure

        found["endpoint"] = measure()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
