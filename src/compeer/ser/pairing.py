"""Which contexts exchange what, so that each thing is wrong in one place as often as it is right in another.

Two contexts *exchange* a step: each shows the other's. Both texts then stand as False once, and as True once at home,
so that nobody can tell them apart without the history. Exchanges stay within a *cell*, the contexts that agree in
everything visible beside the step; and every value of a decision is exchanged in equal shares.

A strategy is wrong where it is improbable: for each feature of a moment (how far the conversation is, what the
supporter did last, what the seeker wrote) the corpus says how much more or less often than usual a strategy follows
(its *lift*); the lift at a moment is their product, scaled so that the shares add up to one.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from compeer.dialogue import Emotion, Stage, Strategy, last_seeker
from compeer.models.embedder import Embeds, Matrix
from compeer.reasoning import STEPS, STRATEGIES, EmotionStep, Part, SupportTurn, sentiment_of
from compeer.ser.asking import regex, table
from compeer.ser.record import StepLabel, StepLabels, silver_label
from compeer.ser.sampling import Context
from compeer.ser.wording import Reference, content_words
from compeer.statistics import Numbers, words

Allowed = npt.NDArray[np.bool_]
_NOISE = 0.15  # how much chance there is in who is near: without it the same few pairs would always meet


def exchange(
    cells: Sequence[Hashable],
    values: Sequence[Sequence[Hashable]],
    allowed: Allowed,
    closeness: Matrix,
    share: float,
    free: Allowed,
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Disjoint pairs that exchange: at most `share` of the contexts that have each value.

    `allowed[i, j]` says that what is j's is wrong in i; a pair needs both directions. Contexts choose a near partner in
    random order, those whose values have few possible partners first: if the nearest pairs went first, common topics
    would be False more often than rare ones.
    """
    _, numbers = np.unique(np.array([str(cell) for cell in cells]), return_inverse=True)
    possible = allowed & allowed.T & (numbers[:, None] == numbers[None, :]) & free[:, None] & free[None, :]
    np.fill_diagonal(possible, False)
    room = {value: share * count for value, count in Counter(v for own in values for v in own).items()}
    for value in room:  # a share of few is one or none, by chance
        room[value] = int(room[value]) + float(rng.random() < room[value] % 1)
    partners: Counter[Hashable] = Counter()
    for own, count in zip(values, possible.sum(axis=1).tolist(), strict=True):
        partners.update(dict.fromkeys(own, count))
    scarce = {value: room[value] / partners[value] if partners[value] else 0.0 for value in room}
    ranks = [max((scarce[value] for value in own), default=0.0) for own in values]
    order = np.lexsort((rng.random(len(values)), -np.array(ranks, dtype=float)))
    near = closeness + rng.normal(0, _NOISE, closeness.shape).astype(np.float32)
    pairs = []
    for one in order.tolist():
        if any(room[value] < 1 for value in values[one]):
            continue
        candidates = np.flatnonzero(possible[one])
        for other in candidates[np.argsort(-near[one, candidates], kind="stable")].tolist():
            need = Counter((*values[one], *values[other]))
            if all(room[value] >= count for value, count in need.items()):
                room.update({value: room[value] - count for value, count in need.items()})
                possible[[one, other], :] = possible[:, [one, other]] = False
                pairs.append((one, other))
                break
    return pairs


def closeness_of(texts: Sequence[str], embedder: Embeds) -> Matrix:
    """The cosine similarity of each two texts."""
    vectors = embedder.embed(texts)
    return np.round(vectors @ vectors.T, 4)  # the last bits differ between machines


def differ(values: Sequence[str]) -> Allowed:
    """For each two contexts whether their values differ."""
    _, numbers = np.unique(np.array(values, dtype=object), return_inverse=True)
    return np.asarray(numbers[:, None] != numbers[None, :])


IMPROBABLE = 0.75  # a strategy is improbable where it is used less than three quarters as often as usual
_PRIOR = 20.0  # each lift is shrunk toward 1 as if so many moments without any tendency had been counted as well
_TABLE = table("ser/tables/pairing")
_TOPICS = {name: re.compile(regex(pattern), re.IGNORECASE) for name, pattern in _TABLE["topics"].items()}
_ROUNDS = ((1, "1"), (3, "2-3"), (6, "4-6"), (10, "7-10"), (1 << 30, "11+"))


def features(context: Context) -> tuple[str, ...]:
    """What describes the moment of a context, by name and value."""
    far = next(name for bound, name in _ROUNDS if context.round <= bound)
    before = context.earlier_strategies[-1] if context.earlier_strategies else None
    text = last.text if (last := last_seeker(context.history)) else ""
    asks = "asks" if "?" in text or "？" in text else "tells"
    length = len(words(text)) // (16 if context.language == "zh" else 8)
    topic = next((name for name, pattern in _TOPICS.items() if pattern.search(text)), "else")
    return f"round {far}", f"after {before}", asks, f"length {min(4, length)}", f"says {topic}"


