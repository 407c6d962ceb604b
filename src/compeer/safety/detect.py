"""How great the danger is in what a seeker has written: rules and a learnt reader over the whole conversation.

Each message is read by the rules, which name what they find; weak signs (things given away, farewells, pills at hand)
are gathered over several messages. The reader (`reader.py`) hears what no rule foresaw. The small one reads the last
messages together, and a message by itself, a long one piece by piece, where it is sure; the large one reads all
messages at once. Rules are the floor. A reader that finds no danger any more takes back what it found before.
The large one, where it is sure that there is none, also takes back what a rule found (a quotation, a story), unless the
rule is firm: a wish to die, intent, plan, means or an act under way. A danger does not end with the next message: a
crisis holds for some messages and then stays a concern until the seeker says that help is there; "just kidding" lowers
it to a concern and no further. A concern ends after many messages without any sign. What fails is named in
`Risk.degraded`. A reader that is late is waited for; if it does not come, the answer is a concern.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from compeer.dialogue import Utterance
from compeer.io import loaded_once
from compeer.models.embedder import is_latin
from compeer.safety.reader import (
    COUNTS,
    COUNTS_WEIGHED,
    LIMIT,
    SUPPORTER,
    WEIGHED,
    Guess,
    Late,
    Memory,
    Readers,
    Reads,
    Window,
    is_readable,
)
from compeer.safety.risk import LEVELS, Level, Risk, Trigger, higher
from compeer.safety.rules import SEARCHED, Match, Scan, languages_of, scanned, shortened
from compeer.safety.text import length

CRISIS_HOLDS = 3  # messages for which a crisis stays one when nothing more is written of it; then it is a concern
CONCERN_HOLDS = 8
SIGNS_HOLD = 12  # messages over which signs are gathered
COUNTS_WITH_CRISIS = 0.5  # how sure it must be of danger for a crisis to count: the two are learnt apart
FRAGMENT_WORDS, FRAGMENT_LETTERS = 3, 24  # messages of at most so many words and letters are fragments
FRAGMENTS = 40  # so many in a row are also read as one sentence
SURE = 0.86  # how sure the small reader must be of a message by itself: what it means depends on the others
HARMLESS = 0.18  # below which probability of danger a reader is sure that there is none
MESSAGES_READ = 40  # messages that a reader is given; the rules read them all
WINDOW, WINDOW_LETTERS = 8, 6_000  # messages that the small reader reads together, and how long they may be in all
SHORT = 30  # letters below which the small reader does not read around an idiom; a Chinese character counts as three
READ_AT_ONCE = 600  # characters of a message that the small reader reads as one
PIECE = 300  # a longer message is also read in pieces of so many: in more a sentence is lost among others
REMEMBERED = 20_000_000  # characters of messages that are not read again
_SENTENCES = re.compile(r"(?<=[.!?。！？…\n])")


@dataclass(frozen=True)
class _Read:
    """One message as read by the rules, and whether something failed."""

    text: str
    scan: Scan
    failed: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()  # what the small reader reads of it


@dataclass(frozen=True)
class _Learnt:
    """What a reader makes of one message, and of it together with those before."""

    single: Guess | None = None
    together: Guess | None = None
    first: int = 0  # the first of the messages that were read together
    by: str = ""
    counts: float = COUNTS  # from which probability it counts
    harmless: bool = False  # whether the reader is sure that the message is no danger
    level: Level = "none"  # what the large reader makes of the whole conversation up to here


class Detector:
    """Rules and a reader. Keeps no conversation; the last messages' results are remembered.

    `classifier` is the reader: "packaged" is the large one where it is on this machine, None only the small one.
    """

    def __init__(self, classifier: Reads | Literal["packaged"] | None = "packaged", limit: float = LIMIT) -> None:
        self._readers = Readers(classifier, limit)
        self._reads = Memory[_Read](REMEMBERED, lambda read: 1_000 + len(read.text) + sum(map(len, read.pieces)))

    def detect(self, messages: str | Sequence[str | Utterance]) -> Risk:
        """The risk after the last of the seeker's messages; never raises. A string is a message of the seeker."""
        turns = [messages] if isinstance(messages, str) else list(messages)
        utterances = [("seeker", turn) if isinstance(turn, str) else (turn.speaker, turn.text) for turn in turns]
        seeker = [text for speaker, text in utterances if speaker == "seeker"]
        marked = tuple(text if speaker == "seeker" else SUPPORTER + text for speaker, text in utterances)
        failure = Trigger("suicide", "concern", "failure", max(len(seeker) - 1, 0))
        degraded: list[str] = []
        try:
            reads = self._reads.all([(message,) for message in seeker], lambda new: [_read(*one) for one in new])
            degraded += [part for read in reads for part in read.failed]
            try:
                learnt, failed = self._learn(reads, marked)
                degraded += failed
                level, reasons = _conversation(_with_fragments(reads), learnt)
            except Late as error:
                degraded.append(str(error))
                level, reasons = _conversation(_with_fragments(reads), [_Learnt()] * len(reads))
                level, reasons = higher(level, "concern"), [*reasons, failure]
        except Exception as error:  # whatever it is, the seeker must not be left without an answer
            degraded.append(f"weighing the conversation failed ({type(error).__name__})")
            level, reasons = "concern", [failure]
        return Risk(level, tuple(reasons), tuple(dict.fromkeys(degraded)))

    def _learn(self, reads: Sequence[_Read], marked: Window) -> tuple[list[_Learnt], tuple[str, ...]]:
        """What the reader makes of each message, or of the whole conversation at its last message."""
        learnt = [_Learnt()] * len(reads)
        start = max(0, len(reads) - MESSAGES_READ)
        windows = {index: _window(reads, index) for index in range(start, len(reads))}
        asked: list[Window] = [(piece,) for read in reads[start:] for piece in read.pieces]
        asked += [together for together, _ in windows.values()]
        asked = [window for window in dict.fromkeys(asked) if is_readable(window)]
        if not asked:
            return learnt, ()
        prefixes = _prefixes(marked, start)
        found = self._readers.answers(list(prefixes.values()), asked)
        if found.whole:
            whole = [found.guesses.get(prefixes.get(index, ())) for index in range(len(reads))]
            learnt = _risen(whole, found.by)
            if learnt[-1].harmless:  # all before goes too; what it is not sure of having gone stays
                learnt = [replace(own, together=None, harmless=True) for own in learnt]
            return learnt, ()
        for index in range(start, len(reads)):
            own = [found.guesses[(piece,)] for piece in reads[index].pieces if (piece,) in found.guesses]
            window, first = windows[index]
            together = found.guesses.get(window) if len(window) > 1 or reads[index].pieces else None
            counts = COUNTS_WEIGHED if found.by == WEIGHED and is_latin(reads[index].text) else COUNTS
            single = max(own, key=lambda guess: guess.danger, default=None)
            learnt[index] = _Learnt(single, together, first, found.by, counts)
        last = learnt[-1]
        if found.by != WEIGHED and last.together is not None and _level(last.together) == "none":
            # What was found before is taken back where all messages from `first` on, read together, are no danger.
            learnt[last.first :] = [replace(own, together=None) for own in learnt[last.first :]]
        return learnt, found.failed


