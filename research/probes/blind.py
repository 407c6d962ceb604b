"""What blind probes learn from, records without their histories turned into numbers, and who learns.

Texts become TF-IDF weights of words and pairs of words, and dense vectors: by latent semantic analysis (always), and by
an embedder (where there is one). A Chinese character is a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from compeer.models.embedder import Embeds
from compeer.reasoning import EMOTIONS, SENTIMENTS, STAGES, STEPS, STRATEGIES, render_step
from compeer.ser.record import SerRecord
from compeer.statistics import words

TOPICS = 64
"""Dimensions of the latent semantic vectors."""
_CODES = {
    f"{kind} {value}": float(number)
    for kind, values in {
        "history": STAGES,
        "sentiment": SENTIMENTS,
        "emotion": EMOTIONS,
        "strategy": STRATEGIES,
        "intensity": range(6),
    }.items()
    for number, value in enumerate(values)
}

Matrix = npt.NDArray[np.float64]
Label = bool | str


Cases = Sequence[SerRecord]
PairOf = Callable[[SerRecord], tuple[str, str]]


# --- what there is of a record without its history --------------------------------------------------------------------


def step_lines(record: SerRecord) -> list[str]:
    """The three steps with their decisions, as they are written."""
    return [render_step(part, record.candidate.step(part)) for part in STEPS]


def step_texts(record: SerRecord) -> list[str]:
    """The reasoning of the three steps."""
    return [record.candidate.step(part).text for part in STEPS]


def decisions(record: SerRecord) -> list[tuple[str, ...]]:
    """The decisions of each step, as words that name them."""
    emotion = record.candidate.emotion
    felt = f"sentiment {emotion.sentiment}", f"emotion {emotion.emotion}", f"intensity {emotion.intensity}"
    return [(f"history {record.candidate.history.stage}",), felt, (f"strategy {record.candidate.strategy.strategy}",)]


def responses(record: SerRecord) -> tuple[str, str]:
    """The two responses in the order in which a judge gets them."""
    pair = (record.candidate.response, record.reference)
    return pair if record.candidate_first else pair[::-1]


def all_texts(record: SerRecord) -> list[str]:
    """Whatever a model of the turn embeds."""
    return [*step_texts(record), record.candidate.response, record.reference]


# --- words ------------------------------------------------------------------------------------------------------------


def _tfidf() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer=_words_and_pairs, min_df=2, max_features=50_000, sublinear_tf=True)


def _words_and_pairs(text: str) -> list[str]:
    found = words(text) + [mark for mark in text if mark in "?!？！…[],:;"]
    return found + [f"{one} {other}" for one, other in pairwise(found)]


def _joined(columns: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    from scipy.sparse import hstack

    ours, theirs = zip(*columns, strict=True)
    return hstack(ours).tocsr(), hstack(theirs).tocsr()


def word_features(view: Callable[[SerRecord], Sequence[str]], train: Cases, test: Cases) -> tuple[Any, Any]:
    """TF-IDF of words and pairs of words, columns apart for each text of a case."""
    columns = []
    for ours, theirs in zip(zip(*map(view, train), strict=True), zip(*map(view, test), strict=True), strict=True):
        vectorizer = _tfidf()
        with suppress(ValueError):  # no word occurs twice
            columns.append((vectorizer.fit_transform(ours), vectorizer.transform(theirs)))
    return _joined(columns) if columns else (np.zeros((len(train), 1)), np.zeros((len(test), 1)))


def pair_word_features(pair: PairOf, train: Cases, test: Cases) -> tuple[Any, Any]:
    """TF-IDF of two texts a case, each apart and the first less the second."""
    from scipy.sparse import hstack

    vectorizer = _tfidf()
    try:
        vectorizer.fit([text for case in train for text in pair(case)])
    except ValueError:
        return np.zeros((len(train), 1)), np.zeros((len(test), 1))

    def features(cases: Cases) -> Any:
        first, second = (vectorizer.transform([pair(case)[side] for case in cases]) for side in (0, 1))
        return hstack([first, second, first - second]).tocsr()

    return features(train), features(test)


def words_with_reasoning(pair: PairOf, train: Cases, test: Cases) -> tuple[Any, Any]:
    """TF-IDF of the two responses and of the three steps."""
    return _joined([pair_word_features(pair, train, test), word_features(step_lines, train, test)])


def token_features(view: Callable[[SerRecord], Sequence[str]], train: Cases, test: Cases) -> tuple[Any, Any]:
    """A column for each token: 1 where it stands."""
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(analyzer=list, binary=True)
    return vectorizer.fit_transform(map(view, train)), vectorizer.transform(map(view, test))


def decision_tokens(case: SerRecord) -> list[str]:
    """The turn's decisions, and each two and three of them together."""
    single = [word for decision in decisions(case) for word in decision if not word.startswith("sentiment")]
    return [" & ".join(some) for size in (1, 2, 3) for some in combinations(single, size)]


