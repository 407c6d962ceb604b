"""Whether a reworded line still says what it said: a filter for drift of meaning, changed decisions and machine marks.

The rules are plain and know nothing of grammar, so they err in both directions; docs/personality.md says how often, on
real rewrites. Each rule gives its reason, and what it drops is counted under it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from compeer.dialogue import Speaker
from compeer.models.embedder import Embeds, is_latin
from compeer.statistics import words

LEAST_ALIKE, LEAST_ALIKE_SHORT = 0.45, 0.25
"""Cosine similarity by the packaged embedder below which an English line counts as saying something else; the second
holds for lines of fewer than ten words. Of another line of the same dialogue, nine in ten lie below the first."""
LEAST_ALIKE_ELSEWHERE = 0.25
"""The same for scripts where the embedder only compares characters; this tells little apart."""
LONG_ENOUGH = 6
"""Words from which on a line is compared by its embedding, and should not stay as it was."""


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
    if _same_opening(old, new):
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
    for place, index in enumerate(asked):
        found[index] = round(float(rows[2 * place] @ rows[2 * place + 1]), 4)
    return found


def _shares_most(old: Sequence[str], new: Sequence[str]) -> bool:
    return len(set(old) & set(new)) >= 0.6 * len(set(old))


# --- machine marks ----------------------------------------------------------------------------------------------------

_MACHINE = re.compile(
    r"\bhere(?:'s| is| are) (?:the|a|my|your) (?:rewrit\w+|reword\w+|revis\w+|version)|\brewritten\b|\breworded\b|"
    r"\bas an ai\b|language model|in the style of|\bi (?:cannot|can't) (?:assist|help) with (?:that|this) request|"
    r"\*\*|```|^\s*#+ |^\s*\(?\d{1,2}[.)] |\[insert|作为一个?(?:AI|人工智能)|语言模型|以下是(?:改写|重写)|"
    r"改写(?:后|版)",
    re.IGNORECASE | re.MULTILINE,
)


def _machine_made(before: str, after: str) -> str | None:
    if not after.strip():
        return "an empty line"
    if _MACHINE.search(after) and not _MACHINE.search(before):
        return "machine-made: a tell-tale phrase or markup"
    return None


def _same_opening(old: Sequence[Line], new: Sequence[Line]) -> bool:
    """Whether all of a speaker's lines, four or more, now open with the same two words, and did not before."""

    def alike(lines: Sequence[Line], speaker: Speaker) -> bool:
        openings = [tuple(words(line.text)[:2]) for line in lines if line.speaker == speaker]
        return len(openings) >= 4 and len(set(openings)) == 1

    speakers: tuple[Speaker, ...] = ("seeker", "supporter")
    return any(alike(new, speaker) and not alike(old, speaker) for speaker in speakers)


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
    old, new = _Said.of(before.text), _Said.of(after)
    if similarity < _least_alike(old, before.text):
        return "drift: not alike in meaning"
    if len(new.words) > 3 * len(old.words) + 20 or 4 * len(new.words) + 8 < len(old.words):
        return "drift: much longer or shorter"
    if old.masks - new.masks:
        return "drift: a mask vanished"
    if old.numbers - new.amounts:
        return "drift: a number vanished"
    if new.digits - old.amounts:
        return "drift: a number appeared"
    if any(not _named(name, new.words) for name in old.names):
        return "drift: a name vanished"
    if old.negated and not new.turned:
        return "drift: a negation vanished"
    if new.negated and not old.turned and _otherwise_the_same(old.words, new.words):
        return "drift: a negation appeared"
    if not (old.turned or new.turned) and old.mood * new.mood < 0:
        return "drift: the feeling turned"
    if before.asks and old.asks and not new.asks:
        return "decision: no longer a question"
    return None


