"""Blind probes: how well a record's labels can be told without its history. Near chance is what we want.

A judge that scores well without reading has learnt how mistakes are worded, not whether they are mistakes. So
classifiers that see no history are trained on the reward and policy splits and tried on the test split. For each step:

- *words of the step*, *words of the turn*: words and pairs of words of its line or of all three; logistic regression;
- *decision of the step*, *decisions of the turn*: the decision words alone, for the turn also two and three together;
- *length of the step*: and its punctuation; boosted trees;
- *model of the turn*: vectors of the three steps and the response, their products and cosines, decisions, lengths;
  ridge regression whose score goes into boosted trees. It finds steps that betray each other.

For the preference, from the words, the lengths or a model of the two responses: which is better where one is (chance
0.5), whether the candidate is acceptable (0.5), which of the four classes in the order shown (0.25). Each is tried
again *with the reasoning*. That one has no limit: a true step tells what the history is about, so a response that fits
the steps may rightly be preferred.

The models' vectors come from latent semantic analysis; with an embedder they are tried again with its vectors, on as
many records as its share of texts allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, computed_field

from compeer.models.embedder import Embeds
from compeer.reasoning import STEPS
from compeer.ser.probes.blind import (
    Case,
    Vectors,
    case_of,
    decision_tokens,
    embedded_vectors,
    latent_vectors,
    pair_features,
    pair_word_features,
    shape_features,
    token_features,
    turn_features,
    word_features,
)
from compeer.ser.probes.learners import Answer, interval_by_dialogue, linear, ridge_and_trees, trees
from compeer.ser.record import read_records
from compeer.statistics import balanced_accuracy, generator

STEP_LIMIT, PREFERENCE_LIMIT = 0.55, 0.58
FEWEST = 20
"""Labels of each class that a test needs, and twice as many to train on; with fewer a probe says nothing."""
TEST_SHARE = 0.3


class Probe(BaseModel):
    """How well one probe told one label. `passed` is None where it has no limit or too few labels to say."""

    model_config = ConfigDict(frozen=True)

    label: str = Field(description="what it tells: a step's True or False, or something of the preference")
    sees: str = Field(description="what it looks at")
    trained: int
    tested: int
    chance: float
    limit: float | None
    balanced_accuracy: float | None = None
    low: float | None = Field(default=None, description="95 % interval, drawn by dialogue")
    high: float | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool | None:
        if self.limit is None or self.balanced_accuracy is None or self.low is None:
            return None
        # Of few labels a figure above the limit may be chance: it counts only where the interval excludes that.
        return self.balanced_accuracy <= self.limit or self.low <= self.chance


class Probes(BaseModel):
    """What all probes found."""

    model_config = ConfigDict(frozen=True)

    records: int
    sources: dict[str, int] = Field(description="records by the source of their preference")
    probes: tuple[Probe, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return all(probe.passed is not False for probe in self.probes)


def probe_records(
    records: Path, seed: int, embedder: Embeds | None = None, limit: int = 12_000, embedded_texts: int = 3_000
) -> Probes:
    """Tries all probes on a file of records, on at most `limit` of them, drawn by the seed.

    The embedder is given at most `embedded_texts` different texts.
    """
    import sklearn.ensemble  # noqa: F401, before the limit below, which holds for libraries that are loaded
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    train, test, sources = _draw(records, seed, limit)
    if not train or not test:
        return Probes(records=len(train) + len(test), sources=sources, probes=())
    few, few_test = _with_few_texts(train, 0.6 * embedded_texts), _with_few_texts(test, 0.4 * embedded_texts)
    embedded = embedded_vectors([*few, *few_test], embedder) if embedder else None
    found: list[Probe] = []
    with threadpool_limits(1):  # threads that wait for each other in small tasks make a busy machine crawl
        vectors = latent_vectors(train, test, seed)
        for task in _TASKS:
            found += [_try(task, look, train, test) for look in (*_plain_looks(task), *_model_looks(task, vectors, ""))]
            if embedded:
                found += [_try(task, look, few, few_test) for look in _model_looks(task, embedded, ", embedded")]
    return Probes(records=len(train) + len(test), sources=sources, probes=tuple(found))


def _draw(records: Path, seed: int, limit: int) -> tuple[list[Case], list[Case], dict[str, int]]:
    """Cases for training and for the test, each drawn from all of their kind and left in the file's order."""
    rng = generator(seed, "probes")
    sizes = {True: round(limit * TEST_SHARE), False: limit - round(limit * TEST_SHARE)}
    kept: dict[bool, list[tuple[int, Case]]] = {True: [], False: []}
    seen: Counter[bool] = Counter()
    sources: Counter[str] = Counter()
    for number, record in enumerate(read_records(records)):
        if record.preference is None or (case := case_of(record)) is None:
            continue
        sources[record.preference.source] += 1
        pool, size = kept[case.test], sizes[case.test]
        place = len(pool) if len(pool) < size else int(rng.integers(0, seen[case.test] + 1))
        seen[case.test] += 1
        if place < size:
            pool[place : place + 1] = [(number, case)]
    train, test = ([case for _, case in sorted(kept[part], key=lambda entry: entry[0])] for part in (False, True))
    return train, test, dict(sources)


