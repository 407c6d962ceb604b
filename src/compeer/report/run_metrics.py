"""What the stages of a run recorded, read leniently, and the intervals of what was measured."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from compeer.io import read_json
from compeer.reasoning import LABELS, STEPS
from compeer.report.page import as_dict, as_estimate, as_list, as_number, find, number, read_rows
from compeer.report.wording import BEST_OF, decimal, supporter_name
from compeer.statistics import Estimate, wilson

STAGES = ("1-ser", "2-judge", "3-sft", "4-grpo", "5-evaluate")
TRAINED = ("2-judge", "3-sft", "4-grpo")
DECISIONS = ("stage", "emotion", "intensity", "strategy")
FEW_PAIRS = 10  # with fewer shared histories a bootstrap interval means nothing, and nothing is concluded from it
WIDE_SCORE, WIDE_SHARE = 1.0, 0.25  # intervals from this width on are warned of


@dataclass(frozen=True)
class RunMetrics:
    """All that the report reads: manifests by stage, curves by stage, outputs by supporter, and the recipe."""

    recipe: Mapping[str, Any]
    manifests: dict[str, dict[str, Any]]
    curves: dict[str, list[dict[str, Any]]]
    outputs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def of(self, stage: str, *keys: str) -> Any:
        """A metric of a stage, of any type, or None."""
        return find(self.manifests.get(stage), "figures", *keys)

    def number(self, stage: str, *keys: str) -> float | None:
        return as_number(self.of(stage, *keys))

    def counts(self, stage: str, *keys: str) -> dict[str, float | None]:
        return {str(key): as_number(value) for key, value in as_dict(self.of(stage, *keys)).items()}

    def names(self, stage: str, *keys: str) -> list[str]:
        return [str(name) for name in as_list(self.of(stage, *keys))]

    def judge(self, *keys: str) -> float | None:
        return self.number("5-evaluate", "judge", *keys)

    def supporter(self, name: str, *keys: str) -> float | None:
        return self.number("5-evaluate", "supporters", name, *keys)

    def each(self, *keys: str) -> list[float | None]:
        """A metric of all supporters, in their order."""
        return [self.supporter(name, *keys) for name in self.supporters]

    @cached_property
    def supporters(self) -> list[str]:
        return list(as_dict(self.of("5-evaluate", "supporters")))

    @property
    def has_best_of(self) -> bool:
        return any(name.startswith(BEST_OF) for name in self.supporters)

    def of_supporters(self, *keys: str) -> dict[str, float]:
        """A metric of each supporter that has it."""
        return {name: found for name in self.supporters if (found := self.supporter(name, *keys)) is not None}

    def majority(self, decision: str) -> float | None:
        """How often always making the most frequent decision would be right."""
        return next(iter(self.of_supporters("decisions", decision, "majority").values()), None)

    @cached_property
    def complete(self) -> dict[str, Estimate]:
        shares, outputs = (self.each("decisions", key) for key in ("format_complete", "outputs"))
        return dict(zip(self.supporters, map(share_estimate, shares, outputs), strict=True))

    @cached_property
    def scores(self) -> dict[str, Estimate]:
        return {name: self._estimate(name, "reward", value="total") for name in self.supporters}

    def decisions(self, decision: str) -> dict[str, Estimate]:
        """The share of decisions as in the corpus; with Wilson's interval where the run's own has shrunk to a point."""
        found = {}
        for name in self.supporters:
            own = self._estimate(name, "decisions", decision, value="accuracy")
            shrunk = own.low is not None and own.low == own.high
            found[name] = share_estimate(own.value, self.supporter(name, "decisions", "outputs")) if shrunk else own
        return found

    def _estimate(self, name: str, *keys: str, value: str) -> Estimate:
        return as_estimate(self.of("5-evaluate", "supporters", name, *keys), value)

    @cached_property
    def balanced(self) -> dict[str, Estimate]:
        return {LABELS[step]: self._balanced(step) for step in STEPS}

    def _balanced(self, step: str) -> Estimate:
        """Balanced accuracy with an approximate interval, from the recalls and the number of labels.

        Two successes and two failures are added to each class, so that few labels do not look like certainty.
        """
        balanced, recall_false = self.judge(step, "balanced_accuracy"), self.judge(step, "recall_false")
        share, scored = self.judge(step, "false_share"), self.judge("scored")
        if balanced is None or recall_false is None or share is None or not scored or not 0 < share < 1:
            return Estimate(value=balanced)
        variance = 0.0
        for recall, labels in ((recall_false, share * scored), (2 * balanced - recall_false, (1 - share) * scored)):
            smoothed = (recall * labels + 2) / (labels + 4)
            variance += max(0.0, smoothed * (1 - smoothed)) / (labels + 4)
        half = 1.96 * math.sqrt(variance) / 2
        return Estimate(value=balanced, low=max(0.0, balanced - half), high=min(1.0, balanced + half))

    @cached_property
    def preferred(self) -> Estimate:
        """How often the judge names the right one of four answers on the responses."""
        return share_estimate(self.judge("response", "accuracy"), self.judge("scored"))

    def changes(self, what: str) -> list[tuple[str, str, Estimate | None]]:
        """Each supporter's "total" score, or whether it is "complete", compared with the one before it, by history."""
        found = {name: self._by_record(name, what) for name in self.supporters}
        return [(one, other, paired(found[one], found[other])) for one, other in pairwise(self.supporters)]

    def _by_record(self, supporter: str, what: str) -> dict[str, float]:
        rows = {str(row.get("record")): row for row in self.outputs.get(supporter, [])}
        keys = ("total",) if what == "total" else ("parts", "format")
        known = {record: value for record, row in rows.items() if (value := number(row, *keys)) is not None}
        return known if what == "total" else {record: float(sign > 0) for record, sign in known.items()}

    @property
    def wide_intervals(self) -> list[str]:
        found = []
        for name in self.supporters:
            if (width := _width(self.scores[name])) > WIDE_SCORE:
                found.append(f"{supporter_name(name)}'s score ({decimal(width, 1)} points wide)")
            for decision in DECISIONS:
                if (width := _width(self.decisions(decision)[name])) > WIDE_SHARE:
                    found.append(f"{supporter_name(name)}'s {decision} ({100 * width:.0f} points)")
        return [*found[:4], f"{len(found) - 4} more"] if len(found) > 5 else found


