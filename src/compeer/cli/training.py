"""What `compeer reward` and `compeer policy` share: which records, which settings, which folder, which judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from compeer.cli.printing import note
from compeer.errors import InputError, from_validation
from compeer.io import file_hash, read_setting, write_json
from compeer.progress import first_process

if TYPE_CHECKING:
    from compeer.reward.metrics import Judgments
    from compeer.ser.record import SerRecord

Settings = TypeVar("Settings", bound=BaseModel)
Need = Literal["labels", "preference"]
NEEDS: dict[str, tuple[Need, ...]] = {
    "unified": ("labels", "preference"),
    "process": ("labels",),
    "outcome": ("preference",),
}  # what a judge of each kind learns from, and is measured by
_WORDS: dict[Need, str] = {"labels": "labels of the steps", "preference": "a preference"}
_STATE = "settings.json"


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


def labelled_indices(records: Sequence[SerRecord], needs: Sequence[Need], path: Path) -> list[int]:
    """The indices of the records that have what is needed; prints how many of the others lack what."""
    lacking = {need: sum(getattr(record, need) is None for record in records) for need in needs}
    indices = [
        index
        for index, record in enumerate(records)
        if all(getattr(record, need) is not None for need in needs) and (record.labels or record.preference)
    ]
    wanted = " and ".join(_WORDS[need] for need in needs) or "labels of the steps or a preference"
    if not indices:
        raise InputError(f"there is no record with {wanted} among the {len(records):,} of this split.", file=path)
    if left_out := len(records) - len(indices):
        why = ", ".join(f"{count:,} without {_WORDS[need]}" for need, count in lacking.items() if count)
        text = f"{left_out:,} of {len(records):,} records are left out: {why or f'they have no {wanted}'}."
        note(text, "yellow")
    return indices


def needs_of(judges: Sequence[Judgments]) -> tuple[Need, ...]:
    """What records must have for several judges to be measured on the same: labels of whatever one of them judged."""
    from compeer.reward.score import Judgment

    found = [one for judge in judges for one in judge if isinstance(one, Judgment)]
    needs: list[Need] = ["labels"] if any(one.steps for one in found) else []
    return (*needs, "preference") if any(one.response for one in found) else tuple(needs)


def read_settings(kind: type[Settings], start: Mapping[str, Any], changes: Sequence[str] | None) -> Settings:
    """The settings of a kind: those given to start from, with the changes of the command line."""
    values = {**start, **dict(read_setting(change, "steps=900") for change in changes or ())}
    return settings_of(kind, values, do=f"Known settings: {', '.join(kind.model_fields)}")


def settings_of(kind: type[Settings], values: Mapping[str, Any], do: str | None = None) -> Settings:
    """The settings that these values make; an error that names the field and says what to `do`."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise from_validation(error, do=do) from None


def claim(out: Path, records: Path, split: str, settings: BaseModel, seed: int, **more: str) -> None:
    """Makes the folder, or checks that what was begun in it is this training: another one must not go on from it."""
    if out.is_file():
        raise InputError("this is a file.", file=out, do="Give a folder.")
    state = {"records": file_hash(records), "split": split, "seed": seed, **more, **settings.model_dump(mode="json")}
    path = out / _STATE
    begun = path.is_file() and any((out / name).is_dir() for name in ("checkpoints", "model"))
    before = json.loads(path.read_text(encoding="utf-8")) if begun else state
    if other := [key for key in sorted({*state, *before}) if state.get(key) != before.get(key)]:
        what = f"a training with other settings was begun here ({', '.join(other)})."
        raise InputError(what, file=out, do="Give another folder, or remove this one.")
    if not begun and first_process():
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, state)
