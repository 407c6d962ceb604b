"""SAGE's rules: how a seeker's emotion moves, when a conversation ends, and what counts as a success.

A sentient seeker carries one number, its emotion, from 0 to 100. After each reply of the supporter it says by how much
the reply changed it; `update` applies that change, held to the largest one allowed and to the scale, and tells whether
the conversation has been won or lost by it. The rest of the rules are the number of turns and whether the reply to the
seeker's last message is scored too. Published variants are presets:

    sage             start 40, changes of at most 10, won at 100, lost below 10, 10 seeker turns, last reply scored
    sage-released    the same, but as the released code does it: the last reply is not scored
    sage-paper       the same as sage with 20 seeker turns
    rlver            start 30, changes of any size, won at 100, lost at 0, 8 seeker turns

The answer, how much a reply changed the emotion and why, is asked for as two lines, `Reasons: …` and `Change: +5`.
Models write other things too: other labels, Chinese, full-width signs, brackets, JSON, a bare number, the old and the
new level behind the change. A change is read only where one reading is possible. A range, several numbers, a
percentage, two different changes, or nothing at all is a `Complaint`, which says what is wrong so that the model can be
asked again. The number is given as it was written: holding it to the largest change allowed is the business of the
rules, done in the open.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from compeer.errors import InputError
from compeer.io import Frozen
from compeer.simulate.agents import Complaint, split_thinking

Outcome = Literal["success", "failure"]
LOWEST, HIGHEST = 0, 100
"""The scale of emotion; it is the same in every preset."""


class EmotionRules(Frozen):
    """How emotion moves and when a conversation ends."""

    start: int = Field(default=40, ge=LOWEST, le=HIGHEST, description="emotion before the first reply")
    largest_change: int | None = Field(default=10, ge=1, description="most that one reply can change; none: any size")
    success_at: int = Field(default=100, ge=LOWEST, le=HIGHEST, description="emotion from which a dialogue is won")
    failure_at: int = Field(default=10, ge=LOWEST, le=HIGHEST, description="where a dialogue is lost")
    failure_when: Literal["below", "at or below"] = Field(
        default="below", description="whether an emotion of exactly `failure_at` is still in play or lost already"
    )
    turns: int = Field(default=10, ge=1, description="most messages of the seeker, its opening included")
    score_last_reply: bool = Field(
        default=True, description="score the reply to the seeker's last message; the released code does not"
    )

    @model_validator(mode="after")
    def _start_is_in_play(self) -> EmotionRules:
        if outcome_of(self.start, self) is not None:
            raise ValueError("a dialogue would be over before it begins: start must lie between failure and success")
        return self


def outcome_of(emotion: float, rules: EmotionRules) -> Outcome | None:
    """Whether a dialogue that stands at this emotion is won, lost, or neither."""
    if emotion >= rules.success_at:
        return "success"
    if emotion < rules.failure_at or (rules.failure_when == "at or below" and emotion == rules.failure_at):
        return "failure"
    return None


def allowed_change(change: float, rules: EmotionRules) -> float:
    """The change held to the largest one that the rules allow in either direction."""
    if rules.largest_change is None:
        return change
    return max(-rules.largest_change, min(rules.largest_change, change))


SAGE = EmotionRules()
SAGE_RELEASED = EmotionRules(score_last_reply=False)
SAGE_PAPER = EmotionRules(turns=20)
RLVER = EmotionRules(start=30, largest_change=None, failure_at=0, failure_when="at or below", turns=8)
PRESETS = {"sage": SAGE, "sage-released": SAGE_RELEASED, "sage-paper": SAGE_PAPER, "rlver": RLVER}


def update(emotion: float, change: float, rules: EmotionRules = SAGE) -> tuple[float, Outcome | None]:
    """The emotion after a change, and whether the dialogue ends there: `update(95, 7)` gives `(100, "success")`.

    The change is held to the rules' largest one and the emotion to 0 … 100. A number that is none (NaN, infinity) or
    an emotion outside the scale is a mistake of the caller and raises `ValueError`: it must not become a score.
    """
    if not math.isfinite(change):
        raise ValueError(f"a change of emotion must be a finite number, not {change}")
    if not LOWEST <= emotion <= HIGHEST:
        raise ValueError(f"emotion must lie between {LOWEST} and {HIGHEST}, not {emotion}")
    after = max(LOWEST, min(HIGHEST, emotion + allowed_change(change, rules)))
    return after, outcome_of(after, rules)


def preset(name: str) -> EmotionRules:
    """The rules of that name; see the module's text."""
    if name not in PRESETS:
        raise InputError(f"there are no rules '{name}'.", field="rules", do=f"Give one of: {', '.join(PRESETS)}.")
    return PRESETS[name]


