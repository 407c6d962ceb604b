"""An endpoint that answers well, badly or not at all: each request gets its answer or its failure."""

import asyncio
import gc
import io
import json
import logging
import random
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from compeer.errors import InputError
from compeer.models import (
    AnswerCache,
    CallSettings,
    Counters,
    EndpointModel,
    Failure,
    Generation,
    Request,
    Sampling,
    ask,
    counters_table,
)
from compeer.models import client as endpoint
from compeer.models import costs as pacing
from compeer.models.client import seconds_until
from compeer.models.costs import IMAGE_TOKENS, SLACK, Gate, prompt_tokens, text_tokens
from tests.support.cached import count_rows

KEY = "sk-this-must-stay-secret"


def completion(content: Any, finish: str = "stop", **more: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content}}],
        **more,
    }


class Server:
    """A real server. What a request's first message says decides what comes back; `seen` holds all requests."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []
        self.connections = 0
        self.busy = self.busiest = 0
        self.replied = self.closed = 0
        self.released = threading.Event()
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                server.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                wanted = body["messages"][0]["content"]
                with server.lock:
                    server.seen.append(body)
                    server.times.append(time.monotonic())
                    server.keys.append(self.headers.get("Authorization"))
                    server.paths.append(self.path)
                    server.busy += 1
                    server.busiest = max(server.busy, server.busiest)
                if isinstance(wanted, str) and wanted.startswith("slow"):
                    time.sleep(0.05)
                with server.lock:
                    server.busy -= 1
                server.reply(self, wanted)
                server.replied += 1

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Http(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that hangs up is no news

            def shutdown_request(self, request: Any) -> None:
                super().shutdown_request(request)
                with server.lock:
                    server.closed += 1

        self._http = Http(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def reply(self, to: BaseHTTPRequestHandler, wanted: Any) -> None:
        """Sends an answer, or something that is none."""
        if wanted == "hang" or wanted == "nothing":
            self.released.wait(20 if wanted == "hang" else 0)
            to.close_connection = True
            return
        if wanted == "held":
            self.released.wait(60)
        if wanted == "garbage":
            to.wfile.write(b"\x00\x80 hello? \xff\r\n\r\n" * 9)
            to.close_connection = True
            return
        if wanted == "chunked":
            parts = [
                b"%x\r\n%b\r\n" % (len(part), part) for part in (b'{"choices": [{"message": {"con', b'tent": "x"}}]}')
            ]
            to.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + b"0\r\n\r\n")
            return
        status, answer = self.answer(wanted) if isinstance(wanted, str) else (200, json.dumps(completion("y")).encode())
        head = [f"HTTP/1.1 {status} x", "Content-Type: application/json"]
        if wanted == "until closed":
            to.close_connection = True
        else:
            head.append(f"Content-Length: {len(answer) + 50 * (wanted == 'short')}")
        if wanted == "short":  # less than was promised
            to.close_connection = True
        if wanted == "hangs up later":
            to.close_connection = True
        if isinstance(wanted, str) and wanted.startswith("429 "):
            head.append(f"Retry-After: {wanted.split(' ', 1)[1]}")
        whole = "\r\n".join(head).encode() + b"\r\n\r\n" + answer
        to.wfile.write(whole)
        if wanted == "twice later":
            time.sleep(0.05)
            to.wfile.write(whole)

    def answer(self, wanted: str) -> tuple[int, bytes]:
        if wanted.startswith("429 "):
            before = sum(body["messages"][0]["content"] == wanted for body in self.seen) > 1
            return (200, json.dumps(completion("after all")).encode()) if before else (429, b"{}")
        if wanted == "echo":
            return 200, json.dumps(completion(f"your key is {KEY}, isn't it")).encode()
        if wanted.isdigit():
            # a careless server that repeats the key in its complaint
            return int(wanted), json.dumps({"error": {"message": f"bad key {KEY}"}}).encode()
        if wanted == "half":
            return 200, b'{"choices": [{"mess'
        if wanted == "once" and sum(body["messages"][0]["content"] == "once" for body in self.seen) == 1:
            return 500, b"{}"
        answers: dict[str, Any] = {
            "no choices": {**completion("x"), "choices": []},
            "null choices": {**completion("x"), "choices": None},
            "no message": {**completion("x"), "choices": [{"index": 0, "finish_reason": "stop"}]},
            "empty": completion(""),
            "null": completion(None),
            "list": [1, 2],
            "error object": {"error": {"message": f"overloaded, {KEY}"}},
            "half a character": completion("so \ud83d sad"),
            "cut": completion("and so", "length"),
            "counted": completion("x", usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}),
            "content of blocks": completion([{"type": "text", "text": "x"}]),
            "odd usage": completion("x", usage="none"),
        }
        return 200, json.dumps(answers.get(wanted, completion(f"said {wanted}"))).encode()

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    active = Server()
    yield active
    active.close()


Making = Callable[..., EndpointModel]


@pytest.fixture
def model(server: Server, monkeypatch: pytest.MonkeyPatch) -> Making:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)

    def make(
        cache: AnswerCache | None = None, url: str = server.url, model: str = "m", **options: Any
    ) -> EndpointModel:
        return EndpointModel(url, model, CallSettings(**{"retries": 0, "first_pause": 0.001, **options}), cache)

    return make


def request(text: str, **more: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), **more)


def test_an_answer(model: Making) -> None:
    assert ask(model(), [request("hello")], Sampling()) == [Generation(text="said hello")]
    assert model().name == "m"


def test_what_is_asked_reaches_the_server(server: Server, model: Making) -> None:
    sampling = Sampling(temperature=0.3, top_p=0.9, max_tokens=17, stop=("END", "\n\n"))
    (found,) = ask(model(), [request("hello", seed=41, prefix="History: ")], sampling)
    assert found == Generation(text="History: said hello")
    (body,) = server.seen
    assert body["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "History: "},
    ]
    assert (body["seed"], body["stop"], body["model"]) == (41, ["END", "\n\n"], "m")
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.3, 0.9, 17)
    assert server.keys == [f"Bearer {KEY}"]


def test_without_stops_none_are_sent(server: Server, model: Making) -> None:
    ask(model(), [request("hello")], Sampling())
    assert server.seen[0].get("stop") is None


def test_the_key_may_come_from_another_variable(server: Server, model: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", "other")
    ask(model(key_variable="OTHER_KEY"), [request("a")], Sampling())
    monkeypatch.delenv("OTHER_KEY")
    ask(model(key_variable="OTHER_KEY"), [request("a")], Sampling())
    assert server.keys == ["Bearer other", None]


def test_a_cut_off_answer_and_its_tokens(model: Making) -> None:
    cut, counted = ask(model(), [request("cut"), request("counted")], Sampling())
    assert cut == Generation(text="and so", cut_off=True)
    assert counted == Generation(text="x", prompt_tokens=7, tokens=3)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        ("400", "refused"),
        ("401", "access"),
        ("403", "access"),
        ("404", "access"),
        ("408", "timeout"),
        ("409", "server"),
        ("413", "refused"),
        ("422", "refused"),
        ("429", "rate limit"),
        ("500", "server"),
        ("503", "server"),
        ("half", "answer"),
        ("no choices", "answer"),
        ("null choices", "answer"),
        ("no message", "answer"),
        ("empty", "answer"),
        ("null", "answer"),
        ("list", "answer"),
        ("error object", "answer"),
        ("content of blocks", "answer"),
        ("garbage", "answer"),
        ("nothing", "connection"),
        ("short", "connection"),
    ],
)
def test_each_failure_has_its_kind(server: Server, model: Making, wanted: str, kind: str) -> None:
    (found,) = ask(model(), [request(wanted)], Sampling())
    assert isinstance(found, Failure)
    assert found.kind == kind
    assert server.url in found.reason
    assert not wanted.isdigit() or wanted in found.reason
    assert KEY not in repr(found)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("odd usage", "x"),
        ("chunked", "x"),
        ("until closed", "said until closed"),
        ("half a character", "so \ufffd sad"),
    ],
)
def test_an_odd_answer_is_read(model: Making, wanted: str, text: str) -> None:
    assert ask(model(), [request(wanted), request("a")], Sampling()) == [Generation(text), Generation("said a")]


def test_a_server_that_hangs_is_given_up(model: Making) -> None:
    (found,) = ask(model(timeout=0.2), [request("hang")], Sampling())
    assert isinstance(found, Failure)
    assert found.kind == "timeout"
    assert KEY not in repr(found)


def test_a_server_that_is_not_there(model: Making) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        (found,) = ask(model(url=url), [request("a")], Sampling())
    assert isinstance(found, Failure)
    assert found.kind == "connection"
    assert url in found.reason
    assert KEY not in repr(found)


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..b", "256.1.1.1"])
def test_a_host_that_cannot_be_one(model: Making, host: str) -> None:
    (found,) = ask(model(url=f"http://{host}/v1"), [request("a")], Sampling())
    assert isinstance(found, Failure)
    assert found.kind == "connection"


def test_answers_keep_the_order_of_the_requests(model: Making) -> None:
    wanted = ["a", "500", "b", "half", "c", "429", *[f"x{number}" for number in range(20)]]
    found = ask(model(concurrency=4), [request(text) for text in wanted], Sampling())
    for text, one in zip(wanted, found, strict=True):
        if text in ("500", "half", "429"):
            assert isinstance(one, Failure)
        else:
            assert one == Generation(text=f"said {text}")


def test_a_passing_failure_is_tried_again(server: Server, model: Making) -> None:
    assert ask(model(retries=1), [request("once")], Sampling()) == [Generation(text="said once")]
    assert len(server.seen) == 2


def test_no_requests_no_answers(model: Making) -> None:
    assert ask(model(), [], Sampling()) == []


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "",
        "ftp://x",
        "http://",
        "http://x:port/v1",
        "http://x y/v1",
        "http://x/\n",
        "http://ü.example/v1",
    ],
)
def test_what_is_no_url_is_refused(model: Making, url: str) -> None:
    with pytest.raises(InputError, match="is no URL") as caught:
        model(url=url)
    assert caught.value.field == "url"


@pytest.mark.parametrize("url", ["http://me:secret@x/v1", "http://x/v1?key=secret", "http://x/v1#secret"])
def test_a_url_holds_no_secrets(model: Making, url: str) -> None:
    with pytest.raises(InputError, match="would end up in logs") as caught:
        model(url=url)
    assert "secret" not in str(caught.value)


# --- connections ----------------------------------------------------------------------------------------------------


def test_connections_are_kept_and_then_closed(server: Server, model: Making) -> None:
    asked = model(concurrency=4)
    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):  # a new event loop each time
            assert len(ask(asked, [request(f"x{number}") for number in range(40)], Sampling())) == 40
        gc.collect()
    assert server.connections <= 8
    assert not asked._endpoint._loops
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


@pytest.mark.parametrize("wanted", ["twice later", "hangs up later"])
def test_a_connection_with_something_wrong_is_not_used_again(server: Server, model: Making, wanted: str) -> None:
    async def one_after_another() -> list[Generation | Failure]:
        asked = model()
        first = await asked.generate([request(wanted)], Sampling())
        while not (server.closed if wanted == "hangs up later" else server.replied):
            await asyncio.sleep(0.01)
        for _ in range(5):  # what has come is looked at
            await asyncio.sleep(0.01)
        return first + await asked.generate([request("b")], Sampling())

    assert asyncio.run(one_after_another()) == [Generation(f"said {wanted}"), Generation("said b")]
    assert server.connections == 2


def test_the_proxy_of_the_environment_is_used(server: Server, model: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
    assert ask(model(url="http://far.invalid/v1/"), [request("a")], Sampling()) == [Generation("said a")]
    assert server.paths == ["http://far.invalid/v1/chat/completions"]
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert ask(model(), [request("a")], Sampling()) == [Generation("said a")]
    assert server.paths[1:] == ["/v1/chat/completions"]
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(InputError, match="proxy"):
        ask(model(url="http://far.invalid/v1"), [request("a")], Sampling())


# --- what is asked --------------------------------------------------------------------------------------------------


def test_a_grammar_goes_along_only_where_the_server_knows_it(server: Server, model: Making) -> None:
    plain, prefixed = request("a", grammar='start: "x"'), request("a", grammar='start: "x"', prefix="so")
    for constrain in ("off", "vllm", "llama.cpp"):
        ask(model(constrain=constrain, concurrency=1), [plain, prefixed], Sampling())
    usual = {"model", "messages", "temperature", "top_p", "max_tokens", "seed"}
    more = [{key: body[key] for key in body.keys() - usual} for body in server.seen]
    assert more == [
        {},
        {},
        {"structured_outputs": {"grammar": 'start: "x"'}},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"grammar": '%llguidance {}\nstart: "x"'},
        {},
    ]


def test_images_are_passed_on(server: Server, model: Making) -> None:
    blocks = [
        {"type": "text", "text": "who?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]
    asked = Request(messages=({"role": "user", "content": blocks},))
    assert ask(model(), [asked], Sampling()) == [Generation("y")]
    assert server.seen[0]["messages"] == [{"role": "user", "content": blocks}]


# --- the key --------------------------------------------------------------------------------------------------------


def test_the_key_is_nowhere_to_be_seen(model: Making, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cache = AnswerCache(tmp_path / "cache.sqlite")
    asked = model(cache, retries=1)
    found = ask(asked, [request(text) for text in ("401", "500", "echo", "error object", "a", "half")], Sampling())
    assert [isinstance(one, Generation) for one in found] == [False, False, False, False, True, False]
    shown = repr([found, asked, asked._settings, asked.counters, vars(asked.counters)]) + caplog.text
    assert KEY not in shown
    assert count_rows(tmp_path / "cache.sqlite") == 1
    files = list(tmp_path.iterdir())
    assert len(files) > 1
    assert not any(KEY.encode() in file.read_bytes() for file in files)


@pytest.mark.parametrize("key", [" sk-\"\\%{}$;:' ", "EMPTY", "sk-a\n"])
def test_a_key_of_odd_characters_is_sent(
    server: Server, model: Making, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert ask(model(), [request("a")], Sampling()) == [Generation("said a")]
    assert server.keys == [f"Bearer {key.strip()}"]


@pytest.mark.parametrize("key", ["sk-secret-ключ", "sk-secret\r\nX-Other: 1", "sk-secret\x07", "sk-secret\u2028"])
def test_a_key_that_cannot_be_sent_is_not_shown(model: Making, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key + "x")
    with pytest.raises(InputError, match="characters that cannot be sent") as caught:
        model()
    assert caught.value.field == "OPENAI_API_KEY"
    assert "secret" not in str(caught.value)


# --- trying again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["400", "401", "403", "404", "413", "422"])
def test_what_cannot_pass_is_asked_once(server: Server, model: Making, wanted: str) -> None:
    asked = model(retries=5)
    (found,) = ask(asked, [request(wanted)], Sampling())
    assert isinstance(found, Failure)
    assert len(server.seen) == 1
    assert asked.counters.failed == {found.kind: 1}


@pytest.mark.parametrize(
    "wanted", ["408", "409", "429", "500", "502", "half", "empty", "garbage", "nothing", "no choices"]
)
def test_what_may_pass_is_tried_again(server: Server, model: Making, wanted: str) -> None:
    asked = model(retries=2)
    (found,) = ask(asked, [request(wanted)], Sampling())
    assert isinstance(found, Failure)
    assert len(server.seen) == 3
    assert (asked.counters.retried, asked.counters.failed) == ({found.kind: 2}, {found.kind: 1})


def test_pauses_grow(model: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("compeer.models.client.asyncio.sleep", sleep)
    ask(model(retries=9, first_pause=1.0, deadline=1e6), [request("500")], Sampling())
    pauses = [pause for pause in pauses if pause]  # closing a connection sleeps for no time
    assert len(pauses) == 9
    for number, pause in enumerate(pauses):
        assert min(2**number, 60) / 2 <= pause <= min(2**number, 60)


def test_a_request_has_a_deadline(server: Server, model: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, endpoint, pacing)
    start = clock.now
    (found,) = ask(model(retries=1000, first_pause=20, deadline=80), [request("500")], Sampling())
    assert isinstance(found, Failure)
    assert found.kind == "server"
    assert 30 <= clock.now - start < 80
    assert 3 <= len(server.seen) <= 4
    monkeypatch.undo()
    (hanging,) = ask(model(timeout=60, deadline=0.2), [request("hang")], Sampling())
    assert isinstance(hanging, Failure)
    assert hanging.kind == "timeout"


def test_waiting_for_a_place_is_not_held_against_a_request(
    server: Server, model: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reply = Clock(monkeypatch, endpoint, pacing), server.reply

    def slowly(to: BaseHTTPRequestHandler, wanted: Any) -> None:
        clock.now += 50
        reply(to, wanted)

    monkeypatch.setattr(server, "reply", slowly)
    found = ask(model(concurrency=1, deadline=300), [request(f"{number}.") for number in range(14)], Sampling())
    assert all(isinstance(one, Generation) for one in found), "700 seconds in all, 50 each"


def test_a_server_that_wants_a_pause_gets_it_from_all(server: Server, model: Making) -> None:
    asked = model(retries=1, concurrency=8)

    async def run() -> list[Generation | Failure]:
        first = asyncio.ensure_future(asked.generate([request("429 0.5")], Sampling()))
        while not asked._gate._held_until:  # until the refusal has come
            await asyncio.sleep(0.01)
        others = await asked.generate([request(f"x{number}") for number in range(5)], Sampling())
        return [*await first, *others]

    assert asyncio.run(run())[0] == Generation("after all")
    assert len(server.times) == 7
    assert all(later - server.times[0] >= 0.49 for later in server.times[1:])
    assert asked.counters.held_by_server > 0
    assert asked.counters.held_by_cap == 0


def test_a_pause_beyond_the_deadline_is_a_failure_at_once(
    server: Server, model: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = model(retries=3, deadline=30)
    clock = Clock(monkeypatch, endpoint, pacing)
    start = clock.now
    (found,) = ask(asked, [request("429 3600")], Sampling())
    assert isinstance(found, Failure)
    assert found.kind == "rate limit"
    assert "3600 s" in found.reason
    assert ask(asked, [request("a")], Sampling()) == [Generation("said a")]
    assert clock.now == start, "nobody slept"
    assert len(server.seen) == 2


def test_retry_after_is_read_in_both_forms() -> None:
    assert seconds_until("2") == 2.0
    assert seconds_until("0.5") == 0.5
    assert seconds_until("-3") == 0.0
    before = time.time()
    found = seconds_until(formatdate(before + 60, usegmt=True))
    assert found is not None
    assert 59 - (time.time() - before) <= found <= 60, "a date has no fractions of a second"
    assert seconds_until(formatdate(time.time() - 60, usegmt=True)) == 0.0
    for odd in (None, "", "soon", "nan", "inf", "1e999", "Wed, 99 Foo 2026", "Mon, 01 Jan 99999 00:00:00 GMT"):
        assert seconds_until(odd) is None


@given(st.text(max_size=40))
def test_any_retry_after_is_a_pause_or_none(text: str) -> None:
    found = seconds_until(text)
    assert found is None or found >= 0


# --- limits ---------------------------------------------------------------------------------------------------------


def test_calls_at_once_are_bounded_over_all_generate_calls(server: Server, model: Making) -> None:
    asked = model(concurrency=3)
    assert (asked.batch_size, asked.at_once) == (1, 12)

    async def run() -> None:
        await asyncio.gather(*(asked.generate([request(f"slow {number}")], Sampling()) for number in range(24)))

    asyncio.run(run())
    assert server.busiest == 3
    assert len(server.seen) == 24


def test_requests_a_minute_hold_over_several_event_loops(model: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, pacing)
    start = clock.now
    asked = model(requests_per_minute=1200)  # one every 50 ms
    for turn in range(3):
        ask(asked, [request(f"{turn} {number}") for number in range(4)], Sampling())
    assert 11 * 0.05 - SLACK <= clock.now - start <= 11 * 0.05
    assert asked.counters.held_by_cap == pytest.approx(clock.now - start)


class Clock:
    """Time that passes only when someone sleeps, for the modules that are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self.now = 1000.0

        async def sleep(seconds: float) -> None:
            self.now += seconds + 0.001  # always a little late

        clock, slept = SimpleNamespace(monotonic=lambda: self.now), SimpleNamespace(**vars(asyncio) | {"sleep": sleep})
        for module in modules:
            monkeypatch.setattr(module, "time", clock)
            monkeypatch.setattr(module, "asyncio", slept)