def _with_few_texts(cases: Sequence[Case], most: float) -> list[Case]:
    """The first cases that have at most so many different texts; neighbours share many."""
    texts: set[str] = set()
    for number, case in enumerate(cases):
        texts.update(case.all_texts)
        if len(texts) > most:
            return list(cases[:number])
    return list(cases)


# --- what is asked ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """One label to tell: the answer of a case (None: it has none), and for preferences the two responses."""

    label: str
    answer: Callable[[Case], Answer | None]
    limit: float
    chance: float = 0.5
    part: int | None = None
    pair: Callable[[Case], tuple[str, str]] = lambda case: case.shown


def _step(part: int, case: Case) -> bool | None:
    return case.labels[part] if case.labels else None


def _better(case: Case) -> str | None:
    return None if case.preference in ("both", "neither") else _class(case)


def _acceptable(case: Case) -> bool:
    return case.preference in ("candidate", "both")


def _class(case: Case) -> str:
    if case.preference in ("both", "neither"):
        return case.preference
    return "first" if (case.preference == "candidate") == case.candidate_first else "second"


_TASKS = (
    *(_Task(f"{name} step", partial(_step, part), STEP_LIMIT, part=part) for part, name in enumerate(STEPS)),
    _Task("preference: the better one", _better, PREFERENCE_LIMIT),
    _Task(
        "preference: candidate acceptable",
        _acceptable,
        PREFERENCE_LIMIT,
        pair=lambda case: (case.candidate, case.reference),
    ),
    _Task("preference: four classes", _class, PREFERENCE_LIMIT, chance=0.25),
)


# --- what is looked at ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Look:
    """What a probe sees: features of the cases for training and test, and who learns from them."""

    sees: str
    features: Callable[[Sequence[Case], Sequence[Case]], tuple[Any, Any]]
    learner: Callable[[Any, Sequence[Answer], Any, Sequence[str]], Sequence[Answer]]
    limited: bool = True


def _of_each(make: Callable[[list[Any], list[Any]], tuple[Any, Any]], view: Callable[[Case], Any]) -> Any:
    return lambda train, test: make([view(case) for case in train], [view(case) for case in test])


def _plain_looks(task: _Task) -> list[_Look]:
    part = task.part
    if part is None:
        return [
            _Look("words", _of_each(pair_word_features, task.pair), linear),
            _Look("lengths", _of_each(shape_features, task.pair), trees),
            _Look("words, with the reasoning", partial(_words_with_reasoning, task), linear, limited=False),
        ]
    return [
        _Look("words of the step", _of_each(word_features, lambda case: case.lines[part : part + 1]), linear),
        _Look("words of the turn", _of_each(word_features, lambda case: case.lines), linear),
        _Look("decision of the step", _of_each(token_features, lambda case: case.decisions[part]), linear),
        _Look("decisions of the turn", _of_each(token_features, decision_tokens), linear),
        _Look("length of the step", _of_each(shape_features, lambda case: case.texts[part : part + 1]), trees),
    ]


def _words_with_reasoning(task: _Task, train: Sequence[Case], test: Sequence[Case]) -> tuple[Any, Any]:
    from scipy.sparse import hstack

    pairs = _of_each(pair_word_features, task.pair)(train, test)
    lines = _of_each(word_features, lambda case: case.lines)(train, test)
    return hstack([pairs[0], lines[0]]).tocsr(), hstack([pairs[1], lines[1]]).tocsr()


def _model_looks(task: _Task, vectors: Vectors, how: str) -> list[_Look]:
    part = task.part
    if part is not None:

        def turns(train: Sequence[Case], test: Sequence[Case]) -> tuple[Any, Any]:
            return turn_features(train, vectors, part), turn_features(test, vectors, part)

        return [_Look(f"model of the turn{how}", turns, ridge_and_trees)]

    def pairs(reasoning: bool, train: Sequence[Case], test: Sequence[Case]) -> tuple[Any, Any]:
        ours, theirs = ([task.pair(case) for case in cases] for cases in (train, test))
        return pair_features(train, ours, vectors, reasoning), pair_features(test, theirs, vectors, reasoning)

    return [
        _Look(f"model{how}", partial(pairs, False), ridge_and_trees),
        _Look(f"model, with the reasoning{how}", partial(pairs, True), ridge_and_trees, limited=False),
    ]


# --- trying -------------------------------------------------------------------------------------------------------


def _try(task: _Task, look: _Look, train: Sequence[Case], test: Sequence[Case]) -> Probe:
    train = [case for case in train if task.answer(case) is not None]
    test = [case for case in test if task.answer(case) is not None]
    learnt, truth = ([task.answer(case) for case in cases] for cases in (train, test))
    probe = Probe(
        label=task.label,
        sees=look.sees,
        trained=len(train),
        tested=len(test),
        chance=task.chance,
        limit=task.limit if look.limited else None,
    )
    classes = round(1 / task.chance)
    if min(_rarest(truth, classes), _rarest(learnt, classes) / 2) < FEWEST:
        return probe
    ours, theirs = look.features(train, test)
    told = look.learner(ours, learnt, theirs, [case.dialogue for case in train])  # type: ignore[arg-type]
    low, high = interval_by_dialogue(truth, told, [case.dialogue for case in test])
    return probe.model_copy(update={"balanced_accuracy": balanced_accuracy(truth, told), "low": low, "high": high})


def _rarest(answers: Sequence[Answer | None], classes: int) -> int:
    counts = Counter(answers)
    return min(counts.values()) if len(counts) == classes else 0
