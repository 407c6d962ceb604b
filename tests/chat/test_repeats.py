"""An output ends before it repeats itself, however it is written."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.chat.local import LocalWriter
from compeer.chat.upstream import _once
from compeer.chat.writing import Ending
from compeer.dialogue import Utterance
from compeer.engine import batching
from compeer.models import Sampling
from compeer.models.base import Request
from compeer.policy import Output, generate_turns, repeats
from compeer.policy.repeats import RepetitionFilter, repeats_earlier
from compeer.reasoning import SupportTurn, parse_turn
from compeer.ser.record import SerRecord
from tests.support.scripted_model import ScriptedModel

STEPS = """History: The job is gone. It came at once. [exploration]
Emotion: The job is gone. [negative, anxiety, 4]
Strategy: First hear more of it. [Question]
"""
BEFORE = f"{STEPS}Response: I am sorry. That is a lot at once."


def until_repetition(text: str, begun: str = "", last: bool = True) -> tuple[str, bool]:
    """What is passed on of an output, `begun` so, and whether it is over; unless `last`, a start is held."""
    output = RepetitionFilter(begun)
    return output.feed(text, last), output.over


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (f"{BEFORE} That is a lot at once. That is a lot at once. What", BEFORE),
        (f"{BEFORE} That is a lot at once", BEFORE),
        (f"{BEFORE}\nThat is a lot at once.\n", BEFORE),
        (f"{BEFORE} What is it? That is a lot, at once! WHAT is it? And", f"{BEFORE} What is it?"),
        (f"{BEFORE} Oh. That is a lot at once. Oh. And", f"{BEFORE} Oh."),
        (
            f"{STEPS}Response: 真的很难。我在这里陪你。真的很难。我在这里陪你。",
            f"{STEPS}Response: 真的很难。我在这里陪你。",
        ),
    ],
)
def test_what_was_said_in_this_order_ends_the_response(text: str, reported: str) -> None:
    assert until_repetition(text) == (reported, reported != text)


@pytest.mark.parametrize(
    "text",
    [
        BEFORE,
        f"{BEFORE} That is a lot at once. What worries you most?",
        f"{BEFORE} Really? Go on. Really? Go on.",
        f"{STEPS}Response: Breathe in for four. Hold for four. Breathe out for four. Hold for four. Then again.",
        f"{STEPS}Response: The job is gone. It came at once. First hear more of it.",  # what a step says may be said
        "The job is gone. The job is gone. The job is gone.",  # no response yet
        f"{STEPS}Response: 我在。嗯，我在。我在。",
        "",
    ],
)
def test_other_outputs_stay_as_they_are(text: str) -> None:
    assert until_repetition(text) == (text, False)


SENTENCES = st.lists(
    st.sampled_from(["I am here now. ", "Yes. ", "I am here! ", "What is it?\n", "我在这里陪你。"]), max_size=6
)


@given(SENTENCES, st.lists(st.integers(1, 9), min_size=1), st.booleans())
def test_piece_by_piece_the_same_is_reported(sentences: list[str], sizes: list[int], begun: bool) -> None:
    start, rest = (f"{STEPS}Response:", " ") if begun else ("", f"{STEPS}Response: ")
    text = rest + "".join(sentences)
    whole, over = until_repetition(text, start)
    reported, place = "", 0
    for number in range(len(text)):
        place = min(place + sizes[number % len(sizes)], len(text))
        known, ended = until_repetition(text[:place], start, last=False)
        assert known.startswith(reported.rstrip())
        assert whole.startswith(known.rstrip())
        reported = max(reported, known, key=len)
        if ended:
            assert over
            assert known == whole
            break
    assert whole == text or over


@pytest.mark.parametrize("flood", ["!" * 4000, "\n" * 4000, "a b " * 1000, "Yes. No. " * 400, "是" * 4000])
def test_what_was_looked_at_is_not_looked_at_again(flood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    words = repeats._words

    def counted(sentence: str) -> str:
        nonlocal read
        read += len(sentence)
        return words(sentence)

    monkeypatch.setattr(repeats, "_words", counted)
    output = RepetitionFilter("Response:")
    reported = "".join(map(output.feed, flood)) + output.feed("", last=True)
    assert reported.strip() == flood.strip()
    assert read <= 2 * len(flood)


def test_held_to_their_form_outputs_are_passed_on_once() -> None:
    gold = SupportTurn.model_validate(parse_turn(BEFORE).parts)
    record = SerRecord(
        id="r",
        dialogue="d",
        round=1,
        language="en",
        source="test",
        split="test",
        history=(Utterance(speaker="seeker", text="The job is gone."),),
        candidate=gold,
        author="corpus",
        reference=gold.response,
        candidate_first=True,
    )
    looping = f"{BEFORE} That is a lot at once. That is a lot at once. That is"
    model = ScriptedModel(lambda request: looping)
    held, free = (
        generate_turns(model, [record], Sampling(), 1, constrained=constrained)[0] for constrained in (True, False)
    )
    assert isinstance(held, Output)
    assert isinstance(free, Output)
    assert (held.text, free.text) == (BEFORE, looping)
    assert held.parsed.turn == gold


def test_a_writer_ends_an_output_before_it_repeats_itself(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LocalWriter(tiny_model, rows=1)
    looping = f"{BEFORE}" + " That is a lot at once." * 40
    script = iter(writer._tokenizer(looping, add_special_tokens=False)["input_ids"])
    monkeypatch.setattr(batching, "next_tokens", lambda logits, rows, end: [next(script)])
    request = Request(({"role": "user", "content": "The job is gone."},))

    async def pieces() -> list[str | Ending]:
        return [piece async for piece in writer.write(request, Sampling(max_tokens=900))]

    *texts, ending = asyncio.run(pieces())
    writer.close()
    assert "".join(str(text) for text in texts) == BEFORE
    assert isinstance(ending, Ending)
    assert not ending.cut_off
    assert len(list(script)) > 20, "it goes on for no longer than it takes to see the loop"


def test_a_server_that_repeats_itself_is_heard_out_and_passed_on_once() -> None:
    async def pieces() -> AsyncGenerator[str | Ending, None]:
        looping = f"{BEFORE}" + " That is a lot at once." * 40
        for start in range(0, len(looping), 5):
            yield looping[start : start + 5]
        yield Ending(True, 400, 30)

    async def reported() -> list[str | Ending]:
        return [piece async for piece in _once(pieces(), "", 5_000)]

    *texts, ending = asyncio.run(reported())
    assert "".join(str(text) for text in texts) == BEFORE
    assert ending == Ending(False, 400, 30)


@pytest.mark.parametrize(
    ("text", "earlier", "repeated"),
    [
        ("You sat there, knew nothing and froze.", ["You sat there, knew nothing and froze. That hurts."], True),
        ("You sat there, knew nothing and froze.", ["You knew the answer.", "That must be hard."], False),
        ("I hear you.", ["I hear you."], False),
        ("一个人待着挺难受的。", ["一个人待着挺难受的，对吗？"], True),
        ("一个人待着挺难受的。", ["最近睡得好吗？"], False),
        ("", [""], False),
    ],
)
def test_what_was_said_before_is_known(text: str, earlier: list[str], repeated: bool) -> None:
    assert repeats_earlier(text, earlier) is repeated
