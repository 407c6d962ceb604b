"""`compeer say` and `compeer chat`: what is printed, what can be typed, what is kept."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import compeer.chat.resolve
from compeer.chat import Event, JudgedCandidate, TurnRequest
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.session import ChatSession
from compeer.chat.writing import Ending, NotWritten
from compeer.cli import app
from compeer.cli.talk import NOTICE, Chat, candidate_line
from compeer.corpora import read_corpus
from compeer.errors import InputError
from compeer.models.base import Message, Request, Sampling
from compeer.policy.control import read_control
from compeer.reasoning import SupportTurn
from compeer.reward.score import Score
from compeer.safety import Finding, Guard, Risk
from tests.support.scripted_writer import TURN, WHOLE, WordJudge

runner = CliRunner()


class Writer:
    """Writes the same turn, with a forced strategy if the grammar has one, and its number in the reply."""

    name, multimodal, constrained, continues = "scripted", False, True, True

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def fits(self, messages: list[Message], max_tokens: int) -> bool:
        return True

    async def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[str | Ending, None]:
        self.requests.append(request)
        text = TURN.replace("at once", f"at once ({len(self.requests)})")
        for line in (request.grammar or "").split('"'):
            if line.startswith("Strategy: What"):
                text = text.replace(TURN.split("\n")[2], line)
        yield text.removeprefix(request.prefix)
        yield Ending(tokens=5)

    def close(self) -> None: ...


class Quiet:
    def detect(self, messages: str | Any, /) -> Risk:
        return Risk("none")


def harmless(*_: Any) -> Finding | None:
    return None


@pytest.fixture
def writer() -> Writer:
    return Writer()


def talk(writer: Writer, *typed: str | type[BaseException], guard: Guard | None = None) -> tuple[str, ChatSession]:
    """What a terminal shows when these things are typed, and the session at the end."""
    supporter = GuardedSupporter(writer, guard or Guard(Quiet(), check=harmless))
    return talk_with(supporter, *typed)


def talk_with(supporter: Any, *typed: str | type[BaseException]) -> tuple[str, ChatSession]:
    left = iter(typed)

    def ask(_: str) -> str:
        what = next(left, EOFError)
        if isinstance(what, str):
            return what
        raise what

    displayed, session = io.StringIO(), ChatSession()
    Chat(supporter, session, Console(file=displayed, width=200), ask).run()
    return displayed.getvalue(), session


# --- a conversation ---------------------------------------------------------------------------------------------------


def test_a_conversation_shows_steps_and_replies(writer: Writer) -> None:
    displayed, session = talk(writer, "I lost my job.", "And my flat.")
    assert NOTICE in displayed
    assert "Emotion: Worry about the next weeks. [negative, anxiety, 4]" in displayed
    assert displayed.index("[Question]") < displayed.index("That is a lot at once (1). What worries you most?")
    assert [one.speaker for one in session.utterances] == ["seeker", "supporter"] * 2
    asked = str(writer.requests[1].messages)
    assert "at once (1)" in asked  # the second turn knows the first reply, and not its reasoning
    assert "Worry about" not in asked


def test_a_strategy_can_be_set_listed_and_left_open(writer: Writer) -> None:
    displayed, session = talk(writer, "/strategy", "/strategy inf", "Hello.", "/strategy off", "/persona steady")
    assert "Known: Question, Restatement" in displayed
    assert "strategy: Information." in displayed
    assert "[Information]" in displayed
    assert session.utterances[-1].strategy == "Information"
    assert session.control.requested() == {"persona": "steady"}


def test_the_last_turn_can_be_redone_with_another_strategy(writer: Writer) -> None:
    displayed, session = talk(writer, "Hello.", "/redo self", "/redo")
    assert [one.text for one in session.utterances] == ["Hello.", "That is a lot at once (3). What worries you most?"]
    assert "[Self-disclosure]" in displayed
    assert session.control.strategy is None  # it held for that one turn
    assert len({request.seed for request in writer.requests}) == 3
    assert all("at once (" not in str(request.messages) for request in writer.requests)


def test_nothing_can_be_redone_before_anything_was_said(writer: Writer) -> None:
    displayed, _ = talk(writer, "/redo", "/why", "/save x.md", "/nonsense", "/strategy foo", "/")
    assert "there is no turn to redo" in displayed
    assert "Nothing has been said" in displayed
    assert "nothing has been said yet" in displayed
    assert "no command '/nonsense'" in displayed
    assert "unknown strategy 'foo'" in displayed
    assert not writer.requests


def test_why_tells_the_steps(writer: Writer) -> None:
    displayed, _ = talk(writer, "Hello.", "/why")
    assert displayed.count("History: The job is gone and the rent is due. [exploration]") == 2


def test_in_a_crisis_no_reasoning_is_displayed_or_reported(writer: Writer) -> None:
    displayed, session = talk(
        writer, "I am going to kill myself tonight, the pills are here.", "/why", guard=Guard(locale="en-US")
    )
    assert "988" in displayed
    assert "History:" not in displayed
    assert "the reasoning is not shown" in displayed
    assert not writer.requests
    assert session.utterances[-1].text.startswith("Thank you for answer me") or "988" in session.utterances[-1].text


class Interrupted(GuardedSupporter):
    """Somebody presses Ctrl-C after the first piece of the first reply."""

    presses = 1

    def converse(self, request: TurnRequest) -> AsyncIterator[Event]:
        return self._pressed(request)

    async def _pressed(self, request: TurnRequest) -> AsyncIterator[Event]:
        async for event in super().converse(request):
            yield event
            if type(event).__name__ == "ReplyPart" and self.presses:
                self.presses -= 1
                raise KeyboardInterrupt
            await asyncio.sleep(0)


def test_ctrl_c_stops_a_reply_and_not_the_program(writer: Writer) -> None:
    supporter = Interrupted(writer, Guard(Quiet(), check=harmless))
    displayed, session = talk_with(supporter, "One.", KeyboardInterrupt, "Two.")
    assert "(stopped)" in displayed
    assert "/quit leaves" in displayed
    texts = [one.text for one in session.utterances]
    assert texts[:3] == ["One.", "That is a lot at once (1).", "Two."]
    assert texts[3].endswith("What worries you most?")


def test_a_conversation_is_kept_only_where_it_is_saved(writer: Writer, tmp_path: Path) -> None:
    json_file, markdown = tmp_path / "new" / "c.json", tmp_path / "c.md"
    displayed, session = talk(writer, "Hello.", f"/save {json_file}", f"/save {markdown}", f"/save {markdown}", "/save")
    assert "there is such a file already" in displayed
    assert "a file's name is needed" in displayed
    (dialogue,) = read_corpus(json_file)
    assert dialogue.utterances == tuple(session.utterances)
    assert dialogue.utterances[0].emotion == "anxiety"
    assert dialogue.utterances[1].strategy == "Question"
    assert "**Seeker:** Hello." in markdown.read_text()
    assert "*exploration, Question*" in markdown.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.md", "new"]


def test_text_is_printed_as_it_is(writer: Writer) -> None:
    displayed, _ = talk(writer, "[bold]x[/bold]", "/save [red]no\0file.json", "/quit")
    assert "[exploration]" in displayed
    assert "[red]no" in displayed  # no such name can be, and the error quotes it


@pytest.mark.parametrize(
    ("field", "value", "meant"), [("strategy", "question", "Question"), ("stage", "ACT", "action")]
)
def test_names_are_matched_as_people_type_them(field: str, value: str, meant: str) -> None:
    assert read_control([f"{field}={value}"]).requested() == {field: meant}


def test_a_beginning_that_fits_several_is_an_error() -> None:
    with pytest.raises(InputError, match="unknown strategy 're'"):
        read_control(["strategy=re"])


def test_candidates_are_displayed_with_their_verdicts() -> None:
    score = Score(steps={"history": 1, "emotion": -1, "strategy": 1}, response=1, format=1, total=3)
    assert candidate_line(JudgedCandidate(2, WHOLE, score, 1)).startswith("→ 2. Question: That is a lot")
    assert "emotion -1" in candidate_line(JudgedCandidate(2, WHOLE, score, 1))
    assert "not shown: unsafe" in candidate_line(JudgedCandidate(1, None, None, None, "unsafe"))
    assert "not judged: away" in candidate_line(JudgedCandidate(1, WHOLE, None, 2, "away"))


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, writer: Writer) -> list[Any]:
    """The commands get a scripted supporter; what it was opened with is noted."""
    asked: list[Any] = []

    def resolve_supporter(name: str, guard: Guard | None, judge: Any) -> GuardedSupporter:
        asked.append((name, guard, judge))
        return GuardedSupporter(writer, guard and Guard(Quiet(), check=harmless), judge)

    monkeypatch.setattr(compeer.chat.resolve, "resolve_supporter", resolve_supporter)
    monkeypatch.setattr(compeer.chat.resolve, "resolve_judge", lambda name: WordJudge())
    return asked


def test_say_prints_one_turn(opened: list[Any]) -> None:
    done = runner.invoke(app, ["say", "I lost my job.", "--strategy", "information"])
    assert done.exit_code == 0, done.output
    assert "[Information]" in done.stdout
    assert "That is a lot at once (1)." in done.stdout
    assert opened[0][0] == "best"
    assert runner.invoke(app, ["say", "I lost my job.", "--model", "embedded"]).exit_code == 0
    assert opened[1][0] == "embedded"
    assert opened[0][1] is not None


@pytest.mark.usefixtures("opened")
def test_say_reads_the_standard_input() -> None:
    done = runner.invoke(app, ["say", "-"], input="I lost my job.\n")
    assert done.exit_code == 0, done.output
    assert "That is a lot at once (1)." in done.stdout
    no_text = runner.invoke(app, ["say", "-"], input=b"\xff hi")
    assert isinstance(no_text.exception, InputError)
    assert "not UTF-8" in str(no_text.exception)
    nothing = runner.invoke(app, ["say", "-"], input="\n")
    assert isinstance(nothing.exception, InputError)


@pytest.mark.usefixtures("opened")
def test_why_nothing_was_written_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(*_: Any) -> AsyncGenerator[str | Ending, None]:
        raise NotWritten("prompt and answer need 5000 tokens; the model takes 4096", passing=False)
        yield ""

    monkeypatch.setattr(Writer, "write", write)
    done = runner.invoke(app, ["say", "I lost my job."])
    assert done.exit_code == 1
    assert "the model takes 4096" in done.stdout.replace("\n", " ")
    as_json = runner.invoke(app, ["say", "I lost my job.", "--json"])
    assert as_json.exit_code == 1
    assert "the model takes 4096" in json.loads(as_json.stdout)["problems"][0]


@pytest.mark.usefixtures("opened")
def test_a_place_without_numbers_for_help_is_named() -> None:
    done = runner.invoke(app, ["say", "I lost my job.", "--locale", "zz-ZZ"])
    assert done.exit_code == 0, done.output
    assert "for the locale 'zz-ZZ', so none is named" in done.stderr.replace("\n", " ")
    assert "locale" not in runner.invoke(app, ["say", "I lost my job.", "--locale", "en-GB"]).stderr


@pytest.mark.usefixtures("opened")
def test_say_as_json_holds_the_decisions_and_the_candidates() -> None:
    done = runner.invoke(app, ["say", "I lost my job.", "--json", "--best-of", "3", "--judge", "x"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    turn = SupportTurn.model_validate(found["turn"])
    assert turn.strategy == WHOLE.strategy
    assert found["reply"] == turn.response
    assert found["risk"] == "none"
    assert [one["number"] for one in found["candidates"]] == [1, 2, 3]
    assert sorted(one["place"] for one in found["candidates"]) == [1, 2, 3]
    assert all(one["score"]["format"] == 1 for one in found["candidates"])


def test_without_the_guard_it_says_so(opened: list[Any]) -> None:
    done = runner.invoke(app, ["say", "Hello.", "--no-guard"])
    assert "The guard is off" in done.stderr
    assert opened[0][1] is None


@pytest.mark.usefixtures("opened")
def test_chat_talks_until_the_input_ends() -> None:
    done = runner.invoke(app, ["chat"], input="Hello.\n/quit\nnever said\n")
    assert done.exit_code == 0, done.output
    assert "That is a lot at once (1)." in done.stdout
    assert "(2)" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["say", "  "], "nothing to answer"),
        (["say", "x", "--stage", "foo"], "unknown stage 'foo'"),
    ],
)
@pytest.mark.usefixtures("opened")
def test_mistakes_are_named(words: list[str], message: str) -> None:
    done = runner.invoke(app, words)
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)
