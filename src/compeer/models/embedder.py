"""Sentence embeddings: rows of unit length whose dot product says how alike two texts are.

The packaged all-MiniLM-L6-v2 knows English only, and would call any two Chinese sentences nearly the same. So a text it
does not cover (more than a third of its letters outside Latin script) falls back on hashed character n-grams, in their
own dimensions beside MiniLM's. Texts of the two kinds have similarity 0.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from compeer.errors import InputError
from compeer.models.catalogue import MINILM

Matrix = npt.NDArray[np.float32]
NGRAM_DIMENSIONS = 1024


class Embeds(Protocol):
    """Anything that gives a row of unit length for each text."""

    def embed(self, texts: Sequence[str]) -> Matrix: ...


class Embedder:
    """Embeds texts with the packaged model, or with the sentence-transformers folder given."""

    def __init__(self, folder: str | Path = "embedded", device: str | None = None) -> None:
        from sentence_transformers import SentenceTransformer

        from compeer.engine.network import best_device

        self._english_only = str(folder) == "embedded"
        path = MINILM.checked_path().parent if self._english_only else Path(folder)
        if not (path / "modules.json").is_file():
            what = "this is no sentence-transformers folder: there is no modules.json in it."
            raise InputError(what, file=path, do="Give such a folder, or 'embedded' for the packaged one.")
        self._model: Any = SentenceTransformer(str(path), device=device or best_device().type)

    def embed(self, texts: Sequence[str]) -> Matrix:
        """A row of unit length for each text; a text without letters or digits gets zeros, and is like nothing."""
        if not texts:
            return np.zeros((0, 1), dtype=np.float32)
        covered = [not self._english_only or is_latin(text) for text in texts]
        known = [text for text, is_covered in zip(texts, covered, strict=True) if is_covered]
        width = int(self._model.get_embedding_dimension())
        rows = np.zeros((len(texts), width + (NGRAM_DIMENSIONS if self._english_only else 0)), dtype=np.float32)
        if known:
            vectors = self._model.encode(known, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
            rows[np.array(covered), :width] = vectors
        for index, text in enumerate(texts):
            if not any(character.isalnum() for character in text):
                rows[index] = 0
            elif not covered[index]:
                rows[index, width:] = ngram_vector(text)
        return rows


def hashed_counts(pieces: Iterable[str]) -> Matrix:
    """How many of the pieces of a text are hashed into each dimension."""
    dimensions = np.fromiter(map(_dimension, pieces), dtype=np.int64)
    return np.bincount(dimensions, minlength=NGRAM_DIMENSIONS).astype(np.float32)


@lru_cache(maxsize=100_000)
def _dimension(piece: str) -> int:
    return int.from_bytes(hashlib.blake2b(piece.encode(), digest_size=4).digest()) % NGRAM_DIMENSIONS


def is_latin(text: str) -> bool:
    """Whether at least two thirds of the letters are Latin (a text without letters counts as such)."""
    letters = [character for character in text[:2000] if character.isalpha()]
    latin = sum(1 for character in letters if unicodedata.name(character, "").startswith("LATIN"))
    return 3 * latin >= 2 * len(letters)


def ngram_vector(text: str) -> Matrix:
    """Counts of the text's characters, pairs and triples, hashed into a vector of unit length."""
    letters = "".join(character for character in text.lower() if character.isalnum())
    vector = hashed_counts(letters[start : start + n] for n in (1, 2, 3) for start in range(len(letters) - n + 1))
    norm = float(np.linalg.norm(vector))
    return vector / norm if norm else vector
