"""What ESC-Eval and SAGE take on one core with the packaged models in all roles, and how these play.

    OMP_NUM_THREADS=1 python research/results/evaluation/measure.py esc-eval FOLDER   esc_eval_cpu.json beside this file
    OMP_NUM_THREADS=1 python research/results/evaluation/measure.py sage FOLDER          sage_cpu.json

FOLDER is a new one, as what is done is not done again. Seconds are those of the processor, so that other work on the
machine counts little.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from compeer.io import read_json_lines

SCENARIOS = 1


def evaluated(protocol: str, folder: Path) -> dict[str, Any]:
    """Runs an evaluation of few scenarios: what it took, and what can be said of its scores."""
    options = ["--limit", str(SCENARIOS), "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "compeer", "evaluate", protocol, *options], check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    told = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    lines = [value for _, value in read_json_lines(folder / "scores.jsonl")]
    return {
        "scenarios": SCENARIOS,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "versions": told["versions"],
        "seconds": round(seconds),
        "minutes": round(seconds / 60, 1),
        "calls": {role: one["calls"] for role, one in told["cost"]["roles"].items()},
        "answers_asked_for_again": _refused(folder),
        **(_emotions(lines) if protocol == "sage" else _dimensions(lines)),
    }


def _refused(folder: Path) -> int:
    """How many answers of either side could not be used."""
    logs = [value for path in (folder / "dialogues").glob("*.jsonl") for _, value in read_json_lines(path)]
    return sum("complaint" in call for entry in logs for call in entry.get("calls", ()))


def _dimensions(lines: list[Any]) -> dict[str, Any]:
    scored = [dimensions for line in lines for dimensions in line["judges"].values()]
    return {"scored": len(scored), "one_score_in_all_dimensions": sum(len(set(one.values())) == 1 for one in scored)}


def _emotions(lines: list[Any]) -> dict[str, Any]:
    return {
        "analyses": sum(len(line["emotions"]) - 1 for line in lines),
        "emotions": [line["emotions"] for line in lines],
    }


if __name__ == "__main__":
    chosen, where = sys.argv[1:]
    found = json.dumps(evaluated(chosen, Path(where)), indent=1)
    Path(__file__).with_name(f"{chosen.replace('-', '_')}_cpu.json").write_text(found + "\n", encoding="utf-8")
