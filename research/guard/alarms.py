"""The share of false alarms, from a table of alarms (CSV) that a person has read.

    python research/guard/raise_alarms.py esconv.json --show    # writes alarms.csv
    python research/guard/alarms.py alarms.csv --out read.json  # after its column `true` was filled in: yes or no

Alarms that nobody has judged yet count as false until somebody does.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import run_command
from research.guard.raise_alarms import COLUMNS

from compeer.cli.printing import print_table, with_bounds
from compeer.errors import InputError
from compeer.io import Frozen, write_json
from compeer.safety.risk import LEVELS
from compeer.statistics import Estimate

_YES = frozenset({"yes", "y", "true", "t", "1", "是"})
_NO = frozenset({"no", "n", "false", "f", "0", "否"})


class ReadMetrics(Frozen):
    """What a person found who read the alarms."""

    utterances: int
    alarms: int
    unread: int = Field(description="alarms that nobody has judged yet; they count as false until somebody does")
    true_alarms: int
    false_alarms: Estimate = Field(description="of all utterances: alarms that were read as false, or not read yet")
    levels: dict[str, Estimate] = Field(description="the same for each level")
    false_by_rule: dict[str, int] = Field(description="alarms read as false, by the rules that had a part in them")


def read_alarms(path: Path) -> ReadMetrics:
    """The metrics of a table that a person filled in; an error names the line and column."""
    if not path.is_file():
        raise InputError("there is no such table of alarms.", file=path)
    judged: list[tuple[str, list[str], bool | None]] = []
    counts: set[int] = set()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            if lacking := [name for name in COLUMNS if name not in (table.fieldnames or ())]:
                do = "Give a table that raise_alarms.py wrote, saved as CSV with commas."
                raise InputError(f"it has no column {', '.join(lacking)}.", file=path, do=do)
            for row in table:
                level = row["level"]
                counts.add(_count(row["utterances"], path, table.line_num))
                if level not in LEVELS:
                    known = f"Known: {', '.join(LEVELS)}"
                    raise InputError("unknown level.", file=path, line=table.line_num, field="level", do=known)
                rules = [rule for rule in (row["by"] or "").split("; ") if rule]
                judged.append((level, rules, _judgment(row["true"], path, table.line_num)))
    except (UnicodeDecodeError, csv.Error) as error:
        what = f"it cannot be read as CSV in UTF-8: {error}"
        raise InputError(what, file=path, do="Save it as CSV, UTF-8, with commas.") from None
    if not judged:
        raise InputError("there is no alarm in it.", file=path)
    if len(counts) > 1 or min(counts) < len(judged):
        what = "the rows do not agree on how many utterances there were."
        raise InputError(
            what, file=path, field="utterances", do="Read the table of each corpus alone, as it was written."
        )
    utterances = min(counts)
    false = [(level, rules) for level, rules, true in judged if true is False]
    unread = [level for level, _, true in judged if true is None]
    at = Counter([level for level, _ in false] + unread)
    return ReadMetrics(
        utterances=utterances,
        alarms=len(judged),
        unread=len(unread),
        true_alarms=sum(true is True for _, _, true in judged),
        false_alarms=Estimate.of_share(sum(at.values()), utterances),
        levels={level: Estimate.of_share(at[level], utterances) for level in LEVELS if level != "none"},
        false_by_rule=dict(Counter(rule for _, rules in false for rule in rules).most_common()),
    )


def _count(value: str | None, path: Path, line: int) -> int:
    if not (value or "").strip().isdecimal():
        do = "Leave this column as it was written."
        raise InputError("it is not a number.", file=path, line=line, field="utterances", do=do)
    return int(value or 0)


def _judgment(value: str | None, path: Path, line: int) -> bool | None:
    word = (value or "").strip().lower()
    if word and word not in _YES | _NO:
        raise InputError("it is neither yes nor no.", file=path, line=line, field="true", do="Write yes or no.")
    return word in _YES if word else None


def main(
    table: Annotated[Path, typer.Argument(help="A table of alarms whose column 'true' is filled in.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all metrics as JSON.")] = None,
) -> None:
    """Count the alarms of a table that a person has read."""
    metrics = read_alarms(table)
    typer.echo(
        f"{metrics.alarms:,} alarms in {metrics.utterances:,} utterances: {metrics.true_alarms:,} true, "
        f"{metrics.unread:,} not read yet (counted as false)"
    )
    shares = {"all": metrics.false_alarms, **metrics.levels}
    print_table(["False alarms after reading", ""], [[level, with_bounds(one)] for level, one in shares.items()])
    for rule, count in metrics.false_by_rule.items():
        typer.echo(f"{count:7,}  {rule}")
    if out:
        write_json(out, metrics.model_dump())


if __name__ == "__main__":
    run_command(main)