@dataclass
class Moments:
    """Counts of strategies by feature; nothing else of the corpus is kept."""

    counts: defaultdict[str, Counter[str]] = field(default_factory=partial(defaultdict, Counter))
    usual: Counter[str] = field(default_factory=Counter)

    def add(self, context: Context) -> None:
        if (strategy := context.reply.strategy) is None:
            return
        self.usual[strategy] += 1
        for feature in features(context):
            self.counts[feature][strategy] += 1

    def lifts(self, context: Context) -> Numbers:
        """For each strategy of the vocabulary how much more often than usual it is used at this moment."""
        usual = np.array([self.usual[strategy] + 1.0 for strategy in STRATEGIES])
        usual /= usual.sum()
        shares = usual.copy()
        for feature in features(context):
            here = np.array([self.counts[feature][strategy] for strategy in STRATEGIES])
            shares *= (here + _PRIOR * usual) / ((here.sum() + _PRIOR) * usual)
        found: Numbers = shares / shares.sum() / usual
        return found

    def most_usual(self, context: Context) -> Strategy:
        """The strategy that is used most often at this moment."""
        shares = [self.usual[strategy] for strategy in STRATEGIES]
        return STRATEGIES[int(np.argmax(self.lifts(context) * np.array(shares)))]


ENOUGH = 0.7
"""Share of the exchanges wanted below which, in a small set, the rest are made without regard to cells and values."""
TOO_NEAR = 0.85  # contexts more alike than this may share an issue: they do not exchange it


@dataclass(frozen=True)
class Pattern:
    """What a pair exchanges; `tables/pairing.toml` has all there are."""

    steps: Sequence[Part]
    weight: float
    kind: str | None = None

    @property
    def plans(self) -> bool:
        """Whether the record has another strategy than the one of the moment."""
        return "strategy" in self.steps and self.kind is None


WRONG_STAGE, SWAPPED_FACT, CONTRADICTS = "wrong stage", "swapped fact", "reasoning contradicts the decision"
PATTERNS = [Pattern(**pattern) for pattern in _TABLE["patterns"]]
FALSE_BY_WEIGHT = {part: sum(p.weight for p in PATTERNS if part in p.steps) for part in STEPS}


def pair_up(
    references: Sequence[Reference], moments: Moments, embedder: Embeds, false_share: float, rng: np.random.Generator
) -> tuple[list[int], list[Pattern | None]]:
    """Each context's partner (-1: none) and what they exchange: about twice `false_share`, as one in two is spoiled."""
    count = len(references)
    closeness = closeness_of([f"{r.quotes.issue} {r.quotes.last}" for r in references], embedder)
    wrong = _wrong(references, moments, closeness)
    partner, patterns = [-1] * count, [None] * count  # type: tuple[list[int], list[Pattern | None]]
    free = np.ones(count, dtype=bool)

    def meet(pairs: Sequence[tuple[int, int]], pattern: Pattern | None) -> None:
        for one, other in pairs:
            partner[one], partner[other] = other, one
            patterns[one] = patterns[other] = pattern
            free[[one, other]] = False

    for strict in (True, False):
        for pattern in PATTERNS:
            wanted = 2 * false_share * pattern.weight / FALSE_BY_WEIGHT[pattern.steps[0]]
            there = sum(found is pattern for found in patterns) / max(1, count)
            if not strict and there > ENOUGH * wanted:
                continue
            cells = [_cell(reference, pattern) if strict else "" for reference in references]
            values = [_values(reference, pattern) if strict else () for reference in references]
            pairs = exchange(cells, values, _allowed(pattern, wrong, references), closeness, wanted, free, rng)
            meet(pairs if strict else pairs[: round((wanted - there) * count / 2)], pattern)
    meet(exchange([""] * count, [()] * count, wrong["history"], closeness, 1.0, free, rng), None)
    return partner, patterns


def _wrong(references: Sequence[Reference], moments: Moments, closeness: Matrix) -> dict[str, Allowed]:
    """For each step a matrix: whether the column's step is wrong in the row's context."""
    turns = [reference.turn for reference in references]
    elsewhere = differ([r.context.dialogue for r in references])
    other_stage = elsewhere & differ([turn.history.stage for turn in turns])
    other_emotion = elsewhere & differ([turn.emotion.emotion for turn in turns])
    other_strategy = elsewhere & differ([turn.strategy.strategy for turn in turns])
    intensities = np.array([turn.emotion.intensity for turn in turns])
    far = np.abs(intensities[:, None] - intensities[None, :]) >= 2
    strategies = np.array([STRATEGIES.index(turn.strategy.strategy) for turn in turns], dtype=int)
    lifts = np.array([moments.lifts(r.context) for r in references]).reshape(len(references), len(STRATEGIES))
    return {
        "history": elsewhere & (closeness < TOO_NEAR) & differ([turn.response for turn in turns]),
        "emotion": other_emotion | (elsewhere & far),
        "strategy": other_strategy & (lifts[:, strategies] < IMPROBABLE),
        "other stage": other_stage,
        "other emotion": other_emotion,
        "other strategy": other_strategy,
    }


