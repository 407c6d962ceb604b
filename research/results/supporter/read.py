"""Outputs for a reader who does not know whose they are, and what such a reader found.

    python research/results/supporter/read.py draw FOLDER READING   FOLDER is that of measure.py, READING a new folder
    python research/results/supporter/read.py pairs FOLDER READING NAME …   only pairs, of other ways of training
    python research/results/supporter/read.py use FOLDER READING NAME …  pairs as people get them, supporters by name
    python research/results/supporter/read.py best FOLDER READING   only pairs, the best of sixteen and another of them
    python research/results/supporter/read.py ranked FOLDER READING   only pairs, the first of four as ranked in use
    python research/results/supporter/read.py count READING …               read.json beside this file

READING/highest.jsonl and gain.jsonl have fifty outputs of the reweighted supporters with the highest reward, and the
fifty largest gains over the fine-tuned model's mean, one a history; beside each stands an output of the fine-tuned
model. sft.jsonl and plain.jsonl have an output of a reweighted supporter, drawn by lot, beside one of the fine-tuned
model and of one trained by plain rewards; NAME.jsonl, in a READING of its own, one of a supporter trained in another
way beside one of the fine-tuned model (`pairs`: at temperature 1, as measure.py drew them; `use`: held to the form and
at the temperature at which people talk to it, made on the first call and kept in FOLDER/said); best.jsonl that of
a history's sixteen which the packaged judge chose beside another of them by lot; ranked.jsonl that of its first four
which the judge ranks first without a reference, as `--best-of` does, beside another of the four. Which of X and Y is
which stands in key.json, for `count` alone. A reader writes NAME_rated.jsonl, a line an item in the same order: of the
first two files for X and Y each `history`, `emotion`, `strategy`, `response` ("ok", "weak", "wrong"), `patterns` and
`harm`, and `better_response` ("X", "Y", "equal"); of the others `response` and `steps` ("X", "Y", "equal"), and `harm`
of X and Y.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assess import CANDIDATES, GROUP, as_served

OF, PAIRS, SHOWN, RANKED = 50, 120, 14, 4
PARTS = ("history", "emotion", "strategy", "response")
SEEDS = (1, 2, 3)


class Drawing:
    """What is to be read, written file by file with X and Y by lot, and the key."""

    def __init__(self, folder: Path, reading: Path) -> None:
        from compeer.ser.record import read_records

        self._folder, self._reading, self.lot = folder, reading, random.Random(1)
        self._by_id = {record.id: record for record in read_records(folder / "test.jsonl")}
        self._key: dict[str, Any] = {}
        self.tuned = self.measured("sft")
        reading.mkdir(parents=True)

    def measured(self, name: str, how: str = "measure") -> Any:
        """What measure.py found for a supporter."""
        return json.loads((self._folder / "said" / f"{how}-{name}.json").read_text(encoding="utf-8"))

    def write(self, name: str, items: Sequence[tuple[int, str, str, dict[str, Any]]], last: int) -> None:
        """Items of a file: the history's place, the trained supporter's output, the other's, and what the key notes."""
        with (self._reading / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number, (place, own, other, noted) in enumerate(items):
                first = self.lot.random() < 0.5
                self._key[f"{name}-{number}"] = {"trained": "X" if first else "Y", "history": place, **noted}
                said = self.record(place).history[-last:]
                shown = {"X": own if first else other, "Y": other if first else own}
                told = "\n".join(f"{utterance.speaker}: {utterance.text}" for utterance in said)
                line = {"id": f"{name}-{number}", "conversation": told, **shown}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        (self._reading / "key.json").write_text(json.dumps(self._key, indent=1) + "\n", encoding="utf-8")

    def record(self, place: int) -> Any:
        """The history at a place."""
        return self._by_id[self.tuned["records"][place]]

    def places(self) -> list[int]:
        """Histories by lot on which two supporters meet."""
        return self.lot.sample(range(len(self.tuned["rows"])), PAIRS)

    def write_pairs(
        self, name: str, places: Sequence[int], trained: Mapping[int, Any], rivals: Mapping[int, Any]
    ) -> None:
        """On each history an output of one seed's supporter beside one of its rival."""
        pairs = []
        for number, place in enumerate(places):
            seed = list(trained)[number % len(trained)]
            own, other = (_text(one[seed], place, self.lot.randrange(GROUP)) for one in (trained, rivals))
            pairs.append((place, own, other, {"seed": seed}))
        self.write(name, pairs, SHOWN)


def draw(folder: Path, reading: Path) -> None:
    """Writes what is to be read of the reweighted supporters."""
    drawing = Drawing(folder, reading)
    tuned, lot = drawing.tuned, drawing.lot
    trained, plain = ({seed: drawing.measured(f"{name}-{seed}") for seed in SEEDS} for name in ("reweighted", "plain"))
    rows = [
        (place, total - _mean(tuned["rows"][place]["judge_1"]), total, row["judge_2"][number], one, number)
        for one in trained.values()
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
        drawing.write(name, items, 1000)
    places = drawing.places()
    drawing.write_pairs("sft", places, trained, dict.fromkeys(SEEDS, tuned))
    drawing.write_pairs("plain", places, trained, plain)


def draw_pairs(folder: Path, reading: Path, names: Sequence[str]) -> None:
    """Writes pairs of other ways of training and the fine-tuned model, all on the same histories."""
    drawing = Drawing(folder, reading)
    places = drawing.places()
    for name in names:
        seeds = [seed for seed in SEEDS if (folder / "said" / f"measure-{name}-{seed}.json").is_file()]
        if not seeds:
            raise SystemExit(f"{folder} has no measure-{name}-….json")
        trained = {seed: drawing.measured(f"{name}-{seed}") for seed in seeds}
        drawing.write_pairs(name, places, trained, dict.fromkeys(seeds, drawing.tuned))


def draw_in_use(folder: Path, reading: Path, names: Sequence[str]) -> None:
    """Writes pairs of supporters and the fine-tuned model, each as people get it, on the histories of `draw_pairs`."""
    from compeer.chat.turn import SAMPLING

    drawing = Drawing(folder, reading)
    places = drawing.places()
    asked = [drawing.record(place) for place in places]

    def said(name: str) -> list[str]:
        kept = folder / "said" / f"used-{name}.jsonl"
        return [one["text"] for one in as_served(folder / name / "model", asked, SAMPLING, kept)]

    tuned = said("sft")
    for name in names:
        trios = zip(places, said(name), tuned, strict=True)
        drawing.write(f"{name} in use", [(place, own, other, {}) for place, own, other in trios], SHOWN)


def draw_best(folder: Path, reading: Path) -> None:
    """Writes what the packaged judge chose of each history's sixteen outputs beside another of them."""
    drawing = Drawing(folder, reading)
    found = drawing.measured("sft", "best")
    pairs = []
    for place in drawing.places():
        totals = found["rows"][place]["judge_1"]
        own = max(range(CANDIDATES), key=lambda number: float("-inf") if totals[number] is None else totals[number])
        other = drawing.lot.choice([number for number in range(CANDIDATES) if number != own])
        texts = found["texts"][place * CANDIDATES : (place + 1) * CANDIDATES]
        pairs.append((place, texts[own], texts[other], {"total": totals[own], "other": totals[other]}))
    drawing.write("best", pairs, SHOWN)


def draw_ranked(folder: Path, reading: Path) -> None:
    """Writes what the packaged judge ranks first of four outputs, compared with each other, beside another of them."""
    from compeer.reasoning import parse_turn
    from compeer.reward import LocalJudge
    from compeer.reward.rank import rank

    drawing = Drawing(folder, reading)
    found, judge = drawing.measured("sft", "best"), LocalJudge(folder / "judge-1" / "model")
    pairs = []
    for place in drawing.places():
        four = range(place * CANDIDATES, place * CANDIDATES + RANKED)
        outputs = [parse_turn(found["texts"][one], found["cut_off"][one]) for one in four]
        own = rank(judge, drawing.record(place).history, outputs)[0].index
        other = drawing.lot.choice([number for number in range(RANKED) if number != own])
        pairs.append((place, found["texts"][four[own]], found["texts"][four[other]], {}))
    drawing.write("ranked", pairs, SHOWN)


def _mean(values: Sequence[float | None]) -> float:
    found = [value for value in values if value is not None]
    return sum(found) / len(found)


def _text(measured: Any, place: int, number: int) -> str:
    return str(measured["texts"][place * GROUP + number])


class Ratings:
    """What a reader wrote in a folder, and whose the outputs were."""

    def __init__(self, reading: Path) -> None:
        self._reading = reading
        self.key = json.loads((reading / "key.json").read_text(encoding="utf-8"))

    def names(self) -> list[str]:
        """The files that were read."""
        return list(dict.fromkeys(one.rpartition("-")[0] for one in self.key))

    def rated(self, name: str) -> list[tuple[dict[str, Any], str, str]]:
        """What was said of each item, and which side was the trained supporter's and which the other's."""
        lines = (self._reading / f"{name}_rated.jsonl").read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines]
        if [one["id"] for one in found] != [one for one in self.key if one.rpartition("-")[0] == name]:
            raise SystemExit(f"{name}_rated.jsonl has other items than {name}.jsonl, or another order")
        return [(one, own := self.key[one["id"]]["trained"], "Y" if own == "X" else "X") for one in found]

    def won(self, name: str, what: str) -> list[int]:
        """1 where the trained supporter's was preferred, −1 where the other's was."""
        return [0 if one[what] == "equal" else 1 if one[what] == own else -1 for one, own, _ in self.rated(name)]

    def pairs(self, name: str) -> dict[str, Any]:
        """How often which was preferred, and what would do harm."""
        harm = [(one["harm"][own], one["harm"][other]) for one, own, other in self.rated(name)]
        choices = {what: self.won(name, what) for what in ("response", "steps")}
        return {
            **choices,
            "better, equal, worse": {what: [own.count(one) for one in (1, 0, -1)] for what, own in choices.items()},
            "harm": [sum(bool(pair[side]) for pair in harm) for side in (0, 1)],
        }


def count(reading: Path) -> dict[str, Any]:
    """What the reader found, by whose output it was."""
    ratings = Ratings(reading)
    if ratings.names() in (["best"], ["ranked"]):
        return {name: ratings.pairs(name) for name in ratings.names()}
    if "highest" not in ratings.names():
        return {"tried": {name: ratings.pairs(name) for name in ratings.names()}}
    found: dict[str, Any] = {
        "by": "a language model, blind; no person has read them",
        "of": OF,
        "ok, weak, wrong": {part: {} for part in PARTS},
        "better, equal, worse": {},
        "patterns": {},
        "harm": {},
        "harm that the guard stops": 0,
        "pairs": {name: ratings.pairs(name) for name in ("sft", "plain")},
    }
    for name in ("highest", "gain"):
        items = ratings.rated(name)
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
            ratings.key[one["id"]]["stopped"] and one[own]["harm"] for one, own, _ in items
        )
        chosen = Counter(ratings.won(name, "better_response"))
        found["better, equal, worse"][name] = [chosen[1], chosen[0], chosen[-1]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    alone = {"draw": draw, "best": draw_best, "ranked": draw_ranked}
    by_name = {"pairs": draw_pairs, "use": draw_in_use}
    parser.add_argument("what", choices=[*alone, *by_name, "count"])
    parser.add_argument("folders", type=Path, nargs="+", help="as above, and after `pairs` and `use` the names")
    options = parser.parse_args()
    if options.what in alone:
        alone[options.what](*options.folders)
    elif options.what in by_name:
        by_name[options.what](*options.folders[:2], [str(name) for name in options.folders[2:]])
    else:
        found: dict[str, Any] = {}
        for reading in options.folders:
            told = count(reading)
            found |= {**told, "tried": {**found.get("tried", {}), **told.get("tried", {})}}
        (Path(__file__).parent / "read.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
