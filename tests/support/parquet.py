"""Exported records read back, to prove that an export loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from compeer.reasoning import STEPS
from compeer.ser.record import SerRecord

PLAIN = ["id", "dialogue", "round", "language", "source", "split", "author", "response_strategy", "reference"]
PLAIN += ["candidate_first", "rewritten", "history", "derived"]
DECISIONS = {"history": ("stage",), "emotion": ("sentiment", "emotion", "intensity"), "strategy": ("strategy",)}


def records_from_parquet(path: Path) -> Iterator[SerRecord]:
    """The records of an exported file, or of all files of an exported folder, one at a time."""
    for file in sorted(path.rglob("*.parquet")) if path.is_dir() else [path]:
        for row in parquet.read_table(file).to_pylist():
            yield _record(row)


def _record(row: dict[str, Any]) -> SerRecord:
    steps = {
        step: {"text": row[f"{step}_text"], **{name: row[name] for name in names}} for step, names in DECISIONS.items()
    }
    labels = {step: _label(row, f"{step}_label", ("source", "how", "kind", "reason")) for step in STEPS}
    return SerRecord.model_validate(
        {
            **{name: row[name] for name in PLAIN},
            "candidate": {**steps, "response": row["response"]},
            "labels": labels if all(labels.values()) else None,
            "preference": _label(row, "preference", ("source", "how", "reason")),
        }
    )


def _label(row: dict[str, Any], name: str, fields: tuple[str, ...]) -> dict[str, Any] | None:
    if row[name] is None:
        return None
    return {"value": row[name], **{field: row[f"{name}_{field}"] for field in fields}}
