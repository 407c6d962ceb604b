"""How good a judge is: its verdicts against a test set's labels, beside one that always says True.

Records are taken with what a judge said to each, a `Judgment` or `Unscored`. Every part is measured on the records that
have both a label and a verdict for it: an outcome judge has no figures for the steps, a process judge none for the
response. What a judge failed on is counted by reason and left out, never taken for a verdict.

Figures of a step: Weighted-F1, recall and precision of False, balanced accuracy, the AUC of the probability of True,
and the shares of False among labels and verdicts. Of the response: Weighted-F1 and accuracy over the four preferences,
their confusion, and the accuracy of what a score is made of, whether the candidate is acceptable (`candidate` or
`both`). Beside them what one scores who always says True, or always the most frequent preference. They are given again
for each source of labels, and the recall of False for each kind of mistake.

Intervals are 95 % percentile bootstrap intervals. Dialogues are drawn, not records, because records of one dialogue
share their texts; see `compeer.statistics` for how a thousand draws are made at once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compeer.reasoning import STEPS, Part, render_turn
from compeer.reward.conversation import record_case
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import ACCEPTABLE, PREFERENCES, SerRecord, is_judged
from compeer.statistics import (
    Numbers,
    Places,
    accuracy_of,
    auc_by_group,
    balanced_accuracy_of,
    confusion_by_group,
    drawn_interval,
    group_weights,
    precision_of,
    ratio,
    recall_of,
    reweighted,
    weighted_f1_of,
)

if TYPE_CHECKING:
    from compeer.reward.form import Judge

REPEATS = 1000


def evaluate_judge(judge: Judge, records: Sequence[SerRecord]) -> dict[str, Any]:
    """The figures of a judge on those records that have all labels."""
    tested = [record for record in records if is_judged(record)]
    return judge_figures(tested, judge.judge([record_case(record) for record in tested]))


def test_set_hash(records: Sequence[SerRecord]) -> str:
    """What a test set is known by: any other id, text, label or order of two responses gives another hash.

    The order of the records does not matter.
    """
    digests = sorted(_record_digest(record) for record in records)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def shown_digest(record: SerRecord) -> str:
    """What was judged is known by: any other history, candidate, reference or order gives another digest.

    Labels are no part of it: they may be corrected after a judge was asked.
    """
    return _digest(_shown(record))[:16]


def _record_digest(record: SerRecord) -> str:
    labels = [getattr(record.labels, part) for part in STEPS] if record.labels else []
    return _digest(
        [
            record.id,
            record.dialogue,
            *_shown(record),
            [[label.value, label.source, label.kind] for label in labels],
            [record.preference.value, record.preference.source] if record.preference else None,
        ]
    )


def _shown(record: SerRecord) -> list[Any]:
    history = [[utterance.speaker, utterance.text] for utterance in record.history]
    return [history, render_turn(record.candidate), record.reference, record.candidate_first]


def _digest(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


# --- labels beside verdicts, as numbers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdicts:
    """One part's labels beside a judge's verdicts on it, an entry a record that has both.

    Classes are given by their place: False and True for a step, the order of `PREFERENCES` for the response. `chances`
    are the probabilities of True, or of an acceptable response.
    """

    part: Part
    dialogues: Places
    truth: Places
    said: Places
    chances: Numbers
    sources: tuple[str, ...]
    kinds: tuple[str | None, ...]
    size: tuple[int, int]
    """How many dialogues the test set has, and how many classes the part."""

    def __len__(self) -> int:
        return len(self.truth)

    def of_source(self, source: str) -> Verdicts:
        """Only those whose label comes from there."""
        return self._only([one == source for one in self.sources])

    def of_kind(self, kind: str) -> Verdicts:
        """Only those that are wrong in that way."""
        return self._only([one == kind for one in self.kinds])

    def _only(self, chosen: list[bool]) -> Verdicts:
        rows = np.flatnonzero(chosen)
        return Verdicts(
            self.part,
            self.dialogues[rows],
            self.truth[rows],
            self.said[rows],
            self.chances[rows],
            tuple(self.sources[row] for row in rows),
            tuple(self.kinds[row] for row in rows),
            self.size,
        )


def acceptable_chance(judgment: Judgment) -> float | None:
    """The probability that the response is as good as the reference or better; None if they were not compared."""
    return sum(judgment.response.get(value, 0.0) for value in ACCEPTABLE) if judgment.response else None


def part_verdicts(records: Sequence[SerRecord], judgments: Sequence[Judgment | Unscored], part: Part) -> Verdicts:
    """The labels and verdicts of one part, for the records that have both."""
    places = {name: place for place, name in enumerate(sorted({record.dialogue for record in records}))}
    rows: list[tuple[int, int, int, float, str, str | None]] = []
    for record, judgment in zip(records, judgments, strict=True):
        if isinstance(judgment, Unscored):
            continue
        dialogue = places[record.dialogue]
        if part == "response":
            choice, chance = judgment.preferred(), acceptable_chance(judgment)
            if record.preference is None or choice is None or chance is None or math.isnan(chance):
                continue
            truth, said = PREFERENCES.index(record.preference.value), PREFERENCES.index(choice)
            rows.append((dialogue, truth, said, chance, record.preference.source, None))
        elif record.labels is not None and not math.isnan(judgment.steps.get(part, math.nan)):
            label = getattr(record.labels, part)
            said = int(judgment.step(part))
            rows.append((dialogue, int(label.value), said, judgment.steps[part], label.source, label.kind))
    dialogues, truths, answers, chances, sources, kinds = zip(*rows, strict=True) if rows else ((),) * 6
    return Verdicts(
        part,
        np.array(dialogues, dtype=np.int64),
        np.array(truths, dtype=np.int64),
        np.array(answers, dtype=np.int64),
        np.array(chances, dtype=np.float64),
        tuple(sources),
        tuple(kinds),
        (len(places), len(PREFERENCES) if part == "response" else 2),
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def drawn_figures(verdicts: Verdicts, weights: Numbers) -> dict[str, Numbers]:
    """Each figure of a part for each row of dialogue weights (`group_weights`: the first row is the sample itself)."""
    confusions = _confusions(verdicts, weights)
    found = {"weighted_f1": weighted_f1_of(confusions)}
    if verdicts.part != "response":
        return {
            **found,
            "weighted_f1_always_true": weighted_f1_of(_always(confusions, place=1)),
            "recall_false": recall_of(confusions, 0),
            "precision_false": precision_of(confusions, 0),
            "balanced_accuracy": balanced_accuracy_of(confusions),
            "auc": auc_by_group(verdicts.dialogues, verdicts.truth == 1, verdicts.chances, weights),
            "false_share": ratio(confusions[:, 0].sum(-1), confusions.sum((-2, -1))),
            "said_false": ratio(confusions[:, :, 0].sum(-1), confusions.sum((-2, -1))),
        }
    most_frequent = _always(confusions, int(confusions[0].sum(-1).argmax()))
    good = [PREFERENCES.index(value) for value in ACCEPTABLE]
    is_good = np.isin(verdicts.truth, good)
    bad = [place for place in range(len(PREFERENCES)) if place not in good]
    decisions = np.stack([_merged(confusions, bad, bad, good), _merged(confusions, good, bad, good)], axis=-2)
    return {
        **found,
        "accuracy": accuracy_of(confusions),
        "acceptable_accuracy": accuracy_of(decisions),
        "acceptable_balanced_accuracy": balanced_accuracy_of(decisions),
        "acceptable_auc": auc_by_group(verdicts.dialogues, is_good, verdicts.chances, weights),
        "acceptable_share": ratio(decisions[:, 1].sum(-1), decisions.sum((-2, -1))),
        "weighted_f1_majority": weighted_f1_of(most_frequent),
        "majority_share": accuracy_of(most_frequent),
    }


def _confusions(verdicts: Verdicts, weights: Numbers) -> Numbers:
    by_dialogue = confusion_by_group(verdicts.dialogues, verdicts.truth, verdicts.said, verdicts.size)
    return reweighted(weights, by_dialogue)


def _always(confusions: Numbers, place: int) -> Numbers:
    """The confusions of a judge that gives the answer at that place to everything."""
    lazy = np.zeros_like(confusions)
    lazy[..., place] = confusions.sum(-1)
    return lazy


def _merged(confusions: Numbers, truths: list[int], bad: list[int], good: list[int]) -> Numbers:
    """Of records whose label is one of `truths`: how many were called bad, and how many good."""
    rows = confusions[:, truths].sum(-2)
    return np.stack([rows[:, bad].sum(-1), rows[:, good].sum(-1)], axis=-1)


def with_intervals(figures: dict[str, Numbers]) -> dict[str, Any]:
    """Drawn figures as plain data: each value (None where it has none), and under `intervals` each interval."""
    values = {name: float(draws[0]) if np.isfinite(draws[0]) else None for name, draws in figures.items()}
    intervals = {
        name: drawn_interval(draws[1:]) if values[name] is not None else None for name, draws in figures.items()
    }
    return {**values, "intervals": intervals}


def judge_figures(
    records: Sequence[SerRecord],
    judgments: Sequence[Judgment | Unscored],
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Any]:
    """All figures of given judgments as plain data; a part that was never judged has none, and no key."""
    failures = [judgment.reason for judgment in judgments if isinstance(judgment, Unscored)]
    figures: dict[str, Any] = {
        "records": len(records),
        "scored": len(judgments) - len(failures),
        "unscored": dict(Counter(failures).most_common()),
        "dialogues": len({record.dialogue for record in records}),
        "test_set": test_set_hash(records),
    }
    weights = group_weights(figures["dialogues"], repeats, seed)
    parts: tuple[Part, ...] = (*STEPS, "response")
    for part in parts:
        verdicts = part_verdicts(records, judgments, part)
        if len(verdicts):
            details = _response_details if part == "response" else _step_details
            figures[part] = {
                **_summary(verdicts, weights),
                **details(verdicts, weights),
                "sources": _by(verdicts.sources, verdicts.of_source, lambda found: _summary(found, weights)),
            }
    return figures


def _summary(verdicts: Verdicts, weights: Numbers) -> dict[str, Any]:
    return {"judged": len(verdicts), **with_intervals(drawn_figures(verdicts, weights))}


def _step_details(verdicts: Verdicts, weights: Numbers) -> dict[str, Any]:
    def found(wrong: Verdicts) -> dict[str, Any]:
        recalls = recall_of(_confusions(wrong, weights), 0)
        return {"labels": len(wrong), **with_intervals({"recall_false": recalls})}

    return {"kinds": _by(verdicts.kinds, verdicts.of_kind, found)}


def _response_details(verdicts: Verdicts, weights: Numbers) -> dict[str, Any]:
    confusion = _confusions(verdicts, weights[:1])[0]
    said = {PREFERENCES[place]: int(count) for place, count in enumerate(confusion.sum(0)) if count}
    return {"said": said, "classes": list(PREFERENCES), "confusion": confusion.astype(int).tolist()}


def _by(
    names: Sequence[str | None], only: Callable[[str], Verdicts], figure: Callable[[Verdicts], dict[str, Any]]
) -> dict[str, Any]:
    return {name: figure(only(name)) for name in sorted({name for name in names if name is not None})}


def collapsed_verdicts(figures: dict[str, Any]) -> list[str]:
    """The parts on which the judge says the same to everything, so that it can teach nothing there."""
    found = [str(part) for part in STEPS if part in figures and figures[part]["said_false"] in (0.0, 1.0)]
    return [*found, "response"] if len(figures.get("response", {}).get("said", ())) == 1 else found
