"""What has been shown of an output while it was written: its steps, and its response."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from compeer.safety.output import SentenceGate
from compeer.talk.turn import StepDone, StepWritten

_QUOTED = re.compile("“([^“”]+)”")


def own_words(text: str, messages: Sequence[str]) -> str:
    """A step without what it quotes of the seeker, who may say what a supporter must not."""
    said = " ".join(" ".join(messages).lower().split())

    def kept(found: re.Match[str]) -> str:
        quoted = " ".join(found[1].lower().split()).rstrip(".…!?")
        return "“…”" if quoted and quoted in said else found[0]

    return _QUOTED.sub(kept, text)


class ShownSteps:
    """Steps are held back until they are whole and a gate of their own has read them: seekers read them too.

    From the first one that a gate stops, none is shown (`hidden`). Without gates all are shown as they come.
    """

    def __init__(self, gate: Callable[[], SentenceGate | None], messages: Sequence[str], hidden: bool) -> None:
        self._gate, self._messages, self.hidden = gate, messages, hidden
        self._held: list[StepWritten] = []

    def feed(self, event: StepWritten | StepDone) -> list[StepWritten | StepDone]:
        """What may be shown after this event."""
        if self.hidden:
            return []
        gate = self._gate()
        if gate is None:
            return [event]
        if isinstance(event, StepWritten):
            self._held.append(event)
            return []
        gate.feed(own_words(event.step.text, self._messages))
        gate.close()
        held, self._held, self.hidden = self._held, [], not gate.open
        return [] if self.hidden else [*held, event]


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