MAX_ANSWER = 20_000
"""Characters; nobody's reasons are longer, and what is cut might be the number."""


@dataclass(frozen=True)
class EmotionAnswer:
    """By how much a reply changed the seeker's emotion, as the model wrote it, and its reasons (empty: none given)."""

    change: float
    reasons: str


def read_emotion_answer(text: str, emotion: float | None = None) -> EmotionAnswer | Complaint:
    """The change and its reasons, or what is wrong with the answer.

    A change that is given by its ends alone ("from 40 to 45") counts if `emotion`, the level before it, is the first.
    """
    plain = plain_text(text)
    if not plain:
        return Complaint("empty", "it is empty")
    if len(plain) > MAX_ANSWER:
        return _unreadable(f"it is longer than {MAX_ANSWER} characters")
    fields = _json_fields(plain) if plain.startswith("{") else _line_fields(plain)
    if isinstance(fields, Complaint):
        return fields
    changes, reasons = fields
    if not changes:
        return _unlabelled(plain, emotion)
    found: dict[float, str] = {}
    for value in changes:
        if _BULLET_OR_MINUS.match(value):
            return _unreadable("the change stands behind a dash that may be a minus or a bullet")
        first, _, below = value.strip().partition("\n")
        number = _read_number(first, emotion)
        if isinstance(number, Complaint):
            return number
        if any(_is_number(line, emotion) for line in below.splitlines()):
            return _unreadable("more than one number stands behind 'Change'")
        found[number.value] = _paragraphs(number.rest, below)
    if len(found) > 1:
        return _unreadable(f"it gives {len(found)} different changes")
    [(change, rest)] = found.items()
    return EmotionAnswer(change, _paragraphs(*reasons) or rest)


def tells_change(text: str) -> bool:
    """Whether a line of a text is labelled as a change of emotion and gives one; no message to a supporter does."""
    return any(
        match["start"] is not None
        and match["change"]
        and _is_number(text[match.end() :].strip().partition("\n")[0], None)
        for match in _LABEL.finditer(text)
    )


def _unreadable(why: str) -> Complaint:
    return Complaint("unparsable", why)


_FENCE = re.compile(r"\A```[a-z]*[^\S\n]*\n(.*?)\n?```\Z", re.DOTALL | re.IGNORECASE)


def plain_text(text: str) -> str:
    """A model's answer without the thinking before it and the code fence around it; thinking without an end is none."""
    return _FENCE.sub(r"\1", split_thinking(text)[1]).strip()


def _paragraphs(*parts: str) -> str:
    return "\n".join(part.strip() for part in parts if part.strip())


# --- fields -----------------------------------------------------------------------------------------------------------

_CHANGE = (
    r"(?:(?:(?:overall|total|net)[ _])?(?:emotion(?:al)?[ _-])?change|change[ _]in[ _]emotion|delta"
    r"|(?:情绪|情感)?变化[值量]?)"
)
_REASONS = r"(?:reasons?|reasoning|analysis|explanation|理由|原因|分析)"
_LABEL = re.compile(
    r"(?:(?P<start>^[ \t\u3000>#*_`\"'“”‘’\[(（【「•·\-]*)|(?<=[\s.。;；,，|!！?？]))"
    rf"(?:(?P<change>{_CHANGE})|(?P<reasons>{_REASONS}))[*_`\"'“”‘’\]】」]*[^\S\n]*(?:(?P<colon>[:：=＝][*_`]*)|$)",
    re.IGNORECASE | re.MULTILINE,
)


_Fields = tuple[list[str], list[str]]
"""What stands behind the labels for the change, and behind those for the reasons or before any label."""


def _line_fields(text: str) -> _Fields:
    """The fields of an answer in lines, in whatever order they come.

    A label opens a line; in the middle of one it needs its colon and a capital letter, or is Chinese.
    """
    labels = [
        match
        for match in _LABEL.finditer(text)
        if match["start"] is not None or (match["colon"] and not (match["change"] or match["reasons"])[0].islower())
    ]
    changes: list[str] = []
    reasons = [text[: labels[0].start()]] if labels else []
    for match, end in zip(labels, [*(match.start() for match in labels[1:]), len(text)], strict=False):
        (changes if match["change"] else reasons).append(text[match.end() : end])
    return changes, reasons


