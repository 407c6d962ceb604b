"""The fixed words of the guard: what a seeker reads in a crisis, beside a worrying turn, or instead of a bad reply.

The wordings are TOML files, one a language, read and checked once; a language we have none for gets the English ones.
In a crisis the first reply of a kind is a full one; as the conversation goes on, shorter ones follow in turn, each
with the numbers, so that nobody reads the same text again and again.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, StringConstraints

from compeer.io import Frozen
from compeer.safety.resources import HelpLine, Resources, read_toml
from compeer.safety.risk import KINDS, Kind

FOLDER = Path(__file__).with_name("fixed_replies")
LANGUAGES = ("en", "zh")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")

_TEXT = r"(?:[^{}]|\{resources\}|\{emergency\})*"  # these two are all the placeholders there are
Wording = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, pattern=rf"^{_TEXT}$")]
NumberedWording = Annotated[str, StringConstraints(strip_whitespace=True, pattern=rf"^{_TEXT}\{{resources\}}{_TEXT}$")]

LinePart = Literal["emergency", "line", "phone", "text", "word", "chat", "or", "neutral_emergency"]


class Wordings(Frozen):
    crisis: dict[Kind, Annotated[tuple[NumberedWording, ...], Field(min_length=3)]] = Field(min_length=len(KINDS))
    concern: dict[Kind, NumberedWording] = Field(min_length=len(KINDS))
    handed_over: dict[Literal["first", "again"], Annotated[str, Field(min_length=1)]] = Field(min_length=2)
    resources: dict[LinePart, str] = Field(min_length=len(get_args(LinePart)))  # how a help line is written down
    hours: dict[str, str]
    safe: dict[str, Annotated[tuple[Wording, ...], Field(min_length=2)]]


@cache
def wordings(language: str) -> Wordings:
    """The words of a language ("zh", "zh-CN"), or the English ones."""
    code = language.lower().replace("_", "-").split("-")[0]
    return read_toml(FOLDER / f"{code if code in LANGUAGES else 'en'}.toml", Wordings)


def language_of(messages: Sequence[str]) -> str:
    """The language to answer in: Chinese if the newest message that has letters holds Chinese characters."""
    for message in reversed(messages):
        if _HAN.search(message):
            return "zh"
        if any(character.isalpha() for character in message):
            return "en"
    return "en"


def recognised(utterances: Sequence[str]) -> tuple[tuple[Kind, ...], bool, bool]:
    """The fixed words on the supporter's side, in any language: the crises, whether a concern, whether a hand-over."""
    crises: list[Kind] = []
    concern = handed_over = False
    for text in utterances:
        for words in map(wordings, LANGUAGES):
            crises += [kind for kind, own in words.crisis.items() if any(_opening(wording) in text for wording in own)]
            concern = concern or any(_opening(wording) in text for wording in words.concern.values())
            handed_over = handed_over or any(wording in text for wording in words.handed_over.values())
    return tuple(crises), concern, handed_over


def _opening(wording: str) -> str:
    return wording.partition("{")[0].strip()  # what follows depends on the locale


class Replies:
    """The fixed replies of one language, filled with the resources of one locale."""

    def __init__(self, language: str, resources: Resources, locale: str | None) -> None:
        self.language = language
        self._words = wordings(language)
        self._resources, self._country = resources, resources.country(locale)

    def crisis(self, kinds: Sequence[Kind], earlier: int, handed_over: bool) -> str:
        """The reply to the first of `kinds`, after so many earlier ones of that kind."""
        first, *again = self._words.crisis[kinds[0]]
        text = self._filled(again[(earlier - 1) % len(again)] if earlier else first, kinds)
        return f"{self._words.handed_over['again' if earlier else 'first']}\n\n{text}" if handed_over else text

    def concern(self, kind: Kind) -> str:
        """A short gentle passage with resources, to stand after the supporter's own reply."""
        return self._filled(self._words.concern[kind], [kind])

    def unread(self, language: str) -> str:
        """Where to find help, for somebody who writes in a language that the guard cannot read."""
        texts = read_toml(FOLDER / "unread.toml", dict[str, NumberedWording])
        return self._filled(texts.get(language, texts[self.language]), ["suicide"])

    def safe(self, category: str, turn: int) -> str:
        """A reply to show instead of one that was rejected; which of several depends on the turn."""
        texts = self._words.safe.get(category) or self._words.safe["general"]
        return self._filled(texts[turn % len(texts)], ["medical emergency"])

    def numbers(self, kinds: Sequence[Kind]) -> str:
        """The emergency number and the help lines for these kinds of danger, one a line."""
        if self._country is None:
            neutral = self._resources.neutral
            return (neutral.get(self.language) or neutral["en"]).strip()
        numbers = [self._words.resources["emergency"].format(number=self._country.urgent(kind)) for kind in kinds]
        lines = [self._line(line) for kind in kinds for line in self._country.fitting(kind, self.language)]
        return "\n".join(f"- {line}" for line in dict.fromkeys(numbers + lines))

    def _filled(self, text: str, kinds: Sequence[Kind]) -> str:
        emergency = self._country.emergency if self._country else self._words.resources["neutral_emergency"]
        return text.format(resources=self.numbers(kinds), emergency=emergency)

    def _line(self, line: HelpLine) -> str:
        words = self._words.resources
        ways = [words["phone"].format(number=line.phone)] if line.phone else []
        if line.text:
            ways.append(words["word" if line.word else "text"].format(word=line.word, number=line.text))
        if line.chat:
            ways.append(words["chat"].format(address=line.chat))
        name, hours = line.names.get(self.language, line.name), self._words.hours.get(line.hours, line.hours)
        return words["line"].format(name=name, ways=words["or"].join(ways), hours=hours)
