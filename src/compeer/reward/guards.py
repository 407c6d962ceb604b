"""What an output could try on a judge, and what is done about it before the judge is asked. Pure functions on text.

Invisible characters could hide words from people that a model still reads: they are taken out. A response that repeats
the reference, or an utterance of the history, could be rated as good as what it copies: it counts for nothing. So does
whatever speaks to the judge instead of the seeker. Control tokens are broken up later, where the model's tokenizer is
known (`compeer.models.local.defuse`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from compeer.reasoning import one_line
from compeer.statistics import words

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn"}
"""Categories nobody sees: controls, zero-width and bidirectional marks, tags, surrogates, private, unassigned."""
_BLANK_LETTERS = set("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that are drawn as nothing."""
_UNCOMMON = re.compile(r"[^\s\x20-\x7e\u00a1-\u00ac\u00ae-\u024f\u2010-\u2027\u3001-\u3011\u4e00-\u9fff\uff01-\uff5e]")
"""Characters that have to be looked at one by one; all others can be seen, which is most of what people write."""
LONG_UTTERANCE = 8
"""Words from which on an utterance is not said twice by chance."""
_COPIED_SHARE = 0.8
COPIED_REFERENCE = "the response copies the reference"
_TO_THE_JUDGE = re.compile(
    r"\bverdict(?:\s+is)?\s*[:=]\W*(?:true|false|a|b|both|neither|correct|right)\b"
    r"|\b(?:all|each|every|both|these|the)\W+(?:of\W+)?(?:the\W+|these\W+|my\W+)?(?:three\W+)?(?:steps?|notes?)\W+(?:is|are)\W+"
    r"(?:all\W+)?(?:correct|right|true|accurate|valid)\b"
    r"|\b(?:this|my|the\W+first|the\W+second|reply\W+[ab]|response\W+[ab])\W+(?:response\W+|reply\W+)?is\W+(?:the\W+)?"
    r"(?:better|best|superior)\W+(?:one|response|reply)\b"
    r"|\b(?:dear|note\W+to\W+the|attention)\W+(?:judge|grader|evaluator|reward\W+model)\b"
    r"|(?:判定|裁决|结论)\s*[:：]\s*(?:正确|真|对|true|a\b)|(?:所有|全部|以上|三个)步骤[都均全]{0,2}(?:是)?(?:正确|对的|准确)"
    r"|(?:这个|本|第[一二]个)(?:回复|回答|回应)(?:是)?更好的?(?:那个|回复|回答|。|$)",
    re.IGNORECASE,
)
"""What tells a judge which verdict to give. It is no support and no reasoning about a seeker, whoever wrote it."""


def visible(text: str) -> str:
    """Text without the characters that people cannot see; white space stays."""
    if _UNCOMMON.search(text) is None:
        return text
    return "".join(character for character in text if character.isspace() or not _is_unseen(character))


def _is_unseen(character: str) -> bool:
    code = ord(character)
    selector = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or 0x180B <= code <= 0x180F
    return selector or character in _BLANK_LETTERS or unicodedata.category(character) in _UNSEEN


def quoted(text: str, limit: int) -> str:
    """Text as a judge is shown it: one line, nothing invisible, at most `limit` characters."""
    return one_line(visible(text))[:limit].rstrip()


def speaks_to_the_judge(text: str) -> bool:
    """Whether a text, as people see it, tells the judge what to find."""
    return _TO_THE_JUDGE.search(unicodedata.normalize("NFKC", visible(text))) is not None


def gains_nothing(response: str, reference: str | None, history: Sequence[str]) -> str | None:
    """Why a response counts for nothing whatever the judge says, or None.

    So that there is nothing to gain by copying: a copy of the reference would be "both good", a sentence of the seeker
    sounds like understanding. Short utterances of the history may be said again, but not the last one alone.
    """
    said = _said(response)
    if not quoted(response, len(response)):
        return "the response has nothing that can be seen"
    if reference is not None and (said == _said(reference) or _copies(said, _said(reference))):
        return COPIED_REFERENCE
    if speaks_to_the_judge(response):
        return "the response speaks to the judge"
    if (history and said and said == _said(history[-1])) or any(
        _copies(said, _said(utterance)) for utterance in history
    ):
        return "the response repeats the history"
    return None


@lru_cache(maxsize=8192)
def _said(text: str) -> list[str]:
    """The words of a text; a history is asked about once for every output that answers it."""
    return words(visible(text))


def _copies(said: Sequence[str], source: Sequence[str]) -> bool:
    """Whether a long source stands in what was said, word for word, and makes up most of it."""
    if len(source) < LONG_UTTERANCE or not _COPIED_SHARE * len(said) <= len(source) <= len(said):
        return False
    return any(list(said[at : at + len(source)]) == list(source) for at in range(len(said) - len(source) + 1))
