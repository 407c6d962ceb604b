"""The sets -D, -R and -P: what rewriting does for a judge, apart from what more data does.

python research/personality/sets.py records.jsonl sets --plain plain.jsonl --personality personality.jsonl
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import Records, run_command

from compeer.cli.printing import print_counts
from compeer.errors import InputError
from compeer.io import json_line
from compeer.pipeline import Done, Stage, in_blocks
from compeer.ser.asking import run_stage
from compeer.ser.record import SerRecord, read_records

SETS = {"duplicate": "duplicated.jsonl", "plain": "with-plain.jsonl", "personality": "with-personality.jsonl"}
"""What is added to the original records, and the file that holds them together."""
RECORDS_A_UNIT = 500


def equal_sets(
    records: Path, folder: Path, plain: Path | None = None, personality: Path | None = None
) -> dict[str, Any]:
    """Writes the set -D and one for each rewrite given; returns the manifest, which lies beside `duplicated.jsonl`.

    Each holds all original records and as many more: the same records once more (-D), plainly reworded (-R), or
    reworded by personality (-P). What is added are the records for which every rewrite given survived.
    """
    given = {kind: path for kind, path in {"plain": plain, "personality": personality}.items() if path}
    if not given:
        raise InputError("there are no rewrites.", do="Give the plain ones, those by personality, or both.")
    folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(folder / SETS["duplicate"], {}, {"original": records, **given}, beside=[SETS[kind] for kind in given])
    if found := stage.finished():
        return found
    known = {record.id for record in read_records(records) if record.split == "reward"}
    counts: Counter[str] = Counter()
    common = known
    for kind, path in given.items():
        times = Counter(_origin(record, kind, path) for record in read_records(path))
        if twice := next((origin for origin, count in times.items() if count > 1), None):
            raise InputError(f"record '{twice}' is reworded twice.", file=path, do="Keep one rewrite of each record.")
        counts[f"{kind} without an original"] = len(times.keys() - known)
        counts[kind] = len(times.keys() & known)
        common = common & times.keys()
    if not common:
        what = "no record has its rewrites in all files given."
        raise InputError(what, file=records, do="Give the records that the rewrites were made of.")
    return run_stage(stage, _set_units(records, given, common, counts), lambda done: done)


def _set_units(original: Path, given: dict[str, Path], common: set[str], counts: Counter[str]) -> Iterator[Done]:
    for block in in_blocks(read_records(original), RECORDS_A_UNIT):
        lines = [json_line(record) for record in block]
        again = [json_line(r.model_copy(update={"id": f"{r.id}~duplicate"})) for r in block if r.id in common]
        beside = {SETS[kind]: lines for kind in given}
        yield Done(lines + again, beside, {"sets": {"original": len(block), "added": len(again)}})
    for kind, path in given.items():
        for block in in_blocks(read_records(path), RECORDS_A_UNIT):
            yield Done(beside={SETS[kind]: [json_line(r) for r in block if _origin(r, kind, path) in common]})
    yield Done(counts={"rewrites": counts})


def _origin(record: SerRecord, kind: str, path: Path) -> str:
    """The id of the record that this one was made of."""
    if record.rewritten != kind:
        raise InputError(f"record '{record.id}' is no {kind} rewrite.", file=path, field="rewritten")
    return record.id.removesuffix(f"~{kind}")


def main(
    records: Records,
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    plain: Annotated[Path | None, typer.Option(help="The records reworded plainly.")] = None,
    personality: Annotated[Path | None, typer.Option(help="Those reworded by personality.")] = None,
) -> None:
    """Write the sets -D, -R and -P: all records, and as many more duplicated, reworded, or reworded by personality."""
    print_counts(equal_sets(records, folder, plain, personality), folder)


if __name__ == "__main__":
    run_command(main)
