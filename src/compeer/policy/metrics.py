"""The metrics and samples of a step of GRPO. Pure functions of whole groups.

The names stay: the parts of the scores raw and reweighted (`raw/…`, `reweighted/…`), how much each part varies within
groups (`variance/…`), the mean of each source (`source/…`), and redundancy (`redundancy/…`). A part that never varies
within a group teaches nothing: `variance/still` counts those that have not for the last steps.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from compeer.policy.redundancy import advantages, tied
from compeer.policy.rewards import RewardedGroup, Rollout
from compeer.reasoning import PARTS, parse_turn
from compeer.statistics import distinct

JUDGED = (*PARTS, "format")  # the five parts of a judge's score
STILL_STEPS = 20  # steps after which a part that has not varied is named


def group_metrics(groups: Sequence[RewardedGroup]) -> dict[str, float]:
    """The metrics of a step's groups; NaN where there is nothing to take a mean of."""
    everyone = [rollout for group in groups for rollout in group.rollouts]
    responses = [str(parse_turn(rollout.text).parts.get("response", "")) for rollout in everyone]
    found = {
        "raw/unscored_share": _mean([float(rollout.score.total is None) for rollout in everyone]),
        "raw/tied_groups": _mean([float(tied([rollout.raw for rollout in group.rollouts])) for group in groups]),
        "frac_zero_std": _mean([float(tied(group.rewards)) for group in groups]),
        "redundancy/s_in": _mean([value for group in groups for value in group.s_in]),
        "redundancy/s_hi": _mean([value for group in groups for value in group.s_hi]),
        "redundancy/tau": _mean([group.tau for group in groups]),
        "guard/rejected_share": _mean([float(rollout.rejected is not None) for rollout in everyone]),
        "response/words": _mean([rollout.length for rollout in everyone]),
        "response/distinct_1": distinct(responses, 1),
        "response/distinct_2": distinct(responses, 2),
    }
    extra = {name for rollout in everyone for name in _parts(rollout)} - {"total", *JUDGED}
    for name in ("total", *JUDGED, *sorted(extra)):
        rows = [np.array([_parts(one).get(name) for one in group.rollouts], dtype=np.float64) for group in groups]
        found[f"raw/{name}"] = _mean(np.concatenate(rows))
        reweighted = [row * group.factors for row, group in zip(rows, groups, strict=True)]
        found[f"reweighted/{name}"] = _mean(np.concatenate(reweighted))
        known = (row[~np.isnan(row)] for row in rows)
        found[f"variance/{name}"] = _mean([float(np.var(row)) for row in known if len(row) > 1])
    for name in sorted({name for rollout in everyone for name in rollout.score.sources}):
        given = [rollout.score.sources.get(name) for rollout in everyone]
        found[f"source/{name}"] = _mean([value for value in given if value is not None])
    return found


def _parts(rollout: Rollout) -> dict[str, float | None]:
    """The total and the parts of an output that was scored."""
    return {} if rollout.score.total is None else {**rollout.score.given(), "total": rollout.score.total}


def _mean(values: Iterable[float]) -> float:
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
