"""Redundancy-aware reweighting: what says the same as its group or its history earns less (equations 5-7). Pure.

A group is G outputs for one history. With s_in the mean similarity of a response to the others of its group, s_hi its
mean similarity to the utterances of the history, and L the mean length of the group's responses,

    r̃ = r / ((1 + τ·s_in)(1 + τ·s_hi))      τ = 1 / (1 + exp(−α(L − β)))

Dividing a negative reward makes it larger, so as published the formula favours redundancy among bad outputs.
`negatives="paper"` keeps that, `"mirrored"` multiplies negative rewards instead, `"off"` leaves all rewards unchanged.
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Negatives = Literal["paper", "mirrored", "off"]
Floats = Sequence[float]
Rows = npt.ArrayLike


def in_group_similarity(responses: Rows) -> list[float]:
    """Equation 6, s_in: mean cosine similarity of each row to the others; negatives count as 0, a group of one as 0."""
    rows = _unit_rows(responses)
    if len(rows) < 2:
        return [0.0] * len(rows)
    similarity = np.clip(rows @ rows.T, 0.0, 1.0)
    np.fill_diagonal(similarity, 0.0)
    return [float(value) for value in similarity.sum(axis=1) / (len(rows) - 1)]


def history_similarity(responses: Rows, history: Rows) -> list[float]:
    """Equation 6, s_hi: mean cosine similarity of each row to the history's rows; an empty history gives 0."""
    rows, utterances = _unit_rows(responses), _unit_rows(history)
    if not len(utterances) or not len(rows):
        return [0.0] * len(rows)
    return [float(value) for value in np.clip(rows @ utterances.T, 0.0, 1.0).mean(axis=1)]


def length_gate(lengths: Floats, alpha: float, beta: float) -> float:
    """Equation 7: τ = 1 / (1 + exp(−α(L − β))) for the mean length L, in words."""
    if not len(lengths):
        return 0.0
    exponent = -alpha * (float(np.mean(lengths)) - beta)
    return 1.0 / (1.0 + math.exp(min(exponent, 700.0)))


def factors(
    rewards: Floats, responses: Rows, history: Rows, lengths: Floats, alpha: float, beta: float, negatives: Negatives
) -> list[float]:
    """What equation 5 multiplies each reward of a group with; each part of a reward takes the factor of the whole."""
    if negatives not in get_args(Negatives):
        raise ValueError(f"negatives must be one of {', '.join(get_args(Negatives))}, not {negatives!r}")
    if negatives == "off":
        return [1.0] * len(rewards)
    gate = length_gate(lengths, alpha, beta)
    similarities = zip(in_group_similarity(responses), history_similarity(responses, history), strict=True)
    divisors = [(1 + gate * within) * (1 + gate * before) for within, before in similarities]
    mirrored = negatives == "mirrored"
    return [by if mirrored and reward < 0 else 1 / by for reward, by in zip(rewards, divisors, strict=True)]


def reweight(
    rewards: Floats,
    responses: Rows,
    history: Rows,
    lengths: Floats,
    alpha: float = 0.5,
    beta: float = 5.0,
    negatives: Negatives = "mirrored",
) -> list[float]:
    """Equation 5 for one group; `responses` and `history` are embedding matrices. A NaN reward stays NaN."""
    found = factors(rewards, responses, history, lengths, alpha, beta, negatives)
    return [float(reward * factor) for reward, factor in zip(rewards, found, strict=True)]


def tied(rewards: Floats) -> bool:
    """Whether all numbers are equal: then training does not reweight, lest tiny similarities make advantages."""
    return len({reward for reward in rewards if not math.isnan(reward)}) <= 1


def advantages(rewards: Floats) -> list[float]:
    """Equation 3: (r − mean) / (std + 1e-4) over the group, unbiased std; NaN rewards stay out and get 0."""
    numbers = np.array([reward for reward in rewards if not math.isnan(reward)])
    if len(numbers) < 2:
        return [0.0] * len(rewards)
    mean, deviation = float(numbers.mean()), float(numbers.std(ddof=1))
    return [0.0 if math.isnan(reward) else (reward - mean) / (deviation + 1e-4) for reward in rewards]


def _unit_rows(matrix: Rows) -> npt.NDArray[np.float64]:
    rows = np.atleast_2d(np.asarray(matrix, dtype=np.float64))
    if rows.size == 0:
        return np.zeros((0, 1))
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms == 0, 1.0, norms)
