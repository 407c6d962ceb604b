"""Reading an output while it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.chat import StepDone
from compeer.chat.reading import TurnReader
from compeer.reasoning import STEPS, render_turn
from tests.support.scripted_writer import TURN, WHOLE


def read(text: str, sizes: Sequence[int], cut_off: bool = False) -> tuple[list[Any], Any]:
    reader, found, start = TurnReader(), [], 0
    for size in sizes:
        found += list(reader.feed(text[start : start + size]))
        start += size
    found += list(reader.feed(text[start:]))
    left, parsed = reader.end(cut_off)
    return found + left, parsed


@given(st.lists(st.integers(1, 40), max_size=60))
def test_a_turn_is_read_alike_however_it_is_cut(sizes: list[int]) -> None:
    found, parsed = read(TURN, sizes)
    assert parsed.turn == WHOLE
    assert "".join(one for one in found if isinstance(one, str)) == WHOLE.response
    for part in STEPS:
        assert [one.step for one in found if isinstance(one, StepDone) and one.part == part] == [WHOLE.step(part)]


@given(st.lists(st.integers(1, 30), max_size=40), st.text(alphabet="ab .\n\\:Response", min_size=1, max_size=60))
def test_the_response_that_is_reported_is_the_one_that_is_parsed(sizes: list[int], response: str) -> None:
    if not response.strip():
        return
    turn = WHOLE.model_copy(update={"response": response})
    text = render_turn(turn)
    found, parsed = read(text, sizes)
    reported = "".join(one for one in found if isinstance(one, str))
    if "response" in parsed.parts:
        assert reported == parsed.parts["response"]


def test_a_step_is_reported_before_the_next_one_is_written() -> None:
    reader = TurnReader()
    found = list(reader.feed(TURN[: TURN.index("Worry")]))
    assert [one.part for one in found if isinstance(one, StepDone)] == ["history"]


@pytest.mark.parametrize(
    "text",
    [
        TURN.replace("History:", "**历史分析**：").replace("Response:", "### Response\n"),
        TURN.upper().replace("[QUESTION]", "[Question]"),
        "```\n" + TURN + "\n```",
    ],
)
def test_other_forms_are_read_too(text: str) -> None:
    found, parsed = read(text, [5] * 30)
    assert parsed.turn is not None
    assert "".join(one for one in found if isinstance(one, str)) == parsed.turn.response
    assert {one.part for one in found if isinstance(one, StepDone)} == set(STEPS)


def test_where_the_response_can_begin_anew() -> None:
    reader = TurnReader()
    list(reader.feed(TURN))
    assert reader.steps() == TURN[: TURN.index("Response:")] + "Response:"
    assert TurnReader("History: broken").steps() == ""
