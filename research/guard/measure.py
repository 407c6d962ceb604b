"""Measures the guard on the conversations of this folder, and whether a busy machine changes its answers.

    python research/guard/measure.py tune --json tune.json          # as often as you like
    python research/guard/measure.py sealed --json sealed.json      # once, after thresholds are frozen in a commit
    python research/guard/measure.py replies --part held_out        # bad and good replies that nothing was learnt from
    python research/guard/measure.py load --processes 8             # the 200 shortest conversations, idle and busy
    … --small                                                       # without the large reader
    … --recorded ASKED ANSWERS [SECOND]                             # the large reader's answers, computed on a GPU

On a CPU the large reader takes seconds a message; `prepare.py` writes the windows and replies that are measured, a GPU
job answers them, and `--recorded` reads both. Writes counts and ids, never texts. Of replies `tune` may be looked at;
`sealed`, of replies too, is measured once: it refuses to run where files are changed that are not committed, and names
the commit. `load` compares the levels of 200 conversations with and without so many busy processes beside, and with
recorded ones.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import operator
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from prepare import FOLDER, Reply, Text, read_conversations, read_replies
from train import by_weights, measure_replies

from compeer.errors import InputError
from compeer.evaluate.safety import SafetyCase, measure_detection
from compeer.io import write_json
from compeer.safety import Detector
from compeer.safety.large import (
    as_finding,
    as_guess,
    is_unsure,
    kept_finding,
    large_reader,
    mean,
    packaged_folder,
    reply_prompt,
)
from compeer.safety.output import check_rules
from compeer.safety.output_phrases import ReplyPhrases
from compeer.safety.reader import Guess, Reads, Window

KIND = {"several": "multi-turn"}
ROOT = Path(__file__).parents[2]


def as_case(text: Text) -> SafetyCase:
    """A conversation as a case of the suite."""
    return SafetyCase(
        id=text.id,
        language=text.language,
        kind=KIND.get(text.manner, text.manner),  # type: ignore[arg-type]
        risk=text.kind,
        expected=text.level,
        messages=text.messages,
        writer=text.writer,
    )


def commit(clean: bool) -> str:
    """The commit that is checked out; an error if `clean` is wanted and something is not committed."""
    run = ["git", "-C", str(ROOT)]
    changed = subprocess.run([*run, "status", "--porcelain", "src", "research/guard"], capture_output=True, text=True)
    if clean and changed.stdout.strip():
        raise InputError("there are changes that are not committed.", do="Freeze everything in a commit first.")
    found = subprocess.run([*run, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return found + (" with changes" if changed.stdout.strip() else "")


class Recorded:
    """The large reader's answers to windows, as a GPU job wrote them; thresholds as packaged."""

    whole = True

    def __init__(self, windows: Path, levels: Path, second: Path | None = None) -> None:
        asked, first, other = (_lines(path) for path in (windows, levels, second or levels))
        for one, again in zip(first, other, strict=True):
            if is_unsure(one["levels"][0]):
                one["levels"] = mean(one["levels"], again["levels"])
        self._found = {tuple(window["messages"]): one for window, one in zip(asked, first, strict=True)}
        card = json.loads((packaged_folder() / "compeer.json").read_text("utf-8"))
        self._thresholds = card["thresholds"]

    def read(self, windows: Sequence[Window]) -> list[Guess]:
        """A guess for each window; an error names no text."""
        found = [(self._found[tuple(window)], tuple(window)) for window in windows]
        return [as_guess(one["levels"], one["kinds"], self._thresholds, own) for one, own in found]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def measure(part: str, reader: Reads | Literal["packaged"] | None, name: str) -> dict[str, object]:
    """All metrics of a part."""
    made = commit(clean=part == "sealed")
    cases = [as_case(text) for text in read_conversations(part)]
    detector = Detector(reader)
    start = time.perf_counter()
    found = measure_detection(cases, detector)
    seconds = time.perf_counter() - start
    for group, by in {**found.recall, **{f"false alarms, {k}": v for k, v in found.false_alarms.items()}}.items():
        counts = {name: f"{round((one.value or 0) * one.n)} of {one.n}" for name, one in sorted(by.items())}
        print(f"{group:40} {counts}")
    print(f"levels {found.levels}")
    settings = {"part": part, "commit": made, "reader": name, "machine": platform.machine()}
    return {**settings, "seconds": round(seconds, 1), **found.model_dump()}


