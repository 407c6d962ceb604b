"""Which rounds of a dialogue become records: more from its middle, where support really happens (equation 1)."""

from __future__ import annotations

import math
from typing import Protocol


class Random(Protocol):
    """A source of numbers in [0, 1): `random.Random` or a NumPy generator."""

    def random(self) -> float: ...


def round_weights(rounds: int) -> list[float]:
    """Equation 1: p(i) ∝ exp(−(i − μ)² / 2σ²) with μ = N/2 and σ = N/4, for i = 1 … N, summing to 1."""
    mean, deviation = rounds / 2, rounds / 4
    weights = [math.exp(-((i - mean) ** 2) / (2 * deviation**2)) for i in range(1, rounds + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def sample_rounds(rounds: int, count: int, rng: Random) -> list[int]:
    """Up to `count` of the rounds 1 … `rounds`, drawn by equation 1 without replacement, in ascending order."""
    left = dict(enumerate(round_weights(rounds), 1)) if rounds > 0 else {}
    chosen: list[int] = []
    while left and len(chosen) < count:
        point = rng.random() * sum(left.values())
        picked = next(reversed(left))  # rounding may leave a trace of `point` after the last one
        for number, weight in left.items():
            point -= weight
            if point < 0:
                picked = number
                break
        chosen.append(picked)
        del left[picked]
    return sorted(chosen)
