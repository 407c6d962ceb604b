"""Whether a reworded line still says what it said: a filter for drift of meaning, changed decisions and machine marks.

The rules are plain and know nothing of grammar, so they err in both directions; docs/personality.md says how often, on
real rewrites. Each rule gives its reason, and what it drops is counted under it. The words are in
`tables/drift.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import get_args

from compeer.dialogue import Speaker
from compeer.models.embedder import Embeds, is_latin
from compeer.ser.asking import regex
from compeer.statistics import words

LEAST_ALIKE, LEAST_ALIKE_SHORT = 0.45, 0.25
"""Cosine similarity by the packaged embedder below which an English line counts as saying something else; the second
holds for lines of fewer than ten words. Of another line of the same dialogue, nine in ten lie below the first."""
LEAST_ALIKE_ELSEWHERE = 0.25
"""The same for scripts where the embedder only compares characters; this tells little apart."""
LONG_ENOUGH = 6
"""Words from which on a line is compared by its embedding, and should not stay as it was."""


_TABLE = tomllib.loads((Path(__file__).parent / "tables" / "drift.toml").read_text(encoding="utf-8"))
_MACHINE, _ASKING, _NO_NAME, _IDIOM, _NEGATION, _TURNING, _GLAD, _SAD = (
    re.compile(regex(_TABLE["patterns"][name]), re.IGNORECASE | (re.MULTILINE if name == "machine" else 0))
    for name in ("machine", "asking", "no_name", "idiom", "negation", "turning", "glad", "sad")
)
_SPELLED = {word: number for number, found in _TABLE["spelled"].items() for word in found.split()}
_AMOUNTS = _SPELLED | {word: number for number, found in _TABLE["amounts"].items() for word in found.split()}
_MASK = re.compile(r"\[[a-z]+\]")
_DIGITS = re.compile(r"\d[\d,]*(?:\.\d+)?")
_NAME = re.compile(r"(?<=[a-z] )[A-Z][a-z]{2,}")


@dataclass(frozen=True)
class Line:
    """One message; `asks` says that it must stay a question, because the strategy behind it is to ask."""

    speaker: Speaker
    text: str
    asks: bool = False


def why_not(old: Sequence[Line], new: Sequence[Line], alike: Sequence[float]) -> str | None:
    """Why the new lines cannot stand for the old ones, or None. `alike` is the similarity of each pair of lines."""
    if [line.speaker for line in old] != [line.speaker for line in new]:
        return "other lines or speakers"
    for before, after in zip(old, new, strict=True):
        if reason := _machine_made(before.text, after.text):
            return reason
    if _begin_alike(old, new):
        return "machine-made: every line opens alike"
    if _hardly_changed(old, new):
        return "hardly changed"
    for before, after, similarity in zip(old, new, alike, strict=True):
        if reason := _drifted(before, after.text, similarity):
            return reason
    return None


def likeness(old: Sequence[Line], new: Sequence[Line], embedder: Embeds) -> list[float]:
    """The similarity of each pair of lines by their embeddings; 1 for lines that share most of their words anyway."""
    pairs = [(before.text, after.text) for before, after in zip(old, new, strict=True)]
    asked = [index for index, (before, after) in enumerate(pairs) if not _shares_most(words(before), words(after))]
    found = [1.0] * len(pairs)
    rows = embedder.embed([text for index in asked for text in pairs[index]])
    for row, index in enumerate(asked):
        found[index] = round(float(rows[2 * row] @ rows[2 * row + 1]), 4)
    return found


def _shares_most(old: Sequence[str], new: Sequence[str]) -> bool:
    return len(set(old) & set(new)) >= 0.6 * len(set(old))


# --- machine marks ----------------------------------------------------------------------------------------------------


def _machine_made(before: str, after: str) -> str | None:
    if not after.strip():
        return "an empty line"
    if _MACHINE.search(after) and not _MACHINE.search(before):
        return "machine-made: a tell-tale phrase or markup"
    return None


def _begin_alike(old: Sequence[Line], new: Sequence[Line]) -> bool:
    """Whether all of a speaker's lines, four or more, now open with the same two words, and did not before."""

    def alike(lines: Sequence[Line], speaker: Speaker) -> bool:
        openings = [tuple(words(line.text)[:2]) for line in lines if line.speaker == speaker]
        return len(openings) >= 4 and len(set(openings)) == 1

    return any(alike(new, speaker) and not alike(old, speaker) for speaker in get_args(Speaker))


