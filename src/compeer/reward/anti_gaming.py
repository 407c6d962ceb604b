"""What an output could try on a judge, and what is done about it before the judge is asked. Pure functions on text.

Invisible characters, which a model still reads, are taken out. A response counts for nothing if it copies the reference
or the history, speaks to the judge instead of the seeker, or is no language at all. A sentence that stands in the steps
and again in the response makes the two fit each other, whatever it says: the judge reads the response without it.
Control tokens are broken up later, where the model's tokenizer is known (`compeer.engine.network.defuse`).
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from compeer.reasoning import one_line
from compeer.ser.asking import regex, table
from compeer.statistics import words

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn"}  # controls, zero-width and bidirectional marks, tags, surrogates and such
_BLANK_LETTERS = set("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")  # letters and marks displayed as nothing
_UNCOMMON = re.compile(r"[^\s\x20-\x7e\u00a1-\u00ac\u00ae-\u024f\u2010-\u2027\u3001-\u3011\u4e00-\u9fff\uff01-\uff5e]")
"""Characters that have to be checked one by one; all others are visible, which is most of what people write."""
COPIED_RUN = 5  # so many words in a row that are somebody else's are copied
LONG_UTTERANCE = 8  # words from which on an utterance is not repeated by chance
_COPIED_SHARE = 0.7
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？；\n])")
_SHORT_SENTENCE = 3  # words up to which a sentence may stand in the steps and in the response
COPIED_REFERENCE = "the response copies the reference"
_LETTER_SHARE = 0.4
_TABLE = table("reward/anti_gaming")
_LOOKALIKES = str.maketrans(_TABLE["lookalikes"]["letters"], _TABLE["lookalikes"]["latin"])
_TO_THE_JUDGE = re.compile("|".join(map(regex, _TABLE["to_the_judge"])), re.IGNORECASE)
_IN_SUCH = _TABLE["in_such"].split()


def visible(text: str) -> str:
    """Text without the characters that people cannot see; white space stays."""
    if _UNCOMMON.search(text) is None:
        return text
    return "".join(character for character in text if character.isspace() or not _is_invisible(character))


def _is_invisible(character: str) -> bool:
    code = ord(character)
    selector = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or 0x180B <= code <= 0x180F
    return selector or character in _BLANK_LETTERS or unicodedata.category(character) in _INVISIBLE


def quoted(text: str, limit: int) -> str:
    """Text as a judge reads it: one line, nothing invisible, at most `limit` characters."""
    return one_line(visible(text))[:limit].rstrip()


def speaks_to_the_judge(text: str) -> bool:
    """Whether a text, as people see it, tells the judge what to find."""
    plain = folded(text)
    return any(word in plain for word in _IN_SUCH) and _TO_THE_JUDGE.search(plain) is not None


def says_nothing(text: str) -> bool:
    """Whether there is no language in a text: no words, hardly a letter, marks piled up, or the same words for ever."""
    letters, found = "".join(visible(text).split()), _words(text)
    if not found or sum(map(str.isalnum, letters)) < _LETTER_SHARE * len(letters) or _piled(letters):
        return True
    kinds = len(set(found))
    return (len(found) >= 4 and kinds == 1) or (len(found) >= 12 and kinds <= max(3, len(found) // 8))


def _piled(text: str) -> bool:
    """Whether more marks stand on one letter than any language puts there."""
    marks = "" if text.isascii() else "".join("M" if unicodedata.combining(letter) else "." for letter in text)
    return "MMMM" in marks


def own_sentences(response: str, steps: Sequence[str]) -> str:
    """A response without the sentences that its steps hold word for word."""
    noted = [f" {' '.join(_words(step))} " for step in steps]

    def own(sentence: str) -> bool:
        own_words = _words(sentence)
        return len(own_words) <= _SHORT_SENTENCE or not any(f" {' '.join(own_words)} " in note for note in noted)

    return "".join(filter(own, _SENTENCE_END.split(response)))


def void_reason(response: str, reference: str | None, history: Sequence[str], steps: Sequence[str] = ()) -> str | None:
    """Why a response counts for nothing whatever the judge says, or None: a copy would be "both good", say."""
    found = _words(response)
    if not quoted(response, len(response)):
        return "the response has nothing that can be seen"
    if says_nothing(response):
        return "the response says nothing"
    if reference is not None and (found == _words(reference) or _copies(found, (reference,))):
        return COPIED_REFERENCE
    if speaks_to_the_judge(response):
        return "the response speaks to the judge"
    if says_nothing(own_sentences(response, steps)):
        return "the response repeats its steps"
    if (history and found == _words(history[-1])) or _copies(found, tuple(history)):
        return "the response repeats the history"  # of which a short utterance may be, but not just the last one
    return None


def folded(text: str) -> str:
    """Text as people read it, in small letters: nothing invisible, no accents, wide letters or Latin look-alikes."""
    if text.isascii():
        return visible(text).lower()
    apart = unicodedata.normalize("NFKD", visible(text))
    plain = "".join(character for character in apart if unicodedata.category(character) != "Mn")
    return unicodedata.normalize("NFKC", plain).lower().translate(_LOOKALIKES)


@lru_cache(maxsize=8192)
def _words(text: str) -> list[str]:
    """The words of a text; a history is asked about once for every output that answers it."""
    return words(folded(text))


def _copies(found: Sequence[str], sources: tuple[str, ...]) -> bool:
    """Whether most of some words stand in the sources, in runs, and are enough to be no chance."""
    if len(found) < LONG_UTTERANCE:
        return False
    runs = _runs(sources)
    starts = [at for at in range(len(found) - COPIED_RUN + 1) if tuple(found[at : at + COPIED_RUN]) in runs]
    return len({at + word for at in starts for word in range(COPIED_RUN)}) >= _COPIED_SHARE * len(found)


@lru_cache(maxsize=64)
def _runs(sources: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """All runs of words in some texts; several outputs are compared with one history."""
    every = map(_words, sources)
    return frozenset(tuple(one[at : at + COPIED_RUN]) for one in every for at in range(len(one) - COPIED_RUN + 1))
