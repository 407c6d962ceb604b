"""An upstream that fails in every way there is, while somebody is in danger: the help comes all the same."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from compeer.chat.app import create_app
from compeer.chat.resolve import resolve_supporter
from compeer.safety import Detector, Guard
from tests.support.served import FREE, Served, events, http, served

KEY = "sk-a-secret-of-the-upstream"
ORDINARY = "I lost my job and the rent is due on Friday."
CONCERN = "Everyone would be better off without me."
CRISIS = "I am going to kill myself tonight."
CHUNK = '{"choices": [{"delta": {"content": "History: The job"}, "finish_reason": null}]}'


class Failing(BaseHTTPRequestHandler):
    """Fails as it is told to."""

    how: ClassVar[str] = ""
    asked: ClassVar[int] = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.how in ("500", "401"):
            self.send_response(int(self.how))
            self.end_headers()
            self.wfile.write(f"the key was {self.headers['Authorization']}".encode())
            return
        self.send_response(307 if self.how == "a redirect" else 200)
        if self.how == "a redirect":
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}/elsewhere")
        self.end_headers()
        bodies = {
            "HTML": "<html><body>You are worthless.</body></html>",
            "a stream that breaks off": f"data: {CHUNK}\n\n",
            "a huge number": f'data: {CHUNK}\n\ndata: {{"usage": {{"completion_tokens": {"9" * 5000}}}}}\n\n',
            "deep JSON": f"data: {CHUNK}\n\ndata: {'[' * 100_000}\n\n",
            "an error in the stream": f'data: {CHUNK}\n\ndata: {{"error": {{"message": "{KEY}"}}}}\n\n',
            "no text": "data: [DONE]\n\n",
        }
        self.wfile.write(bodies.get(self.how, "").encode())

    def do_GET(self) -> None:
        type(self).asked += 100

    def log_message(self, *_: Any) -> None: ...


WAYS = (
    "500",
    "401",
    "a redirect",
    "HTML",
    "a stream that breaks off",
    "a huge number",
    "deep JSON",
    "an error in the stream",
    "no text",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        patch.setattr("compeer.chat.upstream._LONGEST_PAUSE", 0.01)
        upstream = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
        threading.Thread(target=upstream.serve_forever, args=(0.01,), daemon=True).start()
        guard = Guard(Detector(classifier=None), locale="en-US")
        supporter = resolve_supporter(f"bad@http://127.0.0.1:{upstream.server_port}/v1", guard)
        with served(create_app(supporter, settings=FREE)) as running:
            yield running
        upstream.shutdown()
        upstream.server_close()


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("stream", [True, False])
def test_whatever_an_upstream_does_the_seeker_gets_a_reply_and_help(
    server: Served, how: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    Failing.how = how

    def say(text: str) -> tuple[str, dict[str, Any], str]:
        Failing.asked = 0
        body = {"messages": [{"role": "user", "content": text}], "stream": stream}
        answer = http.post(f"{server.url}/v1/chat/completions", json=body)
        assert answer.status_code == 200
        if not stream:
            found = answer.json()
            return found["choices"][0]["message"]["content"], found["compeer"], answer.text
        chunks = events(answer)
        parts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]]
        return "".join(parts), chunks[-1]["compeer"], answer.text

    reply, own, text = say(ORDINARY)
    assert reply.strip()
    assert own["replaced"] == "no reply"
    assert "worthless" not in text
    assert 1 <= Failing.asked <= 3, "a redirect is not followed, and nobody is asked without an end"
    reply, own, _ = say(CONCERN)
    assert own["risk"] == "concern"
    assert "988" in reply
    reply, own, _ = say(CRISIS)
    assert own["risk"] == "crisis"
    assert "988" in reply
    assert Failing.asked == 0, "in a crisis nobody is asked"
    assert KEY not in text + caplog.text + json.dumps(own)
