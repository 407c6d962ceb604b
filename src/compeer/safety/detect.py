"""How great the danger is in what a seeker has said: rules and learnt layers over the whole conversation.

Each message is read by the rules, which name what they find, and by a learnt layer (a classifier, or weighted phrases
where it is missing), which hears what no rule foresaw, of a long message piece by piece; what a rule found is dropped
only where both learnt layers are sure that it is harmless (a quotation, a story). The learnt layer also reads the last
messages together, for a danger that is told in pieces; so do the rules with signs that say little alone (things given
away, farewells, pills at hand). A danger once told does not end with the next message: a crisis holds for some messages
and then stays a concern until the seeker tells that help is there; "just kidding" lowers it to a concern and no
further. A concern ends after many messages without any sign. What fails is named in `Risk.degraded`, and the safe side
is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from compeer.models.embedder import is_latin
from compeer.safety.learned import HARMLESS, Classifies, Learned, Window
from compeer.safety.memory import Memory
from compeer.safety.phrases import Guess, is_tellable, scanned
from compeer.safety.risk import LEVELS, Kind, Level, Risk, Trigger, higher
from compeer.safety.rules import SEARCHED, Match, Scan, languages_of, shortened

CRISIS_HOLDS = 3
"""Messages for which a crisis stays one when nothing more is said of it; after that it is a concern."""
CONCERN_HOLDS = 8
SIGNS_HOLD = 12
"""Messages over which signs are gathered."""
COUNTS = 0.5
"""From which probability a learnt layer counts (see its training for the scale)."""
COUNTS_WITHOUT = 0.22
"""The same for a message in English where the classifier is missing: the phrases alone know less, so they lean further
to the safe side, at the price of more concern for nothing."""
COUNTS_WITH_CRISIS = 0.3
"""How sure it must be of danger for a crisis to count; the two are learnt apart, and may differ."""
LOOKS_BACK = 40
"""Messages that the learnt layers read; the rules read them all."""
WINDOW, WINDOW_LETTERS = 6, 600
"""Messages that are read together, and how long they may be in all."""
OVERRULED: tuple[Kind, ...] = ("suicide", "self-harm")
"""Kinds whose rules the learnt layers may overrule: they are those that stories and quotations tell of."""
SHORTEST_OVERRULED, LONGEST_OVERRULED = 30, 300
"""Letters of a message in which a rule can be overruled; a Chinese character counts as three."""
READ_AT_ONCE = 600
"""Characters of a message that the learnt layers read as one."""
PIECE = 300
"""A message longer than this is also read in pieces of so many characters, which overlap: in more than that a sentence
is lost among the others."""


REMEMBERED = 20_000_000
"""Characters of messages that are not read again."""
_SENTENCES = re.compile(r"(?<=[.!?。！？…\n])")


@dataclass(frozen=True)
class _Read:
    """One message as read by the rules, and whether something failed."""

    text: str
    scan: Scan
    failed: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()
    """What the learnt layers read of it."""

    def size(self) -> int:
        """The room that it takes."""
        return 1_000 + len(self.text) + sum(map(len, self.pieces))


@dataclass(frozen=True)
class _Told:
    """What the learnt layer says of one message, and of it together with those before."""

    alone: Guess | None = None
    together: Guess | None = None
    first: int = 0
    """The first of the messages that were read together."""
    by: str = ""
    counts: float = COUNTS
    """From which probability the message alone counts."""
    harmless: bool = False
    """Whether every learnt layer is sure that the message alone is no danger."""


class Detector:
    """Rules and learnt layers. Keeps no conversation; the last messages' results are remembered."""

    def __init__(
        self,
        classifier: Classifies | Literal["packaged"] | None = "packaged",
        timeout: float = 2.0,
        loading: float = 60.0,
    ) -> None:
        self._learned = Learned(classifier, timeout, loading)
        self._reads: Memory[_Read] = Memory(REMEMBERED, _Read.size)

    def detect(self, messages: str | Sequence[str]) -> Risk:
        """The risk after the last of the seeker's messages; never raises."""
        said = [messages] if isinstance(messages, str) else list(messages)
        degraded: dict[str, None] = {}
        try:
            reads = self._reads.all([(str(message),) for message in said], lambda new: [_read(*one) for one in new])
            degraded.update(dict.fromkeys(part for read in reads for part in read.failed))
            told, failed = self._tell(reads)
            degraded.update(dict.fromkeys(failed))
            level, reasons = _conversation(reads, told)
        except Exception as error:  # whatever it is, the seeker must not be left without an answer
            degraded[f"weighing the conversation failed ({type(error).__name__})"] = None
            level, reasons = "concern", [Trigger("suicide", "concern", "failure", max(len(said) - 1, 0))]
        return Risk(level, tuple(reasons), tuple(degraded))

    def _tell(self, reads: Sequence[_Read]) -> tuple[list[_Told], tuple[str, ...]]:
        """What the learnt layers say of each message."""
        start = max(0, len(reads) - LOOKS_BACK)
        pieces = {index: [(piece,) for piece in reads[index].pieces] for index in range(start, len(reads))}
        windows = {index: _window(reads, index) for index in range(start, len(reads))}
        asked: list[Window] = [piece for found in pieces.values() for piece in found]
        asked += [reads_together for reads_together, _ in windows.values() if len(reads_together) > 1]
        asked = [window for window in dict.fromkeys(asked) if is_tellable(window)]
        if not asked:
            return [_Told()] * len(reads), ()
        guesses, failed = self._learned.guesses(asked)
        by = next(iter(guesses.values()))[1] if guesses else ""
        # Without the classifier nothing is taken back: when less is known, the safe side.
        overruled = [
            (read.text,)
            for read in reads[start:]
            if by == "classifier" and read.scan.matches and read.pieces[:1] == (read.text,)
        ]
        alone = [window for window in overruled if window in guesses and _is_of_middle_length(*window)]
        harmless = {window for window in self._learned.harmless(alone) if guesses[window][0].danger < HARMLESS}
        told = [_Told()] * len(reads)
        for index in range(start, len(reads)):
            own = [guesses[piece][0] for piece in pieces[index] if piece in guesses]
            counts = COUNTS if by == "classifier" or not is_latin(reads[index].text) else COUNTS_WITHOUT
            together, first = windows[index]
            told[index] = _Told(
                max(own, key=lambda guess: (LEVELS.index(_level(guess, counts)), guess.danger)) if own else None,
                guesses[together][0] if len(together) > 1 and together in guesses else None,
                first,
                by,
                counts,
                (reads[index].text,) in harmless,
            )
        return told, failed


