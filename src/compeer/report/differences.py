"""What chance would give: differences between supporters on the same histories, and intervals of shares.

Two supporters answer the same histories, so they are compared history by history: the mean of the differences, with a
bootstrap interval over the histories. That is sharper than asking whether two separate intervals overlap. Where single
outputs are not at hand, that is asked instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from compeer.report.reading import RunFigures, as_number, find
from compeer.statistics import bootstrap_interval

FEW_PAIRS = 10
"""With fewer shared histories than this a bootstrap interval means nothing, and nothing is concluded from it."""


@dataclass(frozen=True)
class Difference:
    """The mean of `after − before` over shared histories, with its 95 % interval."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """What may be concluded."""
        if self.pairs < FEW_PAIRS:
            return "These are too few histories to conclude anything"
        if self.low <= 0 <= self.high:
            return "That is within what chance gives"
        return "Chance alone would rarely give so much"


def paired(before: dict[str, float], after: dict[str, float]) -> Difference | None:
    """The difference on the records that both have, or None if they share none."""
    changes = [after[record] - value for record, value in before.items() if record in after]
    if not changes:
        return None
    low, high = bootstrap_interval(len(changes), lambda drawn: sum(changes[i] for i in drawn) / len(drawn))
    return Difference(sum(changes) / len(changes), low, high, len(changes))


def totals(figures: RunFigures, supporter: str) -> dict[str, float]:
    """The judge's score of each output that has one, by record."""
    rows = figures.outputs.get(supporter, [])
    return {str(row.get("record")): value for row in rows if (value := as_number(row.get("total"))) is not None}


def complete(figures: RunFigures, supporter: str) -> dict[str, float]:
    """1 for each output in which everything could be read, else 0, by record."""
    rows = figures.outputs.get(supporter, [])
    signs = {str(row.get("record")): as_number(find(row, "parts", "format")) for row in rows}
    return {record: float(sign > 0) for record, sign in signs.items() if sign is not None}


def overlap(first: tuple[float | None, float | None], second: tuple[float | None, float | None]) -> bool | None:
    """Whether two intervals have a point in common; None where one is not known."""
    if first[0] is None or first[1] is None or second[0] is None or second[1] is None:
        return None
    return first[0] <= second[1] and second[0] <= first[1]


def wilson(share: float | None, number: float | None) -> tuple[float | None, float | None]:
    """Wilson's 95 % interval of a share; it stays honest at 0 and at 1, where a bootstrap has nothing to redraw."""
    if share is None or not 0 <= share <= 1 or not number or number < 0:
        return None, None
    z = 1.96
    middle = (share + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return max(0.0, middle - half), min(1.0, middle + half)


def decision_interval(figures: RunFigures, supporter: str, decision: str) -> tuple[float | None, float | None]:
    """The run's own bootstrap interval of an accuracy, or Wilson's where that has shrunk to a point at 0 or 1."""
    keys = ("5-evaluate", "supporters", supporter, "decisions")
    low, high = (figures.number(*keys, decision, key) for key in ("low", "high"))
    if low is not None and low == high:
        return wilson(figures.number(*keys, decision, "accuracy"), figures.number(*keys, "outputs"))
    return low, high


def balanced_interval(figures: RunFigures, step: str) -> tuple[float | None, float | None]:
    """An approximate 95 % interval of the judge's balanced accuracy, from its recalls and the number of labels.

    Two successes and two failures are added to each class before its variance is taken, so that few labels that
    happen to be all right do not look like certainty.
    """
    balanced = figures.number("5-evaluate", "judge", step, "balanced_accuracy")
    recall_false = figures.number("5-evaluate", "judge", step, "recall_false")
    share = figures.number("5-evaluate", "judge", step, "false_share")
    scored = figures.number("5-evaluate", "judge", "scored")
    if balanced is None or recall_false is None or share is None or not scored or not 0 < share < 1:
        return None, None
    variance = 0.0
    for recall, labels in ((recall_false, share * scored), (2 * balanced - recall_false, (1 - share) * scored)):
        smoothed = (recall * labels + 2) / (labels + 4)
        variance += max(0.0, smoothed * (1 - smoothed)) / (labels + 4)
    half = 1.96 * math.sqrt(variance) / 2
    return max(0.0, balanced - half), min(1.0, balanced + half)
