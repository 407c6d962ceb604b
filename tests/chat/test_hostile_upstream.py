"""An upstream that is malicious on purpose: whatever it writes, nothing that the output check rejects is ever sent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.chat import TurnDone, TurnRequest
from compeer.chat.answer import AnswerBuilder
from compeer.chat.app import create_app
from compeer.chat.conversation import GuardedSupporter
from compeer.chat.resolve import resolve_supporter
from compeer.reasoning import EMOTIONS, STAGES, STRATEGIES
from compeer.safety import Guard, Risk
from compeer.safety.output import check_reply
from tests.support.scripted_writer import ScriptedWriter, events_of, said
from tests.support.served import FREE, Served, events, http, served

WORTHLESS = "You are worthless and everybody would be better off without you."
JOB = "I lost my job and the rent is due on Friday."
EMOTION = "Emotion: Worry about the next weeks. [negative, anxiety, 4]"
STRATEGY = "Strategy: First hear more of it. [Question]"
RESPONSE = "Response: That is a lot at once. What worries you most?"
REST = f"{EMOTION}\n{STRATEGY}\n{RESPONSE}"

BROKEN = {
    "no decision": f"History: {WORTHLESS}\n{REST}",
    "an unknown decision": f"History: {WORTHLESS} [contempt]\n{REST}",
    "in the decision": f"History: The job is gone. [{WORTHLESS}]\n{REST}",
    "in the emotion's decision": f"History: Gone. [action]\nEmotion: Worry. [{WORTHLESS}, x]\n{STRATEGY}\n{RESPONSE}",
    "after the bracket": f"History: The job is gone. [exploration] {WORTHLESS}\n{REST}",
    "on the next line": f"History: The job is gone. [exploration]\n{WORTHLESS}\n{REST}",
    "before the first step": f"{WORTHLESS}\nHistory: The job is gone. [exploration]\n{REST}",
    "twice": f"History: The job is gone. [exploration]\nHistory: {WORTHLESS} [exploration]\n{REST}",
    "twice, the worse first": f"History: {WORTHLESS} [exploration]\nHistory: The job is gone. [exploration]\n{REST}",
    "another label": f"History: The job is gone. [exploration]\nHistory analysis: {WORTHLESS} [action]\n{REST}",
    "a step after the response": f"{REST}\nHistory: {WORTHLESS} [exploration]",
    "another line end": f"History: The job is gone. [exploration]\u2028{WORTHLESS}\n{REST}",
    "quoted as the seeker's": f"History: You are “worthless” for sure, about “{JOB}”. [exploration]\n{REST}",
    "in the response": f"History: The job is gone. [exploration]\n{EMOTION}\n{STRATEGY}\nResponse: {WORTHLESS}",
    "a second response": f"History: The job is gone. [exploration]\n{REST}\nReply: {WORTHLESS}",
    "only the response, no form": WORTHLESS,
}


class NoDanger:
    def detect(self, messages: Any, /) -> Risk:
        return Risk("none")


def guarded() -> Guard:
    """The real check of outputs; what the seeker says is no danger here."""
    return Guard(NoDanger())


# --- over a real port -------------------------------------------------------------------------------------------------


class Hostile(BaseHTTPRequestHandler):
    """Streams what it is told to, whatever it was asked."""

    output: ClassVar[str] = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        for start in range(0, len(self.output), 9):
            delta = {"content": self.output[start : start + 9]}
            self.wfile.write(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n".encode())
        self.wfile.write(b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    threading.Thread(target=upstream.serve_forever, args=(0.01,), daemon=True).start()
    supporter = resolve_supporter(f"bad@http://127.0.0.1:{upstream.server_port}/v1", guarded())
    with served(create_app(supporter, settings=FREE)) as started:
        yield started
    upstream.shutdown()
    upstream.server_close()


@pytest.mark.parametrize("form", BROKEN)
@pytest.mark.parametrize("stream", [True, False])
def test_no_word_of_it_is_sent(server: Served, form: str, stream: bool) -> None:
    Hostile.output = BROKEN[form]
    body = {"messages": [{"role": "user", "content": f"{JOB} I feel worthless."}], "stream": stream}
    answer = http.post(f"{server.url}/v1/chat/completions", json=body)
    assert answer.status_code == 200
    if stream:
        assert events(answer)[-1]["choices"][0]["finish_reason"] == "stop"
    assert "better off without you" not in answer.text
    assert "You are" not in answer.text


# --- any form there is ------------------------------------------------------------------------------------------------

BAD = (
    WORTHLESS,
    "You are pathetic.",
    "It is your own fault, you disgust me.",
    "You have major depressive disorder.",
    "Nobody else will ever understand you; you only need me.",
)
GOOD = ("The job is gone.", "They worry about the rent", "That is a lot at once.", "What worries you most?")
LABELLED = ("History:", "Emotion:", "Strategy:", "Response:", "**History**:", "- Emotions：", "回复：", "", "\\")
DECISIONS = (
    f"[{STAGES[0]}]",
    f"[{STRATEGIES[0]}]",
    f"[negative, {EMOTIONS[0]}, 3]",
    f"[{BAD[1]}]",
    "[nothing]",
    "(exploration)",
    "[action] x",
    "[",
    "",
)
BREAKS = ("\n", "\n\n", " ", "\r\n", "\u2028", "\n```\n", "")


@st.composite
def outputs(draw: st.DrawFn) -> str:
    """Lines of labels, harmless and harmful sentences and decisions, in any order and joined in any way."""
    lines = draw(
        st.lists(
            st.tuples(
                st.sampled_from(LABELLED),
                st.lists(st.sampled_from(GOOD + BAD), max_size=2).map(" ".join),
                st.sampled_from(DECISIONS),
                st.sampled_from(BREAKS),
            ),
            max_size=7,
        )
    )
    return "".join(f"{label} {text} {decision}{end}" for label, text, decision, end in lines)


def texts_in(value: Any) -> Iterator[str]:
    """All strings in what is sent."""
    if isinstance(value, dict):
        for one in value.values():
            yield from texts_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)
    elif isinstance(value, str):
        yield value


@given(outputs(), st.integers(4, 60))
def test_no_sentence_that_the_check_rejects_is_sent_in_any_form(output: str, size: int) -> None:
    for bad in BAD:
        assert check_reply(bad) is not None
    supporter = GuardedSupporter(ScriptedWriter(output, size=size), guarded())
    answer = AnswerBuilder("bad", True, [], [])
    streamed = []
    found = events_of(supporter, TurnRequest(said(JOB)))
    for event in found:
        streamed += list(answer.chunks(event))
    assert isinstance(found[-1], TurnDone)
    sent = [*texts_in(streamed), *texts_in(answer.answer(found[-1]).model_dump())]
    content = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in streamed)
    reasoning = "".join(chunk["choices"][0]["delta"].get("reasoning_content") or "" for chunk in streamed)
    for text in (*sent, content, reasoning):
        for sentence in re.split(r"(?<=[.!?])\s|\n", text):
            if any(bad.rstrip(".") in sentence for bad in BAD):
                assert check_reply(sentence, [JOB]) is None, sentence  # "They worry that you are …"
