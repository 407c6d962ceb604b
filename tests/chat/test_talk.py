"""Talking to a supporter: what is read while it is written, forced, guarded, chosen, batched, and sent upstream."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.dialogue import Media, Utterance
from compeer.errors import InputError
from compeer.models.base import Generation, Message, Request, Sampling, ask
from compeer.models.endpoint import CallSettings
from compeer.policy.control import Control
from compeer.reasoning import STEPS, Part, SupportTurn, label_of, parse_turn, render_turn
from compeer.reward.conversation import Case
from compeer.reward.score import Judgment, Unscored
from compeer.safety import CrisisEvent, Finding, Guard, GuardState, Risk, Trigger
from compeer.safety.output import check_reply
from compeer.talk import Busy, Candidate, Done, Event, Reply, Retracted, StepDone, Wish
from compeer.talk.guarded import ATTEMPTS, GuardedSupporter
from compeer.talk.local import LocalSupporter, LocalWriter
from compeer.talk.opening import open_judge, open_supporter
from compeer.talk.reading import Said, TurnReader
from compeer.talk.shown import own_words
from compeer.talk.upstream import StreamCall
from compeer.talk.writing import Ending, NotWritten, fixed_grammar, forced_lines, write_turn
from tests.support.clear import clear_requests, clearly_drawn, decided

TURN = """History: The job is gone and the rent is due. [exploration]
Emotion: Worry about the next weeks. [negative, anxiety, 4]
Strategy: First hear more of it. [Question]
Response: That is a lot at once. What worries you most?"""
WHOLE = SupportTurn.model_validate(parse_turn(TURN).parts)


def said(text: str) -> tuple[Utterance, ...]:
    return (Utterance(speaker="seeker", text=text),)


JOB = said("I lost my job and the rent is due on Friday.")


class ScriptedWriter:
    """Writes given outputs, a few characters at a time; an exception in their place is raised after half a text."""

    name, sees, constrained, continues = "scripted", False, False, True

    def __init__(
        self, *outputs: str | Exception, constrained: bool = True, size: int = 7, cut_off: bool = False
    ) -> None:
        self.outputs, self.constrained, self.size, self.cut_off = list(outputs), constrained, size, cut_off
        self.requests: list[Request] = []
        self.open = 0
        self.hold: asyncio.Event | None = None
        self.longest = 10**9

    def fits(self, messages: list[Message], max_tokens: int) -> bool:
        return sum(len(str(message["content"])) for message in messages) + max_tokens <= self.longest

    async def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[str | Ending, None]:
        self.requests.append(request)
        output = self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]
        self.open += 1
        try:
            if self.hold is not None:
                await self.hold.wait()
            if isinstance(output, Exception):
                yield "History: half"
                raise output
            text = output.removeprefix(request.prefix)
            for stop in sampling.stop:
                text = text.split(stop)[0]
            for start in range(0, len(text), self.size):
                await asyncio.sleep(0)
                yield text[start : start + self.size]
            yield Ending(self.cut_off, tokens=len(text), prompt_tokens=11)
        finally:
            self.open -= 1

    def close(self) -> None: ...


def events_of(supporter: GuardedSupporter, wish: Wish) -> list[Event]:
    async def collect() -> list[Event]:
        return [event async for event in supporter.converse(wish)]

    return asyncio.run(collect())


def reply_of(events: Sequence[Event]) -> str:
    """What somebody sees who shows pieces and takes back what is retracted."""
    text = ""
    for event in events:
        if isinstance(event, Retracted):
            text = ""
        elif isinstance(event, Reply):
            text += event.text
    return text


def done_of(events: Sequence[Event]) -> Done:
    assert isinstance(events[-1], Done)
    assert sum(isinstance(event, Done) for event in events) == 1
    assert reply_of(events) == events[-1].reply
    return events[-1]


class NoDanger:
    def detect(self, messages: str | Sequence[str], /) -> Risk:
        return Risk("none")


def forbids(*words: str) -> Callable[[str, Sequence[str]], Finding | None]:
    return lambda reply, seeker: Finding("a rule", "contempt") if any(word in reply for word in words) else None


def guard(*forbidden: str) -> Guard:
    return Guard(NoDanger(), check=forbids(*forbidden))


# --- reading --------------------------------------------------------------------------------------------------------


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
    assert "".join(one.text for one in found if isinstance(one, Said)) == WHOLE.response
    for part in STEPS:
        assert [one.step for one in found if isinstance(one, StepDone) and one.part == part] == [WHOLE.step(part)]


@given(st.lists(st.integers(1, 30), max_size=40), st.text(alphabet="ab .\n\\:Response", min_size=1, max_size=60))
def test_the_response_that_is_told_is_the_one_that_is_parsed(sizes: list[int], response: str) -> None:
    if not response.strip():
        return
    turn = WHOLE.model_copy(update={"response": response})
    text = render_turn(turn)
    found, parsed = read(text, sizes)
    told = "".join(one.text for one in found if isinstance(one, Said))
    if "response" in parsed.parts:
        assert told == parsed.parts["response"]


def test_a_step_is_told_before_the_next_one_is_written() -> None:
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
    assert "".join(one.text for one in found if isinstance(one, Said)) == parsed.turn.response
    assert {one.part for one in found if isinstance(one, StepDone)} == set(STEPS)


def test_where_the_response_can_begin_anew() -> None:
    reader = TurnReader()
    list(reader.feed(TURN))
    assert reader.steps() == TURN[: TURN.index("Response:")] + "Response:"
    assert TurnReader("History: broken").steps() == ""


# --- forcing --------------------------------------------------------------------------------------------------------


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


# --- the guard ------------------------------------------------------------------------------------------------------


def test_a_turn_comes_as_it_is_written() -> None:
    writer = ScriptedWriter(TURN)
    events = events_of(GuardedSupporter(writer, guard()), Wish(JOB, Control(persona="steady")))
    done = done_of(events)
    assert done.turn == WHOLE
    assert done.reply == WHOLE.response
    assert done.problems == ()
    assert (done.tokens, done.prompt_tokens) == (len(TURN), 11)
    kinds = [type(event) for event in events]
    assert kinds.index(StepDone) < kinds.index(Reply)
    assert len([event for event in events if isinstance(event, Reply)]) == 2  # a sentence each
    assert "steady" in str(writer.requests[0].messages)


def test_in_a_crisis_the_writer_is_not_asked_and_no_step_is_shown() -> None:
    told: list[CrisisEvent] = []
    writer = ScriptedWriter(TURN)
    supporter = GuardedSupporter(writer, Guard(locale="en-US", hooks=[lambda event: told.append(event)]))
    history = said("I am going to kill myself tonight, I have the pills here.")
    events = events_of(supporter, Wish(history, conversation="c1"))
    done = done_of(events)
    assert [type(event) for event in events] == [Reply, Done]
    assert "988" in done.reply
    assert done.guarded.hide_reasoning
    assert not writer.requests
    assert [event.conversation for event in told] == ["c1"]
    again = (*history, Utterance(speaker="supporter", text=done.reply), *said("I still have them."))
    second = done_of(events_of(supporter, Wish(again, state=done.guarded.state)))
    assert second.guarded.replaced
    assert second.reply != done.reply


def test_after_a_crisis_steps_stay_hidden() -> None:
    events = events_of(
        GuardedSupporter(ScriptedWriter(TURN), guard()), Wish(JOB, state=GuardState(answered=("suicide",)))
    )
    assert done_of(events).reply == WHOLE.response
    assert not [event for event in events if isinstance(event, StepDone | Candidate)]


def test_concern_adds_its_passage_once() -> None:
    class Concerned:
        def detect(self, messages: str | Sequence[str], /) -> Risk:
            return Risk("concern", (Trigger("suicide", "concern", "test", 0),))

    supporter = GuardedSupporter(ScriptedWriter(TURN), Guard(Concerned(), check=forbids()))
    done = done_of(events_of(supporter, Wish(JOB)))
    assert done.reply.startswith(WHOLE.response + "\n\n")
    assert done.turn == WHOLE
    assert done_of(events_of(supporter, Wish(JOB, state=done.guarded.state))).reply == WHOLE.response


def test_a_bad_sentence_is_taken_back_and_written_anew_from_the_same_steps() -> None:
    bad = TURN.replace("What worries you most?", "You are pathetic.")
    writer = ScriptedWriter(bad, TURN)
    events = events_of(GuardedSupporter(writer, guard("pathetic")), Wish(JOB))
    done = done_of(events)
    assert done.reply == WHOLE.response
    assert done.guarded.attempts == 2
    assert any(isinstance(event, Retracted) for event in events)
    assert not [event for event in events if isinstance(event, Reply) and "pathetic" in event.text]
    assert writer.requests[1].prefix.endswith("Response:")
    assert writer.requests[1].seed != writer.requests[0].seed
    assert len([event for event in events if isinstance(event, StepDone)]) == 3


@pytest.mark.parametrize("part", STEPS)
def test_a_step_that_breaks_a_rule_is_never_shown(part: Part) -> None:
    text = WHOLE.step(part).text
    writer = ScriptedWriter(TURN.replace(text, "This one is pathetic."))
    events = events_of(GuardedSupporter(writer, guard("pathetic")), Wish(JOB))
    assert not [event for event in events if isinstance(event, StepDone) and "pathetic" in event.step.text]
    shown = [event.part for event in events if isinstance(event, StepDone)]
    assert shown == list(STEPS[: STEPS.index(part)])
    done = done_of(events)
    assert done.reply == WHOLE.response
    assert done.guarded.hide_reasoning


def test_a_reply_that_stays_bad_is_replaced() -> None:
    writer = ScriptedWriter(TURN)
    done = done_of(events_of(GuardedSupporter(writer, guard("worries")), Wish(JOB)))
    assert len(writer.requests) == ATTEMPTS
    assert done.guarded.replaced == "output: contempt"
    assert done.turn is None
    assert done.reply
    assert "worries you most" not in done.reply


def test_without_a_guard_everything_is_shown() -> None:
    supporter = GuardedSupporter(ScriptedWriter(TURN), None)
    assert not supporter.guarded
    done = done_of(events_of(supporter, Wish(said("I want to kill myself."))))
    assert done.reply == WHOLE.response


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("failure", [NotWritten("the server is away"), RuntimeError("a secret of the seeker")])
def test_what_fails_ends_in_a_safe_reply(failure: Exception, protected: bool) -> None:
    supporter = GuardedSupporter(ScriptedWriter(failure), guard() if protected else None)
    done = done_of(events_of(supporter, Wish(JOB)))
    assert done.turn is None
    assert done.reply
    assert done.guarded.replaced == "no reply"
    assert any("away" in problem or "RuntimeError" in problem for problem in done.problems)
    assert not any("secret" in problem for problem in done.problems)


def test_a_failure_that_will_not_pass_is_not_tried_again() -> None:
    writer = ScriptedWriter(NotWritten("too long", passing=False))
    done_of(events_of(GuardedSupporter(writer, guard()), Wish(JOB)))
    assert len(writer.requests) == 1


def test_a_failure_may_pass() -> None:
    supporter = GuardedSupporter(ScriptedWriter(NotWritten("away"), TURN), guard())
    assert done_of(events_of(supporter, Wish(JOB))).turn == WHOLE


def test_a_cut_off_reply_ends_with_a_whole_sentence() -> None:
    writer = ScriptedWriter(TURN[:-6], cut_off=True)
    done = done_of(events_of(GuardedSupporter(writer, guard()), Wish(JOB)))
    assert done.reply == "That is a lot at once."
    assert done.cut_off
    assert done.turn is None
    assert "cut off" in done.problems[0]


def test_a_long_history_loses_its_oldest_utterances() -> None:
    writer = ScriptedWriter(TURN)
    writer.longest = 1500
    turns = [Utterance(speaker="seeker" if n % 2 == 0 else "supporter", text=f"number {n} " * 5) for n in range(41)]
    done_of(events_of(GuardedSupporter(writer, guard()), Wish(tuple(turns))))
    asked = str(writer.requests[0].messages)
    assert "number 40" in asked
    assert "number 0 " not in asked
    assert writer.fits(list(writer.requests[0].messages), 320)


# --- wishes that cannot be met, and room ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        (Wish(()), "history"),
        (Wish((*JOB, Utterance(speaker="supporter", text="Hm."))), "history"),
        (Wish(JOB, best_of=2), "best_of"),
        (Wish(JOB, best_of=0), "best_of"),
        (Wish((JOB[0].model_copy(update={"media": (Media(kind="image", path="a.png"),)}),)), "history"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_in_the_place_of_the_first_event(wish: Wish, field: str) -> None:
    with pytest.raises(InputError) as error:
        events_of(GuardedSupporter(ScriptedWriter(TURN), guard()), wish)
    assert error.value.field == field


def test_a_model_is_shown_the_end_of_an_endless_utterance() -> None:
    writer = ScriptedWriter(TURN)
    events_of(GuardedSupporter(writer, guard()), Wish(said("first" + " and on" * 10_000 + " last")))
    asked = str(writer.requests[0].messages)
    assert "first" not in asked
    assert "and on last" in asked
    assert len(asked) < 30_000


def test_a_full_line_says_when_to_come_back_and_closing_makes_room() -> None:
    async def talk() -> None:
        writer = ScriptedWriter(TURN)
        writer.hold = asyncio.Event()
        supporter = GuardedSupporter(writer, guard(), places=2)
        tasks = [asyncio.ensure_future(anext(aiter(supporter.converse(Wish(JOB))))) for _ in range(2)]
        while writer.open < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(Busy) as busy:
            await anext(aiter(supporter.converse(Wish(JOB))))
        assert busy.value.retry_after >= 1
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        assert writer.open == 1
        late = supporter.converse(Wish(JOB))
        writer.hold.set()
        assert isinstance([event async for event in late][-1], Done)

    asyncio.run(talk())


def test_nobody_in_danger_is_told_to_come_back_later() -> None:
    async def talk() -> None:
        writer = ScriptedWriter(TURN)
        writer.hold = asyncio.Event()
        supporter = GuardedSupporter(writer, Guard(locale="en-US"), places=1)
        ordinary = asyncio.ensure_future(anext(aiter(supporter.converse(Wish(JOB)))))
        while not writer.open:
            await asyncio.sleep(0.01)
        with pytest.raises(Busy):
            await anext(aiter(supporter.converse(Wish(JOB))))
        danger = supporter.converse(Wish(said("I am going to kill myself tonight, I have the pills here.")))
        done = [event async for event in danger][-1]
        assert isinstance(done, Done)
        assert "988" in done.reply
        ordinary.cancel()

    asyncio.run(talk())


def test_a_listener_who_leaves_ends_the_writing() -> None:
    async def talk() -> int:
        writer = ScriptedWriter(TURN)
        events = GuardedSupporter(writer, guard()).converse(Wish(JOB))
        async with aclosing(events) as opened:  # type: ignore[type-var]
            await anext(opened)
            assert writer.open == 1
        return writer.open

    assert asyncio.run(talk()) == 0


# --- best of n --------------------------------------------------------------------------------------------------------


class WordJudge:
    """Likes responses by how often they say "you"; a scripted judge."""

    name = "words"

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        if self._fails:
            raise RuntimeError
        found: list[Judgment | Unscored] = []
        for case in cases:
            mine = str(case.output.parts["response"]).count("you")
            other = (case.reference or "").count("you")
            better = 1.0 if mine > other else 0.0 if mine < other else 0.5
            found.append(Judgment(dict.fromkeys(STEPS, 0.9), {"candidate": better, "reference": 1 - better}))
        return found

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return self.judge(cases)


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
    events = events_of(supporter, Wish(JOB, best_of=4))
    done = done_of(events)
    assert done.reply == "I hear you, and you matter."
    assert done.turn is not None
    shown = [event for event in events if isinstance(event, Candidate)]
    assert [one.number for one in shown] == [1, 2, 3, 4]
    assert [one.place for one in shown] == [2, 1, None, None]
    assert shown[1].score is not None
    assert shown[1].score.total == 5
    assert shown[0].score is not None
    assert shown[0].score.response == -1
    assert shown[2].turn is None  # the guard does not let it pass, so nobody sees it
    assert "guard" in str(shown[2].problem)
    assert "not there" in str(shown[3].problem)
    assert len({request.seed for request in writer.requests}) == 4
    assert {event.part for event in events if isinstance(event, StepDone)} == set(STEPS)


def test_a_judge_that_fails_does_not_end_the_turn() -> None:
    supporter = GuardedSupporter(ScriptedWriter(TURN), guard(), WordJudge(fails=True))
    done = done_of(events_of(supporter, Wish(JOB, best_of=2)))
    assert done.turn == WHOLE
    assert "the judge failed: RuntimeError" in done.problems


def test_if_none_of_several_may_be_shown_the_reply_is_safe() -> None:
    supporter = GuardedSupporter(ScriptedWriter(TURN), guard("worries"), WordJudge())
    done = done_of(events_of(supporter, Wish(JOB, best_of=2)))
    assert done.turn is None
    assert done.reply
    assert "worries" not in done.reply


# --- a model in this process ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama.cpp", "torch"])
def local(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Any]:
    """The tiny model on each backend."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr("compeer.talk.local.prepare", lambda model: None)
        supporter = LocalSupporter(tiny_model, None, rows=4)
    assert type(supporter._writer._batcher.table).__name__ == {"torch": "TorchTable"}.get(request.param, "LlamaTable")
    yield supporter
    supporter.close()


