"""What `gpu.py` needs to train the packaged supporter and a first judge: chats, prompts and plans, in one folder.

    python research/supporter/data.py contexts CORPORA WORK
    python research/supporter/prepare.py CORPORA WORK          # WORK/chats.jsonl, judge.jsonl, *.jsonl, plan-*.json
    python research/supporter/gpu.py work BASE WORK/plan-supporter.json OUT
    python research/supporter/gpu.py work BASE WORK/plan-judge.json OUT

CORPORA holds esconv/, smile/ and ser_llm/. The judge learns from the first round of labels (research/judge) and from
ser_llm; the labels' texts are joined with the histories of the contexts here.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from data import chat, guided_prompt, tidied

from compeer.reasoning import STEPS, parse_turn
from compeer.reward.conversation import JudgeForm, chats
from compeer.ser.record import SerRecord, write_records

HERE = Path(__file__).parent
FORM = JudgeForm(history=12)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def natural(contexts: dict[str, Any]) -> list[SerRecord]:
    """The labelled outputs of the first round as records."""
    found = []
    for row in _rows(HERE.parent / "judge" / "labels-1.jsonl"):
        moment, author, _ = row["id"].rsplit(":", 2)
        found.append(_record(row["id"], contexts[moment], parse_turn(row["output"]).turn, author, row, row["split"]))
    return found


def written(corpora: Path) -> list[SerRecord]:
    """The turns of ser_llm on whose verdicts two votes agree."""
    found = []
    for row in _rows(corpora / "ser_llm" / "ser_llm.jsonl"):
        for number, one in enumerate(row["candidates"]):
            verdicts = [step["correct"] for step in one["steps"]]
            if one["preference"] is None or None in verdicts:
                continue
            turn = {
                "history": {"text": one["analysis"], "stage": one["stage"]},
                "emotion": {"text": one["feeling"], **{k: one[k] for k in ("sentiment", "emotion", "intensity")}},
                "strategy": {"text": one["plan"], "strategy": one["strategy"]},
                "response": one["response"],
            }
            labels = {**dict(zip(STEPS, verdicts, strict=True)), "preference": one["preference"]}
            found.append(_record(f"{row['id']}:{number}", row, turn, "llm", labels, "reward"))
    return found


def _record(id_: str, context: dict[str, Any], turn: Any, author: str, labels: dict[str, Any], split: str) -> SerRecord:
    source = {"source": "llm", "how": "two annotators, adjudicated"}
    return SerRecord.model_validate(
        {
            "id": id_,
            "dialogue": context["id"].rsplit("-", 1)[0],
            "round": 1,
            "language": context["language"],
            "source": context["id"].split("-")[0],
            "split": split,
            "history": context["history"],
            "candidate": turn,
            "author": author,
            "reference": tidied(context["reference"]) if "split" in labels else context["reference"],
            "labels": {part: {"value": labels[part], **source} for part in STEPS},
            "preference": {"value": labels["preference"], **source},
            "candidate_first": True,
        }
    )


def prepare(corpora: Path, work: Path) -> None:
    contexts = {row["id"]: row for row in _rows(work / "contexts.jsonl")}
    taught = [chat(contexts[row["id"]], parse_turn(row["output"]).turn) for row in _rows(HERE / "targets.jsonl")]
    taught += [chat(row, parse_turn(row["output"]).turn) for row in _rows(HERE / "invented.jsonl")]
    random.Random(3).shuffle(taught)
    _write(work / "chats.jsonl", taught)
    for split in ("valid", "test"):
        own = [c for c in contexts.values() if c["split"] == split]
        _write(work / f"{split}.jsonl", ({"id": c["id"], "prompt": guided_prompt(c["history"])} for c in own))
    labelled, rng = natural(contexts), random.Random(5)
    records = [record for record in labelled if record.split == "reward"]
    asked = [messages for record in records for first in (True, False) for messages in chats(record, FORM, first)]
    asked += [messages for record in written(corpora) for messages in chats(record, FORM, rng.random() < 0.5)]
    rng.shuffle(asked)
    _write(work / "judge.jsonl", ({"messages": messages} for messages in asked))
    write_records(work / "test-records.jsonl", [record for record in labelled if record.split == "test"])
    learn = {"rank": 8, "rate": 2e-4, "micro": 16, "seed": 1}
    supporter = [
        {"train": "sft-b", "chats": str(work / "chats.jsonl"), **learn, "epochs": 3, "batch": 16},
        {"write": "sft-b", "prompts": str(work / "valid.jsonl"), "out": "valid-sft-b", "n": 1, "temperature": 0.7}
        | {"min_p": 0.1, "seed": 1},
    ]
    judge = [
        {"train": "judge-a", "chats": str(work / "judge.jsonl"), **learn, "epochs": 1, "batch": 32},
        {"judge": "judge-a", "records": str(work / "test-records.jsonl"), "form": FORM.model_dump(), "out": "judged-a"},
    ]
    for name, plan in (("supporter", supporter), ("judge", judge)):
        (work / f"plan-{name}.json").write_text(json.dumps(plan, indent=1), encoding="utf-8")
    print(len(taught), "chats,", len(asked), "of a judge")


if __name__ == "__main__":
    prepare(*map(Path, sys.argv[1:]))
