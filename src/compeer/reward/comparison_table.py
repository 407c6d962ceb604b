"""A comparison of judges as tables to read, beside what the paper published: as Markdown, or for a terminal.

All metrics are in percent. `81.2 ± 0.8 (79.0 to 83.4)` is the mean over seeds, the standard deviation over seeds (left
out for one seed) and the 95 % interval over dialogues and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compeer.reasoning import PARTS, STEPS, Part

if TYPE_CHECKING:
    from rich.table import Table as RichTable

SOURCE = "arXiv 2508.09521"
_NONE = (None, None)
PUBLISHED: Mapping[str, tuple[tuple[float | None, float | None], ...]] = {
    "GPT-4o, untrained": ((46.63, 6.48), (75.53, 4.26), (73.42, 10.91), (47.94, 51.92)),
    "Qwen2.5-VL, untrained": ((43.23, 2.29), (74.18, 2.21), (71.79, 2.01), (42.19, 47.91)),
    "PRM": ((75.26, 58.46), (78.58, 10.00), (78.77, 29.47), _NONE),
    "ORM": (_NONE, _NONE, _NONE, (56.31, 58.71)),
    "UnifiReward": ((75.34, 58.82), (81.70, 25.00), (79.53, 32.15), (56.88, 59.93)),
    "UnifiReward-D, data duplicated": ((74.75, 59.25), (81.68, 31.00), (81.35, 41.97), (54.57, 53.49)),
    "UnifiReward-R, plain rewriting": ((71.06, 43.7), (75.93, 3.01), (71.94, 1.79), (56.09, 58.89)),
    "UnifiReward-P, by personality": ((77.12, 67.23), (82.18, 36.04), (81.79, 44.65), (57.03, 61.15)),
}
"""The paper's reward models on its own test set: Weighted-F1 and recall of False for each step, Weighted-F1 and
accuracy for the response."""

_NAMES = ("step 1", "step 2", "step 3", "response")
_MAIN = {**dict.fromkeys(STEPS, ("weighted_f1", "recall_false")), "response": ("weighted_f1", "accuracy")}
_READING = {**dict.fromkeys(STEPS, "balanced_accuracy"), "response": "acceptable_balanced_accuracy"}
_DASH = "–"


@dataclass(frozen=True)
class ReadableTable:
    """A caption, the heads of the columns, and rows of cells."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def comparison_tables(comparison: Mapping[str, Any], with_published: bool = True) -> list[ReadableTable]:
    """The tables of `compare_judges`: metrics (beside those published), margins over the blind twins, differences."""
    rows, count = comparison["rows"], comparison["records"]
    where = f"{count} records of {comparison['dialogues']} dialogues, test set {comparison['test_set'][:12]}"
    metrics = [[row["judge"], *(_main(row["parts"], part) for part in PARTS), _scored(row, count)] for row in rows]
    others = PUBLISHED.items() if with_published else ()
    published = [[f"*{name}*", *(_two(*pair) for pair in pairs), _DASH] for name, pairs in others]
    in_italics = f" In italics: published in {SOURCE} for other models and another test set." if published else ""
    tables = [
        ReadableTable(
            "Weighted-F1 / recall of False for the steps, Weighted-F1 / accuracy of four classes for the response, in "
            f"percent; {where}.{in_italics}",
            ["judge", *_NAMES, "scored"],
            [*metrics, *published],
        )
    ]
    reading = [
        [f"{row['judge']}{words}", *(_cell(row[key], part) for part in PARTS)]
        for row in rows
        if row["twin"]
        for key, words in (("parts", ""), ("twin", ", blind twin"), ("margin", ", margin"))
    ]
    if reading:
        caption = (
            "What reading the history adds: balanced accuracy of a judge, of its blind twin, and the margin between "
            "them, in percent; for the response that of acceptable or not."
        )
        tables.append(ReadableTable(caption, ["judge", *_NAMES], reading))
    if comparison["differences"]:
        cells = [
            [f"{row['judge']} − {row['rival']}", *(_main(row["parts"], part) for part in PARTS)]
            for row in comparison["differences"]
        ]
        tables.append(ReadableTable("Differences in the figures of the first table, in points.", ["", *_NAMES], cells))
    return tables


def _scored(row: Mapping[str, Any], records: int) -> str:
    least, most = (f"{value / max(1, records):.1%}" for value in (min(row["scored"]), max(row["scored"])))
    return least if least == most else f"{least} to {most}"


def _main(parts: Mapping[str, Any], part: Part) -> str:
    return " / ".join(_cell_text(parts[part][name]) for name in _MAIN[part]) if part in parts else _DASH


def _cell(parts: Mapping[str, Any], part: Part) -> str:
    return _cell_text(parts[part][_READING[part]]) if part in parts else _DASH


def _two(first: float | None, second: float | None) -> str:
    return _DASH if first is None or second is None else f"{first:.2f} / {second:.2f}"


def _cell_text(metric: Mapping[str, Any]) -> str:
    if metric["value"] is None:
        return _DASH
    deviation = f" ± {100 * metric['spread']:.1f}" if metric.get("spread") is not None else ""
    interval = ""
    if metric["low"] is not None:  # with few seeds it is stretched, which may carry it past the end
        interval = f" ({100 * max(metric['low'], -1):.1f} to {100 * min(metric['high'], 1):.1f})"
    return f"{100 * metric['value']:.1f}{deviation}{interval}"


def as_markdown(tables: Sequence[ReadableTable]) -> str:
    """The tables as Markdown, each under its caption."""
    blocks = []
    for table in tables:
        lines = [table.heads, ["---"] * len(table.heads), *table.rows]
        blocks.append(table.caption + "\n\n" + "\n".join("| " + " | ".join(map(_plain, line)) + " |" for line in lines))
    return "\n\n".join(blocks) + "\n"


def _plain(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def as_rich(table: ReadableTable) -> RichTable:
    """One table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    found = Table(title=Text(table.caption), title_justify="left")
    for number, head in enumerate(table.heads):
        found.add_column(head, justify="left" if number == 0 else "right")
    for row in table.rows:
        style = "italic" if row[0].startswith("*") else ""
        found.add_row(*(Text(cell.strip("*"), style=style) for cell in row))
    return found
