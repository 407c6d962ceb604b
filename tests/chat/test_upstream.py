"""A supporter behind a server, however the server behaves."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from compeer.chat import ReplyPart, TurnRequest
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.resolve import resolve_judge, resolve_supporter
from compeer.chat.upstream import StreamCall
from compeer.errors import InputError
from compeer.models.base import CallSettings
from compeer.policy.control import Control
from compeer.reasoning import label_of, parse_turn
from compeer.safety import Finding, Guard
from tests.support.scripted_writer import (
    JOB,
    TURN,
    WHOLE,
    NoDanger,
    ScriptedWriter,
    WordJudge,
    done_of,
    events_of,
    guard,
)

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
    started = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=started.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{started.server_port}/v1"
    started.shutdown()
    thread.join()
    started.server_close()


def test_a_server_is_asked_with_our_prompt_and_its_answer_guarded(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-key")
    supporter = resolve_supporter(f"big@{server}", guard())
    done = done_of(events_of(supporter, TurnRequest(JOB)))
    assert done.turn == WHOLE
    assert (done.tokens, done.prompt_tokens) == (40, 9)
    assert supporter.name == "big"
    body = Server.asked[0]
    assert body["stream"] is True
    assert "peer supporter" in body["messages"][0]["content"]
    assert "a-secret-key" not in json.dumps(body)


def test_a_server_goes_on_from_a_forced_strategy(server: str) -> None:
    supporter = resolve_supporter(f"big@{server}", guard(), call=CallSettings(constrain="off"))
    events_of(supporter, TurnRequest(JOB, Control(strategy="Information")))
    assert Server.asked[0]["stop"] == ["\nStrategy"]
    assert Server.asked[1]["messages"][-1]["content"].endswith("[Information]\nResponse:")
    held = resolve_supporter(f"big@{server}", guard(), call=CallSettings(constrain="vllm"))
    Server.asked.clear()
    events_of(held, TurnRequest(JOB, Control(strategy="Information")))
    assert "[Information]" in Server.asked[0]["structured_outputs"]["grammar"]


@pytest.mark.parametrize("how", ["503", "429", "breaks off", "nonsense"])
def test_a_server_that_fails_once_is_asked_again(server: str, how: str) -> None:
    Server.misbehave.append(how)
    done = done_of(events_of(resolve_supporter(f"big@{server}", guard()), TurnRequest(JOB)))
    assert done.turn == WHOLE
    assert len(Server.asked) == 2


BAD_TURN = TURN.replace("What worries you most?", "You are pathetic.")


def test_a_server_that_begins_anew_is_read_as_it_writes_and_noticed_once(server: str) -> None:
    supporter = resolve_supporter(f"big@{server}", guard("pathetic"))
    fresh = TURN.replace("at once", "to carry")
    Server.misbehave += [f"says {BAD_TURN}", f"says {fresh}"]  # a second attempt, begun, and begun anew
    done = done_of(events_of(supporter, TurnRequest(JOB)))
    assert done.reply == "That is a lot to carry. What worries you most?"
    assert done.turn == parse_turn(fresh).turn
    assert Server.asked[1]["messages"][-1]["role"] == "assistant"
    Server.misbehave += [f"says {BAD_TURN}", f"says {TURN}"]
    assert done_of(events_of(supporter, TurnRequest(JOB))).turn == WHOLE
    assert Server.asked[3]["messages"][-1]["role"] == "user", "it is not begun for it again"


def test_a_server_that_begins_anew_is_only_asked_for_decisions(server: str) -> None:
    supporter = resolve_supporter(f"big@{server}", guard())
    Server.misbehave += [f"says {TURN}"] * 3
    for _ in range(2):
        done = done_of(events_of(supporter, TurnRequest(JOB, Control(stage="action"))))
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
def test_no_form_is_ever_displayed_as_the_reply(server: str, second: str, best_of: int) -> None:
    supporter = resolve_supporter(f"big@{server}", guard("pathetic"), WordJudge())
    begun = TURN[: TURN.index("Response:")] + "Response: " if best_of > 1 else ""
    Server.misbehave += [f"says {BAD_TURN}", *[f"says {begun}{second}"] * 4]
    events = events_of(supporter, TurnRequest(JOB, best_of=best_of))
    done = done_of(events)
    for text in (*(event.text for event in events if isinstance(event, ReplyPart)), done.reply):
        assert "ok" not in text
        assert not [line for line in text.splitlines() if label_of(line)]
    assert done.turn is None or "ok" not in str(done.turn)


@pytest.mark.parametrize("how", ENDLESS)
def test_a_server_without_an_end_is_left_and_not_asked_again(server: str, how: str) -> None:
    Server.misbehave += [how] * 3
    call = StreamCall(stream_seconds=1.0 if how == "pings" else 60.0, stream_bytes=2**18)
    done = done_of(events_of(resolve_supporter(f"big@{server}", guard(), call=call), TurnRequest(JOB)))
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

    done_of(events_of(GuardedSupporter(ScriptedWriter(TURN), Guard(NoDanger(), check=check)), TurnRequest(JOB)))
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(("how", "calls"), [("401", 1), ("500", 3)])
def test_a_server_that_keeps_failing_ends_in_a_safe_reply(server: str, how: str, calls: int) -> None:
    Server.misbehave += [how] * 3
    done = done_of(events_of(resolve_supporter(f"big@{server}", guard()), TurnRequest(JOB)))
    assert done.reply
    assert done.problems[0] == f"the server answered {how}"
    assert len(Server.asked) == calls


def test_a_server_that_is_not_there_ends_in_a_safe_reply() -> None:
    done = done_of(events_of(resolve_supporter("big@http://127.0.0.1:9/v1", guard()), TurnRequest(JOB)))
    assert done.reply
    assert "cannot be reached" in done.problems[0]


@pytest.mark.parametrize("name", ["http://host/v1", "@http://host/v1", "nowhere"])
def test_a_name_that_means_nothing_is_an_error(name: str) -> None:
    with pytest.raises(InputError) as error:
        resolve_supporter(name)
    assert error.value.field == "model"


def test_a_folder_without_a_judge_is_an_error(tiny_model: Path) -> None:
    with pytest.raises(InputError, match="no judge"):
        resolve_judge(str(tiny_model))