def forget(writer: Any) -> None:
    """What was read before is known no more."""
    writer._batcher.ask(writer._batcher.table.clear).result()


SHORT = Sampling(temperature=0, max_tokens=12)


def texts_of(writer: Any, requests: Sequence[Request], sampling: Sampling, pause: float = 0.0) -> list[str]:
    """The outputs of requests that come one after the other, `pause` apart, and are written together."""

    async def one(request: Request, wait: float) -> str:
        await asyncio.sleep(wait)
        return "".join([piece async for piece in writer.write(request, sampling) if isinstance(piece, str)])

    async def both() -> list[str]:
        return list(await asyncio.gather(*(one(request, place * pause) for place, request in enumerate(requests))))

    return asyncio.run(both())


def requests_of(count: int, grammar: str | None = None) -> list[Request]:
    return [
        Request(
            ({"role": "user", "content": f"Seeker: number {n}, " + "and so on " * (3 * n)},), seed=n, grammar=grammar
        )
        for n in range(count)
    ]


def test_together_outputs_are_what_they_are_alone_and_what_transformers_writes(local: Any, tiny_model: Path) -> None:
    from compeer.models.local import LocalModel

    writer = local._writer
    requests = requests_of(6)
    theirs = LocalModel(tiny_model, batch_size=1)
    assert list(clear_requests(theirs, requests, SHORT)) == requests
    together = texts_of(writer, requests, SHORT, pause=0.01)
    alone = [texts_of(writer, [request], SHORT)[0] for request in requests]
    assert together == alone
    assert together == [answer.text for answer in ask(theirs, requests, SHORT) if isinstance(answer, Generation)]
    assert len(set(together)) > 1


