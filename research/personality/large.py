"""Claim 3 on the 1.5B base: judges trained on the same records alone, twice, or with their rewrites.

    python research/results/personality/measure.py prepare SETS …    # the four training sets, see its README
    python research/personality/large.py prepare SETS NATURAL WORK   # chats and WORK/plan.json, for one GPU:
    python research/supporter/gpu.py work BASE WORK/plan.json OUT
    python research/personality/large.py table SETS NATURAL OUT      # large.json and large.md in research/results

Tests are `SETS/test-llm.jsonl` and NATURAL, the frozen test of natural mistakes (`test-records.jsonl` of
`research/supporter/prepare.py`). `original` is read twice, the others, which are twice as large, once.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compeer.reward.conversation import JudgeForm, chats
from compeer.ser.record import read_records
from compeer.statistics import generator

SEEDS = (1, 2, 3)
FORM = JudgeForm(history=12)
PAIRS = (
    ("duplicated", "original"),
    ("plain", "duplicated"),
    ("personality", "duplicated"),
    ("personality", "plain"),
)
SETS = {
    "original": "original",
    "duplicated": "duplicated",
    "plain": "with-plain",
    "personality": "with-personality",
}


def prepare(sets: Path, natural: Path, work: Path) -> None:
    """Writes the chats of each set and the plan."""
    work.mkdir(parents=True, exist_ok=True)
    plan: list[dict[str, Any]] = []
    for seed in SEEDS:
        for name, file in SETS.items():
            rng = generator(1, "order of the replies")
            asked = [
                {"messages": messages}
                for record in read_records(sets / f"{file}.jsonl")
                for messages in chats(record, FORM, bool(rng.random() < 0.5))
            ]
            text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in asked)
            (work / f"{name}.jsonl").write_text(text, encoding="utf-8")
            learn = {"rank": 8, "rate": 2e-4, "batch": 16, "micro": 16, "epochs": 2 if name == "original" else 1}
            plan.append({"train": f"{name}-{seed}", "chats": str(work / f"{name}.jsonl"), **learn, "seed": seed})
            for test, records in (("llm", sets / "test-llm.jsonl"), ("natural", natural)):
                out = f"{test}-{name}-{seed}"
                plan.append({"judge": f"{name}-{seed}", "records": str(records), "form": FORM.model_dump(), "out": out})
    (work / "plan.json").write_text(json.dumps(plan, indent=1), encoding="utf-8")


def table(sets: Path, natural: Path, out: Path) -> None:
    """All metrics of what the judges said, with intervals by dialogue, beside those of the small base."""
    root = Path(__file__).parents[2]
    sys.path.insert(0, str(root))
    from research.judge.compare import JudgedSet, compare_judges
    from research.judge.comparison_table import as_markdown, comparison_tables

    from compeer.reward.score import Judgment

    found: dict[str, Any] = {"command": "research/personality/large.py table", "tests": {}}
    found["versions"] = {name: version(name) for name in ("numpy", "scikit-learn")} | {"torch": "2.11.0, H200"}
    text = ["# Judges on the 1.5B base, taught with and without rewrites, as measured"]
    for test, path in (("llm", sets / "test-llm.jsonl"), ("natural", natural)):
        records = list(read_records(path))
        rows = {}
        for name in SETS:
            said = {}
            for seed in SEEDS:
                lines = (out / f"{test}-{name}-{seed}.jsonl").read_text(encoding="utf-8").splitlines()
                by_id = {row["id"]: Judgment(row["steps"], row["response"]) for row in map(json.loads, lines)}
                said[seed] = [by_id[record.id] for record in records]
            rows[name] = JudgedSet(records, said)
        found["tests"][test] = compare_judges(rows, PAIRS)
        text += [f"## {test}", as_markdown(comparison_tables(found["tests"][test], with_published=False)).rstrip()]
    here = root / "research" / "results" / "personality"
    (here / "large.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (here / "large.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    {"prepare": prepare, "table": table}[command](*map(Path, words))
