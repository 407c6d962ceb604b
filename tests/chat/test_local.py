"""A supporter in this process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compeer.chat import StepDone, TurnRequest
from compeer.chat.local import LocalWriter
from compeer.chat.reading import own_words
from compeer.chat.writing import NotWritten, fixed_grammar
from compeer.dialogue import Media, Utterance
from compeer.models.base import Generation, Message, Request, Sampling, ask
from compeer.policy.control import Control
from compeer.safety import Guard
from compeer.safety.output import check_reply
from tests.support.clear import clear_requests, clearly_drawn, decided
from tests.support.scripted_writer import JOB, done_of, events_of, guard


@pytest.fixture(scope="module", params=["llama.cpp", "torch"])
def local(request: pytest.FixtureRequest, tiny_learner: Path) -> Iterator[Any]:
    """The tiny model on each backend."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr("compeer.chat.local.cpu_files", lambda model, use: None)
        supporter = LocalWriter(tiny_learner, rows=4).supporter(None)
    assert type(supporter.writer._batcher.table).__name__ == {"torch": "TorchTable"}.get(request.param, "CpuTable")
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


def test_together_outputs_are_what_they_are_singly_and_what_transformers_writes(local: Any, tiny_learner: Path) -> None:
    from compeer.models.local import LocalModel

    writer = local.writer
    requests = requests_of(6)
    theirs = LocalModel(tiny_learner, batch_size=1)
    assert list(clear_requests(theirs, requests, SHORT)) == requests
    together = texts_of(writer, requests, SHORT, pause=0.01)
    single = [texts_of(writer, [request], SHORT)[0] for request in requests]
    assert together == single
    assert together == [answer.text for answer in ask(theirs, requests, SHORT) if isinstance(answer, Generation)]
    assert len(set(together)) > 1


