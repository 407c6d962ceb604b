"""Trains the weighted phrases: logistic regression on sets of hashed features, pruned and rounded to a small file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compeer.safety.phrases import COLUMNS, Keys, Table, messages_keys, norm
from compeer.safety.risk import KINDS
from compeer.safety.training.texts import Text
from compeer.safety.weights import Arrays
from compeer.statistics import Numbers

STRENGTH = 30.0
"""The inverse of the penalty on the weights (scikit-learn's C)."""
SEEN_IN = 2
"""A feature counts if so many texts have it."""
KEPT = 40_000
"""Features that are kept in each language, those with the greatest weights."""


LONGER = 0.1
"""What a text that was made longer weighs in training, beside one that was written so."""


def fit(written: Sequence[Text], longer: Sequence[Text], language: str) -> Arrays:
    """The arrays of one language, learnt from texts in it and from those made longer."""
    texts = [*written, *longer]
    shares = np.array([1.0] * len(written) + [LONGER] * len(longer))
    rows = [messages_keys(text.messages, language) for text in texts]
    keys, counts = np.unique(np.concatenate(rows), return_counts=True)
    keys = keys[counts >= SEEN_IN]
    matrix = sparse(rows, keys)
    weights, biases = np.zeros((len(keys), len(COLUMNS))), np.zeros(len(COLUMNS))
    levels = np.array([text.level for text in texts])
    weights[:, 0], biases[0] = _two_way(matrix, levels != "none", shares)
    weights[:, 1], biases[1] = _two_way(matrix, levels == "crisis", shares)
    danger = levels != "none"
    kinds = np.array([KINDS.index(text.kind) if text.kind else -1 for text in texts])
    for place in range(len(KINDS)):
        weights[:, 2 + place], biases[2 + place] = _two_way(matrix[danger], kinds[danger] == place, shares[danger])
    kept = np.sort(np.argsort(-np.abs(weights[:, :2]).max(axis=1), kind="stable")[:KEPT])
    scales = np.abs(weights[kept]).max(axis=0) / 127 + 1e-12
    return {
        f"{language}_keys": keys[kept],
        f"{language}_weights": np.round(weights[kept] / scales).astype(np.int8),
        f"{language}_scales": scales.astype(np.float32),
        f"{language}_biases": biases.astype(np.float32),
    }


def _two_way(matrix: Any, truth: Any, shares: Numbers) -> tuple[Numbers, float]:
    from sklearn.linear_model import LogisticRegression

    if truth.all() or not truth.any():
        return np.zeros(matrix.shape[1]), 20.0 if truth.all() else -20.0
    model = LogisticRegression(
        C=STRENGTH, solver="liblinear", dual=True, class_weight="balanced", random_state=0, max_iter=300
    )
    model.fit(matrix, truth, sample_weight=shares)
    return model.coef_[0], float(model.intercept_[0])


def sparse(rows: Sequence[Keys], keys: Keys) -> Any:
    """The rows' features as a sparse matrix with a column for each key."""
    from scipy.sparse import csr_matrix

    columns, ends, values = [], [0], []
    for row in rows:
        places = np.searchsorted(keys, row)
        places[places == len(keys)] = 0
        known = places[keys[places] == row]
        columns.append(known)
        values.append(np.full(len(known), 1 / norm(len(row))))
        ends.append(ends[-1] + len(known))
    return csr_matrix((np.concatenate(values), np.concatenate(columns), ends), shape=(len(rows), len(keys)))


def odds(texts: Sequence[Text], language: str, arrays: Arrays) -> Numbers:
    """A row for each text: log-odds of danger and of crisis."""
    table = Table.of(arrays, language)
    found = [table.odds(messages_keys(text.messages, language)) for text in texts]
    return np.array([[one.danger, one.crisis] for one in found])
