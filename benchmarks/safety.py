"""What looking for danger costs: a message with the small and the packaged reader, and a long one beside a short one.

Every message of the open safety cases is looked at alone, as one more message of a conversation would be, one after the
other in one process; a first round warms up and does not count. A detector remembers what it has read, so each message
is numbered anew each time. Then a message of a megabyte, of ordinary words and of words that the rules must look at
twice, beside a short one. The output check is measured on the replies of the cases.

    python benchmarks/safety.py [--repeats 3] [--threads 2] [--megabytes 1]

Prints one JSON object; times in milliseconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from compeer.evaluate.safety import cases_path, read_cases
from compeer.safety import Detector, check_reply

ORDINARY = "We moved here in spring and the evenings are long. 我们春天搬来这里，晚上很漫长。 "
BUSY = "I don't want to say that he said that I would never think that I want to die. 我没有说我不是不想活了。 "
NUMBERS = itertools.count(1)


def milliseconds(work: Callable[[str], object], texts: Sequence[str], repeats: int) -> list[float]:
    """The time of each call, a text a call, never the same text twice; the first round does not count."""
    times = []
    for repeat in range(repeats + 1):
        for text in texts:
            text = f"{next(NUMBERS)}. {text}"
            start = time.perf_counter()
            work(text)
            if repeat:
                times.append((time.perf_counter() - start) * 1000)
    return times


def summary(times: Sequence[float]) -> dict[str, float]:
    """The median, the 95th percentile and the longest."""
    return {
        "median": round(statistics.median(times), 3),
        "p95": round(statistics.quantiles(times, n=20)[-1], 3),
        "longest": round(max(times), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="threads of the embedder")
    parser.add_argument("--megabytes", type=float, default=1, help="size of the very long message")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = read_cases(cases_path("open"))
    messages = [message for case in cases if case.reply is None for message in case.messages]
    replies = [case.reply for case in cases if case.reply is not None]
    detectors = {"small_reader": Detector(classifier=None), "packaged": Detector()}
    found: dict[str, object] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "settings": vars(options),
        "messages": len(messages),
    }
    for name, detector in detectors.items():
        found[name] = {
            **summary(milliseconds(detector.detect, messages, options.repeats)),
            "degraded": list(detector.detect(messages[0]).degraded),
        }
    found["output_check"] = summary(milliseconds(check_reply, replies, options.repeats))
    size = int(options.megabytes * 10**6)
    for name, text in (("ordinary", ORDINARY), ("busy", BUSY)):
        long = (text * (size // len(text.encode()) + 1)).encode()[:size].decode(errors="ignore")
        found[f"long_{name}"] = {
            "short": {one: round(milliseconds(d.detect, [text], 1)[0], 3) for one, d in detectors.items()},
            "long": {one: round(milliseconds(d.detect, [long], 1)[0], 1) for one, d in detectors.items()},
            "long_output_check": round(milliseconds(check_reply, [long], 1)[0], 1),
            "degraded": {one: list(d.detect(long).degraded) for one, d in detectors.items()},
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
