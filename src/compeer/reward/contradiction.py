"""How often a judge's verdicts on the steps and on the response cannot both be right.

Step 3 names a strategy, and the response either carries it out or does something else. A judge contradicts itself if

- *against the steps*: it accepts all three steps and the response, although the response does something else than the
  strategy of step 3: a reasoning that asks for comfort is right, and so is the advice that came instead; or
- *despite the steps*, the reverse: it rejects step 3 and accepts the response, although the response carries out
  exactly the strategy that was just called wrong.

A response is accepted if it is preferred or as good as the reference. That a good plan is carried out badly, all steps
accepted and the response rejected, is no contradiction. The rate is taken over all outputs that every compared judge
judged whole and that the classifier could decide, so that all judges are held to the same outputs. A judge that accepts
little has little to contradict: what it accepted stands beside the rate.

Whether a response carries out a strategy is decided by a third party that knows neither judge: a logistic regression on
words and pairs of words, taught by a corpus' replies and their strategies. Strategies overlap, and it is right in
little more than half of ESConv's replies, so its best guess will not do. Only the probability that it gives to the
strategy of step 3 is used, taken as if all strategies were equally common, so that a rare one is not ruled out for
being rare. Below a lower limit the response does something else, above an upper one it carries the strategy out;
between them nothing is decided and nothing counted. The limits are set on dialogues held out from training, such that
of replies with their own strategy at most `errors` fall below the lower one, and of replies with another's (drawn as
often as the corpus uses it) at most `errors` above the upper. A judge that accepts everything, on outputs that are all
consistent, would thus still show a rate of about `errors` divided by the share decided: the floor of this measure, the
same for every judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from compeer.dialogue import Dialogue, Strategy
from compeer.errors import InputError
from compeer.reasoning import STEPS, STRATEGIES, SupportTurn
from compeer.reward.compare import Said, over_seeds
from compeer.reward.metrics import REPEATS, with_intervals
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import ACCEPTABLE
from compeer.statistics import Numbers, Places, generator, group_weights, ratio, reweighted

_TOKEN = r"[\u3400-\u4dbf\u4e00-\u9fff]|[^\W_\u3400-\u4dbf\u4e00-\u9fff]+(?:['’][^\W_]+)*|[?!？！]"
"""Words, Chinese characters, and the signs that tell a question."""


Reply = tuple[str, Strategy, str]
"""A supporter's words, their strategy, and the dialogue that they are from."""


