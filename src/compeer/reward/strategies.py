"""Which strategy a response carries out, by nothing but its words: a party that knows no judge.

A logistic regression on words and pairs of words. It is right in little more than half of ESConv's replies, so never
its best guess is used but the probability of one strategy, as if all were equally common.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from compeer.dialogue import Strategy
from compeer.errors import InputError
from compeer.reasoning import STRATEGIES
from compeer.statistics import Numbers, generator, ratio

_TOKEN = r"[\u3400-\u4dbf\u4e00-\u9fff]|[^\W_\u3400-\u4dbf\u4e00-\u9fff]+(?:['’][^\W_]+)*|[?!？！]"
"""Words, Chinese characters, and the signs that end a question."""

StrategyReply = tuple[str, Strategy, str]  # a supporter's words, their strategy, and the dialogue that they are from


def split_replies(known: Sequence[StrategyReply], seed: int) -> tuple[list[StrategyReply], list[StrategyReply]]:
    """Replies to learn from, and those of a fifth of the dialogues, sampled, to test on."""
    order = {dialogue: generator(seed, "strategies", dialogue).random() for _, _, dialogue in known}
    return [one for one in known if order[one[2]] >= 0.2], [one for one in known if order[one[2]] < 0.2]


class StrategyClassifier:
    """Learns from replies how probable each strategy is, given a response."""

    def __init__(self, replies: Sequence[StrategyReply]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        counts = Counter(strategy for _, strategy, _ in replies)
        if len(counts) < 2:
            raise InputError("too few dialogues have replies with strategies.", do="Give a larger labelled corpus.")
        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, token_pattern=_TOKEN)
        self._model = make_pipeline(words, LogisticRegression(max_iter=200, tol=1e-3))
        self._model.fit([text for text, _, _ in replies], [strategy for _, strategy, _ in replies])
        self._columns = [STRATEGIES.index(strategy) for strategy in self._model.classes_]
        self.shares: Numbers = np.array([counts[strategy] for strategy in STRATEGIES]) / len(replies)

    def probabilities(self, texts: Sequence[str]) -> Numbers:
        """The probability of each strategy, in the order of `STRATEGIES`, as if all were equally common."""
        found = np.zeros((len(texts), len(STRATEGIES)))
        if texts:
            found[:, self._columns] = self._model.predict_proba(list(texts)) / self.shares[self._columns]
        return ratio(found, found.sum(1, keepdims=True))

    def carried_out(self, turns: Sequence[tuple[str, Strategy]]) -> list[float | None]:
        """The probability that each response carries out its strategy; None for a strategy it has not learnt."""
        rows = self.probabilities([response for response, _ in turns])
        indices = [STRATEGIES.index(strategy) for _, strategy in turns]
        return [float(row[at]) if at in self._columns else None for row, at in zip(rows, indices, strict=True)]