def shape_features(view: Callable[[SerRecord], Sequence[str]], train: Cases, test: Cases) -> tuple[Matrix, Matrix]:
    """The shapes of a case's texts, and how the first differs from the last."""

    def features(cases: Cases) -> Matrix:
        rows = np.array([[_shape(text) for text in view(case)] for case in cases])
        return np.concatenate([rows.reshape(len(rows), -1), rows[:, 0] - rows[:, -1]], axis=1)

    return features(train), features(test)


def _shape(text: str) -> list[float]:
    """How long a text is, and how it is punctuated."""
    marks = [text.count(mark) for mark in ("?", "!", ".", ",", "\n", "…", "“")]
    return [float(len(words(text))), float(len(text)), *map(float, marks), float(text[:1].isupper())]


# --- vectors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vectors:
    """A unit vector for each text of the cases it was made for."""

    rows: Matrix
    indices: dict[str, int]

    def of(self, texts: Sequence[str]) -> Matrix:
        """A row for each text."""
        return self.rows[[self.indices[text] for text in texts]]


def latent_vectors(train: Cases, test: Cases, seed: int) -> Vectors:
    """Vectors by latent semantic analysis, learnt on the training cases' texts."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    known = _texts(train)
    vectorizer = TfidfVectorizer(analyzer=words, sublinear_tf=True)
    ours = vectorizer.fit_transform(known)
    topics = TruncatedSVD(n_components=min(TOPICS, ours.shape[1] - 1, ours.shape[0] - 1), random_state=seed).fit(ours)
    everything = _texts([*train, *test])
    rows = topics.transform(vectorizer.transform(everything))
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return Vectors(rows, {text: index for index, text in enumerate(everything)})


def embedded_vectors(cases: Cases, embedder: Embeds) -> Vectors:
    """Vectors by the embedder; each different text is embedded once."""
    texts = _texts(cases)
    rows = embedder.embed(texts).astype(np.float64)
    # dimensions for another script stay empty
    return Vectors(rows[:, rows.any(axis=0)], {text: index for index, text in enumerate(texts)})


def _texts(cases: Cases) -> list[str]:
    return list(dict.fromkeys(text for case in cases for text in all_texts(case)))


@lru_cache(maxsize=2**17)
def _different_words(text: str) -> frozenset[str]:
    return frozenset(words(text))


def _likeness(one: Sequence[str], other: Sequence[str], vectors: Vectors) -> Matrix:
    """How alike the texts of each pair are: by cosine, and by the share of the shorter one's words in common."""
    cosines = (vectors.of(one) * vectors.of(other)).sum(axis=1)
    pairs = [(_different_words(a), _different_words(b)) for a, b in zip(one, other, strict=True)]
    return np.stack([cosines, [len(a & b) / min(len(a), len(b)) if a and b else 0.0 for a, b in pairs]], axis=1)


