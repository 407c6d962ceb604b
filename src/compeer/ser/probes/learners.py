"""The classifiers that blind probes use, and how sure their figures are. Everything is drawn by fixed seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Figures = npt.NDArray[np.float64]
Answer = bool | str


def linear(features: Any, answers: Sequence[Answer], asked: Any, _: Sequence[str]) -> Sequence[Answer]:
    """What a logistic regression answers."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    model = LogisticRegression(C=5, class_weight="balanced", solver="liblinear", random_state=0)
    if len(set(answers)) > 2:
        model = OneVsRestClassifier(model)
    return model.fit(features, answers).predict(asked).tolist()  # type: ignore[no-any-return]


def trees(features: Any, answers: Sequence[Answer], asked: Any, _: Sequence[str]) -> Sequence[Answer]:
    """What boosted trees answer: the class that is more probable than its share, by the largest factor."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        learning_rate=0.15, max_iter=50, max_leaf_nodes=8, max_bins=64, early_stopping=False, random_state=0
    ).fit(features, answers)
    counts = Counter(answers)
    classes: list[Answer] = model.classes_.tolist()
    factors = model.predict_proba(asked) / np.array([counts[value] for value in classes])
    return [classes[number] for number in factors.argmax(axis=1)]


def ridge_and_trees(
    features: tuple[Figures, Figures], answers: Sequence[Answer], asked: tuple[Figures, Figures], groups: Sequence[str]
) -> Sequence[Answer]:
    """A ridge regression reads the many features; trees read the few and what the regression made of the others.

    What the trees learn from are scores of regressions that had not seen the dialogue.
    """
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler, label_binarize

    classes = sorted(set(answers), key=str)
    targets = label_binarize([classes.index(answer) for answer in answers], classes=range(len(classes)))
    counts = Counter(answers)
    weights = np.array([len(answers) / counts[answer] for answer in answers])

    def scores(rows: npt.NDArray[np.int64], wanted: Figures) -> Figures:
        model = make_pipeline(StandardScaler(), Ridge(alpha=0.2 * len(rows)))
        model.fit(features[0][rows], targets[rows], ridge__sample_weight=weights[rows])
        return np.asarray(model.predict(wanted), dtype=np.float64).reshape(len(wanted), -1)

    everyone = np.arange(len(answers))
    unseen = np.zeros((len(answers), targets.shape[1]))
    for rows, left in GroupKFold(min(4, len(set(groups)))).split(everyone, groups=groups):
        unseen[left] = scores(rows, features[0][left])
    ours = np.concatenate([features[1], unseen], axis=1)
    theirs = np.concatenate([asked[1], scores(everyone, asked[0])], axis=1)
    return trees(ours, answers, theirs, groups)


def interval_by_dialogue(truth: Sequence[Any], told: Sequence[Any], dialogues: Sequence[str]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the balanced accuracy, whole dialogues drawn anew."""
    places = {dialogue: place for place, dialogue in enumerate(dict.fromkeys(dialogues))}
    classes = {value: number for number, value in enumerate(dict.fromkeys(truth))}
    counts = np.zeros((2, len(places), len(classes)))  # those that were right, and all
    for dialogue, right, said in zip(dialogues, truth, told, strict=True):
        counts[0, places[dialogue], classes[right]] += right == said
        counts[1, places[dialogue], classes[right]] += 1
    drawn = np.random.default_rng(0).multinomial(len(places), np.full(len(places), 1 / len(places)), size=1000)
    right, total = drawn @ counts[0], drawn @ counts[1]
    figures = np.nanmean(np.where(total > 0, right / np.maximum(total, 1), np.nan), axis=1)
    return float(np.quantile(figures, 0.025)), float(np.quantile(figures, 0.975))
