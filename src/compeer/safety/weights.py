"""Weighted features: a text becomes a set of hashed features, and a table of learnt weights sums them to log-odds.

A weights file holds arrays under names, compressed, beside its hash, which is checked before anything is used. Weights
are small whole numbers with a scale for each column. It needs nothing but numpy.
"""

import hashlib
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compeer.errors import InputError
from compeer.statistics import Numbers

Arrays = dict[str, npt.NDArray[np.generic]]
Keys = npt.NDArray[np.uint32]  # features of a text, hashed, each once, in ascending order


def read_weights(name: str, folder: Path | None = None) -> Arrays:
    """The arrays of a packaged file, or of one in the folder given."""
    source = folder if folder is not None else files("compeer.safety").joinpath("weights")
    try:
        data = source.joinpath(f"{name}.npz").read_bytes()
        expected = source.joinpath(f"{name}.sha256").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the weights cannot be read: {error}", file=name, do="Install the package again.") from None
    if hashlib.sha256(data).hexdigest() != expected:
        do = "Install the package again."
        raise InputError("these are not the weights we know: their hash differs.", file=name, do=do)
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


class WeightTable:
    """The weights of one language: hashed features in ascending order, and a row of weights for each."""

    def __init__(self, stored: Arrays, language: str, columns: int) -> None:
        self._keys = stored[f"{language}_keys"].astype(np.uint32)
        scales = stored[f"{language}_scales"].astype(np.float64)
        self._weights = stored[f"{language}_weights"].astype(np.float64) * scales
        self._biases = stored[f"{language}_biases"].astype(np.float64)
        if self._weights.shape != (len(self._keys), columns) or not len(self._keys):
            raise ValueError(f"the weights of {language} have another shape")

    def sums(self, keys: Keys, longest: float = np.inf) -> Numbers:
        """The log-odds of each column: of twice the features more, but not twice; beyond `longest` even less."""
        divisor = norm(len(keys)) * max(1.0, len(keys) / longest) ** 0.6
        sums: Numbers = self._weights[self.indices(keys)].sum(axis=0) / divisor + self._biases
        return sums

    def indices(self, keys: Keys) -> npt.NDArray[np.intp]:
        """The indices among the weights of those features that have any."""
        indices = np.searchsorted(self._keys, keys)
        indices[indices == len(self._keys)] = 0
        own: npt.NDArray[np.intp] = indices[self._keys[indices] == keys]
        return own


def norm(features: int) -> float:
    return float(max(features, 20) ** 0.6)


def hashed(features: Iterable[str]) -> Keys:
    """The features' hashes, each once, in ascending order."""
    return np.unique(np.array([zlib.crc32(feature.encode()) for feature in features], dtype=np.uint32))


def runs(signs: Sequence[str], language: str, numbered: bool = False) -> Iterator[str]:
    """Words or characters, runs of up to four, pairs with a gap (`numbered`: by length), pieces of English words."""
    signs = ["^", *signs, "$"]
    for index, sign in enumerate(signs):
        yield sign
        for size in (2, 3, 4):
            if index + size <= len(signs):
                yield " ".join(signs[index : index + size])
        for gap in (2, 3) if language == "en" else (2, 3, 4):
            if index + gap < len(signs):
                yield f"{sign} _{gap if numbered else ''} {signs[index + gap]}"
        if language == "en":
            marked = f"<{sign}>"
            for start in range(len(marked) - 4):
                yield f"#{marked[start : start + 5]}"


def in_order(names: Sequence[str]) -> list[str]:
    """Names by themselves, and two and three in a row."""
    return [" ".join(names[at : at + size]) for size in (1, 2, 3) for at in range(len(names) - size + 1)]


@cache
def word_classes(file: str, language: str) -> tuple[re.Pattern[str], dict[str, list[str]]]:
    """The classes of words in a packaged file: a pattern that finds the words, and the classes of each word."""
    classes: dict[str, list[str]] = {}
    for line in files("compeer.safety").joinpath(*file.split("/")).read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, *words = line.split()
            for word in dict.fromkeys(words):
                classes.setdefault(word.replace("_", " "), []).append(f"@{name}")
    longest_first = "|".join(re.escape(word) for word in sorted(classes, key=lambda word: (-len(word), word)))
    return re.compile(rf"\b(?:{longest_first})\b" if language == "en" else longest_first), classes


def classes_in(text: str, file: str, language: str) -> list[str]:
    """The classes of the words in a text, in the order of the words."""
    pattern, classes = word_classes(file, language)
    return [name for word in pattern.findall(text) for name in classes[word]] if classes else []
