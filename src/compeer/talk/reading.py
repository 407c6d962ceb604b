"""Reads a turn while it is still being written: which step is being made, when one is whole, what the reply says.

Lines that begin with a label as we write them (`History:`, …) are followed piece by piece. What is written in other
forms is understood too, but only at the end, by the parser that has the last word anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from compeer.reasoning import LABELS, STEPS, ParsedTurn, Part, Step, parse_turn, render_step
from compeer.talk.turn import StepDone, StepWritten

_PART_OF: dict[str, Part] = {f"{label}:": part for part, label in LABELS.items()}
_FENCE = re.compile(r"\s*(?:`{1,3}|~{1,3})[\w-]*\s*$")
"""A line that is, or may become, the edge of a code block."""
_BLANKS_BEFORE_BREAK = re.compile(r"[^\S\n]+(?=\n)")


@dataclass(frozen=True)
class Said:
    """A piece of the response as it is written; nobody has checked it yet."""

    text: str


Read = StepWritten | StepDone | Said


class TurnReader:
    """Follows one output. What was read of `begun`, the beginning of an output, is told to nobody."""

    def __init__(self, begun: str = "") -> None:
        self.text = ""
        self._line = ""
        self._known = False  # whether it is clear what the line is part of
        self._part: Part | None = None
        self._opening = ""  # what may still be skipped after a label: a blank, then a backslash
        self._blank = ""  # white space that is told only if something follows
        self._started = self._said = False
        self._over = False
        self._done: set[Part] = set()
        for _ in self.feed(begun):
            pass

    def feed(self, piece: str) -> Iterator[Read]:
        """What the next piece tells."""
        for segment in re.findall(r"[^\n]*\n|[^\n]+", piece):
            yield from self._segment(segment)

    def end(self, cut_off: bool) -> tuple[list[Read], ParsedTurn]:
        """What is left to tell, and the whole output as it was read; `cut_off` as for `parse_turn`."""
        found: list[Read] = []
        if self._line and not self._known and not _FENCE.match(self._line):
            found += self._told(self._line)
        parsed = parse_turn(self.text, cut_off)
        for part in STEPS:
            step = parsed.parts.get(part)
            if part not in self._done and step is not None and not isinstance(step, str):
                if part not in self._live():
                    found.append(StepWritten(part, _without_label(part, step)))
                found.append(StepDone(part, step))
        response = parsed.parts.get("response")
        if isinstance(response, str) and not self._said:
            found.append(Said(response))
        return found, parsed

    def steps(self) -> str:
        """The lines of the steps, if all were read, and the label of the response: where it could begin anew."""
        parsed = parse_turn(self.text)
        found = {part: parsed.parts[part] for part in STEPS if part in parsed.parts}
        if len(found) < len(STEPS):
            return ""
        lines = [render_step(part, step) for part, step in found.items() if not isinstance(step, str)]
        return "\n".join([*lines, f"{LABELS['response']}:"])

    def _live(self) -> set[Part]:
        return {part for label, part in _PART_OF.items() if f"\n{label}" in f"\n{self.text}"}

    def _segment(self, segment: str) -> Iterator[Read]:
        self.text += segment
        self._line += segment
        if self._known:
            yield from self._told(segment)
        elif (label := next((one for one in _PART_OF if self._line.startswith(one)), None)) is not None:
            self._known = True
            yield from self._opened(_PART_OF[label])
            yield from self._told(self._line[len(label) :])
        elif not any(one.startswith(self._line) for one in _PART_OF) and not _FENCE.match(self._line):
            self._known = True
            self._opening = "\\"
            yield from self._told(self._line)
        if segment.endswith("\n"):
            self._line, self._known = "", False

    def _opened(self, part: Part) -> Iterator[Read]:
        """A label was read: what stood before it is whole."""
        before = self.text[: len(self.text) - len(self._line)]
        for earlier, step in parse_turn(before).parts.items():
            if earlier not in self._done and not isinstance(step, str):
                self._done.add(earlier)
                yield StepDone(earlier, step)
        self._over = self._over or self._part == "response"
        self._part, self._blank, self._started, self._opening = part, "", False, " \\"

    def _told(self, text: str) -> Iterator[Read]:
        """The text as a piece of the part it stands in, white space at its ends held back."""
        if self._part is None or self._over:
            return
        if self._part == "response":
            text = self._unescaped(text)
        body = text.lstrip()
        self._blank += text[: len(text) - len(body)]
        if not body:
            return
        kept = body.rstrip()
        before = _BLANKS_BEFORE_BREAK.sub("", self._blank) if self._started else ""
        self._blank, self._started = body[len(kept) :], True
        if self._part == "response":
            self._said = True
            yield Said(before + kept)
        else:
            yield StepWritten(self._part, before + kept)

    def _unescaped(self, text: str) -> str:
        """The text without the backslash at the start of a line, which says that no label follows."""
        if text and self._opening.startswith(" "):
            text, self._opening = text.removeprefix(" "), "\\"
        if text and self._opening:
            text, self._opening = text.removeprefix("\\"), ""
        return text


def _without_label(part: Part, step: Step) -> str:
    return render_step(part, step).removeprefix(f"{LABELS[part]}: ")
