"""Reads a turn while it is still being written: when a step is whole, and what the reply says.

A line is held until it is clear whether it opens a part, in any of the forms that the parser knows; steps are told once
the next part begins, the response as it comes. Nothing that opens a part is ever told as a piece of the response. The
parser has the last word on the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from compeer.chat.turn import StepDone
from compeer.reasoning import LABELS, STEPS, ParsedTurn, Part, label_of, may_become_label, parse_turn, render_step

_FENCE = re.compile(r"\s*(?:`{1,3}|~{1,3})[\w-]*\s*$")
"""A line that is, or may become, the edge of a code block."""
_BLANKS_BEFORE_BREAK = re.compile(r"[^\S\n]+(?=\n)")
_DECIDED = re.compile(r"[\[［【〔(（][^\n]*[\]］】〕)）]\W*$")
_BREAKS = str.maketrans(dict.fromkeys("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", "\n") | {"\r": None})
"""Whatever ends a line for the parser ends it here."""
_MOST_LOOKS = 16
"""So many labels are followed as they are written; a turn has four."""
_QUOTED = re.compile(r"""(['"]).*\1""", re.DOTALL)


@dataclass(frozen=True)
class Said:
    """A piece of the response as it is written; nobody has checked it yet."""

    text: str


Read = StepDone | Said


class TurnReader:
    """Follows one output. What was read of `begun`, the beginning of an output, is told to nobody."""

    def __init__(self, begun: str = "") -> None:
        self.text = ""
        self._line = ""  # what is written of the line, without a label that was read
        self._known = False  # whether it is clear what the line is part of
        self._part: Part | None = None
        self._blank = ""  # white space that is told only if something follows
        self._started = self._over = False
        self._looks = 0
        self._done: set[Part] = set()
        for _ in (*self.feed(begun), *self._decided(whole=True)):
            pass
        self._line, self._known = "", False

    def feed(self, piece: str) -> Iterator[Read]:
        """What the next piece tells."""
        for segment in re.findall(r"[^\n]*\n|[^\n]+", piece.translate(_BREAKS)):
            yield from self._segment(segment)

    def end(self, cut_off: bool) -> tuple[list[Read], ParsedTurn]:
        """What is left to tell, and the whole output as it was read; `cut_off` as for `parse_turn`."""
        found = list(self._decided(whole=True)) if self._line and not self._known else []
        parsed = parse_turn(self.text, cut_off)
        for part in STEPS:
            step = parsed.parts.get(part)
            if part not in self._done and step is not None and not isinstance(step, str):
                found.append(StepDone(part, step))
        return found, parsed

    def steps(self) -> str:
        """The lines of the steps, if all were read, and the label of the response: where it could begin anew."""
        parsed = parse_turn(self.text)
        found = {part: parsed.parts[part] for part in STEPS if part in parsed.parts}
        if len(found) < len(STEPS):
            return ""
        lines = [render_step(part, step) for part, step in found.items() if not isinstance(step, str)]
        return "\n".join([*lines, f"{LABELS['response']}:"])

    def _segment(self, segment: str) -> Iterator[Read]:
        ends = segment.endswith("\n")
        self.text += segment
        self._line += segment
        if self._known:
            yield from self._told(segment)
        else:
            yield from self._decided(whole=ends)
        if ends:
            self._line, self._known = "", False

    def _decided(self, whole: bool) -> Iterator[Read]:
        """What the line tells, once it is clear what it is; `whole`: nothing follows on it."""
        line, end = (self._line[:-1], "\n") if self._line.endswith("\n") else (self._line, "")
        while (label := label_of(line)) is not None:
            if not whole and not label[1] and not line.endswith(" "):
                return  # a blank or a mark may follow that belongs to the label
            if self._part != label[0] or self._started:  # not "Response: Response:"
                yield from self._opened(label[0])
            line = label[1]
            self._line = line + end
        text = line.removeprefix("\\")  # which says that no label follows
        label = label_of(text)
        if _FENCE.match(line) if whole else label or may_become_label(text) or _FENCE.match(line):
            return
        self._known = True
        if label is not None and _DECIDED.search(text):
            self._over = True  # a form is no response, however it is spelt
        yield from self._told(text + end)

    def _opened(self, part: Part) -> Iterator[Read]:
        """A label was read: what stood before it is whole."""
        self._looks += 1
        if self._looks <= _MOST_LOOKS:
            before = self.text[: len(self.text) - len(self._line)]
            for earlier, step in parse_turn(before).parts.items():
                if earlier not in self._done and not isinstance(step, str):
                    self._done.add(earlier)
                    yield StepDone(earlier, step)
        self._over = self._over or (self._part == "response" and self._started)
        self._part, self._blank, self._started = part, "", False

    def _told(self, text: str) -> Iterator[Said]:
        """The text as a piece of the response, if it stands in it, white space at its ends held back."""
        body = text.lstrip()
        self._blank += text[: len(text) - len(body)]
        if not body:
            return
        kept = body.rstrip()
        before = _BLANKS_BEFORE_BREAK.sub("", self._blank) if self._started else ""
        self._blank, self._started = body[len(kept) :], True
        if self._part == "response" and not self._over:
            yield Said(before + kept)


def problems_of(parsed: ParsedTurn) -> tuple[str, ...]:
    """What could not be read of an output, without a word of it: nobody has checked those."""
    missing = (f"{part}: {_QUOTED.sub('…', why)}" for part, why in parsed.missing.items())
    return (*missing, *parsed.problems)
