"""Weighted phrases: what a message says is weighed word by word, by weights that were learnt from labelled texts.

Rules find what somebody thought of; this layer finds what resembles any of the thousands of texts it was trained on
(`python -m compeer.safety.training`). A message is brought to its plain form and taken apart: in English into words,
pairs, triples and pieces of words, in Chinese into characters and runs of them. Words of like meaning form classes
(`classes/`), and which classes stand in a text together are features too, as are the names of the rules that were met.
Each has a weight for danger, for crisis and for each kind of danger; their sums are log-odds. Several messages are
weighed together by putting their features in one set, so danger that is told in pieces is seen. It needs numpy alone
and a file of a few hundred kilobytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compeer.safety.risk import KINDS, Kind
from compeer.safety.rules import Scan, language_rules, languages_of
from compeer.safety.weights import read_weights
from compeer.statistics import Numbers

Keys = npt.NDArray[np.uint32]
"""Features of a text, hashed, each once, in order."""

FILE = "phrases"
COLUMNS = ("danger", "crisis", *KINDS)
"""What each feature has a weight for."""
FEWEST_LETTERS = 8
"""Of shorter messages ("ok, thanks") nothing can be told; a Chinese character counts as three letters."""

_MOST_CLASSES = 24
_WORD = re.compile(r"[a-z0-9]+|[\u2190-\u2bff\U0001f300-\U0001faff]")
_HAN_OR_WORD = re.compile(r"[\u3400-\u9fff]|[a-z0-9]+|[\u2190-\u2bff\U0001f300-\U0001faff]|[，。！？；,.!?;\n]+")
_HAN = re.compile("[\u3400-\u9fff]")


class Guess(NamedTuple):
    """What a learnt layer says of a text: the likeliest kind, and how sure it is of danger and of a crisis.

    Both are between 0 and 1, and on a scale of our own: from one half on it counts.
    """

    kind: Kind
    danger: float
    crisis: float


class Odds(NamedTuple):
    """Log-odds of danger and of crisis, 0 where it begins to count, and a score for each kind."""

    danger: float
    crisis: float
    kinds: Numbers


class Phrases:
    """Weighs messages by the packaged weights, or by those given."""

    def __init__(self, weights: dict[str, npt.NDArray[np.generic]] | None = None) -> None:
        stored = read_weights(FILE) if weights is None else weights
        self._tables = {language: Table.of(stored, language) for language in ("en", "zh")}

    def classify(self, windows: Sequence[Sequence[str]]) -> list[Guess]:
        """What is told by each run of messages."""
        return [guess(self.odds(messages)) for messages in windows]

    def known(self, words: Sequence[str]) -> list[str]:
        """Those of some words, in plain form, that the English weights have met."""
        keys = np.array([_hash(word) for word in words], dtype=np.uint32)
        return [word for word, met in zip(words, self._tables["en"].has(keys), strict=True) if met]

    def odds(self, messages: Sequence[str]) -> Odds:
        """The log-odds of some messages taken together; of two languages in them, the graver."""
        found = [self._tables[language].odds(messages_keys(messages, language)) for language in spoken(messages)]
        best = max(found, key=lambda odds: max(odds.danger, odds.crisis))
        return Odds(max(odds.danger for odds in found), max(odds.crisis for odds in found), best.kinds)


class Table:
    """The weights of one language: hashed features in order, and a row of weights for each."""

    def __init__(self, keys: Keys, weights: Numbers, biases: Numbers) -> None:
        self._keys, self._weights, self._biases = keys, weights, biases

    @classmethod
    def of(cls, stored: dict[str, npt.NDArray[np.generic]], language: str) -> Table:
        """From the arrays of a file: weights are kept as small whole numbers, with a scale for each column."""
        scaled = stored[f"{language}_weights"].astype(np.float64) * stored[f"{language}_scales"].astype(np.float64)
        return cls(
            stored[f"{language}_keys"].astype(np.uint32), scaled, stored[f"{language}_biases"].astype(np.float64)
        )

    def has(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """For each feature whether it has a weight."""
        return np.isin(keys, self._keys)

    def odds(self, keys: Keys) -> Odds:
        """The log-odds of a set of features."""
        places = np.searchsorted(self._keys, keys)
        places[places == len(self._keys)] = 0
        known = places[self._keys[places] == keys] if len(self._keys) else places[:0]
        sums = self._weights[known].sum(axis=0) / (norm(len(keys)) * _drowned(len(keys))) + self._biases
        return Odds(float(sums[0]), float(sums[1]), sums[2:])


def guess(odds: Odds) -> Guess:
    """Log-odds as a guess."""
    return Guess(KINDS[int(np.argmax(odds.kinds))], _logistic(odds.danger), _logistic(odds.crisis))


def norm(features: int) -> float:
    """What the sum of weights is divided by: a text that is twice as long has more to say, but not twice as much."""
    return float(max(features, 20) ** 0.6)


def _drowned(features: int) -> float:
    """A further divisor for texts longer than those learnt from, in which many small weights would add up."""
    return float(max(1.0, features / 200) ** 0.6)


def spoken(messages: Sequence[str]) -> list[str]:
    """The languages whose weights are asked: both where enough is said in both."""
    text = "\n".join(messages)
    found = languages_of(text)
    if len(found) > 1:
        han, words = len(_HAN.findall(text)), len(re.findall(r"[A-Za-z]{2,}", text))
        found = ["zh"] if words < 3 else ["en"] if han < 3 else found
    return found


def is_tellable(messages: Sequence[str]) -> bool:
    """Whether there is enough to judge."""
    said = (character for message in messages for character in message[:100] if character.isalnum())
    return sum(3 if character > "\u2e80" else 1 for character in said) >= FEWEST_LETTERS


def messages_keys(messages: Sequence[str], language: str) -> Keys:
    """The features of some messages, each once."""
    classes = sorted({name for message in messages for name in message_classes(message, language)})
    pairs = [_hash(f"{one} & {two}") for one, two in combinations(classes[:_MOST_CLASSES], 2)]
    parts = [message_keys(message, language) for message in messages]
    return np.unique(np.concatenate([*parts, np.array(pairs, dtype=np.uint32)]))


@lru_cache(maxsize=4096)
def message_classes(message: str, language: str) -> tuple[str, ...]:
    """The classes of the words in a message, in the order of the words."""
    pattern, classes = word_classes(language)
    if not classes:
        return ()
    return tuple(name for word in pattern.findall(scanned(message, language).plain) for name in classes[word])


@cache
def word_classes(language: str) -> tuple[re.Pattern[str], dict[str, list[str]]]:
    """The packaged classes of a language: a pattern that finds their words, and the classes of each word."""
    classes: dict[str, list[str]] = {}
    for line in files("compeer.safety").joinpath("classes", f"{language}.txt").read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, *words = line.split()
            for word in dict.fromkeys(words):
                classes.setdefault(word.replace("_", " "), []).append(f"@{name}")
    longest_first = "|".join(re.escape(word) for word in sorted(classes, key=lambda word: (-len(word), word)))
    return re.compile(rf"\b(?:{longest_first})\b" if language == "en" else longest_first), classes


@lru_cache(maxsize=4096)
def message_keys(message: str, language: str) -> Keys:
    """The features of one message in one language."""
    scan = scanned(message, language)
    grams = _english(scan.plain) if language == "en" else _chinese(scan.plain)
    names = [f"rule {match.rule}" for match in scan.matches] + [f"taken back {name}" for name in scan.taken_back]
    classes = message_classes(message, language)
    runs = [" ".join(classes[place : place + size]) for size in (1, 2, 3) for place in range(len(classes) - size + 1)]
    return np.unique(np.array([_hash(feature) for feature in (*grams, *names, *runs)], dtype=np.uint32))


@lru_cache(maxsize=4096)
def scanned(message: str, language: str) -> Scan:
    """What the rules of a language find in a message; the last ones are remembered."""
    return language_rules(language).scan(message)


def _english(plain: str) -> Iterator[str]:
    words = ["^", *_WORD.findall(plain), "$"]
    for place, word in enumerate(words):
        yield word
        for size in (2, 3, 4):
            if place + size <= len(words):
                yield " ".join(words[place : place + size])
        for gap in (2, 3):
            if place + gap < len(words):
                yield f"{word} _{gap} {words[place + gap]}"
        framed = f"<{word}>"
        for start in range(len(framed) - 4):
            yield f"#{framed[start : start + 5]}"


def _chinese(plain: str) -> Iterator[str]:
    signs = [
        "^",
        *(sign if sign[0].isalnum() or sign[0] > "\u2190" else "," for sign in _HAN_OR_WORD.findall(plain)),
        "$",
    ]
    for place, sign in enumerate(signs):
        yield sign
        for size in (2, 3, 4):
            if place + size <= len(signs):
                yield " ".join(signs[place : place + size])
        for gap in (2, 3, 4):
            if place + gap < len(signs):
                yield f"{sign} _ {signs[place + gap]}"


def _hash(feature: str) -> int:
    return zlib.crc32(feature.encode())


def _logistic(odds: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(odds, -50, 50))))


@cache
def packaged_phrases() -> Phrases:
    """The packaged weights, read once."""
    return Phrases()
