"""How well the packaged supporter and judge do, from what they said on the GPU: figures.json beside this file.

    python results/weights/figures.py JUDGES SUPPORTERS

JUDGES is a folder of results/judges/measure.py with `said/unified-weighed-lora-2.*`, SUPPORTERS one of
results/supporter/measure.py with `said/measure-sft.json` and the records that the supporter was trained on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from compeer.reasoning import parse_turn
from compeer.reward.compare import JudgedSet, compare_judges, read_judgments
from compeer.ser.record import read_records
from compeer.statistics import mean, mean_interval, words

TESTS = ("esconv", "near", "random", "llm", "independent")
JUDGE = "unified-weighed-lora-2"


def judge_figures(folder: Path) -> dict[str, Any]:
    """By test set what the judge got right, with intervals over dialogues."""
    found: dict[str, Any] = {}
    for test in TESTS:
        records = list(read_records(folder / f"{test}.jsonl"))
        said = read_judgments(folder / "said" / f"{JUDGE}.{test}.jsonl", records)
        found[test] = compare_judges({"judge": JudgedSet(records, {2: said}, {})}, [])
    return found


def supporter_figures(folder: Path) -> dict[str, Any]:
    """Means over held-out histories with their intervals."""
    told = json.loads((folder / "said" / "measure-sft.json").read_text(encoding="utf-8"))
    rows = told["rows"]
    values = {
        "whole_form": [mean([float(parts["format"] > 0) for parts in row["parts_1"]]) for row in rows],
        **{f"{name}_right": [row["right"][name] for row in rows] for name in rows[0]["right"]},
        "reward": [mean(row["judge_1"]) for row in rows],
        "second_judge": [mean(row["judge_2"]) for row in rows],
        "judge_of_feedback": [mean([value for value in row["feedback"] if value is not None] or [0.0]) for row in rows],
        "similarity_in_a_group": [row["s_in"] for row in rows],
        "rejected_by_the_guard": [row["rejected"] / len(row["parts_1"]) for row in rows],
        "words": [row["words"] for row in rows],
    }
    return {
        "histories": len(rows),
        "outputs": sum(len(row["parts_1"]) for row in rows),
        "majority": told["majority"],
        "distinct_2": told["distinct_2"],
        "responses_that_repeat_training": repeated(folder, told["texts"]),
        **{name: [mean(value), *mean_interval(value)] for name, value in values.items()},
        "device": told["device"],
        "torch": told["torch"],
    }


def repeated(folder: Path, texts: list[str]) -> int:
    """How many responses repeat ten words in a row of what the supporter was trained on, histories included."""
    known = set()
    for record in read_records(folder / "policy.jsonl"):
        for text in (record.reference or "", *(utterance.text for utterance in record.history)):
            known |= _runs(text)
    responses = [str(parse_turn(text).parts.get("response", "")) for text in texts]
    return sum(bool(_runs(response) & known) for response in responses)


def _runs(text: str, length: int = 10) -> set[tuple[str, ...]]:
    found = words(text.lower())
    return {tuple(found[start : start + length]) for start in range(len(found) - length + 1)}


if __name__ == "__main__":
    found = {"judge": judge_figures(Path(sys.argv[1])), "supporter": supporter_figures(Path(sys.argv[2]))}
    Path(__file__).with_name("figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
