"""The metrics and samples of a step of GRPO. Pure functions of whole groups.

The names stay: the parts of the scores raw and reweighted (`raw/…`, `reweighted/…`), how much each part varies within
groups (`variance/…`), the mean of each source (`source/…`), and redundancy (`redundancy/…`). A part that never varies
within a group teaches nothing: `variance/still` counts those that have not for the last steps.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from compeer.policy.redundancy import advantages, tied
from compeer.policy.rewards import RewardedGroup
from compeer.reasoning import PARTS, parse_turn
from compeer.statistics import distinct

JUDGED = (*PARTS, "format")  # the five parts of a judge's score
STILL_STEPS = 20  # steps after which a part that has not varied is named


def group_metrics(groups: Sequence[RewardedGroup]) -> dict[str, float]:
    """The metrics of a step's groups; NaN where there is nothing to take a mean of."""
    everyone = [rollout for group in groups for rollout in group.rollouts]
    multiplied = [factor for group in groups for factor in group.factors]
    scored = [(one, factor) for one, factor in zip(everyone, multiplied, strict=True) if one.score.total is not None]
    responses = [str(parse_turn(rollout.text).parts.get("response", "")) for rollout in everyone]
    raw = [[rollout.raw for rollout in group.rollouts] for group in groups]
    found = {
        "raw/total": _mean([rollout.raw for rollout, _ in scored]),
        "reweighted/total": _mean([rollout.raw * factor for rollout, factor in scored]),
        "variance/total": _mean([_variance(values) for values in raw]),
        "raw/unscored_share": 1 - len(scored) / max(1, len(everyone)),
        "raw/tied_groups": _mean([float(tied(values)) for values in raw]),
        "frac_zero_std": _mean([float(tied(group.rewards)) for group in groups]),
        "redundancy/s_in": _mean([value for group in groups for value in group.s_in]),
        "redundancy/s_hi": _mean([value for group in groups for value in group.s_hi]),
        "redundancy/tau": _mean([group.tau for group in groups]),
        "guard/rejected_share": _mean([float(rollout.rejected is not None) for rollout in everyone]),
        "response/words": _mean([rollout.length for rollout in everyone]),
        "response/distinct_1": distinct(responses, 1),
        "response/distinct_2": distinct(responses, 2),
    }
    extra = {name for rollout, _ in scored for name in rollout.score.given()} - set(JUDGED)
    for name in (*JUDGED, *sorted(extra)):
        parts = [(rollout.score.given().get(name), factor) for rollout, factor in scored]
        known = [(value, factor) for value, factor in parts if value is not None]
        found[f"raw/{name}"] = _mean([value for value, _ in known])
        found[f"reweighted/{name}"] = _mean([value * factor for value, factor in known])
        found[f"variance/{name}"] = _mean([_variance(_part(group, name)) for group in groups])
    for name in sorted({name for rollout in everyone for name in rollout.score.sources}):
        given = [rollout.score.sources.get(name) for rollout in everyone]
        found[f"source/{name}"] = _mean([value for value in given if value is not None])
    return found


def _part(group: RewardedGroup, name: str) -> list[float]:
    scored = [rollout.score.given().get(name) for rollout in group.rollouts if rollout.score.total is not None]
    return [value for value in scored if value is not None]


def _variance(values: Sequence[float]) -> float:
    """Within one group; NaN where fewer than two of its outputs have the value."""
    numbers = [value for value in values if not math.isnan(value)]
    return float(np.var(numbers)) if len(numbers) > 1 else math.nan


def _mean(values: Sequence[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return float(np.mean(numbers)) if numbers else math.nan


def still_parts(rows: Sequence[Mapping[str, Any]], steps: int) -> list[str]:
    """The parts that varied within no group of any of the last `steps` rows; none while there are fewer rows."""
    last = rows[-steps:]
    if not last or len(last) < steps:
        return []
    found = []
    for key in last[-1]:
        values = [value for row in last if (value := row.get(key)) is not None and not math.isnan(value)]
        name = key.removeprefix("variance/")
        if name not in (key, "total", "still") and values and not any(values):
            found.append(name)
    return found


def sample_rows(step: int, groups: Sequence[RewardedGroup]) -> Iterator[dict[str, Any]]:
    """The table of a step's outputs, a row each: what was written, what each part earned, and what it came to."""
    for number, group in enumerate(groups):
        rows = zip(group.rollouts, group.rewards, advantages(group.rewards), group.s_in, group.s_hi, strict=True)
        for rollout, reward, gain, s_in, s_hi in rows:
            yield {
                "step": step,
                "group": number,
                "record": rollout.record,
                "output": rollout.text,
                "parts": {**dict.fromkeys(JUDGED), **rollout.score.given()},
                "sources": dict(rollout.score.sources),
                "total": rollout.score.total,
                "unscored": rollout.score.unscored,
                "rejected": rollout.rejected,
                "s_in": round(s_in, 6),
                "s_hi": round(s_hi, 6),
                "tau": round(group.tau, 6),
                "reward": None if math.isnan(reward) else round(reward, 6),
                "advantage": round(gain, 6),
            }