def test_what_prompts_share_is_not_computed_again(local: Any) -> None:
    writer, table = local._writer, local._writer._batcher.table
    forget(writer)
    read = [table.read]
    request = requests_of(4)[3]
    whole = texts_of(writer, [request], SHORT)[0]
    read.append(table.read)
    begun = replace(request, prefix=whole[: len(whole) // 2])
    texts_of(writer, [begun], SHORT)
    read.append(table.read)
    assert read[2] - read[1] < (read[1] - read[0]) / 2
    assert texts_of(writer, [request], SHORT)[0] == whole


def test_a_prompt_that_begins_like_another_is_answered_as_if_it_were_the_first(local: Any, tiny_model: Path) -> None:
    from compeer.models.local import LocalModel

    writer = local._writer
    shared = "The rain has not stopped for days and the river is high. " * 3
    one, other = (
        Request(({"role": "user", "content": shared + end},))
        for end in ("We stay in.", "I walked out to the old bridge to look at it.")
    )
    warm = Sampling(temperature=0.3, max_tokens=24)
    (other,) = clearly_drawn(LocalModel(tiny_model), other, warm, 1)
    forget(writer)
    cold = texts_of(writer, [other], warm)[0]
    forget(writer)
    texts_of(writer, [one], warm)
    assert texts_of(writer, [other], warm)[0] == cold


def test_what_a_step_quotes_of_the_seeker_is_not_the_supporters_own() -> None:
    said = ["My cat died and\nI cannot sleep.", "He says: you are worthless.", "Help"]

    def own(text: str) -> str:
        return own_words(text, said, lambda: Guard().gate(said))

    assert own("They say: “My cat died and I cannot sleep”. I ask.") == "They say: “…”. I ask."
    for text in (
        "They say: “My wife died”, as mine did.",  # they did not
        "You are “worthless”.",  # harmless alone, and not where it stands
        "You hear “you are worthless”.",  # not for being a human's words
    ):
        assert own(text) == text
    assert check_reply("It stands at the centre: “My cat died and I cannot sleep”.", said) is not None
    assert check_reply(own("It stands at the centre: “My cat died and I cannot sleep”."), said) is None


def test_drawn_outputs_depend_on_their_seed_alone(local: Any, tiny_model: Path) -> None:
    from compeer.models.local import LocalModel

    writer, warm = local._writer, Sampling(temperature=0.3, max_tokens=16)
    one, two, three = clearly_drawn(LocalModel(tiny_model), requests_of(1)[0], warm, 3)
    requests = [one, two, one, three, two]
    first, second, again, third, twice = texts_of(writer, requests, warm)
    assert first == again
    assert second == twice
    assert len({first, second, third}) == 3


def test_a_tiny_random_model_held_to_the_form_writes_what_is_forced(local: Any) -> None:
    control = Control(stage="action", strategy="Information", emotion="joy")
    wish = Wish(JOB, control, sampling=Sampling(temperature=0.7, max_tokens=150), seed=3)
    events = events_of(local, wish)
    done = done_of(events)
    steps = {event.part: event.step for event in events if isinstance(event, StepDone)}
    assert steps["history"].decision == "action"
    assert steps["emotion"].decision.startswith("positive, joy, ")
    assert steps["strategy"].decision == "Information"
    assert done.prompt_tokens > 20
    assert done.tokens > 0
    assert done_of(events_of(local, wish)).reply == done.reply


def test_the_grammar_lets_lines_be_written_that_the_parser_reads() -> None:
    assert fixed_grammar(Control()).split("\n")[1:] == fixed_grammar(Control(stage="action")).split("\n")[1:]
    assert r'"History: The conversation has come to the stage of action. [action]" "\n"' in fixed_grammar(
        Control(stage="action")
    )


def test_a_stop_ends_an_output_and_is_left_out(local: Any) -> None:
    request = requests_of(2)[1]
    whole = texts_of(local._writer, [request], SHORT)[0]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    stopped = texts_of(local._writer, [request], SHORT.model_copy(update={"stop": (stop,)}))[0]
    assert stopped == whole.split(stop)[0]


def test_one_who_leaves_gives_the_place_to_others(local: Any) -> None:
    writer = local._writer
    long = Sampling(temperature=0, max_tokens=400)

    async def talk() -> str:
        leaving = [writer.write(request, long) for request in requests_of(4)]
        for one in leaving:
            await anext(one)
        for one in leaving:
            await one.aclose()
        return "".join([piece async for piece in writer.write(requests_of(1)[0], SHORT) if isinstance(piece, str)])

    assert asyncio.run(talk()) == texts_of(writer, requests_of(1), SHORT)[0]
    deadline = time.monotonic() + 60
    while writer._batcher.table.rows and time.monotonic() < deadline:  # a row is told its end just before it leaves
        time.sleep(0.01)
    assert not writer._batcher.table.rows


def test_what_is_too_long_is_refused_and_does_not_disturb_others(local: Any) -> None:
    writer = local._writer
    with pytest.raises(NotWritten, match="the model takes 1024") as refused:
        texts_of(writer, requests_of(1), Sampling(max_tokens=2000))
    assert not refused.value.passing
    assert not writer.fits([{"role": "user", "content": "long " * 2000}], 10)


def test_a_failure_of_the_network_fails_those_at_work_and_no_others(
    local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, batcher = local._writer, local._writer._batcher
    with monkeypatch.context() as patch:
        patch.setattr(batcher, "_step", lambda: (_ for _ in ()).throw(MemoryError("full")))
        with pytest.raises(NotWritten, match="MemoryError"):
            texts_of(writer, requests_of(1), SHORT)
    assert texts_of(writer, requests_of(1), SHORT)[0]


def test_after_closing_nothing_is_written(tiny_model: Path) -> None:
    supporter = LocalSupporter(tiny_model, guard(), rows=2)
    supporter.close()
    done = done_of(events_of(supporter, Wish(JOB)))
    assert "the supporter has been closed" in done.problems


def test_a_model_that_sees_is_shown_the_pictures(
    tiny_seeing_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    from compeer.models.local import LocalModel
    from compeer.policy.prompt import supporter_prompt

    for name, colour in (("red", (250, 10, 10)), ("blue", (10, 10, 250))):
        Image.new("RGB", (84, 84), colour).save(tmp_path / f"{name}.png")
    writer = LocalWriter(tiny_seeing_model, rows=3)
    assert writer.sees
    requests = []
    for name in ("red.png", "blue.png"):
        picture = Media(kind="image", path=str(tmp_path / name))
        history = [Utterance(speaker="seeker", text="Look.", media=(picture,))]
        requests.append(Request(tuple(supporter_prompt(history, images=True))))
    found = texts_of(writer, requests, SHORT)
    theirs = LocalModel(tiny_seeing_model, batch_size=1)
    generate = theirs.network.generate

    def clearly(**given: Any) -> Any:
        ids = generate(**given)
        prompt = given["input_ids"][0].tolist()
        seen = {name: given[name] for name in ("pixel_values", "image_grid_thw", "mm_token_type_ids")}
        assert decided(theirs.network, prompt, ids[0, len(prompt) :].tolist(), **seen)
        return ids

    monkeypatch.setattr(theirs.network, "generate", clearly)
    assert found == [answer.text for answer in ask(theirs, requests, SHORT) if isinstance(answer, Generation)]
    with pytest.raises(NotWritten, match="no such file"):
        texts_of(writer, [replace(requests[0], messages=_elsewhere(requests[0]))], SHORT)
    writer.close()


def _elsewhere(request: Request) -> tuple[Message, ...]:
    return tuple(json.loads(json.dumps(request.messages).replace("red.png", "gone.png")))


# --- a model behind a server ------------------------------------------------------------------------------------------


ENDLESS = ("floods", "pings fast", "pings", "one line")


class Server(BaseHTTPRequestHandler):
    """Streams a turn, or does what `misbehave` says."""

    asked: ClassVar[list[dict[str, Any]]] = []
    misbehave: ClassVar[list[str]] = []
    left: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        how = self.misbehave.pop(0) if self.misbehave else ""
        if how.isdigit():
            self.send_response(int(how))
            self.send_header("Retry-After", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        if how in ENDLESS:
            self._never_end(how)
            return
        prefix = body["messages"][-1]["content"] if body["messages"][-1]["role"] == "assistant" else ""
        text = TURN.removeprefix(prefix)
        if how.startswith("says "):
            text = how.removeprefix("says ")
        for stop in body.get("stop", []):
            text = text.split(stop)[0]
        for start in range(0, len(text), 16):
            self._send({"choices": [{"delta": {"content": text[start : start + 16]}, "finish_reason": None}]})
            if how == "breaks off":
                return
        if how == "nonsense":
            self.wfile.write(b"data: {broken\n\n")
        self._send({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self._send({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 40}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _never_end(self, how: str) -> None:
        try:
            for number in itertools.count():
                if how == "floods":
                    text = f"{TURN} " if not number else f"And this is sentence number {number}. "
                    self._send({"choices": [{"delta": {"content": text}, "finish_reason": None}]})
                elif how == "pings fast":
                    self._send({"choices": [{"delta": {}, "finish_reason": None}]})
                elif how == "one line":
                    self.wfile.write(b"data: " if not number else b"x" * 1000)
                else:
                    self.wfile.write(b": still here\n\n")
                    time.sleep(0.02)
        except OSError:
            self.left.append(how)

    def _send(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    Server.asked, Server.misbehave, Server.left = [], [], []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}/v1"
    running.shutdown()
    thread.join()
    running.server_close()


def test_a_server_is_asked_with_our_prompt_and_its_answer_guarded(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-key")
    supporter = open_supporter(f"big@{server}", guard())
    done = done_of(events_of(supporter, Wish(JOB)))
    assert done.turn == WHOLE
    assert (done.tokens, done.prompt_tokens) == (40, 9)
    assert supporter.name == "big"
    body = Server.asked[0]
    assert body["stream"] is True
    assert "peer supporter" in body["messages"][0]["content"]
    assert "a-secret-key" not in json.dumps(body)


def test_a_server_goes_on_from_a_forced_strategy(server: str) -> None:
    supporter = open_supporter(f"big@{server}", guard(), call=CallSettings(constrain="off"))
    events_of(supporter, Wish(JOB, Control(strategy="Information")))
    assert Server.asked[0]["stop"] == ["\nStrategy"]
    assert Server.asked[1]["messages"][-1]["content"].endswith("[Information]\nResponse:")
    held = open_supporter(f"big@{server}", guard(), call=CallSettings(constrain="vllm"))
    Server.asked.clear()
    events_of(held, Wish(JOB, Control(strategy="Information")))
    assert "[Information]" in Server.asked[0]["structured_outputs"]["grammar"]


@pytest.mark.parametrize("how", ["503", "429", "breaks off", "nonsense"])
def test_a_server_that_fails_once_is_asked_again(server: str, how: str) -> None:
    Server.misbehave.append(how)
    done = done_of(events_of(open_supporter(f"big@{server}", guard()), Wish(JOB)))
    assert done.turn == WHOLE
    assert len(Server.asked) == 2


BAD_TURN = TURN.replace("What worries you most?", "You are pathetic.")


def test_a_server_that_begins_anew_is_read_as_it_writes_and_noticed_once(server: str) -> None:
    supporter = open_supporter(f"big@{server}", guard("pathetic"))
    fresh = TURN.replace("at once", "to carry")
    Server.misbehave += [f"says {BAD_TURN}", f"says {fresh}"]  # a second attempt, begun, and begun anew
    done = done_of(events_of(supporter, Wish(JOB)))
    assert done.reply == "That is a lot to carry. What worries you most?"
    assert done.turn == parse_turn(fresh).turn
    assert Server.asked[1]["messages"][-1]["role"] == "assistant"
    Server.misbehave += [f"says {BAD_TURN}", f"says {TURN}"]
    assert done_of(events_of(supporter, Wish(JOB))).turn == WHOLE
    assert Server.asked[3]["messages"][-1]["role"] == "user", "it is not begun for it again"


def test_a_server_that_begins_anew_is_only_asked_for_decisions(server: str) -> None:
    supporter = open_supporter(f"big@{server}", guard())
    Server.misbehave += [f"says {TURN}"] * 3
    for _ in range(2):
        done = done_of(events_of(supporter, Wish(JOB, Control(stage="action"))))
        assert done.turn == WHOLE
        assert "stage: not as it was asked for" in done.problems
    assert [body["messages"][-1]["role"] for body in Server.asked] == ["assistant", "user"]


FORM = "History: ok [exploration]"


@pytest.mark.parametrize(
    "second",
    [
        FORM,
        f"\n{FORM}",
        f"**History**: ok [exploration]\n{TURN}",
        f"Response: {FORM}",
        f"Sure.\n{FORM}",
        f"\\{FORM}",
        TURN,
        f"Response: {WHOLE.response}",
        f" {WHOLE.response}\nHistory analysis：ok [exploration]",
    ],
)
@pytest.mark.parametrize("best_of", [1, 2])
def test_no_form_is_ever_shown_as_the_reply(server: str, second: str, best_of: int) -> None:
    supporter = open_supporter(f"big@{server}", guard("pathetic"), WordJudge())
    begun = TURN[: TURN.index("Response:")] + "Response: " if best_of > 1 else ""
    Server.misbehave += [f"says {BAD_TURN}", *[f"says {begun}{second}"] * 4]
    events = events_of(supporter, Wish(JOB, best_of=best_of))
    done = done_of(events)
    for text in (*(event.text for event in events if isinstance(event, Reply)), done.reply):
        assert "ok" not in text
        assert not [line for line in text.splitlines() if label_of(line)]
    assert done.turn is None or "ok" not in str(done.turn)


@pytest.mark.parametrize("how", ENDLESS)
def test_a_server_without_an_end_is_left_and_not_asked_again(server: str, how: str) -> None:
    Server.misbehave += [how] * 3
    call = StreamCall(stream_seconds=1.0 if how == "pings" else 60.0, stream_bytes=2**18)
    done = done_of(events_of(open_supporter(f"big@{server}", guard(), call=call), Wish(JOB)))
    assert len(Server.asked) == 1
    if how == "floods":
        assert done.cut_off
        assert done.reply.startswith(WHOLE.response)
        assert done.reply.endswith(".")
        assert len(done.reply) < 16 * 320
    else:
        assert done.guarded.replaced == "no reply"
        assert done.problems[0] in ("the server did not answer in time", "the server's answer has no end")
    end = time.monotonic() + 10
    while not Server.left and time.monotonic() < end:
        time.sleep(0.01)
    assert Server.left == [how], "the connection is closed, so that the server can stop too"


def test_the_guard_reads_outside_the_event_loop() -> None:
    threads = set()

    def check(*_: Any) -> Finding | None:
        threads.add(threading.get_ident())
        return None

    done_of(events_of(GuardedSupporter(ScriptedWriter(TURN), Guard(NoDanger(), check=check)), Wish(JOB)))
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(("how", "calls"), [("401", 1), ("500", 3)])
def test_a_server_that_keeps_failing_ends_in_a_safe_reply(server: str, how: str, calls: int) -> None:
    Server.misbehave += [how] * 3
    done = done_of(events_of(open_supporter(f"big@{server}", guard()), Wish(JOB)))
    assert done.reply
    assert done.problems[0] == f"the server answered {how}"
    assert len(Server.asked) == calls


def test_a_server_that_is_not_there_ends_in_a_safe_reply() -> None:
    done = done_of(events_of(open_supporter("big@http://127.0.0.1:9/v1", guard()), Wish(JOB)))
    assert done.reply
    assert "cannot be reached" in done.problems[0]


@pytest.mark.parametrize("name", ["http://host/v1", "@http://host/v1", "nowhere"])
def test_a_name_that_means_nothing_is_an_error(name: str) -> None:
    with pytest.raises(InputError) as error:
        open_supporter(name)
    assert error.value.field == "model"


def test_a_folder_without_a_judge_is_an_error(tiny_model: Path) -> None:
    with pytest.raises(InputError, match="no judge"):
        open_judge(str(tiny_model))
