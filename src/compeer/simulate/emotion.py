"""SAGE's rules: how a seeker's emotion moves, when a conversation ends, and what counts as a success.

A sentient seeker carries one number, its emotion, from 0 to 100. After each reply of the supporter it says by how much
the reply changed it, which `update` applies. Published variants are `PRESETS`.

The answer is asked for as two lines, `Reasons: …` and `Change: +5`. Other labels, either order, Chinese, full-width
signs, brackets and a bare number are read too. The number must stand alone: anything else (a range, words, two
different changes) is a `Complaint`, and the model is asked again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from compeer.errors import InputError
from compeer.io import Frozen
from compeer.models.base import Generation
from compeer.simulate.agents import Complaint, pattern, split_thinking

Outcome = Literal["success", "failure"]
LOWEST, HIGHEST = 0, 100  # the scale of emotion, the same in every preset


class EmotionRules(Frozen):
    """How emotion moves and when a conversation ends."""

    start: int = Field(default=40, ge=LOWEST, le=HIGHEST, description="emotion before the first reply")
    largest_change: int | None = Field(default=10, ge=1, description="most that one reply can change; none: any size")
    success_at: int = Field(default=100, ge=LOWEST, le=HIGHEST, description="emotion from which a dialogue is won")
    failure_at: int = Field(default=10, ge=LOWEST, le=HIGHEST, description="where a dialogue is lost")
    failure_when: Literal["below", "at or below"] = Field(default="below", description="is `failure_at` itself lost?")
    turns: int = Field(default=10, ge=1, description="most messages of the seeker, its opening included")
    score_last_reply: bool = Field(default=True, description="also the reply to the last message; released code: no")

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
    most = rules.largest_change
    return change if most is None else max(-most, min(most, change))


SAGE = EmotionRules()
SAGE_RELEASED = EmotionRules(score_last_reply=False)
RLVER = EmotionRules(start=30, largest_change=None, failure_at=0, failure_when="at or below", turns=8)
PRESETS = {"sage": SAGE, "sage-released": SAGE_RELEASED, "sage-paper": EmotionRules(turns=20), "rlver": RLVER}


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
    if name not in PRESETS:
        raise InputError(f"there are no rules '{name}'.", field="rules", do=f"Give one of: {', '.join(PRESETS)}.")
    return PRESETS[name]


MAX_ANSWER = 20_000  # characters; nobody's reasons are longer, and what is cut might be the number


@dataclass(frozen=True)
class EmotionAnswer:
    """By how much a reply changed the seeker's emotion, as the model wrote it, and its reasons (empty: none given)."""

    change: float
    reasons: str


def read_emotion(answer: Generation) -> EmotionAnswer | Complaint:
    """The change and its reasons, or what is wrong with the answer; one that was cut off might have lost a digit."""
    if answer.cut_off:
        return Complaint("unparsable", "it is too long and was cut off")
    plain = plain_text(answer.text)
    if not plain:
        return Complaint("empty", "it is empty")
    if len(plain) > MAX_ANSWER:
        return Complaint("unparsable", f"it is longer than {MAX_ANSWER} characters")
    changes, reasons = _fields(plain)
    found: dict[float, str] = {}
    for value in changes:
        first, _, below = value.strip().partition("\n")
        change = _number(first)
        if change is None:
            return Complaint("unparsable", "there is no line 'Change:' with one number, of at most 100, and no more")
        if any(_number(line) is not None for line in below.splitlines()):
            return Complaint("unparsable", "more than one number stands behind 'Change'")
        found[change] = below
    if len(found) > 1:
        return Complaint("unparsable", f"it gives {len(found)} different changes")
    [(change, below)] = found.items()
    return EmotionAnswer(change, _paragraphs(*reasons) or _paragraphs(below))


def states_change(text: str) -> bool:
    """Whether a line of a text is labelled as a change of emotion and gives one; no message to a supporter does."""
    labels = [match for match in _LABEL.finditer(text) if match["start"] is not None and match["change"]]
    return any(_number(text[match.end() :].strip().partition("\n")[0]) is not None for match in labels)


_FENCE, _LABEL, _NUMBER = (pattern(name) for name in ("fence", "label", "number"))


def plain_text(text: str) -> str:
    """A model's answer without the thinking before it and the code fence around it; thinking without an end is none."""
    return _FENCE.sub(r"\1", split_thinking(text)[1]).strip()


def _paragraphs(*parts: str) -> str:
    return "\n".join(part.strip() for part in parts if part.strip())


def _fields(text: str) -> tuple[list[str], list[str]]:
    """What stands behind the labels for the change, and behind those for the reasons or before any label."""
    labels = [  # one that does not open a line needs its colon and a capital letter, or is Chinese
        match
        for match in _LABEL.finditer(text)
        if match["start"] is not None or (match["colon"] and not (match["change"] or match["reasons"])[0].islower())
    ]
    if not any(match["change"] for match in labels):
        return [text], []
    changes: list[str] = []
    reasons = [text[: labels[0].start()]]
    for match, end in zip(labels, [*(match.start() for match in labels[1:]), len(text)], strict=True):
        (changes if match["change"] else reasons).append(text[match.end() : end])
    return changes, reasons


_HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | str.maketrans("−–—‐‑‒―﹣➖➕", "---------+")


def _number(line: str) -> float | None:
    """The number that a line is and nothing else, if it lies on the scale; a whole one as such, without minus zero."""
    match = _NUMBER.fullmatch(line.translate(_HALF_WIDTH).strip())
    value = float(match["number"]) if match else math.inf
    if abs(value) > HIGHEST - LOWEST:
        return None
    return int(value) if value == int(value) else value
