"""A classifier beside the rules that reads for meaning: MiniLM with learnt changes, and the weighted phrases beside it.

MiniLM knows English only. Of an English text its log-odds and those of the weighted phrases are joined, by weights that
were learnt on texts neither had seen; a Chinese text is judged by the phrases alone.
`python -m compeer.safety.training` trains all of it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from compeer.models.embedder import Embeds, is_latin
from compeer.safety.encoder import WIDTH, Encoder
from compeer.safety.phrases import Guess, Odds, Phrases, guess, packaged_phrases
from compeer.safety.weights import Arrays, read_weights
from compeer.statistics import Numbers

FILE = "classifier"


class RiskClassifier:
    """Judges messages by the packaged weights, or by those given."""

    def __init__(
        self, weights: Arrays | None = None, encoder: Embeds | None = None, phrases: Phrases | None = None
    ) -> None:
        stored = read_weights(FILE) if weights is None else weights
        self._heads = stored["heads"].astype(np.float64)
        self._joined = stored["joined"].astype(np.float64)
        self._phrases = phrases or packaged_phrases()
        self._encoder = encoder or (packaged_encoder() if weights is None else Encoder(stored))

    def classify(self, windows: Sequence[Sequence[str]]) -> list[Guess]:
        """What is told by each run of messages."""
        return [guess(self.odds(messages)) for messages in windows]

    def odds(self, messages: Sequence[str]) -> Odds:
        """The log-odds of some messages taken together."""
        phrases = self._phrases.odds(messages)
        text = as_text(messages)
        if not is_latin(text):
            return phrases
        scores = heads(np.asarray(self._encoder.embed([text]), dtype=np.float64)[:, :WIDTH], self._heads)[0]
        danger, crisis = join(scores[None], np.array([[phrases.danger, phrases.crisis]]), self._joined)[0]
        return Odds(float(danger), float(crisis), scores[2:])


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
def packaged_encoder() -> Encoder:
    """MiniLM with the packaged changes, loaded once."""
    return Encoder(read_weights(FILE))
