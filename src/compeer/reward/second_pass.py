"""Two passes over a response become one verdict.

A UnifiReward with a second pass (`alone`) gives three answers about a response: how it compares after the steps, how
without them, and what kind of help it is: another than right steps ask for, or just what a wrong step 3 asks for, is
wrong too. A logistic regression, fitted on held-out dialogues, weighs the answers; without one both comparisons count
alike. Accepting such a response is a contradiction, which counts as `1 + cost` mistakes when the weights are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compeer.io import Frozen
from compeer.reasoning import STEPS, STRATEGIES, Part
from compeer.ser.record import ACCEPTABLE, PREFERENCES, Preferred, SerRecord

if TYPE_CHECKING:
    from compeer.reward.metrics import Judgments, Records

LEAST = 1e-4  # probabilities are kept this far from 0 and 1
FEWEST = 50  # records below which nothing is fitted

Passes = Sequence[Mapping[Preferred, float]]
Steps = Mapping[Part, float]


class PassWeights(Frozen):
    """What each answer counts for the log-odds that a response is accepted; the model's card has it as `looks`."""

    with_steps: float
    alone: float
    follows_right: float
    follows_wrong: float
    steps: float
    plan: float
    offset: float

    def odds(self, passes: Passes, carried: float | None, steps: Steps) -> float:
        """The log-odds of a response that two chats compared, the one with the steps first."""
        weights = (self.with_steps, self.alone, self.follows_right, self.follows_wrong, self.steps, self.plan)
        pairs = zip(weights, features(passes, carried, steps), strict=True)
        return self.offset + sum(weight * value for weight, value in pairs)


def features(passes: Passes, carried: float | None, steps: Steps) -> list[float]:
    """What is weighed, in the order of the weights.

    The log-odds of both comparisons; how much likelier than a guess step 3 is carried out, as far as all steps are
    right, and once more as far as step 3 is wrong; and how far all steps are right, and step 3.
    """
    first, second = (_logit(sum(one.get(value, 0.0) for value in ACCEPTABLE)) for one in passes)
    if carried is None or any(part not in steps for part in STEPS):
        return [first, second, 0.0, 0.0, 0.0, 0.0]
    more = math.log(max(carried, LEAST) * len(STRATEGIES))
    right, plan = math.prod(steps[part] for part in STEPS), steps["strategy"]
    return [first, second, right * more, (1 - plan) * more, right, plan]


def weighed(
    passes: Passes, carried: float | None = None, steps: Steps | None = None, weights: PassWeights | None = None
) -> dict[Preferred, float]:
    """One verdict of all passes: their mean, with as much of it on acceptable preferences as the weights say."""
    mean = {value: sum(one.get(value, 0.0) for one in passes) / len(passes) for value in PREFERENCES}
    if weights is None or len(passes) != 2:
        return mean
    accepted = 1 / (1 + math.exp(-min(max(weights.odds(passes, carried, steps or {}), -30.0), 30.0)))
    found: dict[Preferred, float] = {}
    for values, share in ((ACCEPTABLE, accepted), (tuple(v for v in PREFERENCES if v not in ACCEPTABLE), 1 - accepted)):
        total = sum(mean[value] for value in values)
        found |= {value: share * (mean[value] / total if total else 1 / len(values)) for value in values}
    return {value: found[value] for value in PREFERENCES}


def fit_weights(records: Records, judgments: Judgments, cost: float) -> PassWeights | None:
    """The weights that fit known preferences, of known strategies if there are enough; None where there are too few."""
    every = zip(records, judgments, strict=True)
    pairs = [(one, judgment) for one, judgment in every if one.preference and len(getattr(judgment, "looks", ())) == 2]
    known = [pair for pair in pairs if pair[0].response_strategy is not None]
    return _fitted(known, cost) or _fitted(pairs, cost)


def _fitted(pairs: Sequence[tuple[SerRecord, Any]], cost: float) -> PassWeights | None:
    accepted = [record.preference is not None and record.preference.value in ACCEPTABLE for record, _ in pairs]
    if len(pairs) < FEWEST or len(set(accepted)) < 2:
        return None
    from sklearn.linear_model import LogisticRegression

    rows = [features(found.looks, found.carried, found.steps) for _, found in pairs]
    contradicting = [not good and would_contradict(record) for good, (record, _) in zip(accepted, pairs, strict=True)]
    counts = [1 + cost * one for one in contradicting]
    model = LogisticRegression(max_iter=1000).fit(rows, accepted, sample_weight=counts)
    names = [name for name in PassWeights.model_fields if name != "offset"]
    return PassWeights(**dict(zip(names, map(float, model.coef_[0]), strict=True)), offset=float(model.intercept_[0]))


def would_contradict(record: SerRecord) -> bool:
    """Whether accepting the response contradicts right verdicts: it follows a wrong step 3, or leaves right steps."""
    if record.labels is None or record.response_strategy is None:
        return False
    if record.response_strategy == record.candidate.strategy.strategy:
        return not record.labels.strategy.value
    return all(getattr(record.labels, part).value for part in STEPS)


def _logit(value: float) -> float:
    value = min(max(value, LEAST), 1 - LEAST)
    return math.log(value / (1 - value))
