"""Two looks at a response become one verdict.

A UnifiReward that looks at the responses `alone` as well (`Form.alone`) has said three things about a response: how it
compares after the steps, how it compares without them, and what kind of help it is. If that is not the kind that a
right step 3 asks for, the response is wrong too, however well it reads; if it is the kind that a wrong one asks for, it
is wrong as well. A logistic regression, taught on held-out dialogues, weighs what was said; without one the two
comparisons count alike and the third not at all.

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
    right_plan: float
    wrong_plan: float
    offset: float

    def odds(self, looks: Sequence[Chances], carried: float | None, plan: float | None) -> float:
        """The log-odds of a response that two chats compared, the one with the steps first."""
        weights = (self.with_steps, self.alone, self.right_plan, self.wrong_plan)
        values = features(looks, carried, plan)
        return self.offset + sum(weight * value for weight, value in zip(weights, values, strict=True))


def features(looks: Sequence[Chances], carried: float | None, plan: float | None) -> list[float]:
    """What is weighed: the log-odds of both comparisons, and how much likelier than a guess step 3 is carried out.

    The last counts as far as step 3 is right, and once more, apart, as far as it is wrong (`plan`: the probability that
    it is right).
    """
    first, second = (_logit(sum(look.get(value, 0.0) for value in ACCEPTABLE)) for look in looks)
    if carried is None or plan is None:
        return [first, second, 0.0, 0.0]
    more = math.log(max(carried, LEAST) * len(STRATEGIES))
    return [first, second, plan * more, (1 - plan) * more]


def weighed(
    looks: Sequence[Chances],
    carried: float | None = None,
    plan: float | None = None,
    weights: LookWeights | None = None,
) -> dict[Preferred, float]:
    """One verdict of all looks: their mean, with as much of it on acceptable preferences as the weights say."""
    mean = {value: sum(look.get(value, 0.0) for look in looks) / len(looks) for value in PREFERENCES}
    if weights is None or len(looks) != 2:
        return mean
    chance = 1 / (1 + math.exp(-min(max(weights.odds(looks, carried, plan), -30.0), 30.0)))
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
        if record.preference is None or len(getattr(judgment, "looks", ())) != 2:
            continue
        said: Judgment = judgment  # type: ignore[assignment]
        rows.append(features(said.looks, said.carried, said.steps.get("strategy")))
        accepted.append(record.preference.value in ACCEPTABLE)
        counts.append(1 + cost * (not accepted[-1] and would_contradict(record)))
    if len(rows) < FEWEST or len(set(accepted)) < 2:
        return None
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(rows, accepted, sample_weight=counts)
    first, second, right, wrong = (float(value) for value in model.coef_[0])
    offset = float(model.intercept_[0])
    return LookWeights(with_steps=first, alone=second, right_plan=right, wrong_plan=wrong, offset=offset)


def would_contradict(record: SerRecord) -> bool:
    """Whether accepting the response would contradict right verdicts on the steps, as far as is known what it does.

    It carries out another strategy than step 3's and all steps are right, or just the one of a wrong step 3.
    """
    if record.labels is None or record.response_strategy is None:
        return False
    if record.response_strategy == record.candidate.strategy.strategy:
        return not record.labels.strategy.value
    return all(getattr(record.labels, part).value for part in STEPS)


def _logit(chance: float) -> float:
    chance = min(max(chance, LEAST), 1 - LEAST)
    return math.log(chance / (1 - chance))