@dataclass(frozen=True)
class _Said:
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
    def of(text: str) -> _Said:
        text = text.replace("’", "'")
        found = tuple(words(text))
        plain = _IDIOM.sub(" ", text)
        negated = bool(_NEGATION.search(plain))
        digits = {number.replace(",", "") for number in _DIGITS.findall(text)} - {"1"}
        numbers = digits | {_SPELLED[word] for word in words(plain) if word in _SPELLED}
        return _Said(
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


def _least_alike(said: _Said, text: str) -> float:
    """The bound for a line: lower for short ones, whose embeddings say little, and none for the very short."""
    if len(said.words) < LONG_ENOUGH:
        return -1.0
    if not is_latin(text):
        return LEAST_ALIKE_ELSEWHERE
    return LEAST_ALIKE if len(said.words) >= 10 else LEAST_ALIKE_SHORT


def _otherwise_the_same(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether most words stayed and few came, so that a negation among the new ones turns what was said."""
    return len(new) <= len(old) + 3 and _shares_most(old, new)


def _named(name: str, among: Sequence[str]) -> bool:
    """Whether a name is there, be it spelled or inflected a little differently."""
    return any(
        word.startswith(name.lower()) or SequenceMatcher(None, name.lower(), word).ratio() > 0.8 for word in among
    )


_MASK = re.compile(r"\[[a-z]+\]")
_ASKING = re.compile(
    r"\b(?:what|which|who|how|why|when|where|asking|is (?:there|it|that)|"
    r"(?:do|did|have|are|were|can|could|would|will) you)\b|[?？吗呢么]|什么|怎么|哪",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d[\d,]*(?:\.\d+)?")
_SPELLED = {
    **{"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"},
    **{"ten": "10", "eleven": "11", "twelve": "12", "twenty": "20", "thirty": "30", "forty": "40", "fifty": "50"},
    **{"两": "2", "三": "3", "四": "4", "五": "5", "六": "6", "七": "7", "八": "8", "九": "9", "十": "10"},
}
_AMOUNTS = _SPELLED | {
    **{"both": "2", "couple": "2", "pair": "2", "twice": "2", "double": "2", "second": "2"},
    **{"third": "3", "triple": "3", "thrice": "3", "fourth": "4", "fifth": "5"},
}
_NAME = re.compile(r"(?<=[a-z] )[A-Z][a-z]{2,}")
_NO_NAME = re.compile(
    r"about|actually|after|again|all|also|although|and|any|are|because|been|before|being|but|can|cannot|caught|could|did|"
    r"does|don|each|even|every|everybody|everyone|everything|feel|for|from|get|give|god|good|great|had|hard|has|have|hello|"
    r"hey|him|his|hope|how|however|idea|ill|its|ive|just|know|let|like|make|many|may|maybe|more|most|much|must|nice|not|now|"
    r"ohh*|okay|one|only|other|our|out|perhaps|please|plus|really|right|she|should|since|some|someone|something|sometimes|"
    r"sorry|still|sure|take|talk|tell|than|thanks?|that|the|their|them|then|there|these|they|things?|think|this|those|"
    r"though|too|try|very|want|was|welcome|well|were|whats?|when|where|which|while|who|why|will|wish|with|would|yeah|yes|"
    r"yet|you|your",
    re.IGNORECASE,
)
"""Words that open a sentence where the one before has no full stop, and are no names."""
_IDIOM = re.compile(
    r"\b(?:oh,? no|no (?:wonder|problem|worries|doubt|matter|rush|hurry)|can't wait|(?:don't|never) forget|"
    r"(?:don't|never|not)(?: really)? mind|wouldn't mind|not only|why (?:not|don't)|nothing (?:to do )?but|or not|"
    r"don'?t panic|don't you (?:think|agree)|can'?t help it|(?:you|us|we|them) two|the two of (?:you|us|them))\b|"
    r"[, ](?:\w+n't (?:it|they|you|he|she|we)|\w+ (?:it|they|you) not)(?=\W*$|[?.!,])|"
    r"差不多|不过|不错|不好意思|无论|特别|个别|别人",
    re.IGNORECASE,
)
"""Phrases whose negation negates nothing, tags at the end of a sentence, and a 'two' that only means 'both of you'."""
_NEGATION = re.compile(
    r"n't\b|\b(?:not|no|never|nothing|nobody|none|nowhere|neither|nor|cannot|without|noone|dunno|idk|"
    r"(?:do|did|does|is|was|were|are|ca|wo|have|has|had|could|would|should)nt)\b|\bnever|[不没无别未]",
    re.IGNORECASE,
)
_TURNING = re.compile(
    r"\b(?!under|unti|uni|uncle|import|impr|immed|imag|discu|dist)(?:un|dis|im|mis)\w{4,}|"
    r"\b(?:inca|ina|insec)\w+|\w+less\b|\b(?:hardly|barely|scarcely|rarely|seldom|few|less|"
    r"lack\w*|fail\w*|refus\w*|reject\w*|den(?:y|ied)|ceas\w+|doubt\w*|stop\w*|quit\w*|avoid\w*|miss\w*|lost|los\w+|"
    r"wrong|far from|instead|rather than|only|nope|nah|out of|free of|short of|hard to|difficult to|tough to|"
    r"forever|ended|all (?:i|you|one) can|bad(?:ly)?|poor|at least|since)\b|[难失少]|反而|而是",
    re.IGNORECASE,
)
_GLAD = re.compile(
    r"good|great|happy|glad|better|relieved|calm|hopeful|excited|wonderful|proud|love|enjoy|lucky", re.IGNORECASE
)
_SAD = re.compile(
    r"bad|sad|awful|terrible|worse|worst|afraid|angry|anxious|depressed|hate|lonely|scared|upset|miserable",
    re.IGNORECASE,
)
