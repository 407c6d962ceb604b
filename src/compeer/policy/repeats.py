"""Where an output begins to repeat itself: small models fall into loops, and nobody in need should read them.

A response is over before the first sentence that it has said already, word for word. Sentences of a word or two may
come again, and so may anything in the steps.
"""

from __future__ import annotations

import re

from compeer.reasoning import LABELS

_RESPONSE = re.compile(rf"^{LABELS['response']}:", re.MULTILINE)
_END = re.compile(r"[.!?…]+[\"'”’)]*(?=\s)|[。！？；]+[”’）]*|\n")
_HAN = re.compile(r"[㐀-鿿]")


def told_once(text: str, begun: str = "", last: bool = True) -> tuple[str, bool]:
    """As much of an output as may be told, and whether it is over because it would repeat itself.

    `begun` is how the output began, before `text`. Unless this is the `last` of it, a sentence that so far goes like an
    earlier one is held back.
    """
    whole = begun + text
    label = next(_RESPONSE.finditer(whole), None)
    if label is None:
        return text, False
    place, said = label.end(), []
    for end in _END.finditer(whole, place):
        sentence = _words(whole[place : end.end()])
        if sentence in said and _counts(sentence):
            return _until(whole, place, begun), True
        said.append(sentence)
        place = end.end()
    rest = _words(whole[place:])
    if last:
        again = rest in said and _counts(rest)
        return (_until(whole, place, begun), True) if again else (text, False)
    held = any(one.startswith(rest) for one in said)
    return (_until(whole, place, begun) if held else text), False


def _until(whole: str, place: int, begun: str) -> str:
    return whole[len(begun) : place].rstrip()


def _words(sentence: str) -> str:
    return re.sub(r"\W+", " ", sentence.casefold()).strip()


def _counts(sentence: str) -> bool:
    return len(sentence.split()) >= 3 or len(_HAN.findall(sentence)) >= 5
