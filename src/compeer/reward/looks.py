"""Two looks at a response become one verdict.

A UnifiReward that looks at the responses `alone` as well (`Form.alone`) has said three things about a response: how it
compares after the steps, how it compares without them, and what kind of help it is. If that is not the kind that step 3
asks for, and the steps are right, the response is wrong too, however well it reads. A logistic regression, taught on
held-out dialogues, weighs the three; without one the two comparisons count alike and the third not at all.

Accepting such a response is a contradiction, which is worse than an ordinary mistake: the reward would praise a plan
and its opposite. So it counts as `1 + cost` mistakes when the weights are found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from compeer.reasoning import STEPS, STRATEGIES
from compeer.ser.record import ACCEPTABLE, PREFERENCES, Preferred, SerRecord

if TYPE_CHECKING:
    from compeer.reward.score import Judgment, Unscored

LEAST = 1e-4
"""Probabilities are kept this far from 0 and 1."""
FEWEST = 50
"""Records below which no weights are found."""

Chances = Mapping[Preferred, float]


class LookWeights(BaseModel):
    """What each look counts for the log-odds that a response is accepted; it stands in the model's card."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    with_steps: float
    alone: float
    carried: float
    offset: float

    def odds(self, looks: Sequence[Chances], carried: float | None) -> float:
        """The log-odds of a response that two chats compared, the one with the steps first."""
        values = features(looks, carried)
        weights = (self.with_steps, self.alone, self.carried)
        return self.offset + sum(weight * value for weight, value in zip(weights, values, strict=True))


def features(looks: Sequence[Chances], carried: float | None) -> list[float]:
    """What is weighed: the log-odds of both comparisons, and how much likelier than a guess step 3 is carried out."""
    first, second = (_logit(sum(look.get(value, 0.0) for value in ACCEPTABLE)) for look in looks)
    return [first, second, 0.0 if carried is None else math.log(max(carried, LEAST) * len(STRATEGIES))]


def weighed(looks: Sequence[Chances], carried: float | None, weights: LookWeights | None) -> dict[Preferred, float]:
    """One verdict of all looks: their mean, with as much of it on acceptable preferences as the weights say."""
    mean = {value: sum(look.get(value, 0.0) for look in looks) / len(looks) for value in PREFERENCES}
    if weights is None or len(looks) != 2:
        return mean
    chance = 1 / (1 + math.exp(-min(max(weights.odds(looks, carried), -30.0), 30.0)))
    found: dict[Preferred, float] = {}
    for values, share in ((ACCEPTABLE, chance), (tuple(v for v in PREFERENCES if v not in ACCEPTABLE), 1 - chance)):
        total = sum(mean[value] for value in values)
        found |= {value: share * (mean[value] / total if total else 1 / len(values)) for value in values}
    return {value: found[value] for value in PREFERENCES}


def find_weights(
    records: Sequence[SerRecord], judgments: Sequence[Judgment | Unscored], cost: float
) -> LookWeights | None:
    """The weights that fit records whose preference is known, or None where there are too few of either kind."""
    rows, accepted, counts = [], [], []
    for record, judgment in zip(records, judgments, strict=True):
        looks = getattr(judgment, "looks", ())
        if record.preference is None or len(looks) != 2:
            continue
        rows.append(features(looks, getattr(judgment, "carried", None)))
        accepted.append(record.preference.value in ACCEPTABLE)
        counts.append(1 + cost * (not accepted[-1] and does_something_else(record)))
    if len(rows) < FEWEST or len(set(accepted)) < 2:
        return None
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(rows, accepted, sample_weight=counts)
    with_steps, alone, carried = (float(value) for value in model.coef_[0])
    return LookWeights(with_steps=with_steps, alone=alone, carried=carried, offset=float(model.intercept_[0]))


def does_something_else(record: SerRecord) -> bool:
    """Whether all steps are right and the response is known to carry out another strategy than step 3's."""
    right = record.labels is not None and all(getattr(record.labels, part).value for part in STEPS)
    return right and record.response_strategy not in (None, record.candidate.strategy.strategy)


def _logit(chance: float) -> float:
    chance = min(max(chance, LEAST), 1 - LEAST)
    return math.log(chance / (1 - chance))
