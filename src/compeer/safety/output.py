"""A check of the supporter's own reply before anybody reads it: no diagnosis, no dose, no secrecy, no contempt …

The rules are data (`output/en.toml`, `output/zh.toml`). A reply is brought to plain form and cut into sentences; a rule
is a pattern that must not be found in a sentence, with what excuses it: a negation just before it ("it is not your
fault"), a condition ("only a doctor can tell whether you have …"), words of others ("he told you that you are …"), a
question, or the rule's own `unless`. A rule may need that the seeker `asked` for something ("are you human?" – "yes"),
and one about a `term` lets it pass where the seeker had stated it ("my bipolar disorder"). Both languages' rules look
at every reply. All patterns look at a bounded stretch of text, so that the time grows with the length and no faster.
What no rule finds is weighed (`output_phrases.py`), or read by the large reader where it is on this machine
(`check_carefully`); where the weights cannot be read, the rules go on without them.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from compeer.io import Frozen
from compeer.safety import large
from compeer.safety.output_phrases import ReplyPhrases
from compeer.safety.resources import read_toml
from compeer.safety.risk import Category, Finding
from compeer.safety.text import Spelling, letter_table

Excuse = Literal["negation", "condition", "report"]
LONGEST = 20_000  # a reply longer than this is none: the guard replaces it unread
FOLDER = Path(__file__).with_name("output")
LANGUAGES = ("en", "zh")
WEIGHED = "weighted phrases"  # stands for a rule's name where these found something
_STRETCH, _OVERLAP = 600, 200  # a sentence longer than this is looked at in stretches that overlap

Check = Callable[[str, Sequence[str]], Finding | None]  # of a reply to what the seeker wrote


class ReplyRule(Frozen):
    """A rule: what must not be found in a sentence, and what excuses it."""

    name: str = Field(min_length=1)
    category: Category
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None = None  # excuses the sentence it is found in
    excuses: tuple[Excuse, ...] = get_args(Excuse)
    questions: bool = False  # whether it is also looked for in questions
    asked: re.Pattern[str] | None = None  # what the seeker's last message must hold for the rule to count
    stated: bool = False  # let it pass where the seeker stated the group `term`
    longest: int | None = None  # it counts only in a reply of at most so many characters that asks nothing


class ReplyRules(Frozen):
    """The rules of one language with the word lists they use, written @name@ in patterns."""

    words: dict[str, str]
    excuses: dict[Excuse, re.Pattern[str]]  # a report excuses from anywhere before, the others from the same clause
    boundary: re.Pattern[str]  # what parts clauses: a negation counts only within its own
    stated: str  # how a seeker states a term, written @term@, as a fact about themselves
    rules: tuple[ReplyRule, ...]

    @model_validator(mode="before")
    @classmethod
    def _with_words(cls, data: dict[str, Any]) -> Any:
        """The data with all word lists instead of their names."""
        written = json.dumps(data)
        for name, listed in reversed(data.get("words", {}).items()):  # a list may use those before it
            written = written.replace(f"@{name}@", json.dumps(f"(?:{listed})")[1:-1])
        return json.loads(written)


_PLAIN = Spelling({}, {}, (), ())
_TRADITIONAL = letter_table("traditional_in_replies")
_MARKUP = re.compile(r"[*_`#\"“”„‟«»~>]+")
_SENTENCE = re.compile(r"[^.!?。！？；;\n]*(?:\.(?=[^\s])[^.!?。！？；;\n]*)*[.!?。！？；;\n]*")


def check_reply(reply: str, seeker: Sequence[str] = ()) -> Finding | None:
    """The first rule that a reply to the seeker's messages breaks, else what its weighted phrases tell, or None."""
    found, phrases = check_rules(reply, seeker), _phrases()[0]
    if found or phrases is None:
        return found
    odds, category = phrases.weigh(plain(reply[:LONGEST]), plain(seeker[-1][-2_000:]) if seeker else "")
    return Finding(WEIGHED, category) if odds >= 0 else None


def check_carefully(reply: str, seeker: Sequence[str] = ()) -> Finding | None:
    """As `check_reply`, but by the large reader, where it is here, which may also take back what a rule found."""
    try:
        reader = large.large_reader()
        if reader is not None and reader.checks_replies:
            return reader.fault(reply[-LONGEST:], seeker, check_rules(reply, seeker))
    except Exception:  # the weights stand in; the detector, which is asked before, says so
        pass
    return check_reply(reply, seeker)


def check_rules(reply: str, seeker: Sequence[str] = ()) -> Finding | None:
    """The first rule that the reply breaks, or None."""
    last, text = [plain(message[-LONGEST:]) for message in seeker[-1:]], plain(reply)
    asks = "?" in text or "？" in text
    active = [
        (language, rule)
        for language, rule in _rules()
        if (rule.asked is None or (last and rule.asked.search(last[0])))
        and (rule.longest is None or (len(text) <= rule.longest and not asks))
    ]
    sentences = dict.fromkeys(_stretches(text))  # the same sentence again need not be read again
    broken = (rule for one in sentences for language, rule in active if _breaks(language, rule, one, seeker))
    return next((Finding(rule.name, rule.category) for rule in broken), None)


def without_weights() -> tuple[str, ...]:
    """Says, in words, that replies are checked by nothing but rules, where the weights cannot be used; else nothing."""
    return _phrases()[1]


