"""What blind probes look at: records without their histories, turned into numbers.

Texts become TF-IDF weights of words and pairs of words, and dense vectors: by latent semantic analysis (always), and by
an embedder (where there is one). A Chinese character is a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from compeer.models.embedder import Embeds
from compeer.reasoning import (
    EMOTIONS,
    SENTIMENTS,
    STAGES,
    STEPS,
    STRATEGIES,
    EmotionStep,
    Part,
    render_step,
)
from compeer.ser.record import Preferred, SerRecord
from compeer.statistics import words

Figures = npt.NDArray[np.float64]
_CODES = {
    **{f"history {stage}": float(number) for number, stage in enumerate(STAGES)},
    **{f"sentiment {sentiment}": float(number) for number, sentiment in enumerate(SENTIMENTS)},
    **{f"emotion {emotion}": float(number) for number, emotion in enumerate(EMOTIONS)},
    **{f"intensity {number}": float(number) for number in range(1, 6)},
    **{f"strategy {strategy}": float(number) for number, strategy in enumerate(STRATEGIES)},
}
TOPICS = 64
"""Dimensions of the latent semantic vectors."""


@dataclass(frozen=True)
class Case:
    """What a judge without the history sees of a record, and the right answers."""

    dialogue: str
    test: bool
    lines: tuple[str, str, str]
    texts: tuple[str, str, str]
    decisions: tuple[tuple[str, ...], ...]
    labels: tuple[bool, bool, bool] | None
    candidate: str
    reference: str
    candidate_first: bool
    preference: Preferred

    @property
    def shown(self) -> tuple[str, str]:
        """The two responses in the order in which they are shown."""
        return (self.candidate, self.reference) if self.candidate_first else (self.reference, self.candidate)

    @property
    def all_texts(self) -> tuple[str, ...]:
        """Whatever a model of the turn embeds."""
        return (*self.texts, self.candidate, self.reference)


def case_of(record: SerRecord) -> Case | None:
    """The record as a case, if it has a preference."""
    if record.preference is None:
        return None
    turn, labels = record.candidate, record.labels
    return Case(
        dialogue=record.dialogue,
        test=record.split == "test",
        lines=tuple(render_step(part, turn.step(part)) for part in STEPS),  # type: ignore[arg-type]
        texts=(turn.history.text, turn.emotion.text, turn.strategy.text),
        decisions=tuple(_decision_words(record, part) for part in STEPS),
        labels=(labels.history.value, labels.emotion.value, labels.strategy.value) if labels else None,
        candidate=turn.response,
        reference=record.reference,
        candidate_first=record.candidate_first,
        preference=record.preference.value,
    )


def _decision_words(record: SerRecord, part: Part) -> tuple[str, ...]:
    step = record.candidate.step(part)
    if isinstance(step, EmotionStep):
        return f"sentiment {step.sentiment}", f"emotion {step.emotion}", f"intensity {step.intensity}"
    return (f"{part} {step.decision}",)


# --- words ------------------------------------------------------------------------------------------------------------


def word_features(train: Sequence[Sequence[str]], test: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """TF-IDF of words and pairs of words, columns apart for each text of a case."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    columns = []
    for ours, theirs in zip(zip(*train, strict=True), zip(*test, strict=True), strict=True):
        vectorizer = TfidfVectorizer(analyzer=_words_and_pairs, min_df=2, max_features=50_000, sublinear_tf=True)
        try:
            columns.append((vectorizer.fit_transform(ours), vectorizer.transform(theirs)))
        except ValueError:  # no word occurs twice
            continue
    if not columns:
        return np.zeros((len(train), 1)), np.zeros((len(test), 1))
    return hstack([ours for ours, _ in columns]).tocsr(), hstack([theirs for _, theirs in columns]).tocsr()


