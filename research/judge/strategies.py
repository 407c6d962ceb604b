"""Whether a response carries out the strategy of step 3, decided by a classifier where it can be.

Below a lower limit of the strategy's probability the response does something else, above an upper one it carries the
strategy out, and between them it is not counted. The limits are set on held-out dialogues, such that at most `errors`
of the replies with their own strategy fall below the lower one, and at most `errors` of those with another's (sampled
as often as the corpus uses it) above the upper. A judge that accepts everything, on outputs that are all consistent,
would still have a rate of contradictions of about `errors` divided by the share decided: the floor of this measure.

    classifier = DecidingClassifier(strategy_replies(read_corpus("ESConv.json")), seed=0)
    contradiction_metrics(dialogues, classifier.follows(turns), judges)     # of research.judge.compare
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from compeer.dialogue import Dialogue
from compeer.errors import InputError
from compeer.reasoning import STRATEGIES, SupportTurn
from compeer.reward.contradiction import dialogue_means
from compeer.reward.metrics import REPEATS, Indices, with_intervals
from compeer.reward.strategies import StrategyClassifier, StrategyReply, split_replies
from compeer.statistics import Numbers, ratio


def strategy_replies(dialogues: Iterable[Dialogue]) -> list[StrategyReply]:
    """The supporters' messages whose strategy is known; not blocks of them, which may mix strategies."""
    return [
        (utterance.text, utterance.strategy, dialogue.id)
        for dialogue in dialogues
        for utterance in dialogue.utterances
        if utterance.speaker == "supporter" and utterance.strategy
    ]


class DecidingClassifier(StrategyClassifier):
    """Decides from a response whether it carries out a strategy; `report` says how well, on held-out dialogues.

    Give it other dialogues than those of the outputs that are judged: it would know their replies by heart.
    """

    def __init__(self, known: Sequence[StrategyReply], seed: int, errors: float = 0.02) -> None:
        replies, test = split_replies(known, seed)
        if not test:
            raise InputError("too few dialogues have replies with strategies.", do="Give a larger labelled corpus.")
        super().__init__(replies)
        self.errors = errors
        probabilities, truth, weights = self._tried(test)
        self.lower = float(np.quantile(probabilities[np.arange(len(test)), truth], errors))
        # Where strategies are easily told apart the limits would cross, and a reply would be both.
        self.upper = max(_weighted_quantile(probabilities.ravel(), weights.ravel(), 1 - errors), self.lower)
        self.report: dict[str, Any] = {"taught": len(replies), **self.measure(test)}

    def follows(self, turns: Sequence[SupportTurn]) -> list[bool | None]:
        """Whether each response carries out the strategy of its step 3; None where that cannot be decided."""
        found = self.carried_out([(turn.response, turn.strategy.strategy) for turn in turns])
        return [None if p is None else False if p < self.lower else True if p > self.upper else None for p in found]

    def measure(self, replies: Sequence[StrategyReply], repeats: int = REPEATS, seed: int = 0) -> dict[str, Any]:
        """How well it does on the replies of other dialogues, with intervals over dialogues.

        `accuracy` is that of its best guess, `majority` that of guessing the commonest strategy. Of replies with their
        own strategy `own_decided` are decided and `own_wrong` taken for something else; of replies with another's,
        weighted by how common it is, `other_decided` are decided and `other_wrong` taken for carrying it out.
        """
        found, truth, weights = self._tried(replies)
        own = found[np.arange(len(replies)), truth]
        columns = {
            "accuracy": (found * self.shares).argmax(1) == truth,
            "majority": truth == self.shares.argmax(),
            "own_decided": (own < self.lower) | (own > self.upper),
            "own_wrong": own < self.lower,
            "other_decided": (weights * ((found < self.lower) | (found > self.upper))).sum(1),
            "other_wrong": (weights * (found > self.upper)).sum(1),
        }
        means = dialogue_means([dialogue for _, _, dialogue in replies], columns, repeats, seed)
        return {"replies": len(replies), "lower": self.lower, "upper": self.upper, **with_intervals(means)}

    def _tried(self, replies: Sequence[StrategyReply]) -> tuple[Numbers, Indices, Numbers]:
        """The probabilities of all strategies, which is a reply's own, and how common each of the others is."""
        truth = np.array([STRATEGIES.index(strategy) for _, strategy, _ in replies], dtype=np.int64)
        weights = np.tile(self.shares, (len(truth), 1))
        weights[np.arange(len(truth)), truth] = 0
        probabilities = self.probabilities([text for text, _, _ in replies])
        return probabilities, truth, ratio(weights, weights.sum(1, keepdims=True))


def _weighted_quantile(values: Numbers, weights: Numbers, share: float) -> float:
    """The smallest value that, with those below it, has at least that share of the weight."""
    order = np.argsort(values)
    reached = np.searchsorted(np.cumsum(weights[order]), share * weights.sum())
    return float(values[order][min(int(reached), len(values) - 1)])
