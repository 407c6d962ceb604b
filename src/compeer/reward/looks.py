"""Two looks at a response become one verdict.

A UnifiReward that looks at the responses `alone` as well (`Form.alone`) has said three things about a response: how it
compares after the steps, how it compares without them, and what kind of help it is. If that is not the kind that right
steps ask for, the response is wrong too, however well it reads; if it is the kind that a wrong step 3 asks for, it is
wrong as well. A logistic regression, taught on held-out dialogues, weighs what was said; without one the two
comparisons count alike and the third not at all.

Accepting such a response is a contradiction, which is worse than an ordinary mistake: the reward would praise a plan
and its opposite. So it counts as `1 + cost` mistakes when the weights are found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from compeer.reasoning import STEPS, STRATEGIES, Part
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
    follows_right: float
    follows_wrong: float
    steps: float
    plan: float
    offset: float

    def odds(self, looks: Sequence[Chances], carried: float | None, steps: Mapping[Part, float]) -> float:
        """The log-odds of a response that two chats compared, the one with the steps first."""
        weights = (self.with_steps, self.alone, self.follows_right, self.follows_wrong, self.steps, self.plan)
        values = features(looks, carried, steps)
        return self.offset + sum(weight * value for weight, value in zip(weights, values, strict=True))


def features(looks: Sequence[Chances], carried: float | None, steps: Mapping[Part, float]) -> list[float]:
    """What is weighed, in the order of the weights.

    The log-odds of both comparisons; how much likelier than a guess step 3 is carried out, as far as all steps are
    right, and once more, apart, as far as step 3 is wrong; and how far all steps are right, and step 3.
    """
    first, second = (_logit(sum(look.get(value, 0.0) for value in ACCEPTABLE)) for look in looks)
    if carried is None or any(part not in steps for part in STEPS):
        return [first, second, 0.0, 0.0, 0.0, 0.0]
    more = math.log(max(carried, LEAST) * len(STRATEGIES))
    right, plan = math.prod(steps[part] for part in STEPS), steps["strategy"]
    return [first, second, right * more, (1 - plan) * more, right, plan]


def weighed(
    looks: Sequence[Chances],
    carried: float | None = None,
    steps: Mapping[Part, float] | None = None,
    weights: LookWeights | None = None,
) -> dict[Preferred, float]:
    """One verdict of all looks: their mean, with as much of it on acceptable preferences as the weights say."""
    mean = {value: sum(look.get(value, 0.0) for look in looks) / len(looks) for value in PREFERENCES}
    if weights is None or len(looks) != 2:
        return mean
    chance = 1 / (1 + math.exp(-min(max(weights.odds(looks, carried, steps or {}), -30.0), 30.0)))
    found: dict[Preferred, float] = {}
    for values, share in ((ACCEPTABLE, chance), (tuple(v for v in PREFERENCES if v not in ACCEPTABLE), 1 - chance)):
        total = sum(mean[value] for value in values)
        found |= {value: share * (mean[value] / total if total else 1 / len(values)) for value in values}
    return {value: found[value] for value in PREFERENCES}


def find_weights(
    records: Sequence[SerRecord], judgments: Sequence[Judgment | Unscored], cost: float
) -> LookWeights | None:
    """The weights that fit records whose preference is known, or None where there are too few of either kind.

    What a response does is known of some only; where these are enough, the others say nothing.
    """
    pairs = [
        (record, judgment)
        for record, judgment in zip(records, judgments, strict=True)
        if record.preference is not None and len(getattr(judgment, "looks", ())) == 2
    ]
    known = [pair for pair in pairs if pair[0].response_strategy is not None]
    return _fitted(known, cost) or _fitted(pairs, cost)


def _fitted(pairs: Sequence[tuple[SerRecord, Any]], cost: float) -> LookWeights | None:
    accepted = [record.preference is not None and record.preference.value in ACCEPTABLE for record, _ in pairs]
    if len(pairs) < FEWEST or len(set(accepted)) < 2:
        return None
    from sklearn.linear_model import LogisticRegression

    rows = [features(said.looks, said.carried, said.steps) for _, said in pairs]
    contradicting = [not good and would_contradict(record) for good, (record, _) in zip(accepted, pairs, strict=True)]
    counts = [1 + cost * one for one in contradicting]
    model = LogisticRegression(max_iter=1000).fit(rows, accepted, sample_weight=counts)
    names = [name for name in LookWeights.model_fields if name != "offset"]
    found = dict(zip(names, map(float, model.coef_[0]), strict=True))
    return LookWeights(**found, offset=float(model.intercept_[0]))


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