def recorded_check(asked: Path, answers: Path, second: Path | None = None) -> Callable[[Reply], bool]:
    """Rejects as `check_carefully` does, by recorded probabilities."""
    rows = zip(*(_lines(path) for path in (asked, answers, second or answers)), strict=True)
    found = {
        json.dumps(one["prompt"]): mean(first["words"], other["words"])
        if is_unsure(first["words"][0])
        else first["words"]
        for one, first, other in rows
    }
    thresholds = json.loads((packaged_folder() / "compeer.json").read_text("utf-8"))["reply_thresholds"]

    def rejects(reply: Reply) -> bool:
        own = found[json.dumps(reply_prompt((reply.seeker,), reply.text))]
        by_rule = kept_finding(check_rules(reply.text, [reply.seeker]), own[0])
        return (as_finding(own, thresholds) or by_rule) is not None

    return rejects


def packaged_check() -> Callable[[Reply], bool]:
    """Rejects as chat and serve do where the large reader is on this machine."""
    if (large := large_reader()) is None:
        raise InputError("the large reader is not on this machine.", do="Run `compeer models get qwen-1.5b`.")
    return lambda reply: large.fault(reply.text, [reply.seeker], check_rules(reply.text, [reply.seeker])) is not None


def _busy() -> None:
    while True:
        sum(range(1_000_000))


def under_load(processes: int, recorded: Reads | None) -> dict[str, object]:
    """Whether the 200 shortest conversations get the same levels and reasons with busy processes beside."""
    chosen = sorted(read_conversations("tune"), key=lambda text: sum(map(len, text.messages)))[:200]
    talks = [text.messages for text in chosen]
    start = time.perf_counter()
    idle = [Detector().detect(messages) for messages in talks]
    between = time.perf_counter()
    others = [multiprocessing.Process(target=_busy, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        busy = [Detector().detect(messages) for messages in talks]
    finally:
        for other in others:
            other.terminate()
    seconds = {"idle": round(between - start, 1), "busy": round(time.perf_counter() - between, 1)}
    found = {"conversations": len(talks), "messages": sum(map(len, talks)), "processes": processes, "seconds": seconds}
    found |= {"same": sum(map(operator.eq, idle, busy)), "degraded": sum(bool(risk.degraded) for risk in busy)}
    if recorded:
        kept = (Detector(recorded).detect(messages) for messages in talks)
        found["level_as_recorded"] = sum(one.level == other.level for one, other in zip(idle, kept, strict=True))
    return {"commit": commit(clean=False), "machine": platform.machine(), **found}


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "sealed", "replies", "load"))
    parser.add_argument("--small", action="store_true", help="without the large reader")
    parser.add_argument("--recorded", type=Path, nargs="+", metavar="ASKED ANSWERS [SECOND]")
    parser.add_argument("--part", choices=("held_out", "tune", "sealed"), default="held_out", help="of the replies")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.what == "load":
        found = under_load(options.processes, Recorded(*options.recorded) if options.recorded else None)
        print(json.dumps(found))
    elif options.what == "replies":
        if options.recorded:
            rejects = recorded_check(*options.recorded)
        else:
            rejects = by_weights(ReplyPhrases()) if options.small else packaged_check()
        made = commit(clean=options.part == "sealed")
        found = measure_replies(read_replies(FOLDER / "texts" / "replies" / options.part), rejects)
        found = {"part": options.part, "commit": made, "check": "small" if options.small else "large", **found}
    else:
        reader: Reads | Literal["packaged"] | None = "packaged"
        if options.small or options.recorded:
            reader = Recorded(*options.recorded) if options.recorded else None
        name = "small" if options.small else "large, recorded" if options.recorded else "packaged"
        found = measure(options.what, reader, name)
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()