def _prefixes(marked: Window, start: int) -> dict[int, Window]:
    """The conversation up to each of the seeker's messages, from the one before `start` on."""
    ends = [end for end, text in enumerate(marked, 1) if not text.startswith(SUPPORTER)]
    return {index: marked[:end] for index, end in enumerate(ends) if index >= start - 1 and is_readable(marked[:end])}


def _risen(guesses: Sequence[Guess | None], by: str) -> list[_Learnt]:
    """Where the danger in a whole conversation rose: a danger that was there before is not a new one."""
    learnt = [_Learnt()]  # before all of them
    for index, guess in enumerate(guesses):
        level = _level(guess)
        rose = LEVELS.index(level) > LEVELS.index(learnt[-1].level)
        harmless = guess is not None and guess.danger < HARMLESS
        learnt.append(_Learnt(None, guess if rose else None, index, by, harmless=harmless, level=level))
    return learnt[1:]


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
    # Of a short message around an idiom the small reader reads nothing: there the rules know better.
    silent = scan.idiom and length(text) < SHORT
    return _Read(text, scan, tuple(failed), () if silent else tuple(_pieces(message[:SEARCHED])))


def _with_fragments(reads: Sequence[_Read]) -> list[_Read]:
    """Messages of a few words, or of a letter each, that make a sentence only together: the rules read that too."""
    found = list(reads)
    first = 0
    for index, read in enumerate(reads):
        if len(read.text.split()) > FRAGMENT_WORDS or length(read.text) > FRAGMENT_LETTERS:
            first = index + 1
            continue
        own = [one.text.strip() for one in reads[max(first, index - FRAGMENTS + 1) : index + 1]]
        together = _read(("" if all(len(text) <= 1 or text > "\u2e80" for text in own) else " ").join(own)).scan
        known = {match.rule for one in reads[first : index + 1] for match in one.scan.matches}
        if new := tuple(match for match in together.matches if match.rule not in known):
            found[index] = replace(read, scan=replace(read.scan, matches=(*read.scan.matches, *new)))
    return found


def _pieces(text: str) -> list[str]:
    """A message for the small reader: whole unless it is long, and in pieces of sentences that overlap by a third."""
    found = [text] if len(text) <= READ_AT_ONCE else []
    if len(text) <= PIECE:
        return found
    size = PIECE // 2  # of a long sentence; two parts fit into a piece
    parts = [one[at : at + size] for one in _SENTENCES.split(text) for at in range(0, len(one), size)]
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


def _window(reads: Sequence[_Read], index: int) -> tuple[Window, int]:
    """The messages read together with this one, and the number of the first; safety or a joke makes a new beginning."""
    first, letters = index, len(reads[index].text)
    if not (reads[index].scan.safe or reads[index].scan.joking):
        while first > 0 and index - first + 1 < WINDOW:
            before = reads[first - 1]
            letters += len(before.text)
            if before.scan.safe or before.scan.joking or letters > WINDOW_LETTERS:
                break
            first -= 1
    return tuple(read.text for read in reads[first : index + 1]), first


