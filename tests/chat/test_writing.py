"""Forcing decisions into outputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from compeer.chat.writing import Ending, forced_lines, write_turn
from compeer.models.base import Request, Sampling
from compeer.policy.control import Control
from compeer.reasoning import parse_turn
from tests.support.scripted_writer import TURN, ScriptedWriter


def written(writer: ScriptedWriter, control: Control) -> str:
    async def collect() -> str:
        pieces = write_turn(writer, [{"role": "user", "content": "x"}], control, Sampling(), 1)
        return "".join([piece async for piece in pieces if isinstance(piece, str)])

    return asyncio.run(collect())


def test_forced_lines_hold_the_decisions() -> None:
    lines = forced_lines(Control(strategy="Information", emotion="joy"))
    assert list(lines) == ["emotion", "strategy"]
    assert lines["emotion"].endswith("[positive, joy, 3]")
    assert forced_lines(Control(persona="steady")) == {}


@pytest.mark.parametrize(
    "control",
    [
        Control(),
        Control(stage="action"),
        Control(emotion="anger"),
        Control(strategy="Information"),
        Control(stage="action", emotion="joy"),
        Control(stage="comforting", strategy="Others"),
        Control(stage="action", emotion="joy", strategy="Information"),
    ],
)
def test_a_writer_without_a_grammar_goes_on_from_forced_lines(control: Control) -> None:
    class Continues(ScriptedWriter):
        """Goes on from whatever line it is given, as a model does."""

        async def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[str | Ending, None]:
            self.requests.append(request)
            lines = TURN.split("\n")
            begun = request.prefix.split("\n")
            text = "\n".join(lines[len(begun) - 1 :])
            if request.prefix:
                text = text.split(":", 1)[1] if request.prefix.endswith(":") else "\n" + text.split("\n", 1)[1]
            for stop in sampling.stop:
                text = text.split(stop)[0]
            yield text
            yield Ending(tokens=1)

    writer = Continues("", constrained=False)
    parsed = parse_turn(written(writer, control))
    assert parsed.turn is not None, parsed.missing
    assert not parsed.problems
    wanted = control.requested()
    assert parsed.turn.history.stage == wanted.get("stage", "exploration")
    assert parsed.turn.emotion.emotion == wanted.get("emotion", "anxiety")
    assert parsed.turn.strategy.strategy == wanted.get("strategy", "Question")