@cache
def _phrases() -> tuple[ReplyPhrases | None, tuple[str, ...]]:
    """The packaged weights, and what is wrong with them."""
    try:
        phrases = ReplyPhrases()
        phrases.weigh("", "")
    except Exception as error:  # a check by rules only is better than none
        return None, (f"the weighted phrases of replies could not be used ({type(error).__name__}): rules alone",)
    return phrases, ()


def plain(text: str) -> str:
    """A text in the form that rules and weights read."""
    return _PLAIN.plain(_MARKUP.sub("", text).translate(_TRADITIONAL))


def _stretches(text: str) -> Iterator[str]:
    for sentence in filter(None, (found[0].strip() for found in _SENTENCE.finditer(text))):
        for start in range(0, max(1, len(sentence) - _OVERLAP), _STRETCH - _OVERLAP):
            yield sentence[start : start + _STRETCH]


def _breaks(language: ReplyRules, rule: ReplyRule, sentence: str, seeker: Sequence[str]) -> bool:
    found = rule.pattern.search(sentence)
    if found is None or (not rule.questions and sentence.endswith(("?", "？"))):
        return False
    if rule.unless is not None and rule.unless.search(sentence):
        return False
    while found is not None:
        before = sentence[: found.start()]
        clause = language.boundary.split(before[-160:])[-1]
        excused = any(language.excuses[name].search(before if name == "report" else clause) for name in rule.excuses)
        if not excused and not (rule.stated and _stated(language, found["term"], seeker)):
            return True
        found = rule.pattern.search(sentence, found.end() if found.end() > found.start() else found.end() + 1)
    return False


def _stated(language: ReplyRules, term: str, messages: Sequence[str]) -> bool:
    """Whether the seeker stated the term as a fact, by the first letters of its telltale word; a question is none."""
    if term.isascii():
        words = re.findall(r"[a-z0-9.]+", term)
        telltale = next((word for word in words if word not in _MODIFIERS), words[0] if words else term)
        stem = re.escape(telltale if telltale[0].isdigit() else telltale[:5])
    else:
        stem = re.escape(term[:2])
    claim = re.compile(language.stated.replace("@term@", rf"(?<!\d){stem}"))
    sentences = (sentence for message in messages for sentence in _stretches(plain(message[-LONGEST:])))
    return any(claim.search(sentence) and not sentence.endswith(("?", "？")) for sentence in sentences)


_MODIFIERS = frozenset(("a", "an", "the", "major", "clinical", "severe", "mild", "chronic", "post", "social", "your"))


@cache
def _rules() -> tuple[tuple[ReplyRules, ReplyRule], ...]:
    languages = [read_toml(FOLDER / f"{language}.toml", ReplyRules) for language in LANGUAGES]
    return tuple((language, rule) for language in languages for rule in language.rules)


def floored(rewards: Sequence[float], rejected: Sequence[bool], floor: float = -5.0) -> list[float]:
    """A group's rewards with those of rejected replies set to the floor: the last step, after reweighting.

    Reweighting can take harmless rewards below the floor; so it is lowered, where it must, to one below the lowest of
    the others: what the guard rejects is always the worst of its group. A rejected reply needs no score to be bad: a
    NaN becomes the floor too. Pure.
    """
    accepted = [reward for reward, bad in zip(rewards, rejected, strict=True) if not bad and reward == reward]
    lowest = min([floor, *(reward - 1 for reward in accepted)])
    return [lowest if bad else float(reward) for reward, bad in zip(rewards, rejected, strict=True)]


class SentenceGate:
    """Lets a reply through sentence by sentence as it is written: each is released once it has passed the check.

    `feed` takes the next piece and returns what may be shown now; `close` the rest. Once something was found
    (`finding`, or `failed` where the check itself broke) nothing more is released.
    """

    _END = re.compile(r"[.!?…][\"')\]]*\s|[。！？；]|\n")
    _CONTEXT = 400
    _LONGEST = 2000

    def __init__(self, seeker: Sequence[str] = (), check: Check = check_reply) -> None:
        self._seeker, self._check = tuple(seeker), check
        self._waiting, self._released, self._length = "", "", 0
        self.finding: Finding | None = None
        self.failed: str | None = None

    @property
    def open(self) -> bool:
        return self.finding is None and self.failed is None

    def feed(self, piece: str) -> str:
        if not self.open:
            return ""
        self._length += len(piece)
        if self._length > LONGEST:
            self.failed = "too long"
            return ""
        start = max(0, len(self._waiting) - 3)
        self._waiting += piece
        ends = [found.end() for found in self._END.finditer(self._waiting, start)]
        if not ends and len(self._waiting) > self._LONGEST:
            ends = [self._waiting.rfind(" ") + 1 or len(self._waiting)]
        return self._release(ends[-1]) if ends else ""

    def close(self) -> str:
        return self._release(len(self._waiting)) if self.open and self._waiting else ""

    def _release(self, end: int) -> str:
        text, self._waiting = self._waiting[:end], self._waiting[end:]
        try:
            self.finding = self._check(self._released[-self._CONTEXT :] + text, self._seeker)
        except Exception as error:  # a broken check lets nothing through
            self.failed = type(error).__name__
        if not self.open:
            return ""
        self._released = (self._released + text)[-self._CONTEXT :]
        return text
