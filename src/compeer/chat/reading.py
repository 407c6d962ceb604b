"""Reads and checks an output while it is written: steps one by one, the response sentence by sentence.

A line is held until it is clear whether it opens a part, in any of the forms that the parser knows. A step is complete
once the next part begins; the response is passed on as it comes, and never with a line that opens a part. The parser
has the last word on the whole.

The seeker reads nothing that the guard has not read in the same words. A step is displayed as it was parsed and
rendered again: what does not parse is left out, and so is what stands around it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from compeer.chat.turn import ReplyPart, StepDone
from compeer.policy.repeats import repeats_earlier
from compeer.reasoning import STEPS, ParsedTurn, Part, Step, SupportTurn, label_of, may_become_label, parse_turn, prefix
from compeer.safety.output import SentenceGate

Gate = Callable[[], SentenceGate | None]

_FENCE = re.compile(r"\s*(?:`{1,3}|~{1,3})[\w-]*\s*$")  # a line that is, or may become, the edge of a code block
_BLANKS_BEFORE_BREAK = re.compile(r"[^\S\n]+(?=\n)")
_DECIDED = re.compile(r"[\[［【〔(（][^\n]*[\]］】〕)）]\W*$")
# Whatever ends a line for the parser ends it here.
_BREAKS = str.maketrans(dict.fromkeys("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", "\n") | {"\r": None})
_MOST_LABELS = 16  # so many labels are followed as they are written; a turn has four
_PROBLEM_QUOTE = re.compile(r"""(['"]).*\1""", re.DOTALL)
_SEEKER_QUOTE = re.compile("“([^“”]+)”")


class TurnReader:
    """Follows one output. Nothing is reported of `begun`, the beginning of an output that was read before."""

    def __init__(self, begun: str = "") -> None:
        self.text = ""
        self._line = ""  # what is written of the line, without a label that was read
        self._known = False  # whether it is clear what the line is part of
        self._part: Part | None = None
        self._blank = ""  # white space that counts only if something follows
        self._started = self._over = False
        self._labels = 0
        self._done: set[Part] = set()
        for _ in (*self.feed(begun), *self._decided(whole=True)):
            pass
        self._line, self._known = "", False

    def feed(self, piece: str) -> Iterator[StepDone | str]:
        """The steps that the next piece completes, and what it adds to the response, unchecked."""
        for segment in re.findall(r"[^\n]*\n|[^\n]+", piece.translate(_BREAKS)):
            ends = segment.endswith("\n")
            self.text += segment
            self._line += segment
            yield from self._response(segment) if self._known else self._decided(whole=ends)
            if ends:
                self._line, self._known = "", False

    def end(self, cut_off: bool) -> tuple[list[StepDone | str], ParsedTurn]:
        """What is left, and the whole output as it was read; `cut_off` as for `parse_turn`."""
        found = list(self._decided(whole=True)) if self._line and not self._known else []
        parsed = parse_turn(self.text, cut_off)
        for part in STEPS:
            step = parsed.parts.get(part)
            if part not in self._done and step is not None and not isinstance(step, str):
                found.append(StepDone(part, step))
        return found, parsed

    def steps(self) -> str:
        """The lines of the steps, if all were read, and the label of the response: where it could begin again."""
        steps = {part: step for part, step in parse_turn(self.text).parts.items() if not isinstance(step, str)}
        return prefix(steps) if len(steps) == len(STEPS) else ""

    def _decided(self, whole: bool) -> Iterator[StepDone | str]:
        """What the line means, once that is clear; `whole`: nothing follows on it."""
        line, end = (self._line[:-1], "\n") if self._line.endswith("\n") else (self._line, "")
        while (label := label_of(line)) is not None:
            if not whole and not label[1] and not line.endswith(" "):
                return  # a blank or a mark may follow that belongs to the label
            if self._part != label[0] or self._started:  # not "Response: Response:"
                yield from self._label(label[0])
            line = label[1]
            self._line = line + end
        text = line.removeprefix("\\")  # which says that no label follows
        label = label_of(text)
        if _FENCE.match(line) if whole else label or may_become_label(text) or _FENCE.match(line):
            return
        self._known = True
        if label is not None and _DECIDED.search(text):
            self._over = True  # a form is no response, however it is spelt
        yield from self._response(text + end)

    def _label(self, part: Part) -> Iterator[StepDone]:
        """A label was read: what stood before it is complete."""
        self._labels += 1
        if self._labels <= _MOST_LABELS:
            before = self.text[: len(self.text) - len(self._line)]
            for earlier, step in parse_turn(before).parts.items():
                if earlier not in self._done and not isinstance(step, str):
                    self._done.add(earlier)
                    yield StepDone(earlier, step)
        self._over = self._over or (self._part == "response" and self._started)
        self._part, self._blank, self._started = part, "", False

    def _response(self, text: str) -> Iterator[str]:
        """The text, if it stands in the response, white space at its ends held back."""
        body = text.lstrip()
        self._blank += text[: len(text) - len(body)]
        if not body:
            return
        kept = body.rstrip()
        before = _BLANKS_BEFORE_BREAK.sub("", self._blank) if self._started else ""
        self._blank, self._started = body[len(kept) :], True
        if self._part == "response" and not self._over:
            yield before + kept


def problems_of(parsed: ParsedTurn) -> tuple[str, ...]:
    """What could not be read of an output, without a word of it: nobody has checked those."""
    missing = (f"{part}: {_PROBLEM_QUOTE.sub('…', why)}" for part, why in parsed.missing.items())
    return (*missing, *parsed.problems)


def same_words(one: str, other: str) -> bool:
    """Whether two texts differ in marks and white space at most."""
    return re.sub(r"\W+", "", one) == re.sub(r"\W+", "", other)


class CheckedReply:
    """The `text` that the gate let through, or all without one; what begins as an `earlier` reply did is `stale`."""

    def __init__(self, gate: SentenceGate | None, earlier: Sequence[str] = ()) -> None:
        self.gate = gate
        self.text = ""
        self.stale = False
        self._earlier, self._blank = earlier, ""

    @property
    def open(self) -> bool:
        return not self.stale and (self.gate is None or self.gate.open)

    def feed(self, text: str) -> str:
        return self._passed(self.gate.feed(text) if self.gate else text)

    def close(self, cut_off: bool = False) -> str:
        """What is left to pass on at the end. Half a sentence is held back, unless there is nothing else."""
        if cut_off and self.text:
            return ""
        return self._passed(self.gate.close() if self.gate else "")

    def _passed(self, text: str) -> str:
        if self.gate is not None and text and not self.text:
            self.stale = self.stale or repeats_earlier(text, self._earlier)
        if self.stale:
            return ""
        held = self._blank + text
        kept = held.rstrip()
        self._blank = held[len(kept) :]
        if not self.text:
            kept = kept.lstrip()
        self.text += kept
        return kept


def checked(gate: SentenceGate | None, text: str) -> CheckedReply:
    """A whole text after the gate has read it."""
    reply = CheckedReply(gate)
    reply.feed(text)
    reply.close()
    return reply


class CheckedSteps:
    """Which steps may be displayed (without gates all): a gate reads each, and from the first one stopped on, none."""

    def __init__(self, gate: Gate, messages: Sequence[str], hidden: bool) -> None:
        self._gate, self._messages, self.hidden = gate, messages, hidden
        self._passed: set[Step] = set()

    def allow(self, step: Step) -> bool:
        """Whether this step may be displayed; if not, no other may from now on."""
        if not self.hidden and step not in self._passed:
            self.hidden = not checked(self._gate(), own_words(step.text, self._messages, self._gate)).open
            self._passed.add(step)
        return not self.hidden

    def allow_all(self, turn: SupportTurn) -> bool:
        return all(self.allow(turn.step(part)) for part in STEPS)


def own_words(text: str, messages: Sequence[str], gate: Gate) -> str:
    """A step without what it quotes of the seeker, where that by itself sounds like a human life ("My cat died").

    A quotation that is harmless by itself stays: it may not be where it stands ("You are “worthless”"). One that is
    rejected for anything else stays too, and with it the step is.
    """
    history = " ".join(" ".join(messages).lower().split())

    def kept(found: re.Match[str]) -> str:
        quoted = " ".join(found[1].lower().split()).rstrip(".…!?")
        if not quoted or quoted not in history:
            return found[0]
        reader = checked(gate(), found[1]).gate
        human = reader is not None and reader.finding is not None and reader.finding.category == "claims to be human"
        return "“…”" if human else found[0]

    return _SEEKER_QUOTE.sub(kept, text)


class CheckedOutput:
    """One output on its way from the writer to the seeker; it is read and checked in a thread, as others talk too."""

    def __init__(self, reply: CheckedReply, steps: CheckedSteps, begun: str = "") -> None:
        self.reply, self._steps, self.reader = reply, steps, TurnReader(begun)

    def feed(self, piece: str) -> list[StepDone | ReplyPart]:
        return self._allowed(self.reader.feed(piece))

    def end(self, cut_off: bool, failed: bool) -> tuple[list[StepDone | ReplyPart], ParsedTurn]:
        """What is left to show, and the output as it was read."""
        left, parsed = self.reader.end(cut_off or failed)
        found = self._allowed(left) if self.reply.open else []
        if not failed and (text := self.reply.close(cut_off)):
            found.append(ReplyPart(text))
        return found, parsed

    def _allowed(self, read: Iterable[StepDone | str]) -> list[StepDone | ReplyPart]:
        found: list[StepDone | ReplyPart] = []
        for one in read:
            if isinstance(one, StepDone):
                found += [one] if self._steps.allow(one.step) else []
            elif text := self.reply.feed(one):
                found.append(ReplyPart(text))
        return found