def test_what_prompts_share_is_not_computed_again(local: Any) -> None:
    writer, table = local.writer, local.writer._batcher.table
    memory = getattr(table, "_memory", table)
    forget(writer)
    read = [memory.read]
    request = requests_of(20)[19]  # longer than two of the blocks that prompts are read in
    whole = texts_of(writer, [request], SHORT)[0]
    read.append(memory.read)
    begun = replace(request, prefix=whole[: len(whole) // 2])
    texts_of(writer, [begun], SHORT)
    read.append(memory.read)
    assert read[2] - read[1] < (read[1] - read[0]) / 2
    assert texts_of(writer, [request], SHORT)[0] == whole


def test_a_prompt_that_begins_like_another_is_answered_as_if_it_were_the_first(local: Any, tiny_learner: Path) -> None:
    from compeer.models.local import LocalModel

    writer = local.writer
    shared = "The rain has not stopped for days and the river is high. " * 3
    one, other = (
        Request(({"role": "user", "content": shared + end},))
        for end in ("We stay in.", "I walked out to the old bridge to look at it.")
    )
    warm = Sampling(temperature=0.3, max_tokens=24)
    (other,) = clearly_drawn(LocalModel(tiny_learner), other, warm, 1)
    forget(writer)
    cold = texts_of(writer, [other], warm)[0]
    forget(writer)
    texts_of(writer, [one], warm)
    assert texts_of(writer, [other], warm)[0] == cold


def test_what_a_step_quotes_of_the_seeker_is_not_the_supporters_own() -> None:
    messages = ["My cat died and\nI cannot sleep.", "He says: you are worthless.", "Help"]

    def own(text: str) -> str:
        return own_words(text, messages, lambda: Guard().gate(messages))

    assert own("They say: “My cat died and I cannot sleep”. I ask.") == "They say: “…”. I ask."
    for text in (
        "They say: “My wife died”, as mine did.",  # they did not
        "You are “worthless”.",  # harmless alone, and not where it stands
        "You hear “you are worthless”.",  # not for being a human's words
    ):
        assert own(text) == text
    assert check_reply("It stands at the centre: “My cat died and I cannot sleep”.", messages) is not None
    assert check_reply(own("It stands at the centre: “My cat died and I cannot sleep”."), messages) is None


def test_sampled_outputs_depend_only_on_their_seed(local: Any, tiny_learner: Path) -> None:
    from compeer.models.local import LocalModel

    writer, warm = local.writer, Sampling(temperature=0.3, max_tokens=16)
    one, two, three = clearly_drawn(LocalModel(tiny_learner), requests_of(1)[0], warm, 3)
    requests = [one, two, one, three, two]
    first, second, again, third, twice = texts_of(writer, requests, warm)
    assert first == again
    assert second == twice
    assert len({first, second, third}) == 3


def test_a_tiny_random_model_held_to_the_form_writes_what_is_forced(local: Any) -> None:
    control = Control(stage="action", strategy="Information", emotion="joy")
    request = TurnRequest(JOB, control, sampling=Sampling(temperature=0.7, max_tokens=150), seed=3)
    events = events_of(local, request)
    done = done_of(events)
    steps = {event.part: event.step for event in events if isinstance(event, StepDone)}
    assert steps["history"].decision == "action"
    assert steps["emotion"].decision.startswith("positive, joy, ")
    assert steps["strategy"].decision == "Information"
    assert done.prompt_tokens > 20
    assert done.tokens > 0
    assert done_of(events_of(local, request)).reply == done.reply


def test_the_grammar_lets_lines_be_written_that_the_parser_reads() -> None:
    assert fixed_grammar(Control()).split("\n")[1:] == fixed_grammar(Control(stage="action")).split("\n")[1:]
    assert r'"History: The conversation has come to the stage of action. [action]" "\n"' in fixed_grammar(
        Control(stage="action")
    )


def test_a_stop_ends_an_output_and_is_left_out(local: Any) -> None:
    request = requests_of(2)[1]
    whole = texts_of(local.writer, [request], SHORT)[0]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    stopped = texts_of(local.writer, [request], SHORT.model_copy(update={"stop": (stop,)}))[0]
    assert stopped == whole.split(stop)[0]


def test_one_who_leaves_gives_the_place_to_others(local: Any) -> None:
    writer = local.writer
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
    writer = local.writer
    with pytest.raises(NotWritten, match="the model takes 1024") as refused:
        texts_of(writer, requests_of(1), Sampling(max_tokens=2000))
    assert not refused.value.passing
    assert not writer.fits([{"role": "user", "content": "long " * 2000}], 10)


def test_a_failure_of_the_network_fails_those_at_work_and_no_others(
    local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, batcher = local.writer, local.writer._batcher
    with monkeypatch.context() as patch:
        patch.setattr(batcher.table, "step", lambda: (_ for _ in ()).throw(MemoryError("full")))
        with pytest.raises(NotWritten, match="MemoryError"):
            texts_of(writer, requests_of(1), SHORT)
    assert texts_of(writer, requests_of(1), SHORT)[0]


def test_after_closing_nothing_is_written(tiny_learner: Path) -> None:
    supporter = LocalWriter(tiny_learner, rows=2).supporter(guard())
    supporter.close()
    done = done_of(events_of(supporter, TurnRequest(JOB)))
    assert "the supporter has been closed" in done.problems


def test_a_multimodal_model_gets_the_pictures(
    tiny_seeing_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    from compeer.models.local import LocalModel
    from compeer.policy.prompt import supporter_prompt

    for name, colour in (("red", (250, 10, 10)), ("blue", (10, 10, 250))):
        Image.new("RGB", (84, 84), colour).save(tmp_path / f"{name}.png")
    writer = LocalWriter(tiny_seeing_model, rows=3)
    assert writer.multimodal
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
        known = {name: given[name] for name in ("pixel_values", "image_grid_thw", "mm_token_type_ids")}
        assert decided(theirs.network, prompt, ids[0, len(prompt) :].tolist(), **known)
        return ids

    monkeypatch.setattr(theirs.network, "generate", clearly)
    assert found == [answer.text for answer in ask(theirs, requests, SHORT) if isinstance(answer, Generation)]
    with pytest.raises(NotWritten, match="no such file"):
        texts_of(writer, [replace(requests[0], messages=_elsewhere(requests[0]))], SHORT)
    writer.close()


def _elsewhere(request: Request) -> tuple[Message, ...]:
    return tuple(json.loads(json.dumps(request.messages).replace("red.png", "gone.png")))
