"""Reference steps in natural language, where a corpus has none: what is known of a moment, put into varied words.

A step is composed from a wording of `wordings/<language>.toml`, drawn at random, and from the seeker's own words. The
test split has wordings of its own, so that a judge cannot pass by knowing phrases. Where a corpus holds notes of what a
supporter thought (`Utterance.notes`), these are the step's text, and nothing is composed.

The text of step 1 has two halves, the issue and the stage, kept apart so that each can be wrong alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from compeer.dialogue import Emotion, Rating, Stage, Strategy, Utterance, last_seeker
from compeer.reasoning import MAX_STEP, one_line
from compeer.statistics import words

LONGEST_QUOTE = 14
"""Words; for Chinese twice as many characters."""

_SENTENCE = re.compile(r"(?<=[.!?…。！？；;])\s*|\n+")
_WITHOUT_MEANING = """
    a about actually all also am an and any are as at be because been but by can could did do does doing don't even
    for from get go good got had has have he hello her hey hi him his how i i'd i'll i'm i've if in is it it's its
    just know like lol me more much my no not now of oh ok okay on one or our really right she should so some sure
    thank thanks that that's the their them then there they this to too up us very was we well were what when which
    who why will with would yeah yes you your
"""
_EMPTY = frozenset(_WITHOUT_MEANING.split())


@dataclass(frozen=True)
class Quotes:
    """The seeker's own words: what it is about, something said since, the last thing said, and one thing more.

    No two are the same, so that the steps of one turn share no quotation that would tie them together; only at the very
    start may the last thing said be the issue, and step 2 then quotes nothing.
    """

    issue: str
    detail: str | None
    said: str
    aside: str | None


@dataclass(frozen=True)
class HistoryWords:
    """Step 1 in two halves; `frame` is the wording of the first, where it was composed."""

    issue: str
    stage: str
    frame: str | None = None

    @property
    def text(self) -> str:
        return f"{self.issue} {self.stage}".strip()


@cache
def wordings(language: str) -> dict[str, Any]:
    """The wordings of a language; English where there are none."""
    folder = files("compeer.ser.silver").joinpath("wordings")
    file = folder.joinpath(f"{language}.toml")
    if not file.is_file():
        file = folder.joinpath("en.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def quotes_of(history: Sequence[Utterance]) -> Quotes:
    """What to quote of a history: its most telling sentence, a later one, and one of the seeker's last message."""
    last = last_seeker(history) or history[-1]
    said = max(_sentences(last.text), key=_weight)
    earlier = [
        sentence
        for utterance in history
        if utterance.speaker == "seeker" and utterance is not last
        for sentence in _sentences(utterance.text)
    ]
    telling = [sentence for sentence in earlier if _weight(sentence) >= 2 and sentence != said]
    others = [sentence for sentence in _sentences(last.text) if _weight(sentence) >= 2 and sentence != said]
    if not telling:
        return Quotes(said, None, said, others[0] if others else None)
    issue = max(telling, key=_weight)  # of several the first
    later = [sentence for sentence in telling[telling.index(issue) + 1 :] if sentence != issue]
    detail = max(later, key=_weight) if later else None
    left = [sentence for sentence in (*others, *later) if sentence not in (issue, detail)]
    return Quotes(issue, detail, said, left[0] if left else None)


def _sentences(text: str) -> list[str]:
    found = [_shortened(part) for part in _SENTENCE.split(text) if part and part.strip()]
    return [part for part in found if part] or [_shortened(text) or "…"]


def _shortened(text: str) -> str:
    text = one_line(re.sub(r"[“”\"\[\]{}【】［］]", "", text)).strip(" .,;:!。，；：！-")
    parts = text.split(" ")
    if len(parts) > LONGEST_QUOTE:
        return " ".join(parts[:LONGEST_QUOTE]) + "…"
    return text if len(text) <= 6 * LONGEST_QUOTE else text[: 2 * LONGEST_QUOTE] + "…"


def _weight(sentence: str) -> int:
    """How much a sentence tells: its words that carry meaning, each once, up to eight."""
    return min(8, len(telling_words(sentence)))


def telling_words(text: str) -> set[str]:
    """The words of a text that carry meaning."""
    return {word for word in words(text) if word not in _EMPTY}


def history_words(
    quotes: Quotes, stage: Stage, language: str, part: str, note: str | None, rng: np.random.Generator
) -> HistoryWords:
    """Step 1. `part` is `train` or `test`."""
    if note:
        return HistoryWords(one_line(note), "")
    known = wordings(language)["history"][part]
    frame = _draw([f for f in known["issue"] if quotes.detail or "{detail}" not in f], rng)
    return HistoryWords(fill_history(frame, quotes), _draw(known[stage], rng), frame)


def fill_history(frame: str, quotes: Quotes) -> str:
    """A wording of step 1 with its quotations."""
    return frame.format(issue=quotes.issue, detail=quotes.detail)


def emotion_words(
    quotes: Quotes,
    emotion: Emotion,
    intensity: Rating,
    language: str,
    part: str,
    note: str | None,
    rng: np.random.Generator,
) -> str:
    """The text of step 2."""
    if note:
        return one_line(note)
    known = wordings(language)
    feeling, strength = _draw(known["feeling"][emotion], rng), _draw(known["strength"][str(intensity)], rng)
    frames = [f for f in known["emotion"][part]["text"] if quotes.said != quotes.issue or "{said}" not in f]
    text = _draw(frames, rng).format(
        said=quotes.said, feeling=feeling, Feeling=feeling[0].upper() + feeling[1:], strength=strength
    )
    return text[:MAX_STEP]


def strategy_words(
    quotes: Quotes, strategy: Strategy, language: str, part: str, note: str | None, rng: np.random.Generator
) -> str:
    """The text of step 3."""
    if note:
        return one_line(note)
    known = wordings(language)["strategy"][part][strategy]
    return _draw([text for text in known if quotes.aside or "{aside}" not in text], rng).format(aside=quotes.aside)


def _draw(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]
