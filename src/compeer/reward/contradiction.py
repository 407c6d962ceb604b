"""How often a judge's verdicts on the steps and on the response cannot both be right.

Step 3 names a strategy, and the response either carries it out or does something else. A judge contradicts itself

- *against the steps*: it accepts all three steps and the response, although the response does something else; or
- *despite the steps*: it rejects step 3 and accepts the response, although the response does exactly what step 3 says.

A response is accepted if it is preferred or as good as the reference. All steps accepted and the response rejected is
no contradiction: a good plan may be carried out badly. The rate is taken over all outputs that every compared judge
judged whole and that the classifier could decide. What a judge accepted stands beside its rate.

Whether a response carries out a strategy is decided by a third party that knows neither judge: a logistic regression on
words and pairs of words, trained on a corpus' replies and their strategies. It is right in little more than half of
ESConv's replies, so its best guess will not do. Only the probability of the strategy of step 3 is used, as if all
strategies were equally common. Below a lower limit the response does something else, above an upper one it carries the
strategy out, and between them it is not counted. The limits are set on held-out dialogues, such that at most `errors`
of the replies with their own strategy fall below the lower one, and at most `errors` of those with another's (sampled
as often as the corpus uses it) above the upper. A judge that accepts everything, on outputs that are all consistent,
would still have a rate of about `errors` divided by the share decided: the floor of this measure for every judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from compeer.dialogue import Dialogue, Strategy
from compeer.errors import InputError
from compeer.reasoning import STEPS, STRATEGIES, SupportTurn
from compeer.reward.compare import over_seeds
from compeer.reward.metrics import REPEATS, Indices, Judgments, group_means, with_intervals
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import ACCEPTABLE, SerRecord
from compeer.statistics import Numbers, generator, group_weights, ratio

_TOKEN = r"[\u3400-\u4dbf\u4e00-\u9fff]|[^\W_\u3400-\u4dbf\u4e00-\u9fff]+(?:['’][^\W_]+)*|[?!？！]"
"""Words, Chinese characters, and the signs that end a question."""

StrategyReply = tuple[str, Strategy, str]
"""A supporter's words, their strategy, and the dialogue that they are from."""


def strategy_replies(dialogues: Iterable[Dialogue]) -> list[StrategyReply]:
    """The supporters' messages whose strategy is known; not blocks of them, which may mix strategies."""
    return [
        (utterance.text, utterance.strategy, dialogue.id)
        for dialogue in dialogues
        for utterance in dialogue.utterances
        if utterance.speaker == "supporter" and utterance.strategy
    ]


class StrategyClassifier:
    """Decides from a response whether it carries out a strategy; `report` says how well, on held-out dialogues."""

    def __init__(self, model: Any, shares: Numbers, errors: float) -> None:
        self._model, self._shares = model, shares
        self._columns = [STRATEGIES.index(strategy) for strategy in model.classes_]
        self.errors = errors
        self.lower, self.upper = 0.0, 1.0
        self.report: dict[str, Any] = {}

    @classmethod
    def train(
        cls, known: Sequence[StrategyReply], seed: int, errors: float = 0.02, held_out: float = 0.2
    ) -> StrategyClassifier:
        """Learns from the replies of most dialogues, and sets its limits on the others.

        Give it other dialogues than those of the outputs that are judged: it would know their replies by heart.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        order = {name: generator(seed, "strategies", name).random() for _, _, name in known}
        replies = [reply for reply in known if order[reply[2]] >= held_out]
        test = [reply for reply in known if order[reply[2]] < held_out]
        if len({strategy for _, strategy, _ in replies}) < 2 or not test:
            raise InputError("too few dialogues have replies with strategies.", do="Give a larger labelled corpus.")
        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, token_pattern=_TOKEN)
        model = make_pipeline(words, LogisticRegression(max_iter=200, tol=1e-3))
        model.fit([text for text, _, _ in replies], [strategy for _, strategy, _ in replies])
        counts = Counter(strategy for _, strategy, _ in replies)
        shares = np.array([counts[strategy] for strategy in STRATEGIES]) / len(replies)
        found = cls(model, shares, errors)
        probabilities, truth, weights = found._tried(test)
        found.lower = float(np.quantile(probabilities[np.arange(len(test)), truth], errors))
        # Where strategies are easily told apart the limits would cross, and a reply would be both.
        found.upper = max(_weighted_quantile(probabilities.ravel(), weights.ravel(), 1 - errors), found.lower)
        found.report = {"taught": len(replies), **found.measure(test)}
        return found

    def probabilities(self, texts: Sequence[str]) -> Numbers:
        """The probability of each strategy, in the order of `STRATEGIES`, as if all were equally common."""
        found = np.zeros((len(texts), len(STRATEGIES)))
        if texts:
            found[:, self._columns] = self._model.predict_proba(list(texts)) / self._shares[self._columns]
        return ratio(found, found.sum(1, keepdims=True))

    def carried_out(self, turns: Sequence[tuple[str, Strategy]]) -> list[float | None]:
        """The probability that each response carries out its strategy; None for a strategy it has not learnt."""
        rows = self.probabilities([response for response, _ in turns])
        indices = [STRATEGIES.index(strategy) for _, strategy in turns]
        return [float(row[at]) if at in self._columns else None for row, at in zip(rows, indices, strict=True)]

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
            "accuracy": (found * self._shares).argmax(1) == truth,
            "majority": truth == self._shares.argmax(),
            "own_decided": (own < self.lower) | (own > self.upper),
            "own_wrong": own < self.lower,
            "other_decided": (weights * ((found < self.lower) | (found > self.upper))).sum(1),
            "other_wrong": (weights * (found > self.upper)).sum(1),
        }
        means = _means([dialogue for _, _, dialogue in replies], columns, repeats, seed)
        return {"replies": len(replies), "lower": self.lower, "upper": self.upper, **with_intervals(means)}

    def _tried(self, replies: Sequence[StrategyReply]) -> tuple[Numbers, Indices, Numbers]:
        """The probabilities of all strategies, which is a reply's own, and how common each of the others is."""
        truth = np.array([STRATEGIES.index(strategy) for _, strategy, _ in replies], dtype=np.int64)
        weights = np.tile(self._shares, (len(truth), 1))
        weights[np.arange(len(truth)), truth] = 0
        probabilities = self.probabilities([text for text, _, _ in replies])
        return probabilities, truth, ratio(weights, weights.sum(1, keepdims=True))


