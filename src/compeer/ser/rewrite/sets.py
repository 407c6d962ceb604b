"""Three sets of equal size, to tell what rewriting does from what more data does: -D, -R and -P.

Each holds all original records and, added to them, as many more: the same records once more (-D, duplicated), plainly
reworded (-R), or reworded by personality (-P). What is added stems from the same original records in each set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compeer.errors import InputError
from compeer.pipeline import Done, Stage, in_blocks, work_through
from compeer.ser.record import SerRecord, read_records
from compeer.ser.rewrite import Kind

RECORDS_A_UNIT = 500

SETS: dict[str, str] = {
    "duplicate": "duplicated.jsonl",
    "plain": "with-plain.jsonl",
    "personality": "with-personality.jsonl",
}
"""What is added to the original records, and the file that holds them together."""


def equal_sets(
    original: Path, folder: Path, plain: Path | None = None, personality: Path | None = None
) -> dict[str, Any]:
    """Writes the set -D and one for each rewrite given; returns the manifest, which lies beside `duplicated.jsonl`.

    What is added are the records for which every rewrite given survived.
    """
    given: dict[Kind, Path] = {}
    if plain:
        given["plain"] = plain
    if personality:
        given["personality"] = personality
    if not given:
        raise InputError("there are no rewrites.", do="Give the plain ones, those by personality, or both.")
    inputs = {"original": original, **{str(kind): path for kind, path in given.items()}}
    stage = Stage(folder / SETS["duplicate"], {}, inputs, beside=[SETS[kind] for kind in given])
    if found := stage.finished():
        return found
    known = {record.id for record in read_records(original) if record.split == "reward"}
    counts: Counter[str] = Counter()
    common = known
    for kind, path in given.items():
        times = Counter(_origin(record, kind, path) for record in read_records(path))
        if twice := next((origin for origin, count in times.items() if count > 1), None):
            raise InputError(f"record '{twice}' is reworded twice.", file=path, do="Keep one rewrite of each record.")
        own = set(times)
        counts[f"{kind} without an original"] = len(own - known)
        counts[kind] = len(own & known)
        common = common & own
    if not common:
        what = "no record has its rewrites in all files given."
        raise InputError(what, file=original, do="Give the records that the rewrites were made of.")
    with stage:
        work_through(stage, _set_units(original, given, common, counts), lambda done: done)
        return stage.finish()


def _set_units(original: Path, given: dict[Kind, Path], common: set[str], counts: Counter[str]) -> Iterator[Done]:
    for block in in_blocks(read_records(original), RECORDS_A_UNIT):
        lines = [record.model_dump_json(exclude_defaults=True) for record in block]
        again = [
            record.model_copy(update={"id": f"{record.id}~duplicate"}).model_dump_json(exclude_defaults=True)
            for record in block
            if record.id in common
        ]
        beside = {SETS[kind]: lines for kind in given}
        yield Done(lines + again, beside, {"sets": {"original": len(block), "added": len(again)}})
    for kind, path in given.items():
        for block in in_blocks(read_records(path), RECORDS_A_UNIT):
            added = [r.model_dump_json(exclude_defaults=True) for r in block if _origin(r, kind, path) in common]
            yield Done(beside={SETS[kind]: added})
    yield Done(counts={"rewrites": counts})


def _origin(record: SerRecord, kind: Kind, path: Path) -> str:
    """The id of the record that this one was made of."""
    if record.rewritten != kind:
        raise InputError(f"record '{record.id}' is no {kind} rewrite.", file=path, field="rewritten")
    return record.id.removesuffix(f"~{kind}")
