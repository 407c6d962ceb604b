"""The findings of a training at 1.5 billion parameters in one file: readings, judges' tests, decisions, GRPO's log.

    python research/supporter/figures.py WORK GOT READING BEST OUT.json
    python research/supporter/figures.py WORK GOT OUT.json                   # the judges' tests alone

WORK is what `prepare.py` wrote, GOT what the GPU jobs wrote, READING and BEST are the folders of the two blind readings
(`reading.py`): supporters against each other, and the best of four by the judge against a random one of the four.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from reading import interval, read
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from compeer.reasoning import STEPS, parse_turn
from compeer.ser.record import read_records
from compeer.statistics import generator

JUDGES = ("judge", "judge-blind", "process", "outcome")
SEEDS = ("grpo1", "grpo2", "grpo3")


def _rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row for row in found if "done" not in row]


def over_sft(folder: Path) -> dict[str, list[float]]:
    """How often the three seeds together are preferred to SFT, by language: [value, low, high, decided]."""
    rng, found = generator(0, "seeds"), {}
    rows = read(folder)
    for language in ("en", "zh"):
        ranks = {(row["id"], row["reader"], row["name"]): row["rank"] for row in rows if row["language"] == language}
        wins: dict[str, list[bool]] = {}
        for (id_, reader, name), rank in ranks.items():
            own = wins.setdefault(id_, [])
            other = ranks.get((id_, reader, "sft"))
            if name in SEEDS and None not in (rank, other) and rank != other:
                own.append(rank < other)
        shares = np.array([np.mean(own) if own else 0.0 for own in wins.values()])
        decided = np.array([len(own) for own in wins.values()], float)
        found[language] = [*interval(shares, decided, rng), int(decided.sum())]
    return found


def chosen_on_the_other_half(labels: np.ndarray, values: np.ndarray, halves: np.ndarray) -> float:
    """Balanced accuracy where each half of the dialogues is decided at the threshold that is best on the other."""
    said = np.zeros(len(labels), bool)
    for half in (False, True):
        own, other = halves == half, halves != half
        places = np.quantile(values[other], np.linspace(0.02, 0.98, 49))
        best = max(places, key=lambda place: balanced_accuracy_score(labels[other], values[other] > place))
        said[own] = values[own] > best
    return float(balanced_accuracy_score(labels, said))


def judged(work: Path, got: Path) -> dict[str, Any]:
    """What each judge gets right on the frozen natural test: area under the curve, balanced accuracy at one half."""
    records = list(read_records(work / "test-records.jsonl"))
    halves = np.array([zlib.crc32(record.dialogue.encode()) % 2 == 1 for record in records])
    result: dict[str, Any] = {"records": len(records)}
    for name in [name for name in JUDGES if (got / f"judged-{name}.jsonl").is_file()]:
        found: dict[str, tuple[list[bool], list[float]]] = {}
        for record, row in zip(records, _rows(got / f"judged-{name}.jsonl"), strict=True):
            for part in STEPS:
                if part in (row.get("steps") or {}):
                    labels, values = found.setdefault(part, ([], []))
                    labels.append(bool(getattr(record.labels, part).value))
                    values.append(row["steps"][part])
            if row.get("response"):
                labels, values = found.setdefault("acceptable", ([], []))
                labels.append(record.preference.value in ("candidate", "both"))
                values.append(row["response"]["candidate"] + row["response"]["both"])
        result[name] = {
            part: {
                "auc": round(float(roc_auc_score(labels, values)), 3),
                "balanced_accuracy": round(float(balanced_accuracy_score(labels, np.array(values) > 0.5)), 3),
                "balanced_accuracy_chosen": round(
                    chosen_on_the_other_half(np.array(labels), np.array(values), halves), 3
                ),
            }
            for part, (labels, values) in found.items()
        }
    return result


def decisions(work: Path, got: Path) -> dict[str, Any]:
    """The likeliest output's strategy against those of the human turn, on ESConv's test contexts."""
    contexts = {row["id"]: row for row in _rows(work / "contexts.jsonl")}
    result: dict[str, Any] = {}
    for path in sorted(got.glob("decided-*.jsonl")):
        rows = _rows(path)
        turns = [(parse_turn(row["text"]).turn, contexts[row["id"]]["strategies"]) for row in rows]
        chosen = Counter(turn.strategy.strategy for turn, _ in turns if turn)
        result[path.stem.removeprefix("decided-")] = {
            "turns": len(rows),
            "among_the_turns_strategies": round(
                sum(t is not None and t.strategy.strategy in s for t, s in turns) / len(rows), 3
            ),
            "first_strategy": round(
                sum(t is not None and t.strategy.strategy == s[0] for t, s in turns) / len(rows), 3
            ),
            "share_of_questions": round(chosen["Question"] / len(rows), 3),
        }
    return result


def main(work: Path, got: Path, reading: Path, best: Path, out: Path) -> None:
    log = [row for row in _rows(got / "grpo-log.jsonl") if "step" in row]
    means: dict[str, Any] = {}
    for name in sorted({row["grpo"] for row in log}):
        own = [row for row in log if row["grpo"] == name]
        means[name] = {
            "reward, first five steps": round(float(np.mean([row["reward"] for row in own[:5]])), 3),
            "reward, last five steps": round(float(np.mean([row["reward"] for row in own[-5:]])), 3),
            "kl, last step": own[-1]["kl"],
            "steps": own[-1]["step"],
        }
    found = {
        "note": "replies to fresh test moments, two readers (language models) each, blind, order random; bfloat16 on "
        "an H200, temperature 0.4, min_p 0.1, without grammar and guard; human: the corpus' own reply",
        "in_use": json.loads((reading / "count.json").read_text("utf-8")),
        "reward_over_sft": over_sft(reading),
        "best_of_four": json.loads((best / "count.json").read_text("utf-8")),
        "judges": judged(work, got),
        "decisions": decisions(work, got),
        "grpo": means,
    }
    out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    if len(given) == 3:
        given[2].write_text(json.dumps({"judges": judged(*given[:2])}, indent=1) + "\n", encoding="utf-8")
    else:
        main(*given)
