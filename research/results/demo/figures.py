"""What a run of a recipe took and found, from its manifests.

python research/results/demo/figures.py runs/demo > research/results/demo/run.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STEPS = ("history", "emotion", "strategy")


def run_figures(run: Path) -> dict[str, Any]:
    """Seconds by stage, and the figures that people ask for first."""
    stages = [path.parent.name for path in sorted(run.glob("?-*/manifest.json"))]
    manifests = {name: json.loads((run / name / "manifest.json").read_text(encoding="utf-8")) for name in stages}
    seconds = {name: manifest["times"]["seconds"] for name, manifest in manifests.items()}
    found = manifests["5-evaluate"]["figures"]
    judge = found["judge"]
    return {
        "seconds": seconds,
        "minutes": {name: round(value / 60, 1) for name, value in {**seconds, "all": sum(seconds.values())}.items()},
        "versions": manifests["5-evaluate"]["versions"],
        "machine": manifests["5-evaluate"]["machine"],
        "judge": {
            "records": judge["records"],
            "balanced_accuracy": {step: judge[step]["balanced_accuracy"] for step in STEPS},
            "response_accuracy": judge["response"]["accuracy"],
            "response_majority": judge["response"]["majority_share"],
        },
        "reward_of_rollouts": [json.loads(line)["raw/total"] for line in _lines(run / "4-grpo" / "metrics.jsonl")],
        "supporters": {
            name: {
                "outputs": one["decisions"]["outputs"],
                "whole_form": one["decisions"]["format_complete"],
                "strategy_right": one["decisions"]["strategy"]["accuracy"],
                "score": [one["reward"][key] for key in ("total", "low", "high")],
            }
            for name, one in found["supporters"].items()
        },
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    print(json.dumps(run_figures(Path(sys.argv[1])), indent=1))
