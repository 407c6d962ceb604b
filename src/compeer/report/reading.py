"""Reads a run's folder for the report, leniently: what is missing or unreadable becomes None, never an error.

A report is most needed when something went wrong. So every figure is asked for by its path through the manifests, and
one that is not there, or is NaN, is simply not known; the page shows a dash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STAGES = ("1-ser", "2-judge", "3-sft", "4-grpo", "5-evaluate")
TRAINED = ("2-judge", "3-sft", "4-grpo")


@dataclass(frozen=True)
class RunFigures:
    """All that the report looks at: manifests by stage, curves by stage, outputs by supporter, and the recipe."""

    recipe: Mapping[str, Any]
    manifests: dict[str, dict[str, Any]]
    curves: dict[str, list[dict[str, Any]]]
    outputs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def of(self, stage: str, *keys: str) -> Any:
        """A stage's figure of any kind, or None."""
        return find(self.manifests.get(stage), "figures", *keys)

    def number(self, stage: str, *keys: str) -> float | None:
        """A stage's figure as a finite number, or None."""
        return as_number(self.of(stage, *keys))

    def counts(self, stage: str, *keys: str) -> dict[str, float | None]:
        """A stage's table of named numbers; empty where there is none."""
        found = self.of(stage, *keys)
        return {str(key): as_number(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def names(self, stage: str, *keys: str) -> list[str]:
        """A stage's list of names; empty where there is none."""
        found = self.of(stage, *keys)
        return [str(name) for name in found] if isinstance(found, list) else []

    @property
    def supporters(self) -> list[str]:
        """The supporters that were measured, in the order of the manifest."""
        found = self.of("5-evaluate", "supporters")
        return list(found) if isinstance(found, dict) else []


def read_run(run: Path, recipe: Mapping[str, Any]) -> RunFigures:
    """Everything the report needs of a run's folder."""
    manifests = {stage: found for stage in STAGES if (found := _read_object(run / stage / "manifest.json"))}
    curves = {stage: list(read_lines(run / stage / "metrics.jsonl")) for stage in TRAINED}
    figures = RunFigures(recipe, manifests, curves)
    for name in figures.supporters:
        rows = (_read_object(run / "5-evaluate" / f"outputs-{name}.json") or {}).get("outputs")
        figures.outputs[name] = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return figures


def find(value: Any, *keys: str) -> Any:
    """What lies at a path of keys, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def as_number(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines; other lines are passed over."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row
