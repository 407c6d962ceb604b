"""How well the packaged supporter and judge do, from what they said on the GPU: figures.json beside this file.

    python research/results/weights/figures.py judge JUDGES
    python research/results/weights/figures.py supporter SUPPORTERS

JUDGES is a folder of research/results/judges/measure.py with `said/unified-weighed-lora-2.*`, SUPPORTERS one of
research/results/supporter/measure.py with `said/measure-sft.json` and the records that the supporter was trained on
(policy.jsonl). The other one's figures stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from research.judge.compare import JudgedSet, compare_judges

from compeer.reasoning import parse_turn
from compeer.reward.judgments import read_judgments
from compeer.ser.record import read_records
from compeer.statistics import mean, mean_interval, words

TESTS = ("esconv", "near", "random", "llm", "independent")
JUDGE = "unified-weighed-lora-2"
LONG = 10
Run = tuple[str, ...]


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
        **{f"{name}_right": [mean(row["right"][name]) for row in rows] for name in rows[0]["right"]},
        "reward": [mean(row["judge_1"]) for row in rows],
        "second_judge": [mean(row["judge_2"]) for row in rows],
        "judge_of_feedback": [mean([value for value in row["feedback"] if value is not None] or [0.0]) for row in rows],
        "similarity_in_a_group": [row["s_in"] for row in rows],
        "rejected_by_the_guard": [mean([float(why is not None) for why in row["rejected"]]) for row in rows],
        "words": [row["words"] for row in rows],
    }
    return {
        "histories": len(rows),
        "outputs": sum(len(row["parts_1"]) for row in rows),
        "majority": told["majority"],
        "distinct_2": told["distinct_2"],
        **repeated(folder, told["texts"]),
        **{name: [mean(value), *mean_interval(value)] for name, value in values.items()},
        "device": told["device"],
        "torch": told["torch"],
    }


def repeated(folder: Path, texts: list[str]) -> dict[str, int]:
    """How many responses hold ten words in a row of what the supporter was trained on, histories included, and how many
    a whole utterance of ten words or more."""
    runs: set[Run] = set()
    utterances: set[Run] = set()
    for record in read_records(folder / "policy.jsonl"):
        for text in (record.reference or "", *(utterance.text for utterance in record.history)):
            said = tuple(words(text.lower()))
            runs |= _runs(said, LONG)
            utterances |= {said} if len(said) >= LONG else set()
    lengths = {len(one) for one in utterances}
    responses = [tuple(words(str(parse_turn(text).parts.get("response", "")).lower())) for text in texts]
    return {
        "responses_that_repeat_training": sum(bool(_runs(one, LONG) & runs) for one in responses),
        "responses_that_repeat_an_utterance": sum(
            any(_runs(one, length) & utterances for length in lengths if length <= len(one)) for one in responses
        ),
    }


def _runs(said: Run, length: int) -> set[Run]:
    return {said[start : start + length] for start in range(len(said) - length + 1)}


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    path = Path(__file__).with_name("figures.json")
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found[what] = {"judge": judge_figures, "supporter": supporter_figures}[what](folder)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
