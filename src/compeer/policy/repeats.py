"""Where an output begins to repeat itself: small models fall into loops, and nobody in need should read them.

A response is over before two sentences in a row that it has said in this order already; a loop of one sentence is
such a thing too. One that comes again alone ("Hold for four.") may, unless it is the last and was just said; so may
what is very short, and anything in the steps.
"""

from __future__ import annotations

import re

from compeer.reasoning import LABELS

_RESPONSE = re.compile(rf"^{LABELS['response']}:", re.MULTILINE)
_END = re.compile(r"[.!?…]+[\"'”’)]*(?=\s)|[。！？；]+[”’）]*|\n")
_HAN = re.compile(r"[㐀-鿿]")


def told_once(text: str, begun: str = "", last: bool = True) -> tuple[str, bool]:
    """As much of an output as may be told, and whether it is over because it would repeat itself.

    `begun` is how the output began, before `text`. Unless this is the `last` of it, what may become a repetition is
    held back.
    """
    whole = begun + text
    label = next(_RESPONSE.finditer(whole), None)
    if label is None:
        return text, False
    said: list[str] = []
    pairs: set[tuple[str, str]] = set()
    starts = [label.end()]
    ends = [end.end() for end in _END.finditer(whole, label.end())]
    for end in [*ends, len(whole)] if last else ends:
        if sentence := _words(whole[starts[-1] : end]):
            pair = (said[-1] if said else "", sentence)
            if pair in pairs and any(_counts(one) for one in pair):
                return _until(whole, starts[-2], begun), True
            pairs.add(pair)
            said.append(sentence)
            starts.append(end)
    if last:
        stutters = len(said) > 1 and said[-1] == said[-2] and _counts(said[-1])
        return (_until(whole, starts[-2], begun), True) if stutters else (text, False)
    rest = _words(whole[starts[-1] :])
    held = starts[-1] if any(one.startswith(rest) for one in said) else len(whole)
    if any(said[place + 1].startswith(rest) for place, one in enumerate(said[:-1]) if one == said[-1]):
        held = starts[-2]
    return (_until(whole, held, begun) if held < len(whole) else text), False


def _until(whole: str, place: int, begun: str) -> str:
    return whole[len(begun) : place].rstrip()


def _words(sentence: str) -> str:
    return re.sub(r"\W+", " ", sentence.casefold()).strip()


def _counts(sentence: str) -> bool:
    return len(sentence.split()) >= 3 or len(_HAN.findall(sentence)) >= 5
