"""One supporter turn: three reasoning steps, each free text with a decision, and then the response.

The rendered form is four lines, short enough for a small model to learn and cheap to generate:

    History: New here and has not said yet what is wrong. [exploration]
    Emotion: Unsure and a little tense about opening up. [negative, anxiety, 3]
    Strategy: A plain welcome lowers the bar before any question. [Others]
    Response: No form to fill in here. What brings you tonight?

`render_turn` writes it and `parse_turn` reads it back, and also reads what models really write instead: other labels,
other order, Chinese, full-width punctuation, code fences, brackets left open. What cannot be read is named, part by
part, with the reason. The parser never raises and never guesses: a decision outside the vocabulary makes its step
missing, and so do two differing versions of one step.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from compeer.dialogue import Emotion, NeutralEmotion, PositiveEmotion, Rating, Stage, Strategy
from compeer.io import Frozen, table

Sentiment = Literal["positive", "negative", "neutral"]
Part = Literal["history", "emotion", "strategy", "response"]

STAGES: tuple[Stage, ...] = get_args(Stage)
SENTIMENTS: tuple[Sentiment, ...] = get_args(Sentiment)
EMOTIONS: tuple[Emotion, ...] = get_args(Emotion)
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
STEPS: tuple[Part, ...] = ("history", "emotion", "strategy")
PARTS: tuple[Part, ...] = (*STEPS, "response")

LABELS: dict[Part, str] = {"history": "History", "emotion": "Emotion", "strategy": "Strategy", "response": "Response"}


def sentiment_of(emotion: Emotion) -> Sentiment:
    """The sentiment that an emotion of the vocabulary carries."""
    if emotion in get_args(PositiveEmotion):
        return "positive"
    return "neutral" if emotion in get_args(NeutralEmotion) else "negative"


def one_line(text: str) -> str:
    """Text on one line: runs of white space become single blanks."""
    return " ".join(text.split())


def _bounded(text: str, most: int, empty: str) -> str:
    if not text:
        raise ValueError(empty)
    if len(text) > most:
        raise ValueError(f"over-long: more than {most} characters")
    return text


def _step_text(text: str, *, empty: str = "a step needs some text") -> str:
    return _bounded(one_line(_without_closing_tags(text)), MAX_STEP, empty)


def _response_text(text: str) -> str:
    text = "\n".join(line.rstrip() for line in text.splitlines()).strip()
    return _bounded(_without_closing_tags(text), MAX_RESPONSE, "the response is empty")


MAX_STEP, MAX_RESPONSE = 1_000, 4_000  # characters: nobody writes more, and a judge need not wade through it

StepText = Annotated[str, AfterValidator(_step_text)]


class _WithDecision(Frozen):
    """Free text, and a decision in the fields that follow it."""

    text: StepText

    @property
    def decision(self) -> str:
        return ", ".join(str(value) for name, value in self if name != "text")


class HistoryStep(_WithDecision):
    """Step 1: the core issue, and the stage of support the conversation is in."""

    stage: Stage


class EmotionStep(_WithDecision):
    """Step 2: what the seeker feels now."""

    sentiment: Sentiment
    emotion: Emotion
    intensity: Rating


class StrategyStep(_WithDecision):
    """Step 3: which kind of help fits now, one of eight."""

    strategy: Strategy


Step = HistoryStep | EmotionStep | StrategyStep


class SupportTurn(Frozen):
    """A whole output of the supporter: three steps, then the response that the seeker reads."""

    history: HistoryStep
    emotion: EmotionStep
    strategy: StrategyStep
    response: Annotated[str, AfterValidator(_response_text)] = Field(min_length=1)

    def step(self, part: Part) -> Step:
        """The step of that name."""
        found: Step = getattr(self, part)
        return found


def render_step(part: Part, step: Step) -> str:
    """One step as its line."""
    return f"{LABELS[part]}: {step.text} [{step.decision}]"


def prefix(steps: Mapping[Part, Step]) -> str:
    """The steps as their lines, and the label that opens the response."""
    lines = [render_step(part, step) for part, step in steps.items()]
    return "\n".join([*lines, f"{LABELS['response']}:"])


def render_turn(turn: SupportTurn) -> str:
    """The turn as text. A response line that looks like a label gets a backslash, which `parse_turn` takes off."""
    response = "\n".join("\\" + line if _needs_escape(line) else line for line in turn.response.split("\n"))
    return f"{prefix({part: turn.step(part) for part in STEPS})} {response}"


def _needs_escape(line: str) -> bool:
    return line.startswith("\\") or _FENCE.fullmatch(line) is not None or label_of(line) is not None


@dataclass(frozen=True)
class ParsedTurn:
    """What could be read of an output. `turn` is None unless all four parts were."""

    turn: SupportTurn | None
    parts: dict[Part, Step | str]
    missing: dict[Part, str] = field(default_factory=dict)  # each part that is not there, with the reason
    problems: tuple[str, ...] = ()  # oddities that did not stop the reading

    @property
    def complete(self) -> bool:
        return self.turn is not None


_TABLE = table("reasoning")
_NAMES: dict[Part, list[str]] = _TABLE["names"]
_PART_OF = {name: part for part, names in _NAMES.items() for name in names}
_ALTERNATIVES = "|".join(re.escape(name) for name in sorted(_PART_OF, key=len, reverse=True))
_MARK = r"[^\S\n]{0,8}(?:[>\-*•][^\S\n])?"  # indentation, a quote mark or a bullet
_NUMBER = r"(?:(?:step|步骤|第)[^\S\n]?)?(?:[1-4一二三四]步?[^\S\n]?[.)、:：．）(（]?[^\S\n]{0,2})?"
_INLINE = re.compile(
    rf"{_MARK}(?:#{{1,6}}[^\S\n]?)?(?:\*\*|__|<)?{_NUMBER}(?:\*\*)?({_ALTERNATIVES})[)）]?"
    r"(?:\*\*|__)?[^\S\n]?(?:[:：]|>)(?:\*\*|__)?[^\S\n]?",
    re.IGNORECASE | re.ASCII,
)
_HEADING = re.compile(
    rf"{_MARK}(?:#{{1,6}}[^\S\n]?(?:\*\*|__)?|\*\*|__){_NUMBER}({_ALTERNATIVES})[)）]?(?:\*\*|__)?[^\S\n]*$",
    re.IGNORECASE | re.ASCII,
)
_FENCE = re.compile(r"[^\S\n]*(?:```|~~~)[\w-]*[^\S\n]*")
_BEFORE_NAME = re.compile(rf"[\s>\-*•#_<`~]*{_NUMBER}[*_]*", re.ASCII)
_LONGEST_LABEL = 72  # characters: marks, a number, a name and what follows it
_CLOSING_TAG = re.compile(rf"</(?:{_ALTERNATIVES})>$", re.IGNORECASE | re.ASCII)
_OPENING, _CLOSING = "[［【〔", "]］】〕"
_AFTER_DECISION = " .。!！*_`"
_SEPARATOR = re.compile(r"[,，、;；|]")
_INTENSITY = re.compile(r"(?:intensity|强度)?[^\S\n]*[:：=]?[^\S\n]*([1-5])(?:[^\S\n]*/[^\S\n]*5)?", re.IGNORECASE)
MAX_CHARACTERS = 20_000  # a longer output is not a turn: it is read no further, and the response counts as missing
_CHINESE: dict[str, str] = _TABLE["chinese"]


def parse_turn(text: str, cut_off: bool = False) -> ParsedTurn:
    """Reads an output of a model. Never raises; names each part that is missing, and why.

    `cut_off` says that the model was stopped before it had ended: its last part then counts as missing.
    """
    problems: list[str] = []
    if (written := text.encode("utf-8", "replace").decode("utf-8")) != text:
        problems.append("half characters, which cannot be written, were replaced by question marks")
        text = written
    if too_long := len(text) > MAX_CHARACTERS:
        problems.append(f"the output has {len(text)} characters; only the first {MAX_CHARACTERS} were read")
        text = text[:MAX_CHARACTERS]
    bodies, before = _sections(text)
    if before:
        problems.append("text before the first step was ignored")
    parts: dict[Part, Step | str] = {}
    missing: dict[Part, str] = {}
    for part in PARTS:
        found = bodies.get(part, [])
        if not found:
            missing[part] = "not there" if text.strip() else "the output is empty"
            continue
        if part == "response" and too_long:
            missing[part] = f"over-long: more than {MAX_CHARACTERS} characters"
            continue
        readings = [_read_part(part, body, problems) for body in found]
        if len(readings) > 1:
            problems.append(f"{part} is given {len(readings)} times")
            if any(reading != readings[0] for reading in readings):
                missing[part] = f"given {len(readings)} times, differently"
                continue
        value, why = readings[0]
        if value is None:
            missing[part] = why
        else:
            parts[part] = value
    if cut_off and bodies:
        last = list(bodies)[-1]
        parts.pop(last, None)
        missing[last] = "cut off before the output ended"
    order = [part for part in bodies if part in parts]
    if order != [part for part in PARTS if part in parts]:
        problems.append("the parts are in another order: " + ", ".join(order))
    turn = SupportTurn.model_validate(parts) if not missing else None
    return ParsedTurn(turn=turn, parts=parts, missing=missing, problems=tuple(problems))


def label_of(line: str) -> tuple[Part, str] | None:
    """The part that a line opens and the rest of the line, or None."""
    match = _INLINE.match(line) or _HEADING.match(line)
    return (_PART_OF[match.group(1).lower()], line[match.end() :]) if match else None


def may_become_label(line: str) -> bool:
    """Whether a line that is still being written may open a part, or be the edge of a code block, once it goes on."""
    name = _BEFORE_NAME.sub("", line[:_LONGEST_LABEL].lower(), count=1)
    begins = any(known.startswith(name) or name.startswith(known) for known in (*_PART_OF, "step", "步骤", "第"))
    return len(line) < _LONGEST_LABEL and begins


def _sections(text: str) -> tuple[dict[Part, list[str]], bool]:
    """The bodies of each labelled part, in the order of first appearance, and whether anything stood before them."""
    bodies: dict[Part, list[str]] = {}
    before = False
    for line in text.splitlines():
        if _FENCE.fullmatch(line):
            continue
        if label := label_of(line):
            part, rest = label
            bodies.setdefault(part, []).append(rest)
        elif bodies:
            bodies[part][-1] += f"\n{line}"
        elif line.strip():
            before = True
    return bodies, before


def _without_closing_tags(text: str) -> str:
    while (shorter := _CLOSING_TAG.sub("", text[-40:].rstrip())) != text[-40:].rstrip():
        text = text[:-40].rstrip() + shorter if len(text) > 40 else shorter
    return text


def _read_part(part: Part, body: str, problems: list[str]) -> tuple[Step | str | None, str]:
    """The part, or None and why it cannot be read."""
    try:
        if part == "response":
            return _response_text("\n".join(line.removeprefix("\\") for line in body.splitlines())), ""
        return _read_step(part, body, problems), ""
    except ValueError as error:
        return None, str(error)


def _read_step(part: Part, body: str, problems: list[str]) -> Step:
    text, decision, complaint = _split_decision(_without_closing_tags(body.rstrip()).rstrip())
    if complaint:
        problems.append(f"{part}: {complaint}")
    if decision is None:
        raise ValueError("no decision in brackets" if body.strip() else "empty")
    return _read_decision(part, _step_text(text, empty="no text beside the decision"), decision)


def _split_decision(body: str) -> tuple[str, str | None, str | None]:
    """A step's text, its decision (None if there is none) and what was odd about it."""
    trimmed = body.rstrip(_AFTER_DECISION)
    opening = max(trimmed.rfind(mark) for mark in _OPENING)
    if trimmed and trimmed[-1] in _CLOSING and opening >= 0:
        return trimmed[:opening], trimmed[opening + 1 : -1], None
    closing = max(trimmed.rfind(mark) for mark in _CLOSING)
    if opening > closing:
        return trimmed[:opening], trimmed[opening + 1 :], "the bracket is left open"
    opening = max(trimmed.rfind("("), trimmed.rfind("（"))
    if trimmed and trimmed[-1] in ")）" and opening >= 0:
        return trimmed[:opening], trimmed[opening + 1 : -1], "round brackets around the decision"
    return body, None, None


