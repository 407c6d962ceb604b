"""What has been shown of a response while it was written."""

from __future__ import annotations

from compeer.safety.output import SentenceGate


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
