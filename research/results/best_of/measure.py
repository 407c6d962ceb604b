"""Is the best of n better than one? Sixteen outputs a history, chosen by a judge, measured by what did not choose.

    python research/results/best_of/measure.py FOLDER   results.json beside this file, from FOLDER/said/best-sft.json

FOLDER is one of results/supporter, where `measure.py one FOLDER --only best-sft` wrote it. For each n the sixteen
outputs of a history make 16 / n groups; of each group the one with the highest total is taken, the earlier one of
equals. Every judge of FOLDER chooses in turn, and the others measure its choice: they are trained by the same recipe
from other seeds. A figure is the mean over groups and choosers, then over histories, with an interval over histories;
differences to n = 1 are of the same histories.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

COUNTS = (1, 2, 4, 8, 16)

Value = Callable[[dict[str, Any], int, str], float | None]
VALUES: dict[str, Value] = {
    "chosen": lambda row, place, judge: row[judge][place],
    "other judges": lambda row, place, judge: _mean([row[other][place] for other in judges_of(row) if other != judge]),
    "judge of feedback": lambda row, place, _: row["feedback"][place],
    "whole form": lambda row, place, _: float(row["parts_1"][place]["format"] > 0),
    "stage": lambda row, place, _: row["right"]["stage"][place],
    "emotion": lambda row, place, _: row["right"]["emotion"][place],
    "strategy": lambda row, place, _: row["right"]["strategy"][place],
    "rejected by the guard": lambda row, place, _: float(row["rejected"][place] is not None),
}


def judges_of(row: dict[str, Any]) -> list[str]:
    """The judges that gave the outputs of a history a total."""
    return [name for name in row if name.startswith("judge_")]


def chosen(totals: Sequence[float | None], n: int) -> list[int]:
    """The places of the best of each n outputs in a row; what the judge failed on is never chosen where another is."""

    def worth(place: int) -> float:
        total = totals[place]
        return float("-inf") if total is None else total

    return [max(range(start, start + n), key=worth) for start in range(0, len(totals) - n + 1, n)]


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By n each figure's mean with its interval, and what it gains on one output."""
    from compeer.statistics import mean, mean_interval

    by_count: dict[int, dict[str, list[float | None]]] = {}
    for n in COUNTS:
        places = [[(place, judge) for judge in judges_of(row) for place in chosen(row[judge], n)] for row in rows]
        by_count[n] = {
            name: [_mean([value(row, *one) for one in own]) for row, own in zip(rows, places, strict=True)]
            for name, value in VALUES.items()
        }

    def told(values: Sequence[float]) -> list[float | None]:
        return [mean(list(values)), *mean_interval(list(values))]

    found: dict[str, Any] = {"rows": [], "differences": {}}
    for n, by_name in by_count.items():
        known = {name: [one for one in values if one is not None] for name, values in by_name.items()}
        found["rows"].append({"n": n, **{name: told(values) for name, values in known.items()}})
        found["differences"][str(n)] = {
            name: told([b - a for a, b in zip(by_count[1][name], values, strict=True) if None not in (a, b)])  # type: ignore[operator]
            for name, values in by_name.items()
        }
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def main() -> None:
    said = json.loads((Path(sys.argv[1]) / "said" / "best-sft.json").read_text(encoding="utf-8"))
    found = figures(said["rows"]) | {key: said[key] for key in ("device", "torch")}
    found |= {"histories": len(said["rows"]), "judges": len(judges_of(said["rows"][0]))}
    Path(__file__).with_name("results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
