"""Whether the guard can read what a seeker writes: its rules and weights know English and Chinese, and nothing else.

A message in another script is recognised by its letters, one in Latin letters by its words: how many the English
weights have met, and how many are common words of other languages that English does not have. A word or two decide
nothing, unless such a word is among them. It is a rough measure, so that nobody is served without a word in a language
in which danger would pass unseen.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from compeer.io import table
from compeer.safety.reader import small_reader
from compeer.safety.rules import scanned

READ = ("en", "zh")  # the languages that the guard reads
WINDOW = 8  # messages in which another language is looked for
UNREAD = "the guard reads English and Chinese only, and something was said in another language"

_SCRIPTS = {"HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "CYRILLIC": "ru", "ARABIC": "ar"}
_WORD = re.compile(r"[a-z]+")


@cache
def _common() -> dict[str, frozenset[str]]:
    """Common words of languages in Latin letters; "" stands for those without a name here."""
    return {code.replace("other", ""): frozenset(words.split()) for code, words in table("safety/languages").items()}


def unread(messages: Sequence[str], spoken: str | None = None) -> str | None:
    """A language of the last messages that the guard cannot read, "" for one without a name; None if all can be."""
    other = (spoken or "").lower().replace("_", "-").split("-")[0]
    for message in reversed(messages[-WINDOW:]):
        found = language(message)
        if found is None and other not in ("", *READ) and any(character.isalpha() for character in message):
            return other  # what is unclear is taken to be in the language spoken
        if found is not None and found not in READ:
            return found
    return None


def language(message: str) -> str | None:
    """The language of a message: "en", "zh", another, "" for one without a name here; None where it is unclear."""
    message = message[:2_000]
    scripts = [unicodedata.name(character, "").split(" ")[0] for character in message if character.isalpha()]
    kana, han = sum(script in ("HIRAGANA", "KATAKANA") for script in scripts), scripts.count("CJK")
    if kana > 1 and 5 * kana >= kana + han:
        return "ja"
    foreign = [script for script in scripts if script not in ("LATIN", "CJK", "FULLWIDTH", "MATHEMATICAL")]
    if len(foreign) > 1 and 2 * len(foreign) > len(scripts):
        return _SCRIPTS.get(max(set(foreign), key=foreign.count), "")
    if han and 3 * han >= scripts.count("LATIN"):
        return "zh"
    return _latin(_WORD.findall(scanned(message, "en").plain))


def _latin(words: Sequence[str]) -> str | None:
    if sum(map(len, words)) < 4:
        return None
    own, common = _common()["en"], {code: listed for code, listed in _common().items() if code != "en"}
    foreign = {word for listed in common.values() for word in listed}
    others = sum(word in foreign for word in words) / len(words)
    try:
        met = small_reader().known(words)
    except Exception:  # without the weights the common words have to do
        met = set()
    english = sum(word in own or (word in met and word not in foreign) for word in words) / len(words)
    strange = english < 0.3 if len(words) >= 6 else english == 0 and len(words) >= 4
    if (others > english and 3 * others >= 1) or strange:
        best = max(common, key=lambda code: sum(word in common[code] for word in words))
        return best if common[best].intersection(words) else ""
    return "en" if english >= 0.5 and len(words) >= 3 else None
