"""The rules: patterns in a data file, the contexts that take a match back, and the search of one message.

A message is brought to its plain form and cut into sentences. Idioms are blanked, then each rule looks for its
patterns; a match counts unless a context that the rule heeds says otherwise: negation, past, fiction, quotation,
somebody else. Patterns read short stretches with bounded gaps, so the time grows with the length of the text and no
faster. Of a very long message (`shortened`) the beginning, the end and the stretches around hot words are read; if even
these are too many, or it is too long to search for them, the result says that not all was read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from compeer.errors import InputError
from compeer.io import Frozen
from compeer.safety.resources import read_toml
from compeer.safety.risk import Kind
from compeer.safety.text import Spelling, letters

Strength = Literal["sign", "concern", "crisis"]  # a sign says something only together with others

READ_WHOLE = 8_000  # characters of a message that are read in full; of a longer one parts are
SEARCHED = 60_000  # characters of a longer message in which hot words are searched for
_EDGE, _AROUND = 2_000, 300
_SENTENCES = re.compile(r"[.!?。！？…\n]+")
_CLAUSES = re.compile(r"[,;:，；：、()（）—]| - |\bbut\b|但是|可是|不过")
_HAN = re.compile("[\u3400-\u9fff]")
_LATIN = re.compile("[a-z]{2}")

Pattern = Annotated[str, Field(min_length=1)]


class ContextData(Frozen):
    """A context: every field that is given must be found, and no `unless` field."""

    effect: Literal["none", "concern"]
    before: tuple[Pattern, ...] = ()
    after: tuple[Pattern, ...] = ()
    sentence: tuple[Pattern, ...] = ()
    message: tuple[Pattern, ...] = ()
    unless_before: tuple[Pattern, ...] = ()
    unless_after: tuple[Pattern, ...] = ()
    unless_sentence: tuple[Pattern, ...] = ()
    unless_message: tuple[Pattern, ...] = ()
    in_quotes: bool = False
    only: tuple[str, ...] = ()


class RuleData(Frozen):
    """A rule: what it is called, what it is a sign of and how strong, and its patterns."""

    name: str
    kind: Kind
    level: Strength
    patterns: tuple[Pattern, ...]
    group: str = ""
    heeds: tuple[str, ...] | None = None
    firm: bool = False  # no reader takes back what the patterns find
    loose: tuple[Pattern, ...] = ()  # find more, and often in what is harmless: a reader that is sure takes that back


class LanguageData(Frozen):
    """A rule file."""

    fillers: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    spelling: dict[str, str] = Field(default={})
    phrases: dict[str, str] = Field(default={})
    words: dict[str, str]
    contexts: dict[str, ContextData]
    heeds: tuple[str, ...]
    hot: str
    idioms: dict[Literal["blanked", "doubtful"], tuple[Pattern, ...]]  # taken out, or beside which nothing is firm
    rules: tuple[RuleData, ...]
    turns: dict[Literal["safe", "joking"], tuple[Pattern, ...]] = Field(min_length=2)  # said of an earlier danger


@dataclass(frozen=True)
class Match:
    rule: str
    kind: Kind
    level: Strength
    group: str
    firm: bool = False


@dataclass(frozen=True)
class Scan:
    matches: tuple[Match, ...] = ()
    safe: bool = False
    joking: bool = False
    taken_back: tuple[str, ...] = ()  # rules that were met and taken back by a context
    idiom: bool = False  # whether there was a turn of phrase that only sounds like danger
    plain: str = field(default="", repr=False)  # the message as the rules read it


@dataclass(frozen=True)
class _Context:
    data: ContextData
    compiled: Mapping[str, re.Pattern[str]]

    def lowers(self, rule: str, parts: Mapping[str, str], in_quotes: bool) -> bool:
        """Whether the context holds for a match with these parts before, after and around it."""
        if (self.data.only and rule not in self.data.only) or (self.data.in_quotes and not in_quotes):
            return False
        return all(
            bool(pattern.search(parts[name.removeprefix("unless_")])) != name.startswith("unless_")
            for name, pattern in self.compiled.items()
        )


_Rule = tuple[Match, re.Pattern[str], tuple[_Context, ...]]  # what it finds, how, and the contexts that it heeds


class Rules:
    """The rules of one language, read from its file."""

    def __init__(self, language: str, path: Path | None = None) -> None:
        file = path or Path(__file__).parent / "rules" / f"{language}.toml"
        data = read_toml(file, LanguageData, "Mend the rule file.")
        self._file, self._words, self._gap = file, data.words, _GAPS[language]
        self._edges = _EDGES[language]
        self._spelling = Spelling(data.spelling, data.phrases, data.known, data.fillers)
        self._idioms = self._compile("idioms", data.idioms.get("blanked", ()))
        self._doubtful = self._compile("idioms", data.idioms.get("doubtful", ()))
        self._hot = self._compile("hot", [data.hot], edges=False)
        self._turns: dict[str, re.Pattern[str]] = {
            name: self._compile(name, turns) for name, turns in data.turns.items()
        }
        contexts = {name: self._context(name, context) for name, context in data.contexts.items()}
        self._rules: list[_Rule] = []
        for rule in data.rules:
            heeded = data.heeds if rule.heeds is None else rule.heeds
            if unknown := [name for name in heeded if name not in contexts]:
                what = f"there is no context '{unknown[0]}'."
                raise InputError(what, file=file, field=rule.name, do="Mend the rule.")
            heeds = tuple(contexts[name] for name in heeded)
            for firm, patterns in ((rule.firm, rule.patterns), (False, rule.loose)):
                if patterns:
                    match = Match(rule.name, rule.kind, rule.level, rule.group, firm)
                    self._rules.append((match, self._compile(rule.name, patterns), heeds))

    def scan(self, message: str) -> Scan:
        text = self._spelling.plain(message)
        met: list[tuple[str, Match | None]] = []
        idiom = False
        doubtful = bool(self._doubtful.search(text))
        for sentence in _split(text):
            blanked = self._idioms.sub(" ~ ", sentence)
            idiom = idiom or blanked != sentence
            blanked = re.sub(" +", " ", blanked)
            met += [(rule[0].rule, match) for rule in self._rules for match in self._matches(rule, blanked, text)]
        found = dict.fromkeys(replace(match, firm=match.firm and not doubtful) for _, match in met if match)
        taken_back = dict.fromkeys(name for name, match in met if match is None)
        safe, joking = (bool(self._turns[name].search(text)) for name in ("safe", "joking"))
        return Scan(tuple(found), safe, joking, tuple(taken_back), idiom, text)

    def _matches(self, rule: _Rule, sentence: str, text: str) -> Iterator[Match | None]:
        """The matches of a rule in a sentence; None for one that a context takes back."""
        found, pattern, heeds = rule
        for hit in pattern.finditer(sentence):
            before = _CLAUSES.split(sentence[: hit.start()])[-1].lstrip()
            after = _CLAUSES.split(sentence[hit.end() :], maxsplit=1)[0].rstrip()
            parts = {"before": before, "after": after, "sentence": sentence, "message": text}
            in_quotes = sentence[: hit.start()].count('"') % 2 == 1
            effects = {one.data.effect for one in heeds if one.lowers(found.rule, parts, in_quotes)}
            if "none" in effects:
                yield None
                continue
            level = "concern" if effects and found.level == "crisis" else found.level
            yield replace(found, level=level, firm=found.firm and not effects)
            if level == found.level:
                return

    def stretches(self, text: str, start: int) -> Iterator[tuple[int, int]]:
        """Where hot words stand from a position of a text on, with what stands around them."""
        for hit in self._hot.finditer(text, start):
            yield max(start, hit.start() - _AROUND), min(len(text), hit.end() + _AROUND)

    def _context(self, name: str, data: ContextData) -> _Context:
        fields = [field for field, value in data if isinstance(value, tuple) and value and field != "only"]
        return _Context(data, {field: self._compile(name, getattr(data, field), edges=False) for field in fields})

    def _compile(self, name: str, patterns: Sequence[str], edges: bool = True) -> re.Pattern[str]:
        joined = "|".join(patterns)
        for _ in range(4):  # a word may be made of words
            joined = re.sub(r"<([a-z_]+)>", self._named, joined)
        joined = joined.replace("~~", self._gap.format(7)).replace("~", self._gap.format(3))
        before, after = self._edges if edges else ("", "")
        try:
            return re.compile(f"{before}(?:{joined or '(?!)'}){after}")  # without a pattern it matches nothing
        except re.error as error:
            raise InputError(f"a pattern cannot be read: {error}", file=self._file, field=name, do="Mend it.") from None

    def _named(self, found: re.Match[str]) -> str:
        if found[1] not in self._words:
            raise InputError(f"there is no word '<{found[1]}>'.", file=self._file, field="words", do="Add it.")
        return self._words[found[1]]


_GAPS = {"en": r"(?:(?!not |never )[a-z0-9]+ ){{0,{0}}}", "zh": r"[^，。！？；,.!?;\n]{{0,{0}}}"}
_EDGES = {"en": (r"(?<![a-z0-9])", r"(?![a-z0-9])"), "zh": ("", "")}
_LONGEST_SENTENCE = 2_000


def _split(text: str) -> Iterator[str]:
    """The sentences of a text; one without an end is cut, with an overlap."""
    for sentence in _SENTENCES.split(text):
        sentence = sentence.strip()
        for start in range(0, max(len(sentence), 1), _LONGEST_SENTENCE - 200):
            if part := sentence[start : start + _LONGEST_SENTENCE].strip():
                yield part


def shortened(message: str) -> tuple[str, bool]:
    """The parts of a message that are read, and whether they are all that could matter."""
    if len(message) <= READ_WHOLE:
        return message, True
    text, whole = letters(message[:SEARCHED]), len(message) <= SEARCHED
    last = letters(message[-_EDGE:])
    rules = map(language_rules, languages_of(text))
    stretches = sorted(stretch for one in rules for stretch in one.stretches(text, _EDGE))
    parts, length, read = {text[:_EDGE]: None}, 2 * _EDGE, _EDGE
    for start, end in stretches:
        part = text[max(start, read) : end]
        if len(part) <= _AROUND // 2 or part in parts:
            continue
        if length + len(part) > READ_WHOLE:
            whole = False
            break
        parts[part] = None
        length, read = length + len(part), end
    return "\n".join([*parts, last]), whole


language_rules = cache(Rules)  # the packaged rules of a language, read once


@lru_cache(maxsize=4096)
def scanned(message: str, language: str) -> Scan:
    """What the rules of a language find in a message; the last ones are remembered."""
    return language_rules(language).scan(message)


def languages_of(message: str) -> list[str]:
    """The languages whose rules a message is read with: by its script, and both where it has both."""
    found = ["zh"] if _HAN.search(message) else []
    return [*found, "en"] if not found or _LATIN.search(message.lower()) else found