def pair_word_features(train: Sequence[Sequence[str]], test: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """TF-IDF of two texts a case, each apart and the first less the second."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer=_words_and_pairs, min_df=2, max_features=50_000, sublinear_tf=True)
    try:
        vectorizer.fit([text for pair in train for text in pair])
    except ValueError:
        return np.zeros((len(train), 1)), np.zeros((len(test), 1))

    def features(pairs: Sequence[Sequence[str]]) -> Any:
        first, second = (vectorizer.transform([pair[side] for pair in pairs]) for side in (0, 1))
        return hstack([first, second, first - second]).tocsr()

    return features(train), features(test)


def token_features(train: Sequence[Iterable[str]], test: Sequence[Iterable[str]]) -> tuple[Any, Any]:
    """A column for each token that occurs twice: 1 where it stands."""
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(analyzer=list, binary=True)
    return vectorizer.fit_transform(train), vectorizer.transform(test)


def _words_and_pairs(text: str) -> list[str]:
    found = words(text) + [mark for mark in text if mark in "?!？！…[],:;"]
    return found + [f"{one} {other}" for one, other in pairwise(found)]


def decision_tokens(case: Case) -> list[str]:
    """The turn's decisions, and each two and three of them together."""
    single = [word for decision in case.decisions for word in decision if not word.startswith("sentiment")]
    return [" & ".join(some) for size in (1, 2, 3) for some in combinations(single, size)]


# --- vectors ----------------------------------------------------------------------------------------------------------


class Vectors:
    """A unit vector for each text of the cases it was made for."""

    def __init__(self, vectors: Figures, places: dict[str, int]) -> None:
        self._vectors, self._places = vectors, places

    def of(self, texts: Sequence[str]) -> Figures:
        """A row for each text."""
        return self._vectors[[self._places[text] for text in texts]]


def latent_vectors(train: Sequence[Case], test: Sequence[Case], seed: int) -> Vectors:
    """Vectors by latent semantic analysis, learnt on the training cases' texts."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    known = {text: None for case in train for text in case.all_texts}
    everything = list(known | {text: None for case in test for text in case.all_texts})
    places = {text: place for place, text in enumerate(everything)}
    vectorizer = TfidfVectorizer(analyzer=words, sublinear_tf=True)
    ours = vectorizer.fit_transform(list(known))
    topics = TruncatedSVD(n_components=min(TOPICS, ours.shape[1] - 1, ours.shape[0] - 1), random_state=seed).fit(ours)
    return Vectors(_of_unit_length(topics.transform(vectorizer.transform(everything))), places)


def embedded_vectors(cases: Sequence[Case], embedder: Embeds) -> Vectors:
    """Vectors by the embedder; each different text is embedded once."""
    places = {text: place for place, text in enumerate(dict.fromkeys(t for case in cases for t in case.all_texts))}
    vectors = embedder.embed(list(places)).astype(np.float64)
    return Vectors(vectors[:, vectors.any(axis=0)], places)  # dimensions for another script stay empty


def _of_unit_length(rows: Figures) -> Figures:
    lengths: Figures = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, 1e-9)


@lru_cache(maxsize=2**17)
def _different_words(text: str) -> frozenset[str]:
    return frozenset(words(text))


def overlap(one: str, other: str) -> float:
    """The share of the shorter text's different words that the other has too."""
    a, b = _different_words(one), _different_words(other)
    return len(a & b) / min(len(a), len(b)) if a and b else 0.0


def shape(text: str) -> list[float]:
    """How long a text is, and how it is punctuated."""
    marks = [text.count(mark) for mark in ("?", "!", ".", ",", "\n", "…", "“")]
    return [float(len(words(text))), float(len(text)), *map(float, marks), float(text[:1].isupper())]


def shape_features(train: Sequence[Sequence[str]], test: Sequence[Sequence[str]]) -> tuple[Figures, Figures]:
    """The shapes of a case's texts, and how the first differs from the last."""

    def features(cases: Sequence[Sequence[str]]) -> Figures:
        rows = np.array([[shape(text) for text in texts] for texts in cases])
        return np.concatenate([rows.reshape(len(rows), -1), rows[:, 0] - rows[:, -1]], axis=1)

    return features(train), features(test)


def likeness(one: Sequence[str], other: Sequence[str], vectors: Vectors) -> Figures:
    """How alike the texts of each pair are: by cosine and by shared words, a column each."""
    cosines = (vectors.of(one) * vectors.of(other)).sum(axis=1)
    return np.stack([cosines, [overlap(a, b) for a, b in zip(one, other, strict=True)]], axis=1)


def turn_features(cases: Sequence[Case], vectors: Vectors, part: int) -> tuple[Figures, Figures]:
    """Of a turn: the vector of one step and its products with the others'; then likenesses, decisions and lengths."""
    texts = [[case.texts[number] for case in cases] for number in range(len(STEPS))]
    texts.append([case.candidate for case in cases])
    rows = [vectors.of(column) for column in texts]
    wide = [rows[part], *(rows[part] * rows[other] for other in range(len(rows)) if other != part)]
    few = [likeness(one, other, vectors) for one, other in combinations(texts, 2)]
    few.append(np.array([[_CODES[word] for decision in case.decisions for word in decision] for case in cases]))
    few += [np.array([shape(text) for text in column]) for column in texts]
    return np.concatenate(wide, axis=1), np.concatenate(few, axis=1)


def pair_features(
    cases: Sequence[Case], pairs: Sequence[tuple[str, str]], vectors: Vectors, reasoning: bool
) -> tuple[Figures, Figures]:
    """Of two responses: their vectors, difference and product; then likeness, lengths and which one was shown first.

    With the reasoning also how alike each of the two is to each step.
    """
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    one, other = vectors.of(first), vectors.of(second)
    shapes = [np.array([shape(text) for text in column]) for column in (first, second)]
    few = [likeness(first, second, vectors), *shapes, shapes[0] - shapes[1]]
    few.append(np.array([[float(case.candidate_first)] for case in cases]))
    for number in range(len(STEPS)) if reasoning else ():
        step = [case.texts[number] for case in cases]
        to_first, to_second = likeness(step, first, vectors), likeness(step, second, vectors)
        few += [to_first, to_second, to_first - to_second]
    return np.concatenate([one, other, one - other, one * other], axis=1), np.concatenate(few, axis=1)