_STEP_TYPES: dict[Part, type[Step]] = {"history": HistoryStep, "emotion": EmotionStep, "strategy": StrategyStep}
_KINDS: dict[Part, list[str]] = {"history": ["stage"], "emotion": ["sentiment", "emotion"], "strategy": ["strategy"]}
_VOCABULARY = {"stage": STAGES, "sentiment": SENTIMENTS, "emotion": EMOTIONS, "strategy": STRATEGIES}


def _read_decision(part: Part, text: str, decision: str) -> Step:
    words = [one_line(word).strip("\"'“”‘’*`") for word in _SEPARATOR.split(decision)]
    words = [_CHINESE.get(word, word).lower() for word in words]
    if part == "emotion" and len(words) != 3:
        raise ValueError(f"the decision needs sentiment, emotion and intensity, not {decision[:60]!r}")
    found: dict[str, str | int] = {}
    for kind, word in zip(_KINDS[part], words, strict=False):
        named = {value.lower(): value for value in _VOCABULARY[kind]}
        written = word if part == "emotion" else decision
        if word not in named or (part != "emotion" and len(words) > 1):
            raise ValueError(f"{kind} {written[:60]!r} is not one of {', '.join(_VOCABULARY[kind])}")
        found[kind] = named[word]
    if part == "emotion":
        intensity = _INTENSITY.fullmatch(words[2])
        if intensity is None:
            raise ValueError(f"intensity {words[2][:60]!r} is not a number from 1 to 5")
        found["intensity"] = int(intensity.group(1))
    return _STEP_TYPES[part].model_validate({"text": text, **found})


def turn_grammar(step_characters: int = 160, response_characters: int = 600) -> str:
    """A Lark grammar of the rendered form; the history's step, which quotes, may be twice as long as the others."""
    values = {
        **{name: " | ".join(f'"{value}"' for value in vocabulary) for name, vocabulary in _VOCABULARY.items()},
        **{"most": step_characters, "most_history": 2 * step_characters, "most_response": response_characters},
    }
    # in it the opening bracket belongs to the text: a lexer is greedy, and would only stop at the greatest length
    grammar = files("compeer").joinpath("reasoning.lark").read_text(encoding="utf-8").rstrip("\n")
    return re.sub(r"<(\w+)>", lambda found: str(values[found[1]]), grammar)
