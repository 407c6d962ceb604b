"""What a build of SER records gives, from the files in a folder of `compeer ser build` and its probes.

python research/results/ser/figures.py FOLDER > research/results/ser/build.json
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from compeer.pipeline import read_manifest
from compeer.reasoning import STEPS
from compeer.ser.build import summary
from compeer.ser.pairing import CONTRADICTS, SWAPPED_FACT, WRONG_STAGE
from compeer.ser.record import read_records

TRUE_NOWHERE = (SWAPPED_FACT, WRONG_STAGE, CONTRADICTS)


def build_figures(folder: Path) -> dict[str, Any]:
    """How many records there are, what is False in them, whether the check passed, and what the probes told."""
    screened = read_manifest(folder / "screened.jsonl") or {}
    made = summary(folder)
    false = Counter(
        label.kind
        for record in read_records(folder / "records.jsonl")
        if record.labels
        for label in (record.labels.history, record.labels.emotion, record.labels.strategy)
        if not label.value
    )
    probes, report = (json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in ("probes", "check"))
    return {
        "dialogues": screened["counts"]["screen"],
        "masked": screened["counts"]["masked"] | {"all": sum(screened["counts"]["masked"].values())},
        "records": made["records"],
        "reference_turns": made["histories"],
        "candidates": made["records"] - made["histories"],
        "false_share": {part: round(made["false_share"][part], 5) for part in STEPS},
        "false_by_kind": dict(false.most_common()),
        "share_true_nowhere": round(sum(false[kind] for kind in TRUE_NOWHERE) / false.total(), 5),
        "check_passed": report["passed"],
        "probes_passed": probes["passed"],
        "best_probes": {one["label"]: _best(probes["probes"], one["label"]) for one in probes["probes"]},
        "compeer": screened["compeer"],
    }


def _best(probes: list[dict[str, Any]], label: str) -> dict[str, Any]:
    """Of the probes that have a limit, the one that predicts this label best."""
    limited = [one for one in probes if one["label"] == label and one["limit"] is not None]
    best = max(limited, key=lambda one: one["balanced_accuracy"] or 0.0)
    return {name: best[name] for name in ("sees", "tested", "chance", "limit", "balanced_accuracy", "low", "high")}


if __name__ == "__main__":
    print(json.dumps(build_figures(Path(sys.argv[1])), indent=1))