def _width(estimate: Estimate) -> float:
    return 0.0 if estimate.low is None or estimate.high is None else estimate.high - estimate.low


def share_estimate(share: float | None, items: float | None) -> Estimate:
    """A share with Wilson's interval, which stays honest at 0 and 1, where a bootstrap has nothing to redraw."""
    if share is None or not 0 <= share <= 1 or not items or items < 0:
        return Estimate(value=share)
    low, high = wilson(round(share * items), round(items))
    return Estimate(value=share, low=low, high=high, n=round(items))


def paired(before: dict[str, float], after: dict[str, float]) -> Estimate | None:
    """The mean difference on the records that both have, or None if they share none."""
    changes = [after[record] - value for record, value in before.items() if record in after]
    return Estimate.of_mean(changes) if changes else None


def conclusion(change: Estimate) -> str:
    if change.n < FEW_PAIRS or change.low is None or change.high is None:
        return "These are too few histories to conclude anything"
    if change.low <= 0 <= change.high:
        return "That is within what chance gives"
    return "Chance alone would rarely give so much"


def read_run(run: Path, recipe: Mapping[str, Any]) -> RunMetrics:
    manifests = {stage: found for stage in STAGES if (found := read_json(run / stage / "manifest.json"))}
    curves = {stage: list(read_rows(run / stage / "metrics.jsonl")) for stage in TRAINED}
    metrics = RunMetrics(recipe, manifests, curves)
    for name in metrics.supporters:
        rows = as_list(find(read_json(run / "5-evaluate" / f"outputs-{name}.json"), "outputs"))
        metrics.outputs[name] = [row for row in rows if isinstance(row, dict)]
    return metrics
