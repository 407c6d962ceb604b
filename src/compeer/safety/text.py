"""A message in the form that the rules read: lower case, plain letters, contractions and slang written out.

People in danger write in a hurry, and some hide what they say from filters. So letters of other alphabets that look
Latin, small capitals, letters in squares, circles and flags, HTML's names for letters, zero-width signs and fillers,
digits for letters ("su1cide"), stars ("k*ll"), letters apart, by blanks, lines or emoji ("k i l l"), drawn-out words
("diiiie") and slang ("unalive", 自鲨) are all brought to the plain word before any rule looks; the tables of slang and
spelling are data, beside the rules. Everything here takes time in proportion to the text.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Literal

from compeer.io import table

_TABLES: dict[str, dict[str, str]] = table("safety/text")


def letter_table(name: str) -> dict[int, int]:
    return str.maketrans(_TABLES[name]["from"], _TABLES[name]["to"])


_LOOKALIKES, _TRADITIONAL = letter_table("lookalikes"), letter_table("traditional")
# Letters in brackets, circles and squares that NFKD leaves as they are, or takes apart:
_FRAMED = {start + offset: 97 + offset for start in (0x249C, 0x1F150, 0x1F170) for offset in range(26)}
_SMALL_CAPITALS = letter_table("small_capitals")
_FLAG_LETTERS = re.compile("[\U0001f1e6-\U0001f1ff]+")
_EMOJI = "\u2190-\u2bff\u3030\u303d\U0001f000-\U0001faff"
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u2800\u3164\uffa0\ufffc\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef]"
)
_MARKS = re.compile("[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]+")
_LEET = [str.maketrans("013457@$!|€", f"o{one}eastas{one}{one}e") for one in "il"]
_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_SPACE_IN_HAN = re.compile(rf"(?<=[{_HAN}])[ \t·•\-_*/\\|~^&+=.]+(?=[{_HAN}])")
_APART = re.compile(rf"(?<![a-z0-9@$])[a-z0-9@$](?:[\s.\-_*~/|{_EMOJI}]{{1,3}}[a-z0-9@$](?![a-z0-9@$])){{2,}}")
_SPLIT = re.compile(rf"[a-z]{{1,30}}(?:[{_EMOJI}]{{1,3}}[a-z]{{1,30}}){{1,12}}")
_ODD = re.compile(  # a word of letters and other signs, or a whole one with a letter at least
    r"(?<![\w@$*#!|€])(?=[\w@$!|*#€]{0,30}[a-z])(?=[a-z]{0,30}[0-9@$!|*#€_])[\w@$*#€](?:[\w@$!|*#€]{0,30}[\w@$*#€])?(?![\w@$*#])"
)
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")
_REPEATED = re.compile(r"([a-z])\1{2,}")
_REPEATED_HAN = re.compile(rf"([{_HAN}])\1{{2,}}")
_CONTRACTIONS = [(re.compile(pattern), plain) for pattern, plain in _TABLES["contractions"].items()]
_MASKS = re.compile("[*#_]")
_LONGEST_JOINED = 60
_GAP = 2  # what a letter that belongs to no known word costs, beside a word, where letters written as one are cut
_TELLTALE = 4
_PIECE = 1_000


def length(text: str) -> int:
    """How much is written: letters, of which a Chinese character counts as three."""
    return sum(3 if character > "\u2e80" else 1 for character in text)


def letters(text: str) -> str:
    """The text in lower case and in the letters it looks like: no zero-width signs, no marks, simplified characters."""
    if "&" in text:
        text = html.unescape(text)
    text = _MARKS.sub("", _INVISIBLE.sub("", text))
    text = _FLAG_LETTERS.sub(_spelt, text.translate(_FRAMED).translate(_SMALL_CAPITALS))
    text = _normalized("NFKC", _MARKS.sub("", _normalized("NFKD", text)))
    text = text.lower().translate(_LOOKALIKES).translate(_TRADITIONAL)
    return _SPACE_IN_HAN.sub("", _REPEATED_HAN.sub(r"\1\1", text))


def _normalized(form: Literal["NFKC", "NFKD"], text: str) -> str:
    """In pieces: putting a long run of marks in order takes time that grows with its square."""
    starts = range(0, len(text), _PIECE)
    return "".join(unicodedata.normalize(form, text[start : start + _PIECE]) for start in starts)


class Spelling:
    """Brings a text to the form the rules read, with tables of what a word or a phrase stands for.

    `words` maps a word of slang or a common mistake to what it stands for, `phrases` the same for whole phrases by
    pattern, `known` are the words that are looked for where letters are hidden, drawn out, apart or mistaken.
    """

    def __init__(
        self, words: Mapping[str, str], phrases: Mapping[str, str], known: Iterable[str], fillers: Iterable[str]
    ) -> None:
        self._words = dict(words)
        self._phrases = [(re.compile(pattern), plain) for pattern, plain in phrases.items()]
        self._known = frozenset(known)
        self._squeezed = {_squeeze(word): word for word in self._known}
        for word in self._known:
            # Long words only: a short one with one letter changed is soon another word.
            for mistake in set(_mistakes(word)) - self._known if len(word) >= 6 else ():
                self._words.setdefault(mistake, word)
        self._fillers = frozenset(fillers)

    def plain(self, text: str) -> str:
        text = _SPLIT.sub(self._together, _APART.sub(self._together, letters(text)))
        text = _WORD.sub(self._word, _written_out(_ODD.sub(self._unmasked, text)))
        text = re.sub(r"[^\S\n]+", " ", text)
        for pattern, plain in self._phrases:
            text = pattern.sub(plain, text)
        return text

    def _word(self, found: re.Match[str]) -> str:
        word = found[0]
        if word in self._fillers:
            return ""
        if plain := self._words.get(word):
            return plain
        if _REPEATED.search(word) and word not in self._known:
            plain = self._squeezed.get(_squeeze(word)) or _REPEATED.sub(r"\1", word)
            return self._words.get(plain, plain)
        if self._known and len(word) >= 8 and word not in self._known:
            return _written_out(" ".join(self._cut(word) or self._cut(word, gaps=True) or [word]))
        return word

    def _unmasked(self, found: re.Match[str]) -> str:
        """A word with digits or signs among its letters, if that makes a word we look for."""
        word = found[0]
        if _MASKS.search(word):
            if any(character.isalpha() for character in word):
                for known in (known for known in self._known if len(known) == len(word)):
                    if all(sign in f"*#_{letter}" for sign, letter in zip(word, known, strict=True)):
                        return known
            word = _MASKS.sub("", word)
        for digits in _LEET:
            plain = word.translate(digits)
            if plain in self._known or plain in self._words:
                return plain
        return self._squeezed.get(_squeeze(word.translate(_LEET[0])), found[0])

    def _together(self, found: re.Match[str]) -> str:
        """Letters apart, joined and cut into words we know; left as they are where that does not work out."""
        joined = re.sub(r"[^a-z0-9@$]", "", found[0]).translate(_LEET[0])
        words = self._cut(joined)
        return " ".join(words) if words and any(len(word) > 1 for word in words) else found[0]

    def _cut(self, joined: str, gaps: bool = False) -> list[str] | None:
        """The fewest known words that joined letters are made of; with `gaps` not all need belong to one."""
        if len(joined) > _LONGEST_JOINED:
            return None
        best: dict[int, tuple[int, list[str]]] = {0: (0, [])}
        for end in range(1, len(joined) + 1):
            for start in range(max(0, end - 12), end):
                word = joined[start:end]
                known = word in self._known or word in self._words
                if start not in best or not (known or gaps):
                    continue
                cost = best[start][0] + (_GAP * len(word) if not known or (gaps and len(word) == 1) else 1)
                if end not in best or cost < best[end][0]:
                    best[end] = (cost, [*best[start][1], self._words.get(word, word) if known else word])
        _, words = best.get(len(joined), (0, None))
        telltale = [word for word in " ".join(words or ()).split() if len(word) >= _TELLTALE and word in self._known]
        if gaps and (len(telltale) < 2 or 3 * sum(map(len, telltale)) < len(joined)):
            return None
        return words


def _spelt(found: re.Match[str]) -> str:
    """The letters of signs that make flags; two alone are a flag."""
    signs = found[0]
    return " " if len(signs) == 2 else "".join(chr(ord(sign) - 0x1F1E6 + 97) for sign in signs)


def _written_out(text: str) -> str:
    for pattern, plain in _CONTRACTIONS:
        text = pattern.sub(plain, text)
    return text


def _squeeze(word: str) -> str:
    return "".join(letter for letter, _ in groupby(word))


def _mistakes(word: str) -> Iterable[str]:
    """The word with one letter missing, doubled or changed, or two swapped; its first letter always stands."""
    for index in range(1, len(word)):
        yield word[:index] + word[index + 1 :]
        yield word[:index] + word[index] + word[index:]
        if index + 1 < len(word):
            yield word[:index] + word[index + 1] + word[index] + word[index + 2 :]
        for letter in "aeiouscyzt":
            yield word[:index] + letter + word[index + 1 :]
            yield word[:index] + letter + word[index:]