def _hardly_changed(old: Sequence[Line], new: Sequence[Line]) -> bool:
    """Whether most lines long enough to be put differently have the same words as before."""
    long = [
        (words(before.text), words(after.text))
        for before, after in zip(old, new, strict=True)
        if len(words(before.text)) >= LONG_ENOUGH
    ]
    return bool(long) and 2 * sum(before == after for before, after in long) > len(long)


# --- meaning ----------------------------------------------------------------------------------------------------------


def _drifted(before: Line, after: str, similarity: float) -> str | None:
    old, new = _Content.of(before.text), _Content.of(after)
    was, now = len(old.words), len(new.words)
    rules = {
        "drift: not alike in meaning": similarity < _least_alike(old, before.text),
        "drift: much longer or shorter": now > 3 * was + 20 or 4 * now + 8 < was,
        "drift: a mask vanished": bool(old.masks - new.masks),
        "drift: a number vanished": bool(old.numbers - new.amounts),
        "drift: a number appeared": bool(new.digits - old.amounts),
        "drift: a name vanished": any(not _named(name, new.words) for name in old.names),
        "drift: a negation vanished": old.negated and not new.turned,
        "drift: a negation appeared": new.negated and not old.turned and _otherwise_the_same(old.words, new.words),
        "drift: the feeling turned": not (old.turned or new.turned) and old.mood * new.mood < 0,
        "decision: no longer a question": before.asks and old.asks and not new.asks,
    }
    return next((reason for reason, holds in rules.items() if holds), None)


@dataclass(frozen=True)
class _Content:
    """What can be counted of a line."""

    words: tuple[str, ...]
    masks: frozenset[str]
    digits: frozenset[str]
    numbers: frozenset[str]
    """Digits and spelled numbers from two on."""
    amounts: frozenset[str]
    """The same, and words that may stand for a number: 'both', 'third', 'a couple'."""
    names: frozenset[str]
    negated: bool
    turned: bool
    """Whether anything in it can turn a meaning round: a negation, or a word that holds one."""
    mood: int
    asks: bool

    @staticmethod
    def of(text: str) -> _Content:
        text = text.replace("’", "'")
        found = tuple(words(text))
        plain = _IDIOM.sub(" ", text)
        negated = bool(_NEGATION.search(plain))
        digits = {number.replace(",", "") for number in _DIGITS.findall(text)} - {"1"}
        numbers = digits | {_SPELLED[word] for word in words(plain) if word in _SPELLED}
        return _Content(
            words=found,
            masks=frozenset(_MASK.findall(text)),
            digits=frozenset(digits),
            numbers=frozenset(numbers),
            amounts=frozenset(numbers | {_AMOUNTS[word] for word in found if word in _AMOUNTS}),
            names=frozenset(name for name in _NAME.findall(text) if not _NO_NAME.fullmatch(name)),
            negated=negated,
            turned=negated or bool(_TURNING.search(text)),
            mood=sum(bool(_GLAD.fullmatch(word)) - bool(_SAD.fullmatch(word)) for word in found),
            asks=bool(_ASKING.search(text)),
        )


def _least_alike(content: _Content, text: str) -> float:
    """The bound for a line: lower for short ones, whose embeddings say little, and none for the very short."""
    if len(content.words) < LONG_ENOUGH:
        return -1.0
    if not is_latin(text):
        return LEAST_ALIKE_ELSEWHERE
    return LEAST_ALIKE if len(content.words) >= 10 else LEAST_ALIKE_SHORT


def _otherwise_the_same(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether most words stayed and few came, so that a negation among the new ones turns what was said."""
    return len(new) <= len(old) + 3 and _shares_most(old, new)


def _named(name: str, among: Sequence[str]) -> bool:
    """Whether a name is there, be it spelled or inflected a little differently."""
    return any(
        word.startswith(name.lower()) or SequenceMatcher(None, name.lower(), word).ratio() > 0.8 for word in among
    )
