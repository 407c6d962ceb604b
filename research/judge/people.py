"""Does a judge agree with people? What seekers thought of the replies they got, beside what a judge thinks of them.

In some corpora the seekers rated the supporter's replies from 1 to 5 while they talked. A judge compares two responses,
so each rated reply is set against the same neutral *anchor*, in both orders; the probability that the reply is at least
as good as the anchor is the judge's opinion of it. Both are shown after the same steps, the reference steps of the
moment (a corpus' labels in words); a reply whose labels are not known has no such steps and is left out for every
judge alike, so that figures can be compared.

Three figures say how opinion and rating go together: the AUC of replies rated 4 or 5 against those rated 1 or 2; the
same among replies of one dialogue, since seekers have scales and moods of their own; and Spearman's correlation.
Intervals come from whole dialogues drawn anew. The length of a reply and its place in the dialogue stand beside them.

Read them with care: most of what varies in ratings is the dialogue, not the reply, and a classifier that sees only the
history tells good from bad better than one that sees only the reply. An AUC may come from reading how the conversation
goes; the figure within dialogues is the one that speaks of replies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from compeer.dialogue import Dialogue, Utterance, rounds_of
from compeer.reasoning import MAX_RESPONSE, parse_turn, render_turn
from compeer.reward.conversation import Case
from compeer.reward.score import Judge, Judgment, Unscored
from compeer.ser.record import PREFERENCES, Preferred
from compeer.ser.sampling import Context, contexts_of
from compeer.ser.wording import reference_of
from compeer.statistics import Estimate, Numbers, auc_by_group, group_weights, ratio, words

BAD, GOOD = 2, 4
"""Ratings up to which a reply counts as bad, and from which on as good."""
ANCHORS = (
    "I see. Please tell me more about that.",
    "Thank you for telling me. How has that been for you?",
    "I hear you. What else is on your mind about this?",
    "Okay, I understand. Would you like to say more about it?",
)
"""Replies that fit almost anywhere and say almost nothing; the first is the one that opinions are measured against."""
WITHOUT_STEPS = "the corpus has no strategy or no emotion for this reply, so it has no reference steps"


@dataclass(frozen=True)
class Rated:
    """A reply that the seeker rated, and the moment in which it was said."""

    context: Context
    situation: str | None

    @property
    def dialogue(self) -> str:
        return self.context.dialogue

    @property
    def round(self) -> int:
        return self.context.round

    @property
    def history(self) -> tuple[Utterance, ...]:
        return self.context.history

    @property
    def response(self) -> str:
        return self.context.reply.text

    @property
    def rating(self) -> int:
        assert self.context.reply.feedback is not None, "only rated replies are taken in"
        return self.context.reply.feedback

    @property
    def has_steps(self) -> bool:
        """Whether the corpus knows enough of the moment for reference steps."""
        return self.context.reply.strategy is not None and self.context.emotion is not None


def rated_replies(dialogues: Iterable[Dialogue]) -> list[Rated]:
    """All rated replies of some dialogues, in order; messages in a row are one reply, the last rating counts."""
    found = []
    for dialogue in dialogues:
        for context in contexts_of(dialogue, "test", len(rounds_of(dialogue)), seed=0):
            if context.reply.feedback is not None and 0 < len(context.reply.text.strip()) <= MAX_RESPONSE:
                found.append(Rated(context, dialogue.situation))
    return found


def held_out(rated: Iterable[Rated], ids: Iterable[str], situations: Iterable[str]) -> list[Rated]:
    """The rated replies of dialogues that a judge was not trained on, by their id and by the situation they tell.

    A corpus may hold the same dialogue under another id and re-tokenised; the situation finds it by its words.
    """
    used, known = set(ids), {situation_words(situation) for situation in situations} - {""}
    return [entry for entry in rated if entry.dialogue not in used and situation_words(entry.situation) not in known]


def situation_words(situation: str | None) -> str:
    """A situation by its words alone; empty where there is none."""
    return " ".join(words(situation or ""))


# --- a judge's opinion ------------------------------------------------------------------------------------------------


def anchor_cases(rated: Sequence[Rated], anchor: str = ANCHORS[0], seed: int = 0) -> list[Case]:
    """Two cases for each reply that has steps: the reply and the anchor after the same steps, in both orders."""
    outputs = [
        (entry, parse_turn(render_turn(reference_of(entry.context, seed).turn))) for entry in rated if entry.has_steps
    ]
    return [Case(entry.history, output, anchor, first) for entry, output in outputs for first in (True, False)]


def preferences(
    judge: Judge, rated: Sequence[Rated], anchor: str = ANCHORS[0], seed: int = 0
) -> list[Mapping[Preferred, float] | Unscored]:
    """For each reply the judge's preference between it (the candidate) and the anchor, the mean of both orders."""
    judgments = iter(judge.judge(anchor_cases(rated, anchor, seed)))
    return [_mean(next(judgments), next(judgments)) if entry.has_steps else Unscored(WITHOUT_STEPS) for entry in rated]


def _mean(one: Judgment | Unscored, other: Judgment | Unscored) -> Mapping[Preferred, float] | Unscored:
    for judgment in (one, other):
        if isinstance(judgment, Unscored):
            return judgment
    orders = [judgment.response for judgment in (one, other) if isinstance(judgment, Judgment) and judgment.response]
    if len(orders) < 2:
        return Unscored("the judge does not compare responses")
    return {value: (orders[0].get(value, 0.0) + orders[1].get(value, 0.0)) / 2 for value in PREFERENCES}