class StrategyClassifier:
    """Tells from a response alone whether it carries out a strategy. `report` says how well, on held-out dialogues."""

    def __init__(self, model: Any, shares: Numbers, errors: float) -> None:
        self._model, self._shares = model, shares
        self._columns = [STRATEGIES.index(strategy) for strategy in model.classes_]
        self.errors = errors
        self.lower, self.upper = 0.0, 1.0
        self.report: dict[str, Any] = {}

    @classmethod
    def train(
        cls, dialogues: Iterable[Dialogue], seed: int, errors: float = 0.02, held_out: float = 0.2
    ) -> StrategyClassifier:
        """Learns from most dialogues' replies; sets its limits and reports its accuracy on the others, by the seed.

        Give it other dialogues than those of the outputs that are judged: it would know their replies by heart.
        """
        return cls.taught(_replies(dialogues), seed, errors, held_out)

    @classmethod
    def taught(
        cls, known: Sequence[Reply], seed: int, errors: float = 0.02, held_out: float = 0.2
    ) -> StrategyClassifier:
        """The same from replies that are at hand."""
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        draws = {name: generator(seed, "strategies", name).random() for _, _, name in known}
        replies = [reply for reply in known if draws[reply[2]] >= held_out]
        test = [reply for reply in known if draws[reply[2]] < held_out]
        if len({strategy for _, strategy, _ in replies}) < 2 or not test:
            raise InputError("too few dialogues have replies with strategies.", do="Give a larger labelled corpus.")
        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, token_pattern=_TOKEN)
        model = make_pipeline(words, LogisticRegression(max_iter=200, tol=1e-3))
        model.fit([text for text, _, _ in replies], [strategy for _, strategy, _ in replies])
        counts = Counter(strategy for _, strategy, _ in replies)
        shares = np.array([counts[strategy] for strategy in STRATEGIES]) / len(replies)
        found = cls(model, shares, errors)
        chances, truth, weights = found._tried(test)
        found.lower = float(np.quantile(chances[np.arange(len(test)), truth], errors))
        # Where strategies are told apart without effort the limits would cross, and a reply would be both.
        found.upper = max(_weighted_quantile(chances.ravel(), weights.ravel(), 1 - errors), found.lower)
        found.report = {"taught": len(replies), **found.measure(test)}
        return found

    def probabilities(self, texts: Sequence[str]) -> Numbers:
        """The probability of each strategy, in the order of `STRATEGIES`, as if all were equally common."""
        chances = np.zeros((len(texts), len(STRATEGIES)))
        if texts:
            chances[:, self._columns] = self._model.predict_proba(list(texts)) / self._shares[self._columns]
        return ratio(chances, chances.sum(1, keepdims=True))

    def follows(self, turns: Sequence[SupportTurn]) -> list[bool | None]:
        """Whether each response carries out the strategy of its step 3; None where that cannot be told."""
        chances = self.probabilities([turn.response for turn in turns])
        named = [STRATEGIES.index(turn.strategy.strategy) for turn in turns]
        return [self._decided(float(row[place]), place) for row, place in zip(chances, named, strict=True)]

    def carried_out(self, turns: Sequence[tuple[str, Strategy]]) -> list[float]:
        """The probability that each response carries out its strategy, as if all were equally common.

        Of a strategy that was never seen nothing can be said: it has the probability of a guess.
        """
        chances = self.probabilities([response for response, _ in turns])
        places = [STRATEGIES.index(strategy) for _, strategy in turns]
        guess = 1 / len(STRATEGIES)
        return [
            float(row[place]) if place in self._columns else guess for row, place in zip(chances, places, strict=True)
        ]

    def _decided(self, chance: float, place: int) -> bool | None:
        if place not in self._columns:  # never seen, so nothing can be said about it
            return None
        return False if chance < self.lower else True if chance > self.upper else None

    def measure(self, replies: Sequence[Reply], repeats: int = REPEATS, seed: int = 0) -> dict[str, Any]:
        """How well it does on the replies of other dialogues, with intervals over dialogues.

        `accuracy` is that of its best guess, `majority` that of guessing the commonest strategy. Of replies with their
        own strategy `own_decided` are decided and `own_wrong` taken for something else; of replies with another's,
        weighted by how common it is, `other_decided` are decided and `other_wrong` taken for carrying it out.
        """
        chances, truth, weights = self._tried(replies)
        own = chances[np.arange(len(replies)), truth]
        columns = np.stack(
            [
                np.ones(len(replies)),
                (chances * self._shares).argmax(1) == truth,
                truth == self._shares.argmax(),
                (own < self.lower) | (own > self.upper),
                own < self.lower,
                (weights * ((chances < self.lower) | (chances > self.upper))).sum(1),
                (weights * (chances > self.upper)).sum(1),
            ],
            axis=-1,
        )
        names = ("accuracy", "majority", "own_decided", "own_wrong", "other_decided", "other_wrong")
        drawn = _drawn_means([dialogue for _, _, dialogue in replies], columns, repeats, seed)
        limits = {"lower": self.lower, "upper": self.upper}
        return {"replies": len(replies), **limits, **with_intervals(dict(zip(names, drawn, strict=True)))}

    def _tried(self, replies: Sequence[Reply]) -> tuple[Numbers, Places, Numbers]:
        """The probabilities of all strategies, which is a reply's own, and how common each of the others is."""
        truth = np.array([STRATEGIES.index(strategy) for _, strategy, _ in replies], dtype=np.int64)
        weights = np.tile(self._shares, (len(truth), 1))
        weights[np.arange(len(truth)), truth] = 0
        return (
            self.probabilities([text for text, _, _ in replies]),
            truth,
            ratio(weights, weights.sum(1, keepdims=True)),
        )


