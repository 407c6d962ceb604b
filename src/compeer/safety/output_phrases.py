"""Weighted phrases of replies: finds what resembles the bad replies that it was trained on, whatever the rules know.

A reply is brought to plain form and taken apart into words and runs of words, in Chinese into characters and runs of
them, and into classes of words of like meaning (`output/classes-*.txt`), sentence by sentence. So is what the seeker
wrote just before, since much depends on it ("yes" to "are you a person?"). Each feature has a weight for "must not be
shown" and one for each category; the sums are log-odds. `research/guard/train.py replies` trains the weights.
"""

import re
from itertools import combinations, pairwise

import numpy as np

from compeer.safety.risk import CATEGORIES, Category
from compeer.safety.weights import Arrays, Keys, WeightTable, classes_in, hashed, in_order, read_weights, runs

FILE = "replies"
COLUMNS = ("bad", *CATEGORIES)  # what each feature has a weight for
LONGEST = 1200  # of a longer reply the worst piece of this length counts: bad words would drown among good ones

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
        self._tables = {language: WeightTable(stored, language, len(COLUMNS)) for language in ("en", "zh")}

    def weigh(self, reply: str, seeker: str) -> tuple[float, Category]:
        """Log-odds (from 0 on they count) that a plain reply to a plain message must not be shown, and its category."""
        language = language_of(reply)
        step = LONGEST - _OVERLAP
        pieces = [reply[start : start + LONGEST] for start in range(0, max(1, len(reply) - _OVERLAP), step)]
        weighed = [self._tables[language].sums(keys(piece, seeker, language)) for piece in pieces]
        sums = max(weighed, key=lambda sums: sums[0])
        return float(sums[0]), CATEGORIES[int(np.argmax(sums[1:]))]


def language_of(reply: str) -> str:
    """Whose weights a plain reply is weighed by."""
    return "zh" if len(_HAN.findall(reply)) > len(_LATIN.findall(reply)) else "en"


def keys(reply: str, seeker: str, language: str) -> Keys:
    """The features of a plain reply to a plain message, hashed, each once, in order."""
    found = set(runs(_signs(reply, language), language))
    classes: set[str] = set()
    for sentence in SENTENCE.findall(reply):
        named = _classes(sentence, language)
        asks = "?" if sentence.rstrip().endswith(("?", "？")) else ""
        found.update(run + asks for run in in_order(named))
        here = sorted(set(named))[:_MOST_CLASSES]
        found.update(f"{one} & {two}{asks}" for one, two in combinations(here, 2))
        classes.update(here)
    seeker_signs = _signs(seeker[-LONGEST:], language)
    found.update(f"seeker {sign}" for sign in seeker_signs)
    found.update(f"seeker {one} {two}" for one, two in pairwise(seeker_signs))
    for before in sorted(set(_classes(seeker[-LONGEST:], language)))[:_MOST_CLASSES]:
        found.add(f"seeker {before}")
        found.update(f"seeker {before} > {name}" for name in sorted(classes)[:_MOST_CLASSES])
    return hashed(found)


def _signs(plain: str, language: str) -> list[str]:
    if language == "en":
        return _WORD.findall(plain)
    marks = _SIGN.findall(plain)
    return [mark if mark[0].isalnum() else "?" if mark[0] in "?？" else "," for mark in marks]


def _classes(plain: str, language: str) -> list[str]:
    """The classes of the words in a text, in the order of the words: those of replies, and the reader's own."""
    named = classes_in(plain, f"output/classes-{language}.txt", language)
    if language == "zh":
        named += [f"{name} of danger" for name in classes_in(plain, f"classes/{language}.txt", language)]
    return named
