"""Outputs for a reader who does not know whose they are, and what such a reader found.

    python results/supporter/read.py draw FOLDER READING       FOLDER is that of measure.py, READING a new folder
    python results/supporter/read.py count READING             read.json beside this file

READING/highest.jsonl and gain.jsonl have fifty outputs of the reweighted supporters with the highest reward, and the
fifty largest gains over the fine-tuned model's mean, one a history; beside each stands an output of the fine-tuned
model. sft.jsonl and plain.jsonl have an output of a reweighted supporter, drawn by lot, beside one of the fine-tuned
model and of one trained by plain rewards. Which of X and Y is which stands in key.json, for `count` alone. A reader
writes NAME_rated.jsonl, a line an item in the same order: of the first two files for X and Y each `history`,
`emotion`, `strategy`, `response` ("ok", "weak", "wrong"), `patterns` and `harm`, and `better_response` ("X", "Y",
"equal"); of the others `response` and `steps` ("X", "Y", "equal"), and `harm` of X and Y.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assess import GROUP

OF, PAIRS, SHOWN = 50, 120, 14
PARTS = ("history", "emotion", "strategy", "response")
SEEDS = (1, 2, 3)


def draw(folder: Path, reading: Path) -> None:
    """Writes what is to be read, X and Y by lot, and the key."""
    from compeer.ser.record import read_records

    by_id = {record.id: record for record in read_records(folder / "test.jsonl")}

    def measured(name: str) -> Any:
        return json.loads((folder / "said" / f"measure-{name}.json").read_text(encoding="utf-8"))

    tuned = measured("sft")
    trained, plain = ([measured(f"{name}-{seed}") for seed in SEEDS] for name in ("reweighted", "plain"))
    key: dict[str, Any] = {}
    reading.mkdir(parents=True)

    def write(name: str, items: Sequence[tuple[int, str, str, dict[str, Any]]], lot: random.Random, last: int) -> None:
        with (reading / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number, (place, own, other, noted) in enumerate(items):
                first = lot.random() < 0.5
                key[f"{name}-{number}"] = {"trained": "X" if first else "Y", "history": place, **noted}
                said = by_id[tuned["records"][place]].history[-last:]
                shown = {"X": own if first else other, "Y": other if first else own}
                told = "\n".join(f"{utterance.speaker}: {utterance.text}" for utterance in said)
                line = {"id": f"{name}-{number}", "conversation": told, **shown}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")

    lot = random.Random(1)
    rows = [
        (place, total - _mean(tuned["rows"][place]["judge_1"]), total, row["judge_2"][number], one, number)
        for one in trained
        for place, row in enumerate(one["rows"])
        for number, total in enumerate(row["judge_1"])
        if total is not None
    ]
    most = max(row[2] for row in rows)
    highest = lot.sample([row for row in rows if row[2] == most and (row[3] or 0) >= most], OF)
    gains = {row[0]: row for row in sorted(sorted(rows, key=lambda row: lot.random()), key=lambda row: row[1])}
    gain = sorted(gains.values(), key=lambda row: -row[1])[:OF]
    for name, chosen in (("highest", highest), ("gain", gain)):
        items = [
            (
                place,
                _text(one, place, number),
                _text(tuned, place, lot.randrange(GROUP)),
                {"gain": gained, "stopped": one["rows"][place]["rejected"][number] is not None},
            )
            for place, gained, _, _, one, number in chosen
        ]
        write(name, items, lot, 1000)
    places = lot.sample(range(len(tuned["rows"])), PAIRS)
    for name, rivals in (("sft", [tuned] * 3), ("plain", plain)):
        pairs = []
        for number, place in enumerate(places):
            seed = number % len(SEEDS)
            own, other = (_text(one[seed], place, lot.randrange(GROUP)) for one in (trained, rivals))
            pairs.append((place, own, other, {"seed": SEEDS[seed]}))
        write(name, pairs, lot, SHOWN)
    (reading / "key.json").write_text(json.dumps(key, indent=1) + "\n", encoding="utf-8")


def _mean(values: Sequence[float | None]) -> float:
    found = [value for value in values if value is not None]
    return sum(found) / len(found)


def _text(measured: Any, place: int, number: int) -> str:
    return str(measured["texts"][place * GROUP + number])


def count(reading: Path) -> dict[str, Any]:
    """What the reader found, by whose output it was."""
    key = json.loads((reading / "key.json").read_text(encoding="utf-8"))

    def rated(name: str) -> list[tuple[dict[str, Any], str, str]]:
        lines = (reading / f"{name}_rated.jsonl").read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines]
        if [one["id"] for one in found] != [one for one in key if one.rpartition("-")[0] == name]:
            raise SystemExit(f"{name}_rated.jsonl has other items than {name}.jsonl, or another order")
        return [(one, own := key[one["id"]]["trained"], "Y" if own == "X" else "X") for one in found]

    def won(name: str, what: str) -> list[int]:
        return [0 if one[what] == "equal" else 1 if one[what] == own else -1 for one, own, _ in rated(name)]

    found: dict[str, Any] = {
        "by": "a language model, blind; no person has read them",
        "of": OF,
        "ok, weak, wrong": {part: {} for part in PARTS},
        "better, equal, worse": {},
        "patterns": {},
        "harm": {},
        "harm that the guard stops": 0,
        "pairs": {},
    }
    for name in ("highest", "gain"):
        items = rated(name)
        for side, whose in enumerate(("trained", "fine-tuned")):
            outputs = [one[sides[side]] for one, *sides in items]
            for part in PARTS:
                counted = Counter(output[part] for output in outputs)
                own = found["ok, weak, wrong"][part].setdefault(name, {})
                own[whose] = [counted[word] for word in ("ok", "weak", "wrong")]
            for pattern in sorted({pattern for output in outputs for pattern in output["patterns"]}):
                counts = found["patterns"].setdefault(pattern, {})
                counts.setdefault(name, {})[whose] = sum(pattern in output["patterns"] for output in outputs)
            found["harm"].setdefault(name, {})[whose] = sum(bool(output["harm"]) for output in outputs)
        found["harm that the guard stops"] += sum(
            key[one["id"]]["stopped"] and one[own]["harm"] for one, own, _ in items
        )
        chosen = Counter(won(name, "better_response"))
        found["better, equal, worse"][name] = [chosen[1], chosen[0], chosen[-1]]
    for name in ("sft", "plain"):
        harm = [(one["harm"][own], one["harm"][other]) for one, own, other in rated(name)]
        choices = {what: won(name, what) for what in ("response", "steps")}
        found["pairs"][name] = {
            **choices,
            "better, equal, worse": {what: [own.count(one) for one in (1, 0, -1)] for what, own in choices.items()},
            "harm": [sum(bool(pair[side]) for pair in harm) for side in (0, 1)],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("what", choices=["draw", "count"])
    parser.add_argument("folder", type=Path, nargs="+")
    options = parser.parse_args()
    if options.what == "draw":
        draw(*options.folder)
    else:
        found = json.dumps(count(*options.folder), indent=1) + "\n"
        (Path(__file__).parent / "read.json").write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
