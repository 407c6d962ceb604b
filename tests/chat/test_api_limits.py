"""The API against people who mean it no good, or too much of it: limits, keys, stopping, privacy, its description."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from compeer.chat.app import ServeSettings, create_app
from compeer.web.limits import SECURITY_HEADERS, Rate
from tests.support.scripted_supporter import ScriptedJudge, ScriptedSupporter
from tests.support.served import FREE, Post, Served, events, http, poster, served, text

SECRET = "the-seekers-own-words-7291"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(create_app(ScriptedSupporter(), judge=ScriptedJudge(), settings=FREE)) as started:
        yield started


@pytest.fixture
def post(server: Served) -> Post:
    return poster(server)


# --- hostile input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"hello"',
        b"\xff\xfe\x00",
        b'{"messages":' + b"[" * 50_000,
        b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 5_000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        b'{"messages":[{"role":"user","content":[{"type":"\\ud800"}]}]}',
        b'{"messages":[{"role":"user","content":[[]]}]}',
        b'{"messages":[{"role":"user","content":{"text":"x"}}]}',
        b'{"messages":[{"role":"user","content":""}]}',
        b'{"messages":[{"role":"user","content":" \\n "}]}',
        b'{"messages":[{"role":"assistant","content":"x"}]}',
        b'{"messages":[{"role":"system","content":"x"}]}',
        b'{"messages":[{"role":"root","content":"x"}]}',
        b'{"messages":[]}',
        b'{"messages":[{"role":"user","content":"x"}],"strategy":"<script>"}',
        b'{"messages":[{"role":"user","content":"x"}],"best_of":1000}',
    ],
)
def test_what_cannot_be_read_is_refused_clearly(server: Served, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = http.post(f"{server.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "(" not in (error["param"] or "")
    assert "x" * 50 not in answer.text
    assert http.get(f"{server.url}/healthz").json()["status"] == "ok"


def test_the_place_of_a_fault_is_named(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}
    error = http.post(f"{server.url}/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "messages.0.content.0.text"


def test_a_form_from_another_page_is_refused(server: Served) -> None:
    """A page elsewhere can send such a body without asking the browser; ours must not answer it."""
    body = json.dumps({"messages": [{"role": "user", "content": "x"}]})
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = http.post(f"{server.url}/v1/chat/completions", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 400
        assert "Content-Type" in answer.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [True, False])
def test_forty_megabytes_are_refused(server: Served, chunked: bool) -> None:
    body: Any = (b"x" * 40_000 for _ in range(1_000)) if chunked else b"x" * 40_000_000
    answer = http.post(f"{server.url}/v1/chat/completions", content=body)
    assert answer.status_code == 413
    assert "34,603,008" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2f..%2fapp.py",
        "/static//etc/passwd",
        "/static/chat.html%00.js",
        "/static/",
        "/v1/../../etc/passwd",
        "/%ff%fe",
        "/docs",
        "/redoc",
    ],
)
def test_no_path_leads_out(server: Served, path: str) -> None:
    with server.connect() as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"import" not in answer
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "words", ["\x00\x1b[2J", "‮gnp.exe", "🏳️‍🌈" * 500, "a\u0300" * 900, "a\u2028b\u2029c\x85d", "﷽" * 300]
)
def test_odd_unicode_comes_through(post: Post, words: str) -> None:
    assert f"had {len(words)} characters" in post(words).text
    assert f"had {len(words)} characters" in text(events(post(words, stream=True)))


def test_text_in_html_stays_text(post: Post) -> None:
    answer = post("<script>alert(1)</script>", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-content-type-options"] == "nosniff"


# --- the door -------------------------------------------------------------------------------------------------------


def test_every_answer_carries_the_security_headers(server: Served) -> None:
    for path in ("/", "/healthz", "/v1/models", "/nothing", "/openapi.json"):
        headers = http.get(server.url + path).headers
        assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert "server" not in headers
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    assert "http" not in policy
    assert "unsafe" not in policy
    assert "*" not in policy


def test_a_key_is_asked_for_where_one_is_set() -> None:
    settings = ServeSettings(keys=("first-key-0123456789", "second-key-0123456789"))
    assert "first-key" not in repr(settings)
    with served(create_app(ScriptedSupporter(), settings=settings)) as started:
        ask = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
        for key in settings.keys:
            client = openai.OpenAI(base_url=f"{started.url}/v1", api_key=key, max_retries=0)
            assert client.chat.completions.create(**ask).choices
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{started.url}/v1", api_key="wrong", max_retries=0).models.list()
        for path in ("/v1/models", "/metrics", "/v1/nothing", "/static", "/v1/chat/completions"):
            answer = http.get(started.url + path)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert http.get(f"{started.url}/metrics", headers={"Authorization": "Bearer é".encode()}).status_code == 401
        for path in ("/healthz", "/openapi.json"):
            assert http.get(started.url + path).status_code == 200
        described = http.get(f"{started.url}/openapi.json").json()
        assert described["paths"]["/v1/judge"]["post"]["security"] == [{"key": []}]


def test_a_client_that_asks_too_often_is_held_back() -> None:
    with served(create_app(ScriptedSupporter(), settings=ServeSettings(rate=3))) as started:
        answers = [http.get(f"{started.url}/v1/models") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
        assert http.get(f"{started.url}/healthz").status_code == 200


def test_the_rate_refills_and_forgets_old_clients() -> None:
    rate = Rate(60)
    assert [rate.wait("a", 0.0) for _ in range(60)] == [0.0] * 60
    assert rate.wait("a", 0.0) == pytest.approx(1)
    assert rate.wait("b", 0.0) == 0
    assert rate.wait("a", 1.0) == 0
    for number in range(20_000):
        rate.wait(str(number), 1.0)
    assert len(rate._left) <= 10_000


def test_another_name_for_the_host_is_refused_on_loopback() -> None:
    """A page elsewhere may point its own name at this machine."""
    with served(
        create_app(ScriptedSupporter(), settings=ServeSettings(hosts=("localhost", "127.0.0.1", "::1")))
    ) as started:
        answer = http.get(f"{started.url}/v1/models", headers={"Host": "evil.example"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")
        for host in ("localhost:99", "127.0.0.1", "[::1]:8000", "LOCALHOST"):
            assert http.get(f"{started.url}/v1/models", headers={"Host": host}).status_code == 200


def test_a_full_supporter_answers_429_with_the_time_to_wait() -> None:
    supporter = ScriptedSupporter(capacity=0)
    with served(create_app(supporter, settings=FREE)) as started:
        for stream in (True, False):
            body = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream}
            answer = http.post(f"{started.url}/v1/chat/completions", json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
            assert answer.json()["error"]["code"] == "busy"
        client = openai.OpenAI(base_url=f"{started.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "Hi"}])


def test_a_client_that_leaves_ends_the_work_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compeer.chat.api._FIRST_WAIT", 0.05)
    supporter = ScriptedSupporter()
    with served(create_app(supporter, settings=FREE)) as started:
        for number, stream in enumerate((True, False), 1):
            body = json.dumps({"messages": [{"role": "user", "content": "hold on"}], "stream": stream}).encode()
            head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            with started.connect() as line:
                line.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}".encode() + body)
                wait_until(lambda: supporter.open == 1)
            wait_until(lambda number=number: supporter.left == number)
            assert supporter.open == 0
        assert "compeer_turns_left_total 2" in http.get(f"{started.url}/metrics").text


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_stopping_finishes_open_streams_and_closes_the_supporter() -> None:
    supporter = ScriptedSupporter()
    closed = threading.Event()
    with served(create_app(supporter, settings=FREE, on_close=closed.set), grace=60) as started:
        body = {"messages": [{"role": "user", "content": "slow"}], "stream": True}
        with http.stream("POST", f"{started.url}/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            started.stop()
            wait_until(lambda: refused(started))
            rest = "\n".join(lines)
        assert rest.rstrip().endswith("data: [DONE]")
        assert "What" in rest
        started.thread.join(60)
        assert supporter.closed
        assert closed.is_set()
        assert supporter.left == 0


def refused(started: Served) -> bool:
    try:
        started.connect().close()
    except OSError:
        return True
    return False


def test_many_clients_get_their_own_replies(server: Served) -> None:
    def ask(number: int) -> bool:
        body = {"messages": [{"role": "user", "content": "x" * number}], "stream": number % 2 == 0}
        answer = http.post(f"{server.url}/v1/chat/completions", json=body)
        words = text(events(answer)) if body["stream"] else answer.json()["choices"][0]["message"]["content"]
        return words == f"Message 1 had {number} characters. What then?"

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(1, 65)))


def test_silent_connections_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compeer.web.serving.HEAD_SECONDS", 3)
    with served(create_app(ScriptedSupporter(), settings=FREE)) as started:
        lines = [started.connect() for _ in range(200)]
        lines[0].sendall(b"GET / HT")
        assert http.get(f"{started.url}/healthz").status_code == 200
        assert lines[0].recv(100) == b""
        assert lines[-1].recv(100) == b""
        for line in lines:
            line.close()


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/judge HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{",
    ],
)
def test_who_dribbles_after_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr("compeer.web.serving.HEAD_SECONDS", 2)
    monkeypatch.setattr("compeer.web.limits.BODY_SECONDS", 0.5)
    with served(create_app(ScriptedSupporter(), settings=FREE)) as started, started.connect() as line:
        line.sendall(begun)
        assert line.recv(1).startswith(b"H")
        line.settimeout(0.05)

        def cut_off() -> bool:
            try:
                line.sendall(b"G")
                return line.recv(65536) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(cut_off)  # the server alone would wait for 5 seconds more after each byte


def test_more_connections_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compeer.web.serving.most_connections", lambda: 2)
    with served(create_app(ScriptedSupporter(), settings=FREE)) as started:
        with started.connect(), started.connect(), started.connect() as third:
            answer = third.recv(65536)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 10\r\n" in answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "full"
        wait_until(lambda: not started.server.server_state.connections)
        assert http.get(f"{started.url}/healthz").status_code == 200


def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compeer.web.limits.BODY_SECONDS", 0.2)
    with served(create_app(ScriptedSupporter(), settings=FREE)) as started, started.connect() as line:
        line.sendall(b"POST /v1/judge HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{")
        assert line.recv(1000).startswith(b"HTTP/1.1 408")


# --- privacy --------------------------------------------------------------------------------------------------------


class Failing(ScriptedSupporter):
    """Breaks its promise and raises, with the seeker's words in the message."""

    def converse(self, request: Any) -> Any:
        raise ValueError(request.history[-1].text)


