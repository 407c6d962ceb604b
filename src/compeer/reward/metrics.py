"""How good a judge is: its verdicts against a test set's labels, beside one that always says True."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from compeer.reasoning import STEPS
from compeer.reward.conversation import record_case
from compeer.reward.judge import LocalJudge
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import SerRecord, is_judged
from compeer.statistics import balanced_accuracy, recall, weighted_f1


def evaluate_judge(judge: LocalJudge, records: Sequence[SerRecord]) -> dict[str, Any]:
    """Weighted-F1, recall of False and balanced accuracy by step; Weighted-F1 and accuracy for the response."""
    tested = [record for record in records if is_judged(record)]
    return judge_figures(tested, judge.judge([record_case(record) for record in tested]))


def judge_figures(records: Sequence[SerRecord], judgments: Sequence[Judgment | Unscored]) -> dict[str, Any]:
    """The figures of given judgments on records that have a preference."""
    scored = [(r, j) for r, j in zip(records, judgments, strict=True) if isinstance(j, Judgment)]
    figures: dict[str, Any] = {"records": len(records), "scored": len(scored)}
    for part in STEPS:
        truth = [getattr(record.labels, part).value for record, _ in scored]
        said = [judgment.step(part) for _, judgment in scored]
        figures[part] = {
            "weighted_f1": weighted_f1(truth, said),
            "weighted_f1_always_true": weighted_f1(truth, [True] * len(truth)),
            "recall_false": recall(truth, said, False),
            "balanced_accuracy": balanced_accuracy(truth, said),
            "false_share": truth.count(False) / max(1, len(truth)),
            "said_false": said.count(False) / max(1, len(said)),
        }
    truths = [record.preference.value for record, _ in scored if record.preference]
    choices = [judgment.preferred() for _, judgment in scored]
    figures["response"] = {
        "weighted_f1": weighted_f1(truths, choices),
        "accuracy": sum(a == b for a, b in zip(truths, choices, strict=True)) / max(1, len(truths)),
        "majority_share": max(Counter(truths).values(), default=0) / max(1, len(truths)),
        "said": dict(Counter(str(choice) for choice in choices)),
    }
    return figures


def collapsed_verdicts(figures: dict[str, Any]) -> list[str]:
    """The parts on which the judge says the same to everything, so that it can teach nothing there."""
    found = [str(part) for part in STEPS if figures[part]["said_false"] in (0.0, 1.0)]
    return [*found, "response"] if len(figures["response"]["said"]) == 1 else found