def turn_features(vectors: Vectors, part: int, cases: Cases) -> tuple[Matrix, Matrix]:
    """Of a turn: the vector of one step and its products with the others'; then likenesses, decisions and lengths."""
    texts = [list(column) for column in zip(*(all_texts(case)[:-1] for case in cases), strict=True)]
    rows = [vectors.of(column) for column in texts]
    wide = [rows[part], *(rows[part] * rows[other] for other in range(len(rows)) if other != part)]
    few = [_likeness(one, other, vectors) for one, other in combinations(texts, 2)]
    few.append(np.array([[_CODES[word] for decision in decisions(case) for word in decision] for case in cases]))
    few += [np.array([_shape(text) for text in column]) for column in texts]
    return np.concatenate(wide, axis=1), np.concatenate(few, axis=1)


def pair_features(vectors: Vectors, pair: PairOf, reasoning: bool, cases: Cases) -> tuple[Matrix, Matrix]:
    """Of two responses: their vectors, difference and product; then likeness, lengths and which one comes first.

    With the reasoning also how alike each of the two is to each step.
    """
    first, second = ([pair(case)[side] for case in cases] for side in (0, 1))
    one, other = vectors.of(first), vectors.of(second)
    shapes = [np.array([_shape(text) for text in column]) for column in (first, second)]
    few = [_likeness(first, second, vectors), *shapes, shapes[0] - shapes[1]]
    few.append(np.array([[float(case.candidate_first)] for case in cases]))
    for number in range(len(STEPS)) if reasoning else ():
        step = [step_texts(case)[number] for case in cases]
        to_first, to_second = _likeness(step, first, vectors), _likeness(step, second, vectors)
        few += [to_first, to_second, to_first - to_second]
    return np.concatenate([one, other, one - other, one * other], axis=1), np.concatenate(few, axis=1)


# --- who learns; everything by fixed seeds ----------------------------------------------------------------------------


def linear(features: Any, answers: Sequence[Label], asked: Any, _: Sequence[str]) -> Sequence[Label]:
    """What a logistic regression answers."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    model = LogisticRegression(C=5, class_weight="balanced", solver="liblinear", random_state=0)
    if len(set(answers)) > 2:
        model = OneVsRestClassifier(model)
    return model.fit(features, answers).predict(asked).tolist()  # type: ignore[no-any-return]


def trees(features: Any, answers: Sequence[Label], asked: Any, _: Sequence[str]) -> Sequence[Label]:
    """What boosted trees answer: the class that is more probable than its share, by the largest factor."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        learning_rate=0.15, max_iter=50, max_leaf_nodes=8, max_bins=64, early_stopping=False, random_state=0
    ).fit(features, answers)
    counts = Counter(answers)
    classes: list[Label] = model.classes_.tolist()
    factors = model.predict_proba(asked) / np.array([counts[value] for value in classes])
    return [classes[number] for number in factors.argmax(axis=1)]


def ridge_and_trees(
    features: tuple[Matrix, Matrix], answers: Sequence[Label], asked: tuple[Matrix, Matrix], groups: Sequence[str]
) -> Sequence[Label]:
    """A ridge regression reads the many features; trees read the few and what the regression made of the others.

    What the trees learn from are scores of regressions that had not learnt from the dialogue.
    """
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler, label_binarize

    classes = sorted(set(answers), key=str)
    targets = label_binarize([classes.index(answer) for answer in answers], classes=range(len(classes)))
    counts = Counter(answers)
    weights = np.array([len(answers) / counts[answer] for answer in answers])

    def scores(rows: npt.NDArray[np.int64], wanted: Matrix) -> Matrix:
        model = make_pipeline(StandardScaler(), Ridge(alpha=0.2 * len(rows)))
        model.fit(features[0][rows], targets[rows], ridge__sample_weight=weights[rows])
        return np.asarray(model.predict(wanted), dtype=np.float64).reshape(len(wanted), -1)

    everyone = np.arange(len(answers))
    held_out = np.zeros((len(answers), targets.shape[1]))
    for rows, left in GroupKFold(min(4, len(set(groups)))).split(everyone, groups=groups):
        held_out[left] = scores(rows, features[0][left])
    ours = np.concatenate([features[1], held_out], axis=1)
    theirs = np.concatenate([asked[1], scores(everyone, asked[0])], axis=1)
    return trees(ours, answers, theirs, groups)