def test_no_words_reach_log_or_counts(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level("DEBUG")
    body = {"messages": [{"role": "user", "content": SECRET}], SECRET: 1, "conversation": SECRET}
    with served(create_app(ScriptedSupporter(), judge=ScriptedJudge(), settings=FREE)) as started:
        url = f"{started.url}/v1/chat/completions"
        assert http.post(url, json=body).status_code == 200
        assert http.post(url, json={**body, "stream": True}).status_code == 200
        assert http.post(url, json={**body, "strategy": SECRET}).status_code == 400
        assert http.get(f"{started.url}/{SECRET}").status_code == 404
        counts = http.get(f"{started.url}/metrics").text
    with served(create_app(Failing(), settings=FREE)) as started:
        for stream in (True, False):
            answer = http.post(f"{started.url}/v1/chat/completions", json={**body, "stream": stream})
            assert answer.status_code == 500
            assert SECRET not in answer.text
    assert "ValueError" in caplog.text
    httpx_lines = [record for record in caplog.records if record.name.startswith(("httpx", "httpcore"))]
    ours = [record.getMessage() + str(record.exc_info) for record in caplog.records if record not in httpx_lines]
    assert SECRET not in "\n".join(ours)
    assert SECRET not in counts
    assert SECRET not in "".join(capfd.readouterr())


def test_the_frameworks_own_telemetry_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    app = create_app(ScriptedSupporter())
    assert not app._native_telemetry.enabled()
    assert not app._telemetry["auto_configure"]


def test_counts_are_in_prometheus_text(post: Post, server: Served) -> None:
    post("crisis")
    answer = http.get(f"{server.url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert name.startswith("compeer_")
            float(value)
    assert 'compeer_replaced_total{why="crisis"}' in answer.text
    assert "compeer_turns_open 0" in answer.text
    assert 'compeer_turn_seconds_bucket{le="+Inf"}' in answer.text


def test_nothing_is_kept_unless_asked(tmp_path: Path) -> None:
    settings = ServeSettings(keep=tmp_path / "kept", rate=None)
    with served(create_app(ScriptedSupporter(), settings=settings)) as started:
        body = {"messages": [{"role": "user", "content": SECRET}], "conversation": "c1"}
        assert http.get(f"{started.url}/v1/models").json()["data"][0]["keeps"] is True
        http.post(f"{started.url}/v1/chat/completions", json=body)
    (file,) = (tmp_path / "kept").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    (kept,) = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert kept["history"] == [{"speaker": "seeker", "text": SECRET}]
    assert kept["reply"].endswith("What then?")
    assert ServeSettings().keep is None


# --- the description ------------------------------------------------------------------------------------------------


def test_the_description_can_be_used(server: Served) -> None:
    described = http.get(f"{server.url}/openapi.json").json()
    assert described["openapi"].startswith("3.")
    assert {"/v1/chat/completions", "/v1/judge", "/v1/models", "/healthz", "/metrics"} <= described["paths"].keys()
    chat = described["paths"]["/v1/chat/completions"]["post"]
    assert {"application/json", "text/event-stream"} == chat["responses"]["200"]["content"].keys()
    assert "422" not in chat["responses"]
    fields = described["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"strategy", "stage", "emotion", "persona", "best_of", "show_reasoning", "state"} <= fields.keys()
    assert all("description" in fields[name] for name in fields if name != "stream_options")
