"""A guarded turn: what is shown, withdrawn, replaced and refused; the best of several."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.chat import Busy, JudgedCandidate, ReplyPart, Retracted, StepDone, TurnDone, TurnRequest
from compeer.chat.conversation import ATTEMPTS, GuardedSupporter, visible
from compeer.chat.writing import NotWritten
from compeer.dialogue import Media, Utterance
from compeer.errors import InputError
from compeer.models.base import Sampling
from compeer.policy.control import Control
from compeer.reasoning import STEPS, Part
from compeer.safety import CrisisEvent, Guard, GuardState, Risk, Trigger
from tests.support.scripted_writer import (
    JOB,
    TURN,
    WHOLE,
    ScriptedWriter,
    WordJudge,
    done_of,
    events_of,
    forbids,
    guard,
    said,
)

# --- the guard ------------------------------------------------------------------------------------------------------


def test_a_turn_comes_as_it_is_written() -> None:
    writer = ScriptedWriter(TURN)
    events = events_of(GuardedSupporter(writer, guard()), TurnRequest(JOB, Control(persona="steady")))
    done = done_of(events)
    assert done.turn == WHOLE
    assert done.reply == WHOLE.response
    assert done.problems == ()
    assert (done.tokens, done.prompt_tokens) == (len(TURN), 11)
    kinds = [type(event) for event in events]
    assert kinds.index(StepDone) < kinds.index(ReplyPart)
    assert len([event for event in events if isinstance(event, ReplyPart)]) == 2  # a sentence each
    assert "steady" in str(writer.requests[0].messages)


def test_in_a_crisis_the_writer_is_not_asked_and_no_step_is_displayed() -> None:
    reported: list[CrisisEvent] = []
    writer = ScriptedWriter(TURN)
    supporter = GuardedSupporter(writer, Guard(locale="en-US", hooks=[lambda event: reported.append(event)]))
    history = said("I am going to kill myself tonight, I have the pills here.")
    events = events_of(supporter, TurnRequest(history, conversation="c1"))
    done = done_of(events)
    assert [type(event) for event in events] == [ReplyPart, TurnDone]
    assert "988" in done.reply
    assert done.guarded.hide_reasoning
    assert not writer.requests
    assert [event.conversation for event in reported] == ["c1"]
    again = (*history, Utterance(speaker="supporter", text=done.reply), *said("I still have them."))
    second = done_of(events_of(supporter, TurnRequest(again, state=done.guarded.state)))
    assert second.guarded.replaced
    assert second.reply != done.reply


def test_after_a_crisis_steps_stay_hidden() -> None:
    events = events_of(
        GuardedSupporter(ScriptedWriter(TURN), guard()), TurnRequest(JOB, state=GuardState(answered=("suicide",)))
    )
    assert done_of(events).reply == WHOLE.response
    assert not [event for event in events if isinstance(event, StepDone | JudgedCandidate)]


def test_concern_adds_its_passage_once() -> None:
    class Concerned:
        def detect(self, messages: str | Sequence[str], /) -> Risk:
            return Risk("concern", (Trigger("suicide", "concern", "test", 0),))

    supporter = GuardedSupporter(ScriptedWriter(TURN), Guard(Concerned(), check=forbids()))
    done = done_of(events_of(supporter, TurnRequest(JOB)))
    assert done.reply.startswith(WHOLE.response + "\n\n")
    assert done.turn == WHOLE
    assert done_of(events_of(supporter, TurnRequest(JOB, state=done.guarded.state))).reply == WHOLE.response


def test_a_bad_sentence_is_taken_back_and_written_anew_from_the_same_steps() -> None:
    bad = TURN.replace("What worries you most?", "You are pathetic.")
    writer = ScriptedWriter(bad, TURN)
    events = events_of(GuardedSupporter(writer, guard("pathetic")), TurnRequest(JOB))
    done = done_of(events)
    assert done.reply == WHOLE.response
    assert done.guarded.attempts == 2
    assert any(isinstance(event, Retracted) for event in events)
    assert not [event for event in events if isinstance(event, ReplyPart) and "pathetic" in event.text]
    assert writer.requests[1].prefix.endswith("Response:")
    assert writer.requests[1].seed != writer.requests[0].seed
    assert len([event for event in events if isinstance(event, StepDone)]) == 3


def test_a_reply_that_begins_as_an_earlier_one_did_is_written_anew_before_anybody_reads_it() -> None:
    history = (*JOB, Utterance(speaker="supporter", text=f"{WHOLE.response} Tell me."), *said("All of it."))
    other = TURN.replace(WHOLE.response, "Of all this, what keeps you awake at night?")
    writer = ScriptedWriter(TURN, other)
    events = events_of(GuardedSupporter(writer, guard()), TurnRequest(history))
    done = done_of(events)
    assert done.reply == "Of all this, what keeps you awake at night?"
    assert done.guarded.attempts == 2
    assert not [event for event in events if isinstance(event, Retracted)]
    assert not [event for event in events if isinstance(event, ReplyPart) and "lot at once" in event.text]
    assert writer.requests[1].prefix.endswith("Response:")
    # where it cannot say anything else, it says that
    stubborn = ScriptedWriter(TURN)
    done = done_of(events_of(GuardedSupporter(stubborn, guard()), TurnRequest(history)))
    assert (done.reply, len(stubborn.requests)) == (WHOLE.response, ATTEMPTS)
    greedy = TurnRequest(history, sampling=Sampling(temperature=0.0, max_tokens=320))
    assert done_of(events_of(GuardedSupporter(ScriptedWriter(TURN), guard()), greedy)).guarded.attempts == 1


@pytest.mark.parametrize("part", STEPS)
def test_a_step_that_breaks_a_rule_is_never_displayed(part: Part) -> None:
    text = WHOLE.step(part).text
    writer = ScriptedWriter(TURN.replace(text, "This one is pathetic."))
    events = events_of(GuardedSupporter(writer, guard("pathetic")), TurnRequest(JOB))
    assert not [event for event in events if isinstance(event, StepDone) and "pathetic" in event.step.text]
    displayed = [event.part for event in events if isinstance(event, StepDone)]
    assert displayed == list(STEPS[: STEPS.index(part)])
    done = done_of(events)
    assert done.reply == WHOLE.response
    assert done.guarded.hide_reasoning


def test_a_reply_that_stays_bad_is_replaced() -> None:
    writer = ScriptedWriter(TURN)
    done = done_of(events_of(GuardedSupporter(writer, guard("worries")), TurnRequest(JOB)))
    assert len(writer.requests) == ATTEMPTS
    assert done.guarded.replaced == "output: contempt"
    assert done.turn is None
    assert done.reply
    assert "worries you most" not in done.reply


def test_without_a_guard_everything_is_displayed() -> None:
    supporter = GuardedSupporter(ScriptedWriter(TURN), None)
    assert not supporter.guarded
    done = done_of(events_of(supporter, TurnRequest(said("I want to kill myself."))))
    assert done.reply == WHOLE.response


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("failure", [NotWritten("the server is away"), RuntimeError("a secret of the seeker")])
def test_what_fails_ends_in_a_safe_reply(failure: Exception, protected: bool) -> None:
    supporter = GuardedSupporter(ScriptedWriter(failure), guard() if protected else None)
    done = done_of(events_of(supporter, TurnRequest(JOB)))
    assert done.turn is None
    assert done.reply
    assert done.guarded.replaced == "no reply"
    assert any("away" in problem or "RuntimeError" in problem for problem in done.problems)
    assert not any("secret" in problem for problem in done.problems)


def test_a_failure_that_will_not_pass_is_not_tried_again() -> None:
    writer = ScriptedWriter(NotWritten("too long", passing=False))
    done_of(events_of(GuardedSupporter(writer, guard()), TurnRequest(JOB)))
    assert len(writer.requests) == 1


def test_a_failure_may_pass() -> None:
    supporter = GuardedSupporter(ScriptedWriter(NotWritten("away"), TURN), guard())
    assert done_of(events_of(supporter, TurnRequest(JOB))).turn == WHOLE


def test_a_cut_off_reply_ends_with_a_whole_sentence() -> None:
    writer = ScriptedWriter(TURN[:-6], cut_off=True)
    done = done_of(events_of(GuardedSupporter(writer, guard()), TurnRequest(JOB)))
    assert done.reply == "That is a lot at once."
    assert done.cut_off
    assert done.turn is None
    assert "cut off" in done.problems[0]


def test_a_long_history_loses_its_oldest_utterances() -> None:
    writer = ScriptedWriter(TURN)
    writer.longest = 1500
    turns = [Utterance(speaker="seeker" if n % 2 == 0 else "supporter", text=f"number {n} " * 5) for n in range(41)]
    done_of(events_of(GuardedSupporter(writer, guard()), TurnRequest(tuple(turns))))
    asked = str(writer.requests[0].messages)
    assert "number 40" in asked
    assert "number 0 " not in asked
    assert writer.fits(list(writer.requests[0].messages), 320)


# --- requests that cannot be met, and room ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (TurnRequest(()), "history"),
        (TurnRequest((*JOB, Utterance(speaker="supporter", text="Hm."))), "history"),
        (TurnRequest(JOB, best_of=2), "best_of"),
        (TurnRequest(JOB, best_of=0), "best_of"),
        (TurnRequest((JOB[0].model_copy(update={"media": (Media(kind="image", path="a.png"),)}),)), "history"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_instead_of_the_first_event(asked: TurnRequest, field: str) -> None:
    with pytest.raises(InputError) as error:
        events_of(GuardedSupporter(ScriptedWriter(TURN), guard()), asked)
    assert error.value.field == field


def test_a_model_gets_the_end_of_an_endless_utterance() -> None:
    writer = ScriptedWriter(TURN)
    events_of(GuardedSupporter(writer, guard()), TurnRequest(said("first" + " and on" * 10_000 + " last")))
    asked = str(writer.requests[0].messages)
    assert "first" not in asked
    assert "and on last" in asked
    assert len(asked) < 30_000


def test_a_full_line_says_when_to_come_back_and_closing_makes_room() -> None:
    async def talk() -> None:
        writer = ScriptedWriter(TURN)
        writer.hold = asyncio.Event()
        supporter = GuardedSupporter(writer, guard(), capacity=2)
        tasks = [asyncio.ensure_future(anext(aiter(supporter.converse(TurnRequest(JOB))))) for _ in range(2)]
        while writer.open < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(Busy) as busy:
            await anext(aiter(supporter.converse(TurnRequest(JOB))))
        assert busy.value.retry_after >= 1
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        assert writer.open == 1
        late = supporter.converse(TurnRequest(JOB))
        writer.hold.set()
        assert isinstance([event async for event in late][-1], TurnDone)

    asyncio.run(talk())


def test_nobody_in_danger_is_asked_to_come_back_later() -> None:
    async def talk() -> None:
        writer = ScriptedWriter(TURN)
        writer.hold = asyncio.Event()
        supporter = GuardedSupporter(writer, Guard(locale="en-US"), capacity=1)
        ordinary = asyncio.ensure_future(anext(aiter(supporter.converse(TurnRequest(JOB)))))
        while not writer.open:
            await asyncio.sleep(0.01)
        with pytest.raises(Busy):
            await anext(aiter(supporter.converse(TurnRequest(JOB))))
        danger = supporter.converse(TurnRequest(said("I am going to kill myself tonight, I have the pills here.")))
        done = [event async for event in danger][-1]
        assert isinstance(done, TurnDone)
        assert "988" in done.reply
        ordinary.cancel()

    asyncio.run(talk())


def test_a_listener_who_leaves_ends_the_writing() -> None:
    async def talk() -> int:
        writer = ScriptedWriter(TURN)
        events = GuardedSupporter(writer, guard()).converse(TurnRequest(JOB))
        async with aclosing(events) as opened:  # type: ignore[type-var]
            await anext(opened)
            assert writer.open == 1
        return writer.open

    assert asyncio.run(talk()) == 0


# --- best of n --------------------------------------------------------------------------------------------------------


def with_response(text: str) -> str:
    return TURN[: TURN.index("Response:")] + f"Response: {text}"


def test_the_best_of_several_is_chosen_by_the_judge() -> None:
    writer = ScriptedWriter(
        with_response("Hm."),
        with_response("I hear you, and you matter."),
        with_response("pathetic you you you"),
        "junk",
    )
    supporter = GuardedSupporter(writer, guard("pathetic"), WordJudge())
    assert supporter.judges
    events = events_of(supporter, TurnRequest(JOB, best_of=4))
    done = done_of(events)
    assert done.reply == "I hear you, and you matter."
    assert done.turn is not None
    displayed = [event for event in events if isinstance(event, JudgedCandidate)]
    assert [one.number for one in displayed] == [1, 2, 3, 4]
    assert [one.place for one in displayed] == [2, 1, None, None]
    assert displayed[1].score is not None
    assert displayed[1].score.total == 5
    assert displayed[0].score is not None
    assert displayed[0].score.response == -1
    assert displayed[2].turn is None  # the guard does not let it pass, so nobody sees it
    assert "guard" in str(displayed[2].problem)
    assert "not there" in str(displayed[3].problem)
    assert len({request.seed for request in writer.requests}) == 4
    assert {event.part for event in events if isinstance(event, StepDone)} == set(STEPS)


def test_a_judge_that_fails_does_not_end_the_turn() -> None:
    supporter = GuardedSupporter(ScriptedWriter(TURN), guard(), WordJudge(fails=True))
    done = done_of(events_of(supporter, TurnRequest(JOB, best_of=2)))
    assert done.turn == WHOLE
    assert "the judge failed: RuntimeError" in done.problems


def test_if_none_of_several_may_be_displayed_the_reply_is_safe() -> None:
    supporter = GuardedSupporter(ScriptedWriter(TURN), guard("worries"), WordJudge())
    done = done_of(events_of(supporter, TurnRequest(JOB, best_of=2)))
    assert done.turn is None
    assert done.reply
    assert "worries" not in done.reply


@given(st.integers(1, 200), st.integers(1, 40))
def test_the_first_visible_utterance_moves_on_in_steps(utterances: int, longest: int) -> None:
    known = visible(utterances, longest)
    assert 1 <= known <= longest
    assert known > longest - max(1, longest // 3) or known == utterances
    first, step = utterances - known, max(1, longest // 3)
    assert first % step == 0
    assert visible(utterances, None) == utterances
    following = [utterances + n - visible(utterances + n, longest) for n in range(3 * step)]
    assert len(set(following)) <= 4  # a prompt is begun anew once in a step at most
