"""An agent for tests of conversations: it needs no model."""

from collections.abc import Callable, Sequence
from typing import Any

from compeer.simulate import AgentTurn, View
from compeer.simulate.agents import SPEAKING, Turning


class ScriptedAgent:
    """Says its lines in order, or what a function makes of its view; after the last line it leaves without a word."""

    model = None
    sampling = SPEAKING
    wants_closing_turn = False

    def __init__(
        self, lines: Sequence[str | AgentTurn] | Callable[[View], str | AgentTurn], name: str = "scripted"
    ) -> None:
        self._lines, self._name = lines, name

    @property
    def described(self) -> dict[str, Any]:
        return {"agent": self._name}

    def turn(self, view: View) -> Turning:
        yield from ()
        if callable(self._lines):
            said = self._lines(view)
        else:
            number = len(view.own)
            said = self._lines[number] if number < len(self._lines) else AgentTurn("", stop="script ended")
        return AgentTurn(said) if isinstance(said, str) else said
