"""How figures with intervals become a verdict, and cells and tables of a Markdown page.

A claim has conditions, each an estimate with its interval: a condition is met if the whole interval lies on the wanted
side of zero ("no less" is met unless the whole interval lies below it). A claim *holds* if all are met, *holds in
part* if one that asks for a difference is, and else *does not hold*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compeer.report.wording import DASH, decimal, signed

NO_DIFFERENCE = "no difference found"
IN_PERCENT = (100.0, 1)
SCALES = {
    "raw reward": (1.0, 2),
    "other judges": (1.0, 2),
    "second judge": (1.0, 2),
    "words": (1.0, 1),
    "words_written": (1.0, 1),
    "similarity in a group": (1.0, 3),
    "s_in": (1.0, 3),
    "distinct_2": (1.0, 3),
    "distinct_2_by_history": (1.0, 3),
    "chosen": (1.0, 2),
}
"""By what a figure is multiplied, and its digits; all others are shares, shown in per cent."""


@dataclass(frozen=True)
class Condition:
    """What a claim asks for, the estimate that speaks to it, and whether it is met; None: it does not count."""

    name: str
    estimate: str
    found: str
    met: bool | None
    asks_for_difference: bool = True


@dataclass
class Claim:
    """What the page shows of one claim."""

    measured: Any
    conditions: list[Condition] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    plots: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        counted = [condition for condition in self.conditions if condition.met is not None]
        if not counted:
            return "measured, no verdict" if self.measured else "not measured yet"
        if all(condition.met for condition in counted):
            return "holds"
        partly = any(condition.met and condition.asks_for_difference for condition in counted)
        return "holds in part" if partly else "does not hold"

    @property
    def summary(self) -> str:
        """In words, how many conditions are met, and what was found in the others."""
        counted = [condition for condition in self.conditions if condition.met is not None]
        failed = [condition for condition in counted if not condition.met]
        open_ones = sum(condition.found == NO_DIFFERENCE for condition in failed)
        words = [f"{len(counted) - len(failed)} of {len(counted)} conditions are met"]
        words += [f"in {open_ones} no difference was found"] if open_ones else []
        words += [f"in {len(failed) - open_ones} the opposite was found"] if len(failed) > open_ones else []
        return ", ".join(words)

    @property
    def hardware(self) -> str:
        """The devices and versions that the file names."""
        trainings = [one for one in self.measured.get("trainings", {}).values() if "device" in one]
        return (
            " and ".join(sorted({f"{one['device']}, torch {one['torch']}" for one in trainings}))
            or "hardware as told there"
        )


def condition(name: str, estimate: Sequence[float | None], wanted: str, scale: tuple[float, int]) -> Condition:
    """`wanted` is "more", "less", "no less" or "no more"; `estimate` a value and its interval, zero being no change."""
    value, low, high = (None if one is None else scale[0] * one for one in estimate)
    above, below = low is not None and low > 0, high is not None and high < 0
    met = {"more": above, "less": below, "no less": not below, "no more": not above}[wanted]
    found = "more" if above else "less" if below else NO_DIFFERENCE
    shown = f"{signed(value, scale[1])} ({decimal(low, scale[1])} to {decimal(high, scale[1])})"
    return Condition(name, shown, found, met, wanted in ("more", "less"))


def cell(estimate: Any, scale: tuple[float, int]) -> str:
    """A figure, with its interval where it has one; words stay as they are."""
    factor, digits = scale
    if isinstance(estimate, Mapping):
        estimate = [estimate["value"], estimate["low"], estimate["high"]]
    if not isinstance(estimate, list):
        return decimal(factor * estimate, digits) if isinstance(estimate, int | float) else str(estimate)
    value, low, high = (None if one is None else factor * one for one in estimate)
    return f"{decimal(value, digits)} ({decimal(low, digits)} to {decimal(high, digits)})"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(one.replace("|", "\\|") for one in line) + " |" for line in lines)


def by_figure(columns: Mapping[str, Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """A row a figure, a column a model; what no model has is left out."""
    rows = [
        [title, *(cell(one[key], SCALES.get(key, IN_PERCENT)) if key in one else DASH for one in columns.values())]
        for key, title in names.items()
        if any(key in one for one in columns.values())
    ]
    return table(["", *columns], rows)