def _weighted_quantile(values: Numbers, weights: Numbers, share: float) -> float:
    """The smallest value that, with those below it, has at least that share of the weight."""
    order = np.argsort(values)
    reached = np.searchsorted(np.cumsum(weights[order]), share * weights.sum())
    return float(values[order][min(int(reached), len(values) - 1)])


def _replies(dialogues: Iterable[Dialogue]) -> list[Reply]:
    """Text, strategy and dialogue of each labelled message of a supporter.

    Messages, not blocks of them: a block may mix strategies.
    """
    return [
        (utterance.text, utterance.strategy, dialogue.id)
        for dialogue in dialogues
        for utterance in dialogue.utterances
        if utterance.speaker == "supporter" and utterance.strategy
    ]


def _drawn_means(dialogues: Sequence[str], columns: Numbers, repeats: int, seed: int) -> list[Numbers]:
    """Each column but the first divided by the first, summed over dialogues as drawn (`group_weights`)."""
    places = {name: place for place, name in enumerate(sorted(set(dialogues)))}
    sums = np.zeros((len(places), columns.shape[1]))
    np.add.at(sums, [places[name] for name in dialogues], columns)
    totals = reweighted(group_weights(len(places), repeats, seed), sums)
    return [ratio(totals[:, number], totals[:, 0]) for number in range(1, columns.shape[1])]


# --- contradictions ---------------------------------------------------------------------------------------------------


def against_the_steps(judgment: Judgment, follows: bool) -> bool:
    """All steps accepted, and a response accepted that does something else than step 3 says."""
    return not follows and all(judgment.step(part) for part in STEPS) and accepted(judgment)


def despite_the_steps(judgment: Judgment, follows: bool) -> bool:
    """Step 3 rejected, and yet a response accepted that does just what it says."""
    return follows and not judgment.step("strategy") and accepted(judgment)


def accepted(judgment: Judgment) -> bool:
    """Whether the response is as good as the reference or better."""
    return judgment.preferred() in ACCEPTABLE and not judgment.void


def contradiction_figures(
    dialogues: Sequence[str],
    follows: Sequence[bool | None],
    judges: Mapping[str, Mapping[int, Said]],
    rival: str | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Any]:
    """The rate of contradictions of each judge (by training seed) on the same outputs, with intervals over dialogues.

    Outputs are given by their dialogue and by whether the response follows step 3 (None: undecided). `rival` names a
    judge that the others are held against: `to_rival` is their rate divided by its, 0.5 half as many.
    """
    everyone = [said for seeds in judges.values() for said in seeds.values()]
    judged = [all(_whole(said[number]) for said in everyone) for number in range(len(dialogues))]
    rows = [number for number, one in enumerate(judged) if one and follows[number] is not None]
    found: dict[str, Any] = {
        "outputs": len(dialogues),
        "judged": sum(judged),
        "decided": len(rows),
        "following": sum(follows[number] is True for number in rows),
    }
    if not rows:
        return {**found, "judges": {}}
    drawn: dict[str, dict[str, Numbers]] = {}
    for name, seeds in judges.items():
        by_seed = []
        for said in seeds.values():
            marks = [_marks(one, follows[n] is True) for n in rows if isinstance(one := said[n], Judgment)]
            by_seed.append(_drawn_means([dialogues[n] for n in rows], np.array(marks, dtype=float), repeats, seed))
        names = ("contradictions", "against_the_steps", "despite_the_steps", "all_accepted", "response_accepted")
        drawn[name] = {
            key: over_seeds(np.stack([one[place] for one in by_seed]), seed) for place, key in enumerate(names)
        }
    if rival:
        for figures in drawn.values():
            figures["to_rival"] = ratio(figures["contradictions"], drawn[rival]["contradictions"])
    return {**found, "judges": {name: with_intervals(figures) for name, figures in drawn.items()}}


def _whole(said: Judgment | Unscored) -> bool:
    return isinstance(said, Judgment) and all(part in said.steps for part in STEPS) and said.preferred() is not None


def _marks(said: Judgment, follows: bool) -> list[bool]:
    """One for the output itself, then what it counts as."""
    against, despite = against_the_steps(said, follows), despite_the_steps(said, follows)
    steps = all(said.step(part) for part in STEPS)
    return [True, against or despite, against, despite, steps and accepted(said), accepted(said)]