def as_good(preference: Mapping[Preferred, float] | Unscored) -> float | None:
    """The probability that the reply is as good as the anchor or better, which is what a score asks for."""
    return None if isinstance(preference, Unscored) else preference["candidate"] + preference["both"]


# --- agreement --------------------------------------------------------------------------------------------------------


class Agreement(BaseModel):
    """How one way of telling good replies from bad ones goes together with the seekers' ratings."""

    model_config = ConfigDict(frozen=True)

    corpus: str = Field(description="the corpus, or 'together'")
    by: str = Field(description="what told them: the judge, or something trivial")
    replies: int
    dialogues: int
    bad: int = Field(description="replies rated 1 or 2")
    good: int = Field(description="replies rated 4 or 5")
    left_out: int = Field(description="rated replies without an opinion")
    auc: Estimate = Field(description="a good reply's opinion against a bad one's; 0.5 is chance")
    within: Estimate = Field(description="the same among replies of one dialogue")
    spearman: Estimate


_BASELINES: dict[str, Callable[[Rated], float]] = {
    "length of the reply": lambda entry: float(len(words(entry.response))),
    "round of the dialogue": lambda entry: float(entry.round),
}


def agreement(
    rated: Sequence[Rated], probabilities: Sequence[float | None], seed: int, repeats: int = 1000
) -> list[Agreement]:
    """The judge beside the baselines, by corpus and together, all on the replies that the judge has an opinion on."""
    known = [(entry, p) for entry, p in zip(rated, probabilities, strict=True) if p is not None and math.isfinite(p)]
    corpora = list(dict.fromkeys(entry.context.source for entry in rated))
    rows = []
    for corpus in [*corpora, "together"] if len(corpora) > 1 else corpora:
        part = [(entry, p) for entry, p in known if corpus in (entry.context.source, "together")]
        entries = [entry for entry, _ in part]
        total = sum(corpus in (entry.context.source, "together") for entry in rated)
        opinions = {"judge": [p for _, p in part]}
        opinions |= {name: [baseline(entry) for entry in entries] for name, baseline in _BASELINES.items()}
        rows += [_agreement(corpus, by, entries, p, total - len(part), seed, repeats) for by, p in opinions.items()]
    return rows


def _agreement(
    corpus: str, by: str, rated: Sequence[Rated], opinions: Sequence[float], left_out: int, seed: int, repeats: int
) -> Agreement:
    scores, ratings = np.array(opinions, dtype=float), np.array([entry.rating for entry in rated], dtype=float)
    places = {dialogue: place for place, dialogue in enumerate(dict.fromkeys(entry.dialogue for entry in rated))}
    groups = np.array([places[entry.dialogue] for entry in rated], dtype=np.int64)
    weights = group_weights(len(places), repeats, seed)
    bad, good = ratings <= BAD, ratings >= GOOD
    sure = bad | good
    return Agreement(
        corpus=corpus,
        by=by,
        replies=len(rated),
        dialogues=len(places),
        bad=int(bad.sum()),
        good=int(good.sum()),
        left_out=left_out,
        auc=Estimate.of_resamples(auc_by_group(groups[sure], good[sure], scores[sure], weights), len(places), fewest=0),
        within=Estimate.of_resamples(
            within_groups(good[sure], scores[sure], groups[sure], weights), len(places), fewest=0
        ),
        spearman=Estimate.of_resamples(spearman(scores, ratings, weights[:, groups]), len(places), fewest=0),
    )


def within_groups(
    truth: npt.NDArray[np.bool_], scores: Numbers, groups: npt.NDArray[np.int64], weights: Numbers
) -> Numbers:
    """The AUC over pairs of the same group only, for each row of group weights."""
    above, pairs = np.zeros(weights.shape[1]), np.zeros(weights.shape[1])
    for group in np.unique(groups):
        true, false = scores[truth & (groups == group)], scores[~truth & (groups == group)]
        difference = np.sign(true[:, None] - false[None, :])
        above[group], pairs[group] = ((difference + 1) / 2).sum(), difference.size
    return ratio(weights @ above, weights @ pairs)


def spearman(one: Numbers, other: Numbers, weights: Numbers | None = None) -> Numbers:
    """Spearman's rank correlation, for each row of item weights; NaN where one of the two does not vary."""
    rows = np.ones((1, len(one))) if weights is None else weights
    if not len(one):
        return np.full(len(rows), np.nan)
    total = rows.sum(1, keepdims=True)
    ranks = [_middle_ranks(values, rows) for values in (one, other)]
    x, y = (rank - (rows * rank).sum(1, keepdims=True) / total for rank in ranks)
    spread = (rows * x * x).sum(1) * (rows * y * y).sum(1)
    return ratio((rows * x * y).sum(1), np.sqrt(np.where(spread > 1e-9, spread, 0.0)))


def _middle_ranks(values: Numbers, rows: Numbers) -> Numbers:
    """The weight below each value and half of that at it, for each row of weights."""
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    at = np.add.reduceat(rows[:, order], starts, axis=1)
    middle: Numbers = (np.cumsum(at, axis=1) - at / 2)[:, place]
    return middle
