"""A comparison of judges as tables in Markdown, beside what the paper published.

All metrics are in percent. `81.2 ± 0.8 (79.0 to 83.4)` is the mean over seeds, the standard deviation over seeds (left
out for one seed) and the 95 % interval over dialogues and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compeer.reasoning import PARTS, STEPS

SOURCE = "arXiv 2508.09521"
PUBLISHED: Mapping[str, Sequence[str]] = {
    "GPT-4o, untrained": ("46.63 / 6.48", "75.53 / 4.26", "73.42 / 10.91", "47.94 / 51.92"),
    "Qwen2.5-VL, untrained": ("43.23 / 2.29", "74.18 / 2.21", "71.79 / 2.01", "42.19 / 47.91"),
    "PRM": ("75.26 / 58.46", "78.58 / 10.00", "78.77 / 29.47", "–"),
    "ORM": ("–", "–", "–", "56.31 / 58.71"),
    "UnifiReward": ("75.34 / 58.82", "81.70 / 25.00", "79.53 / 32.15", "56.88 / 59.93"),
    "UnifiReward-D, data duplicated": ("74.75 / 59.25", "81.68 / 31.00", "81.35 / 41.97", "54.57 / 53.49"),
    "UnifiReward-R, plain rewriting": ("71.06 / 43.70", "75.93 / 3.01", "71.94 / 1.79", "56.09 / 58.89"),
    "UnifiReward-P, by personality": ("77.12 / 67.23", "82.18 / 36.04", "81.79 / 44.65", "57.03 / 61.15"),
}
"""The paper's reward models on its own test set: Weighted-F1 and recall of False for each step, Weighted-F1 and
accuracy for the response."""

MarkdownTable = tuple[str, list[list[str]]]
"""A caption, and rows of cells; the first row has the heads of the columns."""

_NAMES = ("step 1", "step 2", "step 3", "response")
_MAIN = {**dict.fromkeys(STEPS, ("weighted_f1", "recall_false")), "response": ("weighted_f1", "accuracy")}
_READING = {**dict.fromkeys(STEPS, ("balanced_accuracy",)), "response": ("acceptable_balanced_accuracy",)}


def comparison_tables(comparison: Mapping[str, Any], with_published: bool = True) -> list[MarkdownTable]:
    """The tables of `compare_judges`: metrics (beside those published), margins over the blind twins, differences."""
    rows, count = comparison["rows"], comparison["records"]
    published = [[f"*{name}*", *cells, "–"] for name, cells in PUBLISHED.items()] if with_published else []
    caption = (
        "Weighted-F1 / recall of False for the steps, Weighted-F1 / accuracy of four classes for the response, in "
        f"percent; {count} records of {comparison['dialogues']} dialogues, test set {comparison['test_set'][:12]}."
    )
    if published:
        caption += f" In italics: published in {SOURCE} for other models and another test set."
    metrics = [[row["judge"], *_cells(row["parts"], _MAIN), _scored(row, count)] for row in rows]
    tables = [(caption, [["judge", *_NAMES, "scored"], *metrics, *published])]
    reading = [
        [f"{row['judge']}{words}", *_cells(row[key], _READING)]
        for row in rows
        if row["twin"]
        for key, words in (("parts", ""), ("twin", ", blind twin"), ("margin", ", margin"))
    ]
    if reading:
        caption = (
            "What reading the history adds: balanced accuracy of a judge, of its blind twin, and the margin between "
            "them, in percent; for the response that of acceptable or not."
        )
        tables.append((caption, [["judge", *_NAMES], *reading]))
    gaps = [[f"{row['judge']} − {row['rival']}", *_cells(row["parts"], _MAIN)] for row in comparison["differences"]]
    if gaps:
        tables.append(("Differences in the figures of the first table, in points.", [["", *_NAMES], *gaps]))
    return tables


def as_markdown(tables: Sequence[MarkdownTable]) -> str:
    """The tables as Markdown, each under its caption."""
    blocks = []
    for caption, (heads, *rows) in tables:
        lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
        lines = [heads, ["---"] * len(heads), *lines]
        blocks.append(caption + "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines))
    return "\n\n".join(blocks) + "\n"


def _cells(parts: Mapping[str, Any], names: Mapping[Any, Sequence[str]]) -> list[str]:
    """A cell a part, with the metrics that are named for it."""
    return [" / ".join(_text(parts[part][name]) for name in names[part]) if part in parts else "–" for part in PARTS]


def _text(metric: Mapping[str, Any]) -> str:
    if metric["value"] is None:
        return "–"
    deviation = f" ± {100 * metric['spread']:.1f}" if metric.get("spread") is not None else ""
    interval = ""
    if metric["low"] is not None:  # with few seeds it is stretched, which may carry it past the end
        interval = f" ({100 * max(metric['low'], -1):.1f} to {100 * min(metric['high'], 1):.1f})"
    return f"{100 * metric['value']:.1f}{deviation}{interval}"


def _scored(row: Mapping[str, Any], records: int) -> str:
    least, most = (f"{value / max(1, records):.1%}" for value in (min(row["scored"]), max(row["scored"])))
    return least if least == most else f"{least} to {most}"
