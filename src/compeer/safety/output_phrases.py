"""Weighted phrases of replies: what resembles the bad replies it was trained on is found, whatever the rules know.

A reply is brought to plain form and taken apart into words and runs of words, in Chinese into characters and runs of
them, and into classes of words of like meaning (`output/classes-*.txt`), sentence by sentence. What the seeker wrote
just before is taken apart too, since much depends on it ("yes" to "are you a person?"). Each of these features has a
weight for "must not be shown" and one for each category; the sums are log-odds. The weights are learnt by
`python -m compeer.safety.output_training`; it needs numpy alone and a file of a few hundred kilobytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise

import numpy as np

from compeer.safety.output import CATEGORIES, FOLDER, Category
from compeer.safety.phrases import Keys, norm, word_classes
from compeer.safety.weights import Arrays, read_weights
from compeer.statistics import Numbers

FILE = "replies"
COLUMNS = ("bad", *CATEGORIES)
"""What each feature has a weight for."""
LONGEST = 1200
"""A longer reply is weighed in pieces of this length, and the worst counts: bad words would drown among good ones."""

_MOST_CLASSES = 24
_OVERLAP = 300
SENTENCE = re.compile(r"[^.!?。！？；;\n…]+[.!?。！？；;\n…]*")
_WORD = re.compile(r"[a-z0-9]+|[?!]")
_SIGN = re.compile(r"[\u3400-\u9fff]|[a-z0-9]+|[，。！？；,.!?;\n…]+")
_HAN = re.compile(r"[\u3400-\u9fff]")
_LATIN = re.compile(r"[a-z]{2,}")


class ReplyPhrases:
    """Weighs replies by the packaged weights, or by those given."""

    def __init__(self, weights: Arrays | None = None) -> None:
        stored = read_weights(FILE) if weights is None else weights
        self._tables = {language: _Table(stored, language) for language in ("en", "zh")}

    def weigh(self, reply: str, seeker: str) -> tuple[float, Category]:
        """Log-odds that the reply must not be shown, 0 where it begins to count, and the likeliest category.

        Both are given in plain form; `seeker` is the seeker's last message, or empty.
        """
        language = language_of(reply)
        step = LONGEST - _OVERLAP
        pieces = [reply[start : start + LONGEST] for start in range(0, max(1, len(reply) - _OVERLAP), step)]
        sums = max(
            (self._tables[language].sums(keys(piece, seeker, language)) for piece in pieces), key=lambda sums: sums[0]
        )
        return float(sums[0]), CATEGORIES[int(np.argmax(sums[1:]))]


class _Table:
    """The weights of one language: hashed features in order, and a row of weights for each."""

    def __init__(self, stored: Arrays, language: str) -> None:
        self._keys = stored[f"{language}_keys"].astype(np.uint32)
        scales = stored[f"{language}_scales"].astype(np.float64)
        self._weights = stored[f"{language}_weights"].astype(np.float64) * scales
        self._biases = stored[f"{language}_biases"].astype(np.float64)
        if self._weights.shape != (len(self._keys), len(COLUMNS)) or not len(self._keys):
            raise ValueError(f"the weights of {language} have another shape")

    def sums(self, features: Keys) -> Numbers:
        places = np.searchsorted(self._keys, features)
        places[places == len(self._keys)] = 0
        known = places[self._keys[places] == features]
        sums: Numbers = self._weights[known].sum(axis=0) / norm(len(features)) + self._biases
        return sums


def language_of(reply: str) -> str:
    """Whose weights a plain reply is weighed by."""
    return "zh" if len(_HAN.findall(reply)) > len(_LATIN.findall(reply)) else "en"


def keys(reply: str, seeker: str, language: str) -> Keys:
    """The features of a plain reply to a plain message, hashed, each once, in order."""
    found = set(_runs(_signs(reply, language), language))
    classes: set[str] = set()
    for sentence in SENTENCE.findall(reply):
        named = _classes(sentence, language)
        asks = "?" if sentence.rstrip().endswith(("?", "？")) else ""
        found.update(
            " ".join(named[place : place + size]) + asks for size in (1, 2, 3) for place in range(len(named) - size + 1)
        )
        here = sorted(set(named))[:_MOST_CLASSES]
        found.update(f"{one} & {two}{asks}" for one, two in combinations(here, 2))
        classes.update(here)
    said = _signs(seeker[-LONGEST:], language)
    found.update(f"seeker {sign}" for sign in said)
    found.update(f"seeker {one} {two}" for one, two in pairwise(said))
    for before in sorted(set(_classes(seeker[-LONGEST:], language)))[:_MOST_CLASSES]:
        found.add(f"seeker {before}")
        found.update(f"seeker {before} > {name}" for name in sorted(classes)[:_MOST_CLASSES])
    return np.unique(np.array([zlib.crc32(feature.encode()) for feature in found], dtype=np.uint32))


def _signs(plain: str, language: str) -> list[str]:
    if language == "en":
        return _WORD.findall(plain)
    marks = _SIGN.findall(plain)
    return [mark if mark[0].isalnum() else "?" if mark[0] in "?？" else "," for mark in marks]


def _runs(signs: list[str], language: str) -> Iterator[str]:
    """Signs, runs of up to four, pairs with a gap, and pieces of English words."""
    signs = ["^", *signs, "$"]
    for place, sign in enumerate(signs):
        yield sign
        for size in (2, 3, 4):
            if place + size <= len(signs):
                yield " ".join(signs[place : place + size])
        for gap in (2, 3) if language == "en" else (2, 3, 4):
            if place + gap < len(signs):
                yield f"{sign} _ {signs[place + gap]}"
        if language == "en":
            framed = f"<{sign}>"
            for start in range(len(framed) - 4):
                yield f"#{framed[start : start + 5]}"


def _classes(plain: str, language: str) -> list[str]:
    """The classes of the words in a text, in the order of the words: those of replies, and the detector's own."""
    pattern, classes = _own_classes(language)
    named = [name for word in pattern.findall(plain) for name in classes[word]]
    if language == "zh":
        pattern, classes = word_classes(language)
        named += [f"{name} of danger" for word in pattern.findall(plain) for name in classes[word]]
    return named


@cache
def _own_classes(language: str) -> tuple[re.Pattern[str], dict[str, list[str]]]:
    classes: dict[str, list[str]] = {}
    for line in (FOLDER / f"classes-{language}.txt").read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, *words = line.split()
            for word in dict.fromkeys(words):
                classes.setdefault(word.replace("_", " "), []).append(f"@{name}")
    longest_first = "|".join(re.escape(word) for word in sorted(classes, key=lambda word: (-len(word), word)))
    return re.compile(rf"\b(?:{longest_first})\b" if language == "en" else longest_first), classes
