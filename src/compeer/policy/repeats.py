"""Where an output begins to repeat itself: small models fall into loops, and nobody in need should read them.

A response is over before two sentences in a row that it has said in this order already; a loop of one sentence is
such a thing too. One that comes again alone ("Hold for four.") may, unless it is the last and was just said; so may
what is very short, and anything in the steps.
"""

import re
from collections.abc import Iterable

from compeer.reasoning import LABELS
from compeer.statistics import words

_LABEL = f"{LABELS['response']}:"
_RESPONSE = re.compile(rf"^{_LABEL}", re.MULTILINE)
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)]*+(?=\s)|[。！？；]++[”’）]*+|\n")
_MAY_GO_ON = ".!?…\"'”’)。！？；）"  # an end of a sentence, which is known to be one when something else follows
_HAN = re.compile(r"[㐀-鿿]")
_NOT_WORDS = re.compile(r"\W+")
_FEWEST, _MOSTLY = 4, 0.6


def repeats_earlier(text: str, earlier: Iterable[str]) -> bool:
    """Whether most of a text stands in one of the earlier ones, by its runs of three words; not what is very short."""
    own = _runs(text)
    return len(own) >= _FEWEST and any(len(own & _runs(one)) >= _MOSTLY * len(own) for one in earlier)


def _runs(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[start : start + 3]) for start in range(len(found) - 2)}


class RepetitionFilter:
    """Passes on an output as it is written, until it would repeat itself (`over`). Each piece is read once."""

    def __init__(self, begun: str = "") -> None:
        self.over = False
        self._text, self._in_response = "", False
        self._read = self._before = self._start = 0  # the sentence before the one that is written, and that one
        self._sentences: list[str] = []
        self._followers: dict[str, set[str]] = {}  # of each sentence, what came after it
        self._rest, self._new = "", False  # the words of the sentence that is written; whether none begins like it
        self._take(begun, last=False)
        self._passed = len(begun)

    def feed(self, piece: str, last: bool = False) -> str:
        """What may be passed on after this piece; with the `last` nothing is held back."""
        if self.over:
            return ""
        end = self._take(piece, last)
        if end < len(self._text):
            end = self._passed + len(self._text[self._passed : end].rstrip())
        before, self._passed = self._passed, max(self._passed, end)
        return self._text[before : self._passed]

    def _take(self, piece: str, last: bool) -> int:
        """Reads a piece; returns the index up to which the output may be passed on."""
        start = len(self._text)
        self._text += piece
        if not self._in_response:
            label = _RESPONSE.search(self._text, max(0, start - len(_LABEL)))
            if label is None:
                return len(self._text)
            self._in_response = True
            self._read = self._before = self._start = label.end()
            piece = self._text[label.end() :]
        ends = self._ends(piece, last)
        for end in ends:
            if self._repeats(end):
                self.over = True
                return self._before
        if last:
            *_, before, newest = ["", "", *self._sentences]
            self.over = before == newest and _counts(newest)
            return self._before if self.over else len(self._text)
        if ends:
            self._rest, self._new, piece = "", False, self._text[self._start :]
        return self._held(piece)

    def _ends(self, piece: str, last: bool) -> list[int]:
        """Where sentences end in what has not been read yet."""
        if last:
            return [*(end.end() for end in _END.finditer(self._text, self._read)), len(self._text)]
        done = len(piece.rstrip(_MAY_GO_ON))
        if not done:
            return []
        until = len(self._text) - len(piece) + done
        found = [end.end() for end in _END.finditer(self._text, self._read) if end.start() < until]
        self._read = until
        return found

    def _repeats(self, end: int) -> bool:
        """Takes in a sentence that ends here; whether it and the one before it have come in this order already."""
        sentence, start = _words(self._text[self._start : end]), self._start
        self._start = end
        if not sentence:
            return False
        if self._sentences:
            followers = self._followers[self._sentences[-1]]
            if sentence in followers and any(map(_counts, (self._sentences[-1], sentence))):
                return True
            followers.add(sentence)
        self._before = start
        self._sentences.append(sentence)
        self._followers.setdefault(sentence, set())
        return False

    def _held(self, piece: str) -> int:
        """Up to where the output may be passed on while the sentence goes on with this piece."""
        if self._new:
            return len(self._text)
        words = _NOT_WORDS.sub(" ", piece.casefold())
        self._rest = (self._rest + (words[1:] if self._rest.endswith(" ") and words[:1] == " " else words)).lstrip()
        rest = self._rest.rstrip()
        if not _begins(self._followers, rest):
            self._new = True  # and stays so
            return len(self._text)
        return self._before if _begins(self._followers[self._sentences[-1]], rest) else self._start


def _begins(texts: Iterable[str], start: str) -> bool:
    return any(text.startswith(start) for text in texts)


def _words(sentence: str) -> str:
    return _NOT_WORDS.sub(" ", sentence.casefold()).strip()


def _counts(sentence: str) -> bool:
    return len(sentence.split()) >= 3 or len(_HAN.findall(sentence)) >= 5
