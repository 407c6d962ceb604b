"""SER records from seekers' ratings alone, for a judge that is an independent second opinion.

The same text on both sides of a verdict, as matched data should have it, cannot be had here: each reply was said once
and rated once. So well and badly rated replies come in equal numbers and alike in what could betray them. What remains
is that some conversations go badly whatever is said: where both a good and a bad reply of one dialogue are there, they
are matched with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from research.judge.people import ANCHORS, BAD, GOOD, Rated, situation_words

from compeer.ser.record import PreferenceLabel, Preferred, SerRecord, Split
from compeer.ser.silver.reference import reference_of
from compeer.ser.silver.responses import halves
from compeer.statistics import generator, words

HOW = "the seeker's own rating"


def feedback_records(
    rated: Sequence[Rated],
    seed: int,
    anchors: Sequence[str] = ANCHORS,
    test_share: float = 0.2,
    halved: float = 0.4,
) -> list[SerRecord]:
    """Pairs of responses whose better one the seekers' ratings tell, for a judge of responses (`kind = "outcome"`).

    A well-rated reply is better than an anchor, a badly rated one worse; the halves of a well-rated reply are both
    good, those of a badly rated one neither acceptable (of the share `halved`, where they can be cut). Good and bad
    replies come in equal numbers, matched within a corpus by dialogue, strategy, length and round; a matched two gets
    the same anchor, roles and order. The steps carry no labels: nobody rated them. Dialogues with the same situation
    share a split.
    """
    able = [entry for entry in rated if entry.has_steps and (entry.rating <= BAD or entry.rating >= GOOD)]
    cells: dict[tuple[Split, str], list[Rated]] = {}
    for entry in able:
        split: Split = "test" if is_held_back(entry, seed, test_share) else "reward"
        cells.setdefault((split, entry.context.source), []).append(entry)
    records = []
    for (split, _), entries in cells.items():
        good, bad = ([e for e in entries if e.rating >= GOOD], [e for e in entries if e.rating <= BAD])
        for better, worse in matched(good, bad):
            rng = generator(seed, "feedback", better.context.id)
            anchor: str | None = anchors[int(rng.integers(len(anchors)))]
            if rng.random() < halved and halves(better.response) and halves(worse.response):
                anchor = None
            turned, first = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
            records += [_record(entry, split, anchor, turned, first, seed) for entry in (better, worse)]
    return records


def is_held_back(entry: Rated, seed: int, test_share: float = 0.2) -> bool:
    """Whether a rated reply is of the test split: dialogues that tell the same situation go together."""
    drawn = generator(seed, "feedback split", situation_words(entry.situation) or entry.dialogue).random()
    return bool(drawn < test_share)


_FEATURES: tuple[Callable[[Rated], float | str], ...] = (
    lambda entry: math.log(1 + len(words(entry.response))),
    lambda entry: entry.round,
    lambda entry: entry.dialogue,
    lambda entry: str(entry.context.reply.strategy),
)
"""What could betray a rating."""


def matched(good: Sequence[Rated], bad: Sequence[Rated]) -> list[tuple[Rated, Rated]]:
    """As many pairs of a good and a bad reply as there can be, as alike as possible, in order of the good ones."""
    from scipy.optimize import linear_sum_assignment

    if not good or not bad:
        return []
    lengths, rounds, dialogues, strategies = (
        [np.array([value(entry) for entry in side]) for side in (good, bad)] for value in _FEATURES
    )
    costs = (
        np.abs(np.subtract.outer(*lengths))
        + 0.1 * np.minimum(10, np.abs(np.subtract.outer(*rounds)))
        + 2.0 * np.not_equal.outer(*dialogues)  # by far the most that ratings vary with
        + 0.5 * np.not_equal.outer(*strategies)
    )
    return [(good[one], bad[other]) for one, other in zip(*linear_sum_assignment(costs), strict=True)]


def _record(
    entry: Rated, split: Split, anchor: str | None, turned: bool, candidate_first: bool, seed: int
) -> SerRecord:
    """A reply beside an anchor, or (None) its halves beside each other; `turned` exchanges candidate and reference."""
    good = entry.rating >= GOOD
    if anchor is None:
        pair = halves(entry.response) or (entry.response, entry.response)
        value: Preferred = "both" if good else "neither"
    else:
        pair = (entry.response, anchor)
        value = "candidate" if good != turned else "reference"
    response, other = pair[::-1] if turned else pair
    context = entry.context.model_copy(update={"split": split})
    turn = reference_of(context, seed).turn.model_copy(update={"response": response})
    return SerRecord(
        id=f"{context.id}:feedback",
        dialogue=context.dialogue,
        round=context.round,
        language=context.language,
        source=context.source,
        split=split,
        history=context.history,
        candidate=turn,
        author="corpus",
        reference=other,
        preference=PreferenceLabel(value=value, source="human", how=f"{HOW}: {entry.rating}"),
        candidate_first=candidate_first,
        derived=context.derived,
    )
