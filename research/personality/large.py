"""Claim 3 on the 1.5B base: judges trained on the same records alone, twice, or with their rewrites.

    python research/results/personality/measure.py prepare SETS …   # the four training sets, see its README
    python research/personality/large.py SETS NATURAL WORK          # chats and WORK/plan.json, for one GPU:
    python research/supporter/gpu.py work BASE WORK/plan.json OUT

Tests are `SETS/test-llm.jsonl` and NATURAL, the frozen test of natural mistakes (`test-records.jsonl` of
`research/supporter/prepare.py`). `original` is read twice, the others, which are twice as large, once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from compeer.reward.conversation import JudgeForm, chats
from compeer.ser.record import read_records
from compeer.statistics import generator

SEEDS = (1, 2, 3)
FORM = JudgeForm(history=12)
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


if __name__ == "__main__":
    prepare(*map(Path, sys.argv[1:]))