@given(
    per_minute=st.integers(5, 3000),
    gaps=st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.01, 3.0, 70.0]), min_size=1, max_size=60),
)
def test_no_minute_has_more_requests_than_allowed(per_minute: int, gaps: list[float]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock(monkeypatch, pacing)
        gate, times = Gate(requests_per_minute=per_minute), []
        for gap in gaps:
            clock.now += gap
            asyncio.run(gate.enter(Counters()))
            times.append(clock.now)
    spacing = 60 / per_minute
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert times[last] - times[first] >= (last - first) * spacing - SLACK - 0.002


# --- the same request twice -----------------------------------------------------------------------------------------


def test_the_same_request_under_way_is_asked_once(server: Server, model: Making) -> None:
    asked = model()
    found = ask(asked, [request("slow")] * 10 + [request("slow", seed=1)], Sampling())
    assert found == [Generation("said slow")] * 11
    assert len(server.seen) == asked.counters.calls == 2
    assert asked.counters.shared == 9


def test_when_the_first_is_cancelled_the_second_asks(server: Server, model: Making) -> None:
    asked = model()

    async def run() -> list[Generation | Failure]:
        first = asyncio.ensure_future(asked.generate([request("held")], Sampling()))
        second = asyncio.ensure_future(asked.generate([request("held")], Sampling()))
        while not server.seen:
            await asyncio.sleep(0.005)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        server.released.set()
        return await second

    assert asyncio.run(run()) == [Generation("said held")]
    assert len(server.seen) == asked.counters.calls == 2
    assert asked.counters.failed == {"stopped": 1}
    assert_counters_add_up(asked.counters)


# --- counters and guesses -------------------------------------------------------------------------------------------


def assert_counters_add_up(counters: Counters) -> None:
    assert counters.calls == counters.successes + counters.retried.total() + counters.failed.total()
    assert counters.requests == counters.cached + counters.shared + counters.successes + counters.failed.total()


def test_the_table_tells_what_the_server_saw(server: Server, model: Making, tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "cache.sqlite")
    ask(model(cache), [request("a")], Sampling())
    asked = model(cache, retries=1)
    ask(asked, [request(text) for text in ("a", "b", "b", "once", "500", "401", "counted")], Sampling())
    assert asked.counters.calls == len(server.seen) - 1
    assert_counters_add_up(asked.counters)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(counters_table(asked.counters))
    rows = [line.strip("│ \n").split("│") for line in console.export_text().splitlines() if "│" in line]
    table = [(cells[0].strip(), cells[1].strip()) for cells in rows]
    assert table[:6] == [
        ("requests", "7"),
        ("from the cache", "1"),
        ("same as another one under way", "1"),
        ("calls", "7"),
        ("answered", "3"),
        ("tried again", "2"),
    ]
    assert ("access", "1") in table
    assert ("prompt tokens", "7") in table


def test_a_picture_counts_as_so_many_tokens() -> None:
    blocks = [{"type": "text", "text": "abcd"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert prompt_tokens(request("abcdefgh")) == 4 + 2
    assert prompt_tokens(Request(messages=({"role": "user", "content": blocks},))) == 4 + 1 + IMAGE_TOKENS


ENGLISH = """I have been lying awake since the letter came, and every night I go through the same three numbers.
My sister says that I should just talk to our mother, but she was not there when it happened.
That sounds exhausting. What would you like to be different by the end of this week?
Honestly? I'd like to stop pretending at work that everything is fine.
It makes sense that you are angry; you did your part, and nobody told you that the plan had changed.
We used to walk along the river on Sundays, and now I cross the road when I see him."""


def test_tokens_are_guessed_within_a_third() -> None:
    from tokenizers import Tokenizer

    from compeer.models import model_folder

    tokenizer = Tokenizer.from_file(str(model_folder("embedded") / "tokenizer.json"))
    for text in (*ENGLISH.split("\n"), ENGLISH):
        assert text_tokens(text) == pytest.approx(len(tokenizer.encode(text).ids), rel=0.35)
    assert text_tokens("我最近总是睡不着。") == 9
    assert text_tokens("") == 0


# --- a hostile server -----------------------------------------------------------------------------------------------

TROUBLES = ["429", "429 after", "429 date", "500", "half", "nothing", "slow", "garbage", "error object", "empty body"]


class Hostile(Server):
    """Gives each request its own few troubles, drawn by a seed, and then an answer; counts what it really delivered."""

    def __init__(self, seed: int | None) -> None:
        self.delivered: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._seed = seed
        super().__init__()

    def troubles(self, wanted: str) -> list[str]:
        if self._seed is None:
            return []
        rng = random.Random(f"{self._seed} {wanted}")
        weights = [1 if trouble in ("slow", "429 after", "429 date") else 8 for trouble in TROUBLES]
        return rng.choices(TROUBLES, weights, k=rng.randrange(4))

    def reply(self, to: BaseHTTPRequestHandler, wanted: Any) -> None:
        with self.lock:
            troubles = self.troubles(wanted)
            trouble = troubles[self.calls[wanted]] if self.calls[wanted] < len(troubles) else None
            self.calls[wanted] += 1
        plain = b"HTTP/1.1 %b x\r\nContent-Length: %d\r\n%b\r\n%b"
        match trouble:
            case "429":
                to.wfile.write(plain % (b"429", 0, b"", b""))
            case "429 after":
                to.wfile.write(plain % (b"429", 0, b"Retry-After: 0.1\r\n", b""))
            case "429 date":
                to.wfile.write(plain % (b"429", 0, b"Retry-After: %b\r\n" % formatdate(usegmt=True).encode(), b""))
            case "500":
                to.wfile.write(plain % (b"500", 2, b"", b"{}"))
            case "half":
                to.wfile.write(plain % (b"200", 10, b"", b'{"choices"'))
            case "empty body":
                to.wfile.write(plain % (b"200", 0, b"", b""))
            case "slow":
                super().reply(to, "hang")
            case None:
                time.sleep(0.01)
                answer = json.dumps(completion(f"said {wanted}")).encode()
                to.wfile.write(plain % (b"200", len(answer), b"", answer))
                with self.lock:
                    self.delivered[wanted] += 1
            case _:
                super().reply(to, trouble)


WANTED = [f"question {number}" for number in range(200)]


def test_a_hostile_server_is_lived_with(model: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Hostile(seed=3)
    try:
        cache = AnswerCache(tmp_path / "cache.sqlite")
        options = {"url": server.url, "retries": 6, "concurrency": 32, "timeout": 5}
        asked = model(cache, **options)
        found = ask(asked, [request(text) for text in WANTED], Sampling())
        assert found == [Generation(f"said {text}") for text in WANTED]
        assert server.delivered == Counter(WANTED)  # each paid for once
        met = Counter(trouble for text in WANTED for trouble in server.troubles(text))
        assert set(met) == set(TROUBLES)
        assert len(server.seen) == asked.counters.calls == 200 + met.total()
        assert asked.counters.retried == {
            "rate limit": met["429"] + met["429 after"] + met["429 date"],
            "server": met["500"],
            "answer": met["half"] + met["garbage"] + met["error object"] + met["empty body"],
            "connection": met["nothing"],
            "timeout": met["slow"],
        }
        assert_counters_add_up(asked.counters)
        again = model(cache, **options)
        monkeypatch.setenv("OPENAI_API_KEY", "another key")
        assert ask(again, [request(text) for text in WANTED], Sampling()) == found
        assert len(server.seen) == asked.counters.calls
        assert (again.counters.calls, again.counters.cached) == (0, 200)
        assert_counters_add_up(again.counters)
    finally:
        server.close()


RUN = """
import sys
from pathlib import Path
from compeer.models import AnswerCache, CallSettings, EndpointModel, Request, Sampling, ask
url, cache = sys.argv[1:]
model = EndpointModel(url, "m", CallSettings(concurrency=8), AnswerCache(Path(cache)))
ask(model, [Request(({"role": "user", "content": f"question {number}"},)) for number in range(200)], Sampling())
"""


def test_killed_half_way_only_the_rest_is_asked(model: Making, tmp_path: Path) -> None:
    server = Hostile(seed=None)
    path = tmp_path / "cache.sqlite"
    try:
        process = subprocess.Popen([sys.executable, "-c", RUN, server.url, str(path)])
        while server.delivered.total() < 60 and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        assert process.wait() == -9
        while server.closed < server.connections:  # what the server was still sending counts as delivered
            time.sleep(0.01)
        before = Counter(server.delivered)
        cache = AnswerCache(path)
        kept = count_rows(path)
        assert 40 <= kept < 200
        asked = model(cache, url=server.url, concurrency=8)
        assert ask(asked, [request(text) for text in WANTED], Sampling()) == [Generation(f"said {w}") for w in WANTED]
        assert asked.counters.calls == 200 - kept
        assert asked.counters.cached == kept
        # only an answer that was on its way at the moment of the kill can have been paid for twice
        assert set(server.delivered) == set(WANTED)
        assert max(server.delivered.values()) <= 2
        assert server.delivered.total() - 200 == before.total() - kept <= 16
    finally:
        server.close()
