"""What may be shown of an output while it is written: its steps one by one, its response sentence by sentence.

Whatever is shown has been read by the guard in the very words that are shown. Of a step that is what was parsed,
written out anew: what does not parse is nobody's to see, and neither is what stands around it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence

from compeer.chat.reading import Read, Said, TurnReader
from compeer.chat.turn import Reply, StepDone
from compeer.reasoning import STEPS, ParsedTurn, Step, SupportTurn
from compeer.safety.output import SentenceGate

Gate = Callable[[], SentenceGate | None]

_QUOTED = re.compile("“([^“”]+)”")


def own_words(text: str, messages: Sequence[str], gate: Gate) -> str:
    """A step without what it quotes of the seeker, where that alone sounds like a human life ("My cat died").

    A quotation that is harmless alone stays: it may not be where it stands ("You are “worthless”"). One that is
    rejected for anything else stays too, and with it the step is.
    """
    said = " ".join(" ".join(messages).lower().split())

    def kept(found: re.Match[str]) -> str:
        quoted = " ".join(found[1].lower().split()).rstrip(".…!?")
        if not quoted or quoted not in said:
            return found[0]
        alone = _read(gate(), found[1])
        human = alone is not None and alone.finding is not None and alone.finding.category == "claims to be human"
        return "“…”" if human else found[0]

    return _QUOTED.sub(kept, text)


class ShownSteps:
    """The steps of one turn that may be shown: each is read by a gate of its own first, since seekers read them too.

    From the first one that a gate stops, none is shown (`hidden`). Without gates all are.
    """

    def __init__(self, gate: Gate, messages: Sequence[str], hidden: bool) -> None:
        self._gate, self._messages, self.hidden = gate, messages, hidden
        self._passed: set[Step] = set()

    def may(self, step: Step) -> bool:
        """Whether this step may be shown; if not, no other may from now on."""
        if not self.hidden and step not in self._passed:
            gate = _read(self._gate(), own_words(step.text, self._messages, self._gate))
            self.hidden = gate is not None and not gate.open
            self._passed.add(step)
        return not self.hidden

    def feed(self, event: StepDone) -> list[StepDone]:
        """What may be shown of a step that is whole."""
        return [event] if self.may(event.step) else []

    def may_all(self, turn: SupportTurn) -> bool:
        """Whether all steps of a turn may be shown."""
        return all(self.may(turn.step(part)) for part in STEPS)


def _read(gate: SentenceGate | None, text: str) -> SentenceGate | None:
    """The gate after it has read a whole text."""
    if gate is not None:
        gate.feed(text)
        gate.close()
    return gate


class Shown:
    """All that the gate let through, or everything without one; white space at its end is held back."""

    def __init__(self, gate: SentenceGate | None) -> None:
        self.gate = gate
        self.shown = ""
        self._blank = ""

    @property
    def open(self) -> bool:
        return self.gate is None or self.gate.open

    def feed(self, text: str) -> str:
        """What may be shown after this piece."""
        return self._let(self.gate.feed(text) if self.gate else text)

    def close(self, cut_off: bool = False) -> str:
        """What is left to show at the end. Half a sentence is not shown, unless there is nothing else."""
        if cut_off and self.shown:
            return ""
        return self._let(self.gate.close() if self.gate else "")

    def _let(self, text: str) -> str:
        kept = (self._blank + text).rstrip()
        if not self.shown:
            kept = kept.lstrip()
        self._blank = (self._blank + text)[len((self._blank + text).rstrip()) :]
        self.shown += kept
        return kept


class Showing:
    """One output on its way from the writer to the seeker: read, checked, shown; in a thread, as others talk too."""

    def __init__(self, screen: Shown, steps: ShownSteps, begun: str = "") -> None:
        self.screen, self._steps, self.reader = screen, steps, TurnReader(begun)

    async def feed(self, piece: str) -> list[StepDone | Reply]:
        """What may be shown after this piece."""
        return await asyncio.to_thread(lambda: self._shown(self.reader.feed(piece)))

    async def end(self, cut_off: bool, failed: bool) -> tuple[list[StepDone | Reply], ParsedTurn]:
        """What is left to show, and the output as it was read."""
        return await asyncio.to_thread(self._end, cut_off, failed)

    def _end(self, cut_off: bool, failed: bool) -> tuple[list[StepDone | Reply], ParsedTurn]:
        left, parsed = self.reader.end(cut_off or failed)
        found = self._shown(left) if self.screen.open else []
        if not failed and (text := self.screen.close(cut_off)):
            found.append(Reply(text))
        return found, parsed

    def _shown(self, read: Iterable[Read]) -> list[StepDone | Reply]:
        found: list[StepDone | Reply] = []
        for one in read:
            if not isinstance(one, Said):
                found += self._steps.feed(one)
            elif text := self.screen.feed(one.text):
                found.append(Reply(text))
        return found