def _read(message: str) -> _Read:
    """A message as the rules read it, in each of its languages."""
    text, complete = shortened(message)
    scans, failed = [], []
    for language in languages_of(text):
        try:
            scans.append(scanned(text, language))
        except Exception as error:  # a rule that breaks must not hide a danger
            failed.append(f"the rules for '{language}' failed on a message ({type(error).__name__})")
    if not complete:
        failed.append("a message was too long to be read in full")
    matches = tuple(match for scan in scans for match in scan.matches)
    safe, joking = any(scan.safe for scan in scans), any(scan.joking for scan in scans)
    scan = Scan(matches, safe, joking, idiom=any(scan.idiom for scan in scans))
    # Of a short message around an idiom the learnt layers read nothing: there the rules know better.
    silent = scan.idiom and _letters(text) < SHORTEST_OVERRULED
    return _Read(text, scan, tuple(failed), () if silent else tuple(_pieces(message[:SEARCHED])))


def _pieces(text: str) -> list[str]:
    """A message for the learnt layers: as a whole unless it is long, and in pieces that overlap by a third.

    Pieces end where sentences do, if these are not longer than a piece.
    """
    found = [text] if len(text) <= READ_AT_ONCE else []
    if len(text) <= PIECE:
        return found
    parts = [part for one in _SENTENCES.split(text) for part in _cut(one)]
    first = 0
    while first < len(parts):
        last, length = first + 1, len(parts[first])
        while last < len(parts) and length + len(parts[last]) <= PIECE:
            length += len(parts[last])
            last += 1
        found.append("".join(parts[first:last]))
        if last == len(parts):
            break
        first = max(first + 1, last - max(1, (last - first) // 3))
    return found


def _cut(sentence: str) -> list[str]:
    """A sentence in parts of which two fit into a piece."""
    size = PIECE // 2
    return [sentence[start : start + size] for start in range(0, len(sentence), size)]


def _is_of_middle_length(text: str) -> bool:
    """Whether a learnt layer may overrule a rule: of few words it knows too little, among many one sentence is lost."""
    return SHORTEST_OVERRULED <= _letters(text) <= LONGEST_OVERRULED


def _letters(text: str) -> int:
    return sum(3 if character > "\u2e80" else 1 for character in text)


def _window(reads: Sequence[_Read], index: int) -> tuple[Window, int]:
    """The messages that are read together with this one, itself the last, and the number of the first.

    They begin anew after a seeker has said to be safe or to have joked, and are those that are short enough.
    """
    first, letters = index, len(reads[index].text)
    if not (reads[index].scan.safe or reads[index].scan.joking):
        while first > 0 and index - first + 1 < WINDOW:
            before = reads[first - 1]
            letters += len(before.text)
            if before.scan.safe or before.scan.joking or letters > WINDOW_LETTERS:
                break
            first -= 1
    return tuple(read.text for read in reads[first : index + 1]), first


def _conversation(reads: Sequence[_Read], told: Sequence[_Told]) -> tuple[Level, list[Trigger]]:
    """The level after the last message, and all that led to it."""
    reasons: list[Trigger] = []
    signs: dict[str, tuple[int, Match]] = {}
    held: Level = "none"
    since = 0
    was_crisis = False
    heard: dict[Level, int] = {"concern": -1, "crisis": -1}
    for index, (read, said) in enumerate(zip(reads, told, strict=True)):
        signs = {group: seen for group, seen in signs.items() if index - seen[0] <= SIGNS_HOLD}
        for match in read.scan.matches:
            if match.level == "sign" and not said.harmless:
                signs[match.group] = (index, match)
        found = _direct(read, said, index)
        found += _gathered(index, signs, held, [trigger.level for trigger in found])
        now = _highest(found)
        if together := _together(said, index, higher(held, now), heard):
            found.append(together)
            now = together.level
        for level in heard:
            if LEVELS.index(now) >= LEVELS.index(level):
                heard[level] = index
        reasons += found
        lowered = _lowered(held, index - since, read, was_crisis)
        if LEVELS.index(now) >= LEVELS.index(lowered) and now != "none":
            held, since = now, index
        elif lowered != held:
            held, since = lowered, index
            if lowered == "none":
                signs = {}
        was_crisis = held != "none" and (was_crisis or held == "crisis")
    return held, [reason for reason in reasons if held != "none"]


def _highest(found: Sequence[Trigger]) -> Level:
    level: Level = "none"
    for trigger in found:
        level = higher(level, trigger.level)
    return level


def _lowered(held: Level, age: int, read: _Read, was_crisis: bool) -> Level:
    """What is left of an earlier level once this message is said."""
    if held == "crisis":
        return "concern" if read.scan.safe or read.scan.joking or age >= CRISIS_HOLDS else "crisis"
    if held == "concern":
        return "none" if read.scan.safe or (age >= CONCERN_HOLDS and not was_crisis) else "concern"
    return "none"


def _level(guess: Guess | None, counts: float = COUNTS) -> Level:
    """The level that a guess stands for."""
    if guess is None:
        return "none"
    if guess.crisis >= COUNTS and guess.danger >= COUNTS_WITH_CRISIS:
        return "crisis"
    return "concern" if guess.danger >= counts else "none"


def _direct(read: _Read, told: _Told, index: int) -> list[Trigger]:
    """What this message says by itself."""
    found = [
        Trigger(match.kind, match.level, match.rule, index)
        for match in read.scan.matches
        if match.level != "sign" and not (told.harmless and match.kind in OVERRULED)
    ]
    if read.failed:
        found.append(Trigger("suicide", "concern", "failure", index))
    level = _level(told.alone, told.counts)
    if told.alone and LEVELS.index(level) > LEVELS.index(_highest(found)):
        found.append(Trigger(told.alone.kind, level, told.by, index))
    return found


def _together(told: _Told, index: int, reached: Level, heard: dict[Level, int]) -> Trigger | None:
    """What the last messages say together, if it is more than is known: none of them was heard as so grave before."""
    level = _level(told.together)
    if told.together is None or LEVELS.index(level) <= LEVELS.index(reached) or heard[level] >= told.first:
        return None
    return Trigger(told.together.kind, level, f"{told.by}, messages together", index)


def _gathered(index: int, signs: dict[str, tuple[int, Match]], held: Level, now: Sequence[Level]) -> list[Trigger]:
    """What signs of several messages say together, where this message adds to them."""
    groups = set(signs)
    telling = groups - {"despair"}
    fresh = any(seen[0] == index for seen in signs.values()) or now
    if not fresh or not telling:
        return []
    wish = held != "none" or "concern" in now
    preparing = groups & {"means", "giving away", "moment"}
    level: Level = "none"
    if ("means" in groups and (wish or groups & {"farewell", "no tomorrow", "giving away"}) and len(groups) > 1) or (
        len(telling) >= 4 and preparing
    ):
        level = "crisis"
    elif len(telling) >= 3 or (len(groups) >= 2 and groups & {"means", "giving away", "no tomorrow"}):
        level = "concern"
    if level == "none":
        return []
    names = sorted({match.rule for _, match in signs.values()})
    return [Trigger("suicide", level, " + ".join(names), index)]


@cache
def _packaged() -> Detector:
    return Detector()


def detect(messages: str | Sequence[str], detector: Detector | None = None) -> Risk:
    """The risk in the seeker's messages, given in order or as one string; by rules and the packaged layers."""
    return (detector or _packaged()).detect(messages)