def _weighted_quantile(values: Numbers, weights: Numbers, share: float) -> float:
    """The smallest value that, with those below it, has at least that share of the weight."""
    order = np.argsort(values)
    reached = np.searchsorted(np.cumsum(weights[order]), share * weights.sum())
    return float(values[order][min(int(reached), len(values) - 1)])


def _means(dialogues: Sequence[str], columns: Mapping[str, Any], repeats: int, seed: int) -> dict[str, Numbers]:
    """The sampled mean of each column over dialogues."""
    indices = {name: index for index, name in enumerate(sorted(set(dialogues)))}
    groups = np.array([indices[name] for name in dialogues], dtype=np.int64)
    means = group_means(groups, list(columns.values()), group_weights(len(indices), repeats, seed))
    return dict(zip(columns, means, strict=True))


# --- contradictions ---------------------------------------------------------------------------------------------------


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

    Outputs are given by their dialogue and by whether the response follows step 3 (None: undecided). `rival` names a
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
            by_seed.append(_means([dialogues[n] for n in rows], columns, repeats, seed))
        sampled[name] = {key: over_seeds(np.stack([one[key] for one in by_seed]), seed) for key in by_seed[0]}
    if rival:
        for metrics in sampled.values():
            metrics["to_rival"] = ratio(metrics["contradictions"], sampled[rival]["contradictions"])
    return {**found, "judges": {name: with_intervals(metrics) for name, metrics in sampled.items()}}


def _whole(found: Judgment | Unscored) -> bool:
    return isinstance(found, Judgment) and all(part in found.steps for part in STEPS) and found.preferred() is not None


def corpus_contradictions(
    records: Sequence[SerRecord], judgments: Judgments, dialogues: Iterable[Dialogue]
) -> dict[str, Any]:
    """A judge's contradictions beside those of the labels themselves, and how good the classifier is that finds them.

    The classifier learns from the dialogues that were not judged.
    """
    if not any(isinstance(one, Judgment) and one.steps and one.response for one in judgments):
        what = "contradictions are between steps and responses, and no record was judged in both."
        raise InputError(what, field="corpus", do="Leave --corpus out, or give the judgments of a unified judge.")
    judged = {record.dialogue for record in records}
    every = list(dialogues)
    taught = [dialogue for dialogue in every if dialogue.id not in judged]
    if not taught:
        what = "every dialogue of the corpus was judged, so none is left to learn from."
        raise InputError(what, field="corpus", do="Give a larger one, or another.")
    classifier = StrategyClassifier.train(strategy_replies(taught), seed=0)
    labels: list[Judgment | Unscored] = [
        Judgment({part: float(getattr(record.labels, part).value) for part in STEPS}, {record.preference.value: 1.0})
        if record.labels and record.preference
        else Unscored("no labels")
        for record in records
    ]
    found = contradiction_metrics(
        [record.dialogue for record in records],
        classifier.follows([record.candidate for record in records]),
        {"judge": {0: judgments}, "the labels themselves": {0: labels}},
    )
    counts = {"dialogues": len(taught), "left_out_as_judged": len(every) - len(taught)}
    return {**found, "classifier": {**counts, **classifier.report}}
