"""How often a judge's verdicts on the steps and on the response cannot both be right.

Step 3 names a strategy, and the response either carries it out or does something else. A judge contradicts itself

- *against the steps*: it accepts all three steps and the response, although the response does something else; or
- *despite the steps*: it rejects step 3 and accepts the response, although the response does exactly what step 3 says.

A response is accepted if it is preferred or as good as the reference. All steps accepted and the response rejected is
no contradiction: a good plan may be carried out badly. The rate is over outputs judged whole whose strategy is known.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compeer.reasoning import STEPS
from compeer.reward.metrics import REPEATS, Judgments, group_means, with_intervals
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import ACCEPTABLE, SerRecord
from compeer.statistics import Numbers, group_weights


def contradictions(judgment: Judgment, follows: bool) -> dict[str, bool]:
    """How a judgment contradicts itself, given whether the response does what step 3 says, and what it accepts."""
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


def is_whole(found: Judgment | Unscored) -> bool:
    """Whether a judge gave a verdict on every part."""
    return isinstance(found, Judgment) and all(part in found.steps for part in STEPS) and found.preferred() is not None


def sampled_contradictions(
    dialogues: Sequence[str], follows: Sequence[bool], judgments: Judgments, repeats: int = REPEATS, seed: int = 0
) -> dict[str, Numbers]:
    """The sampled means of what a judge contradicts and accepts, over outputs that it judged whole."""
    pairs = zip(judgments, follows, strict=True)
    marks = [contradictions(judgment, one) for judgment, one in pairs if isinstance(judgment, Judgment)]
    return dialogue_means(dialogues, {key: [mark[key] for mark in marks] for key in marks[0]}, repeats, seed)


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
    judged = [is_whole(one) and is_whole(label) for one, label in zip(judgments, labels, strict=True)]
    rows = [number for number, record in enumerate(records) if judged[number] and record.response_strategy]
    chosen = [records[number] for number in rows]
    follows = [record.response_strategy == record.candidate.strategy.strategy for record in chosen]
    found = {"outputs": len(records), "judged": sum(judged), "decided": len(rows), "following": sum(follows)}
    dialogues = [record.dialogue for record in chosen]
    judges = {"judge": judgments, "the labels themselves": labels} if rows else {}
    picked = {name: [given[number] for number in rows] for name, given in judges.items()}
    means = {name: with_intervals(sampled_contradictions(dialogues, follows, own)) for name, own in picked.items()}
    return {**found, "judges": means}
