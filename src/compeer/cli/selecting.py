"""Which records the `compeer reward` commands take: those with the labels that are needed. What is left out is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from compeer.errors import InputError
from compeer.progress import console

if TYPE_CHECKING:
    from compeer.reward.compare import Said
    from compeer.ser.record import SerRecord

Need = Literal["labels", "preference"]
NEEDS: dict[str, tuple[Need, ...]] = {
    "unified": ("labels", "preference"),
    "process": ("labels",),
    "outcome": ("preference",),
}
"""What a judge of each kind learns from, and is measured by."""
_WORDS: dict[Need, str] = {"labels": "labels of the steps", "preference": "a preference"}


def read_split(path: Path, split: str) -> list[SerRecord]:
    """The records of a split, or of all."""
    from compeer.ser.record import SPLITS, read_records

    if split not in (*SPLITS, "all"):
        raise InputError(f"unknown split '{split}'.", field="split", do=f"Known: {', '.join(SPLITS)}, all")
    found = [record for record in read_records(path) if split in ("all", record.split)]
    if not found:
        where = "this file" if split == "all" else f"the {split} split"
        raise InputError(f"there is no record in {where}.", file=path)
    return found


def labelled_places(records: Sequence[SerRecord], needs: Sequence[Need], path: Path) -> list[int]:
    """The places of the records that have what is needed; how many of the others lack what is told."""
    lacking = {need: sum(getattr(record, need) is None for record in records) for need in needs}
    places = [
        place
        for place, record in enumerate(records)
        if all(getattr(record, need) is not None for need in needs) and (record.labels or record.preference)
    ]
    wanted = " and ".join(_WORDS[need] for need in needs) or "labels of the steps or a preference"
    if not places:
        raise InputError(f"there is no record with {wanted} among the {len(records):,} of this split.", file=path)
    if left_out := len(records) - len(places):
        why = ", ".join(f"{count:,} without {_WORDS[need]}" for need, count in lacking.items() if count)
        told = f"{left_out:,} of {len(records):,} records are left out: {why or f'they have no {wanted}'}."
        console.print(f"[yellow]{told}[/]", highlight=False, soft_wrap=True)
    return places


def needs_of(judges: Sequence[Said]) -> tuple[Need, ...]:
    """What records must have for several judges to be measured on the same: labels of whatever one of them judged."""
    from compeer.reward.score import Judgment

    said = [one for judge in judges for one in judge if isinstance(one, Judgment)]
    found: list[Need] = ["labels"] if any(one.steps for one in said) else []
    return (*found, "preference") if any(one.response for one in said) else tuple(found)


def check_out(path: Path) -> None:
    """An error now rather than after long work, if a file cannot be written there."""
    if path.is_dir():
        raise InputError("this is a folder.", file=path, do="Give the name of a file to write.")
    if not path.parent.is_dir():
        raise InputError("there is no such folder.", file=path.parent, do="Make it first, or give another name.")
