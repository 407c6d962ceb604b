"""Pure figures that many rooms need: distinct-n, F1, bootstrap intervals. Plain lists in, numbers out."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff"
_WORD = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+(?:['’][^\W_{_HAN}]+)*")


def words(text: str) -> list[str]:
    """Lower-case words; every Chinese or Japanese character is a word of its own."""
    return _WORD.findall(text.lower())


def distinct(texts: Sequence[str], n: int) -> float:
    """Distinct-n: different n-grams divided by all n-grams (0 where there are none)."""
    grams: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        tokens = words(text)
        grams.update(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
    total = sum(grams.values())
    return len(grams) / total if total else 0.0


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return float(np.mean(values)) if len(values) else None


def weighted_f1(truth: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """F1 of each class of the truth, weighted by its share; what was predicted outside it counts as wrong."""
    total = 0.0
    for value, count in Counter(truth).items():
        hits = sum(1 for a, b in zip(truth, predicted, strict=True) if a == b == value)
        guesses = sum(1 for b in predicted if b == value)
        total += count * (2 * hits / (guesses + count))
    return total / len(truth) if truth else 0.0


def recall(truth: Sequence[Hashable], predicted: Sequence[Hashable], value: Hashable) -> float | None:
    """The share of a class that was found, or None where the truth has none of it."""
    found = [b == value for a, b in zip(truth, predicted, strict=True) if a == value]
    return sum(found) / len(found) if found else None


def balanced_accuracy(truth: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """The mean recall over the classes of the truth; 1 / classes is chance."""
    recalls = [recall(truth, predicted, value) or 0.0 for value in set(truth)]
    return sum(recalls) / len(recalls) if recalls else 0.0


def bootstrap_interval(
    count: int,
    figure: Callable[[Sequence[int]], float],
    repeats: int = 1000,
    seed: int = 0,
    share: float = 0.95,
) -> tuple[float, float]:
    """The percentile interval of a figure over `count` items, drawn anew with replacement by their index."""
    rng = np.random.default_rng(seed)
    figures = [figure(rng.integers(0, count, count).tolist()) for _ in range(repeats)] if count else [0.0]
    low, high = np.quantile(figures, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The bootstrap interval of a mean."""
    return bootstrap_interval(len(values), lambda drawn: sum(values[index] for index in drawn) / len(drawn))


def generator(seed: int, *names: str) -> np.random.Generator:
    """A random generator for one purpose: the same seed and names give the same draws, whatever was drawn before."""
    digest = hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16]))