def _conversation(reads: Sequence[_Read], learnt: Sequence[_Learnt]) -> tuple[Level, list[Trigger]]:
    """The level after the last message, and all that led to it."""
    reasons: list[Trigger] = []
    signs: dict[str, tuple[int, Match]] = {}
    held: Level = "none"
    since = 0
    was_crisis = False
    heard: dict[Level, int] = {"concern": -1, "crisis": -1}
    for index, (read, own) in enumerate(zip(reads, learnt, strict=True)):
        signs = {group: sign for group, sign in signs.items() if index - sign[0] <= SIGNS_HOLD}
        for match in read.scan.matches:
            if match.level == "sign":
                signs[match.group] = (index, match)
        found = _direct(read, own, index)
        if not own.harmless:
            found += _gathered(index, signs, held, [trigger.level for trigger in found])
        now = _highest(found)
        if together := _together(own, index, higher(held, now), heard):
            found.append(together)
            now = together.level
        for level in heard:
            if LEVELS.index(now) >= LEVELS.index(level):
                heard[level] = index
        reasons += found
        lowered = _lowered(held, index - since, read, was_crisis, LEVELS.index(own.level) < LEVELS.index(held))
        if LEVELS.index(now) >= LEVELS.index(lowered) and now != "none":
            held, since = now, index
        elif lowered != held:
            held, since = lowered, index
            if lowered == "none":
                signs = {}
        was_crisis = held != "none" and (was_crisis or held == "crisis")
    return held, [reason for reason in reasons if held != "none"]


def _highest(found: Sequence[Trigger]) -> Level:
    return max((trigger.level for trigger in found), key=LEVELS.index, default="none")


def _lowered(held: Level, age: int, read: _Read, was_crisis: bool, reassured: bool) -> Level:
    """What is left of an earlier level; who knows all of it and hears as much danger is not `reassured` by words."""
    if held == "crisis":
        taken_back = reassured and (read.scan.safe or read.scan.joking)
        return "concern" if taken_back or age >= CRISIS_HOLDS else "crisis"
    if held == "concern":
        return "none" if (reassured and read.scan.safe) or (age >= CONCERN_HOLDS and not was_crisis) else "concern"
    return "none"


def _level(guess: Guess | None, counts: float = COUNTS) -> Level:
    if guess is None:
        return "none"
    if guess.crisis >= COUNTS and guess.danger >= COUNTS_WITH_CRISIS:
        return "crisis"
    return "concern" if guess.danger >= counts else "none"


def _direct(read: _Read, learnt: _Learnt, index: int) -> list[Trigger]:
    """What this message says by itself."""
    found = [
        Trigger(match.kind, match.level, match.rule, index)
        for match in read.scan.matches
        if match.level != "sign" and (match.firm or not learnt.harmless)
    ]
    if read.failed:
        found.append(Trigger("suicide", "concern", "failure", index))
    level = _level(learnt.single) if learnt.single and learnt.single.danger >= SURE else "none"
    if learnt.single and LEVELS.index(level) > LEVELS.index(_highest(found)):
        found.append(Trigger(learnt.single.kind, level, learnt.by, index))
    return found


def _together(learnt: _Learnt, index: int, reached: Level, heard: dict[Level, int]) -> Trigger | None:
    """What the messages say together, if it is more than is known: none of them was heard as so grave before."""
    level = _level(learnt.together, learnt.counts)
    if learnt.together is None or LEVELS.index(level) <= LEVELS.index(reached) or heard[level] >= learnt.first:
        return None
    by = f"{learnt.by}, messages together" if learnt.first < index else learnt.by
    return Trigger(learnt.together.kind, level, by, index)


def _gathered(index: int, signs: dict[str, tuple[int, Match]], held: Level, now: Sequence[Level]) -> list[Trigger]:
    """What signs of several messages say together, where this message adds to them."""
    groups = set(signs)
    telltale = groups - {"despair"}
    fresh = any(sign[0] == index for sign in signs.values()) or now
    if not fresh or not telltale:
        return []
    at_risk = held != "none" or "concern" in now or groups & {"farewell", "no tomorrow", "giving away"}
    preparing = groups & {"means", "giving away", "moment"}
    if ("means" in groups and at_risk and len(groups) > 1) or (len(telltale) >= 4 and preparing):
        level: Level = "crisis"
    elif len(telltale) >= 3 or (len(groups) >= 2 and groups & {"means", "giving away", "no tomorrow"}):
        level = "concern"
    else:
        return []
    return [Trigger("suicide", level, " + ".join(sorted({match.rule for _, match in signs.values()})), index)]


_packaged = loaded_once(Detector)


def detect(messages: str | Sequence[str | Utterance]) -> Risk:
    """The risk in the seeker's messages, given in order or as one string; by rules and the packaged reader."""
    return _packaged().detect(messages)