def _json_fields(text: str) -> _Fields | Complaint:
    """The fields of an answer that is a JSON object; the numbers stay as they were written."""
    unsigned = re.sub(r'("\s*:\s*)\+(?=[0-9])', r"\1", text)  # +5 is no JSON number, and yet it is what was asked for
    try:
        # pairs, not a dict: of two changes a dict would quietly keep the last
        pairs = json.loads(unsigned, object_pairs_hook=list, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return _unreadable("it opens like JSON and is none")
    changes: list[str] = []
    reasons: list[str] = []
    for key, value in pairs:
        values = value if isinstance(value, list) else [value]
        if re.fullmatch(_CHANGE, key.strip(), re.IGNORECASE):
            changes.append(value if isinstance(value, str) else "")
        elif re.fullmatch(_REASONS, key.strip(), re.IGNORECASE):
            reasons += [part for part in values if isinstance(part, str)]
    return changes, reasons


def _unlabelled(text: str, emotion: float | None) -> EmotionAnswer | Complaint:
    """An answer without a label for the change: a number alone on its line, signed where there are other lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    places = [place for place, line in enumerate(lines) if _is_number(line, emotion)]
    if len(places) > 1:
        return _unreadable("it holds more than one number, and none is marked as the change")
    if not places and len(lines) > 1:
        return _unreadable("there is no line 'Change:' with one number")
    place = places[0] if places else 0
    number = _read_number(lines[place], emotion)
    if isinstance(number, Complaint):
        return _unreadable("there is no line 'Change:' with one number")
    reasons = _paragraphs(*lines[:place], number.rest, *lines[place + 1 :])
    if reasons and not number.signed:
        return _unreadable("there is no line 'Change:', and the only number has no sign")
    if _BULLET_OR_MINUS.match("\n" + lines[place]):
        return _unreadable("the change stands behind a dash that may be a minus or a bullet")
    label = _LABEL.match(reasons)
    return EmotionAnswer(number.value, reasons[label.end() if label else 0 :].strip())


# --- one number -------------------------------------------------------------------------------------------------------

_HALF_WIDTH = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    | dict.fromkeys("−–—‐‑‒―﹣➖", "-")
    | {"➕": "+", "\u3000": " "}
)
"""Full-width signs and the many dashes, one character for one, so that places in the text stay."""
_BULLET_OR_MINUS = re.compile(r"[^\S\n]*\n\s*[-−–—－]\s")

_ENGLISH = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = {word: number for words in (_ENGLISH, "零一二三四五六七八九十") for number, word in enumerate(words)} | {
    "两": 2
}
_DIGITS = r"[0-9]{1,6}(?:\.[0-9]{1,6})?"
_OPEN, _CLOSE = r"[\s*_`\"'“”‘’\[({<【「]{0,8}", r"[\s*_`\"'“”‘’\])}>】」]{0,8}"
_ENDS = re.compile(
    rf"(?P<start>from|从|由)?\s*(?P<old>{_DIGITS})\s*"
    rf"(?:(?P<arrow>[-=]+>|[→⇒➔])|to|[升降]?[到至]|变[为成])\s*(?P<new>{_DIGITS})",
    re.IGNORECASE,
)
_VALUE = re.compile(
    rf"{_OPEN}(?:(?P<same>no change|unchanged|(?:保持)?不变|没变|(?:没有?|无)变化)|(?:(?P<up>"
    r"increase[sd]?|rises?|rose|up|plus|上升|增加|升高|提高|提升|加|正)|(?P<down>"
    r"decrease[sd]?|drop(?:s|ped)?|falls?|fell|down|minus|下降|减少|降低|减|负))?\s*(?:by\b|of\b|了)?\s*"
    rf"{_OPEN}(?P<sign>[+-]?)\s*(?:(?P<digits>{_DIGITS})(?:\s*(?:points?\b|pts?\b|[分点]))?"
    rf"|(?P<word>{'|'.join(_WORDS)})(?:\s*(?:points?\b|分))?)){_CLOSE}",
    re.IGNORECASE,
)
_REST = re.compile(r"$|[,.;:!(\[。、…]|-+(?=\s|[\u4e00-\u9fff])|(?:because|since|as|due)\b|因|由于", re.IGNORECASE)
_DOUBT = re.compile(
    r"[\s,.;:!(\[。、…-]*(?:(?:or|to|maybe|perhaps|possibly|probably|not)\b|[或至到]|也许|可能)", re.IGNORECASE
)

_DOWNWARD = r"decreas|drop|fall|fell|down|minus|lower|worse|negative|下降|降低|减少|变差|负"
_UPWARD = r"increas|ris(?:e|ing)\b|rose|up\b|plus|higher|better|positive|上升|升高|增加|提高|变好|正"
_REMARK = r"\W*(?:\w+ ){0,2}(?:"


@dataclass(frozen=True)
class _Number:
    """A change, whether a sign or a direction was written with it, and the text behind it on its line."""

    value: float
    signed: bool
    rest: str


def _is_number(line: str, emotion: float | None) -> bool:
    """Whether a line is a number and nothing else."""
    number = _read_number(line, emotion)
    return isinstance(number, _Number) and not number.rest


def _read_number(line: str, emotion: float | None) -> _Number | Complaint:
    """The one change that a line opens with, or why it is not certain."""
    line = " ".join(line.split())
    plain = line.translate(_HALF_WIDTH)
    ends = next((match for match in _ENDS.finditer(plain) if match["start"] or match["arrow"]), None)
    if ends and not re.search(r"\w", plain[: ends.start()]):
        return _from_ends(ends, line, emotion)
    match = _VALUE.match(plain)
    if match is None:
        return _unreadable("no number stands behind 'Change'")
    if not _REST.match(plain, match.end()) or _DOUBT.match(plain, match.end()):
        return _unreadable("the change is not one plain number")
    rest = line[match.end() : ends.start()] + line[ends.end() :] if ends else line[match.end() :]
    if _has_digit(rest):
        return _unreadable("more than one number stands behind 'Change'")
    if (match["down"] and match["sign"]) or (match["up"] and match["sign"] == "-"):
        return _unreadable("its word and its sign for the direction may contradict each other")
    value = _value(match)
    if ends and not _agrees(value, ends):
        return _unreadable("the change is not the difference between the two levels named with it")
    if abs(value) > HIGHEST - LOWEST:
        return _unreadable(f"a change of {value:g} is larger than the whole scale")
    if _is_contradicted(match, value, rest):
        return _unreadable("the words behind the number tell the other direction")
    signed = bool(match["sign"] or match["up"] or match["down"] or match["same"])
    return _Number(_whole(value), signed, _behind(rest))


def _value(match: re.Match[str]) -> float:
    if match["same"]:
        return 0.0
    size = float(match["digits"]) if match["digits"] else float(_WORDS[match["word"].lower()])
    return -size if match["down"] or match["sign"] == "-" else size


def _is_contradicted(match: re.Match[str], value: float, rest: str) -> bool:
    """Whether a remark behind the number has the other direction: "5 (a drop)" may well mean -5."""
    if not match["sign"] and not match["up"] and value > 0:
        return re.search(_DOWNWARD, rest, re.IGNORECASE) is not None
    other = _DOWNWARD if value > 0 else _UPWARD
    return value != 0 and re.match(f"{_REMARK}{other})", rest, re.IGNORECASE) is not None


def _from_ends(ends: re.Match[str], line: str, emotion: float | None) -> _Number | Complaint:
    """A change given by the old and the new level alone: only if the old one is known to be the level now."""
    rest = line[ends.end() :]
    if _has_digit(rest):
        return _unreadable("more than one number stands behind 'Change'")
    old, new = float(ends["old"]), float(ends["new"])
    if emotion is None or old != emotion or not LOWEST <= new <= HIGHEST:
        return _unreadable("it tells two levels instead of the change between them")
    return _Number(_whole(new - old), True, _behind(rest))


def _agrees(change: float, ends: re.Match[str]) -> bool:
    """Whether the change leads from the one level to the other; at the ends of the scale a part of it is lost."""
    return float(ends["new"]) == max(LOWEST, min(HIGHEST, float(ends["old"]) + change))


def _has_digit(text: str) -> bool:
    return re.search("[0-9]", text.translate(_HALF_WIDTH)) is not None


def _whole(value: float) -> float:
    """A whole number as such, so that records show 5 and not 5.0, and no minus zero."""
    return int(value) if value == int(value) else value


def _behind(rest: str) -> str:
    """Text behind a number without the punctuation that joins it, and without brackets that have become empty."""
    rest = re.sub(r"[(\[（【]\s*[)\]）】]", "", rest)
    return re.sub(r"\A[\s,.;:!，。；：！、—–\-)\]}>】」）*_`\"'”’]+", "", rest).strip()
