"""How often a judge's verdicts on the steps and on the response cannot both be right.

Step 3 names a strategy, and the response either carries it out or does something else. A judge contradicts itself

- *against the steps*: it accepts all three steps and the response, although the response does something else; or
- *despite the steps*: it rejects step 3 and accepts the response, although the response does exactly what step 3 says.

A response is accepted if it is preferred or as good as the reference. All steps accepted and the response rejected is
no contradiction: a good plan may be carried out badly. The rate is taken over all outputs that every compared judge
judged whole and whose strategy is known. What a judge accepted stands beside its rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compeer.reasoning import STEPS
from compeer.reward.compare import over_seeds
from compeer.reward.metrics import REPEATS, Judgments, group_means, with_intervals
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import ACCEPTABLE, SerRecord
from compeer.statistics import Numbers, group_weights, ratio


def contradictions(judgment: Judgment, follows: bool) -> dict[str, bool]:
    """In which ways a judgment contradicts itself, given whether the response does what step 3 says; what it accepts.

    A response is accepted that is as good as the reference or better.
    """
    accepted = judgment.preferred() in ACCEPTABLE and not judgment.void
    all_right = all(judgment.step(part) for part in STEPS)
    against = accepted and all_right and not follows
    despite = accepted and follows and not judgment.step("strategy")
    return {
        "contradictions": against or despite,
        "against_the_steps": against,
        "despite_the_steps": despite,
        "all_accepted": accepted and all_right,
        "response_accepted": accepted,
    }


def contradiction_metrics(
    dialogues: Sequence[str],
    follows: Sequence[bool | None],
    judges: Mapping[str, Mapping[int, Judgments]],
    rival: str | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Any]:
    """The rate of contradictions of each judge (by training seed) on the same outputs, with intervals over dialogues.

    Outputs are given by their dialogue and by whether the response follows step 3 (None: not known). `rival` names a
    judge that the others are held against: `to_rival` is their rate divided by its, 0.5 half as many.
    """
    everyone = [judgments for seeds in judges.values() for judgments in seeds.values()]
    judged = [all(_whole(judgments[number]) for judgments in everyone) for number in range(len(dialogues))]
    rows = [number for number, one in enumerate(judged) if one and follows[number] is not None]
    found: dict[str, Any] = {
        "outputs": len(dialogues),
        "judged": sum(judged),
        "decided": len(rows),
        "following": sum(follows[number] is True for number in rows),
    }
    if not rows:
        return {**found, "judges": {}}
    sampled: dict[str, dict[str, Numbers]] = {}
    for name, seeds in judges.items():
        by_seed = []
        for judgments in seeds.values():
            marks = [contradictions(one, follows[n] is True) for n in rows if isinstance(one := judgments[n], Judgment)]
            columns = {key: [mark[key] for mark in marks] for key in marks[0]}
            by_seed.append(dialogue_means([dialogues[n] for n in rows], columns, repeats, seed))
        sampled[name] = {key: over_seeds(np.stack([one[key] for one in by_seed]), seed) for key in by_seed[0]}
    if rival:
        for metrics in sampled.values():
            metrics["to_rival"] = ratio(metrics["contradictions"], sampled[rival]["contradictions"])
    return {**found, "judges": {name: with_intervals(metrics) for name, metrics in sampled.items()}}


def _whole(found: Judgment | Unscored) -> bool:
    return isinstance(found, Judgment) and all(part in found.steps for part in STEPS) and found.preferred() is not None


def dialogue_means(dialogues: Sequence[str], columns: Mapping[str, Any], repeats: int, seed: int) -> dict[str, Numbers]:
    """The sampled mean of each column over dialogues."""
    names, groups = np.unique(np.array(dialogues, dtype=object), return_inverse=True)
    means = group_means(groups, list(columns.values()), group_weights(len(names), repeats, seed))
    return dict(zip(columns, means, strict=True))


def record_contradictions(records: Sequence[SerRecord], judgments: Judgments) -> dict[str, Any]:
    """A judge's contradictions beside those of the labels themselves, where a record knows its response's strategy."""
    labels: list[Judgment | Unscored] = [
        Judgment({part: float(getattr(record.labels, part).value) for part in STEPS}, {record.preference.value: 1.0})
        if record.labels and record.preference
        else Unscored("no labels")
        for record in records
    ]
    follows = [
        record.response_strategy == record.candidate.strategy.strategy if record.response_strategy else None
        for record in records
    ]
    judges: dict[str, dict[int, Judgments]] = {"judge": {0: judgments}, "the labels themselves": {0: labels}}
    return contradiction_metrics([record.dialogue for record in records], follows, judges)