def _allowed(pattern: Pattern, wrong: Mapping[str, Allowed], references: Sequence[Reference]) -> Allowed:
    responses_differ = wrong["history"]
    if pattern.kind == WRONG_STAGE:
        return wrong["other stage"] & responses_differ
    if pattern.kind == SWAPPED_FACT:
        detailed = np.array(["{detail}" in (r.history.template or "") for r in references], dtype=bool)
        return np.asarray(responses_differ & detailed[:, None] & detailed[None, :])
    if pattern.kind == CONTRADICTS:
        return wrong[f"other {pattern.steps[0]}"] & responses_differ
    return np.asarray(np.logical_and.reduce([responses_differ, *(wrong[part] for part in pattern.steps)]))


def _cell(reference: Reference, pattern: Pattern) -> str:
    """What is visible beside what is exchanged and goes with it, as stage and strategy do: it is the same in both."""
    if "history" in pattern.steps and "strategy" not in pattern.steps:
        return reference.turn.strategy.strategy
    if "strategy" in pattern.steps and "history" not in pattern.steps:
        return reference.turn.history.stage
    return ""


def _values(reference: Reference, pattern: Pattern) -> list[str]:
    """Of what equal shares are exchanged: stage and strategy together, and the emotion where it is exchanged."""
    turn = reference.turn
    found = [f"{turn.history.stage}, {turn.strategy.strategy}"]
    return [*found, turn.emotion.emotion] if "emotion" in pattern.steps else found


# --- what the corpus' labels say about a step: right, wrong and how, or nothing ---------------------------------------

HEARD = 0.3  # share of a step's content words that must occur in the history for its issue to count as this seeker's


def wrong_emotion(context: Context, right: EmotionStep, given: EmotionStep) -> str:
    """What kind of mistake an emotion is, given the right one."""
    if given.emotion == right.emotion:
        return "wrong intensity"
    if given.emotion in context.earlier_emotions:
        return "outdated emotion"
    if sentiment_of(given.emotion) != sentiment_of(right.emotion):
        return "opposite emotion"
    if are_near(given.emotion, right.emotion):
        return "neighbouring emotion"
    return "another emotion"


def are_near(one: Emotion, other: Emotion) -> bool:
    """Whether two emotions are of one family."""
    return any(one in family and other in family for family in _TABLE["families"])


def compare_turn(turn: SupportTurn, context: Context, moments: Moments, stage: Stage) -> StepLabels | None:
    """The labels of a turn that a model wrote, or None where the corpus cannot decide all three."""
    history, emotion = _history(turn, context, stage), _emotion(turn, context)
    strategy = _strategy(turn, context, moments)
    if history is None or emotion is None or strategy is None:
        return None
    return StepLabels(history=history, emotion=emotion, strategy=strategy)


def _history(turn: SupportTurn, context: Context, stage: Stage) -> StepLabel | None:
    right = context.reply.stage or stage
    if turn.history.stage != right:
        return silver_label(False, "another stage than the corpus' or the rule's", "wrong stage")
    named = content_words(turn.history.text)
    heard = content_words(" ".join(utterance.text for utterance in context.history))
    if not named or len(named & heard) < HEARD * len(named):
        return None  # other words for the same thing, or another thing: only a reader can tell
    return silver_label(True, "the right stage, and what it names was said")


def _emotion(turn: SupportTurn, context: Context) -> StepLabel | None:
    if context.emotion is None:
        return None
    given = turn.emotion
    intensity = context.intensity or given.intensity
    own = {"sentiment": sentiment_of(context.emotion), "emotion": context.emotion, "intensity": intensity}
    right = given.model_copy(update=own)
    if given.emotion == right.emotion and abs(given.intensity - right.intensity) < 2:
        return silver_label(True, "the corpus' emotion")
    kind = wrong_emotion(context, right, given)
    if kind == "neighbouring emotion" or (kind != "wrong intensity" and "emotion" in context.derived):
        return None  # near by, or the corpus' label is of the whole dialogue and may not hold for this moment
    if kind == "wrong intensity" and "intensity" in context.derived:
        return silver_label(True, "the corpus' emotion; its intensity at this moment is not known")
    return silver_label(False, "another emotion than the corpus'", kind)


def _strategy(turn: SupportTurn, context: Context, moments: Moments) -> StepLabel | None:
    if context.reply.strategy is None:
        return None
    if turn.strategy.strategy == context.reply.strategy:
        return silver_label(True, "the corpus' strategy")
    lift = moments.lifts(context)[STRATEGIES.index(turn.strategy.strategy)]
    if lift < IMPROBABLE:
        return silver_label(False, f"used {lift:.2f} times as often as usual at such moments", "improbable strategy")
    return silver_label(True, f"not the corpus' strategy, but usual at such moments ({lift:.2f})")
