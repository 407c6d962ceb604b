"""A classifier beside the rules that reads for meaning: MiniLM with learnt changes, and the weighted phrases beside it.

The changes were learnt twice, from other beginnings, and the mean of the two counts: what one of them is wrongly sure
of, the other often is not. Where the first is sure that there is no danger, the other is not asked. MiniLM knows
English only. Of an English text its log-odds and those of the weighted phrases are joined, by weights that were learnt
on texts neither had seen; a Chinese text is judged by the phrases alone. `python -m compeer.safety.training` trains
all of it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from compeer.models.embedder import Embeds, is_latin
from compeer.safety.encoder import WIDTH, Encoder
from compeer.safety.phrases import Guess, Odds, Phrases, guess, packaged_phrases
from compeer.safety.weights import Arrays, read_weights
from compeer.statistics import Numbers

FILE = "classifier"
HARMLESS = -2.5
"""Log-odds below which the first member's word is enough, to save time; of 1,040 alarms on texts held out none was lost
by it."""


class RiskClassifier:
    """Judges messages by the packaged weights, or by those given."""

    def __init__(
        self,
        weights: Arrays | None = None,
        encoders: Sequence[Embeds] | None = None,
        phrases: Phrases | None = None,
    ) -> None:
        stored = read_weights(FILE) if weights is None else weights
        learnt = members(stored)
        self._heads = [one["heads"].astype(np.float64) for one in learnt]
        self._joined = stored["joined"].astype(np.float64)
        self._phrases = phrases or packaged_phrases()
        if encoders is None:
            encoders = packaged_encoders() if weights is None else [Encoder(one) for one in learnt]
        self._encoders = encoders

    def classify(self, windows: Sequence[Sequence[str]]) -> list[Guess]:
        """What is told by each run of messages."""
        return [guess(self.odds(messages)) for messages in windows]

    def odds(self, messages: Sequence[str]) -> Odds:
        """The log-odds of some messages taken together."""
        phrases = self._phrases.odds(messages)
        text = as_text(messages)
        if not is_latin(text):
            return phrases
        given = np.array([[phrases.danger, phrases.crisis]])
        found: list[Numbers] = []
        for encoder, weights in zip(self._encoders, self._heads, strict=True):
            row = np.asarray(encoder.embed([text]), dtype=np.float64)[:, :WIDTH]
            found.append(heads(row, weights)[0])
            scores = np.mean(found, axis=0)
            danger, crisis = join(scores[None], given, self._joined)[0]
            if max(danger, crisis) < HARMLESS:
                break
        return Odds(float(danger), float(crisis), scores[2:])


def members(stored: Mapping[str, np.ndarray]) -> list[Arrays]:
    """The arrays of each member, which are stored under its number."""
    numbers = sorted({name.partition("/")[0] for name in stored if "/" in name})
    return [
        {name.partition("/")[2]: array for name, array in stored.items() if name.startswith(f"{number}/")}
        for number in numbers
    ]


def stored_members(learnt: Sequence[Arrays]) -> Arrays:
    """All arrays of some members, under their numbers."""
    return {f"{number}/{name}": array for number, arrays in enumerate(learnt) for name, array in arrays.items()}


def as_text(messages: Sequence[str]) -> str:
    """Messages as the encoder reads them."""
    return "\n".join(messages)


def heads(rows: Numbers, weights: Numbers) -> Numbers:
    """Scores of danger, crisis and each kind, from the encoder's rows; the last row of weights are biases."""
    return np.asarray(rows @ weights[:-1] + weights[-1])


def join(scores: Numbers, phrases: Numbers, weights: Numbers) -> Numbers:
    """Log-odds of danger and crisis: for each a row of weights, for the encoder, for the phrases, and a bias."""
    return scores[:, :2] * weights[:, 0] + phrases * weights[:, 1] + weights[:, 2]


@cache
def packaged_encoders() -> list[Encoder]:
    """MiniLM with the packaged changes, once for each member, loaded once."""
    return [Encoder(one) for one in members(read_weights(FILE))]
