"""An endpoint that answers well, badly or not at all: each request gets its answer or its failure."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from compeer.errors import InputError
from compeer.models import Failure, Generation, Request, Sampling, ask
from compeer.models.endpoint import EndpointModel

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
        self.keys: list[str | None] = []
        self.released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.seen.append(body)
                server.keys.append(self.headers.get("Authorization"))
                wanted = body["messages"][0]["content"]
                if wanted == "hang":
                    server.released.wait(20)
                    self.close_connection = True
                    return
                status, answer = server.answer(wanted)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def answer(self, wanted: str) -> tuple[int, bytes]:
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
    running = Server()
    yield running
    running.close()


@pytest.fixture
def model(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EndpointModel]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    return lambda **options: EndpointModel(**{"url": server.url, "model": "m", "retries": 0, **options})


def request(text: str, **more: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), **more)


def test_an_answer(model: Callable[..., EndpointModel]) -> None:
    assert ask(model(), [request("hello")], Sampling()) == [Generation(text="said hello")]
    assert model().name == "m"


def test_what_is_asked_reaches_the_server(server: Server, model: Callable[..., EndpointModel]) -> None:
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


def test_without_stops_none_are_sent(server: Server, model: Callable[..., EndpointModel]) -> None:
    ask(model(), [request("hello")], Sampling())
    assert server.seen[0].get("stop") is None


def test_the_key_may_come_from_another_variable(
    server: Server, model: Callable[..., EndpointModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", "other")
    ask(model(key_variable="OTHER_KEY"), [request("a")], Sampling())
    monkeypatch.delenv("OTHER_KEY")
    ask(model(key_variable="OTHER_KEY"), [request("a")], Sampling())
    assert server.keys == ["Bearer other", "Bearer none"]


def test_a_cut_off_answer_and_its_tokens(model: Callable[..., EndpointModel]) -> None:
    cut, counted = ask(model(), [request("cut"), request("counted")], Sampling())
    assert cut == Generation(text="and so", cut_off=True)
    assert counted == Generation(text="x", prompt_tokens=7, tokens=3)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        ("400", "refused"),
        ("401", "refused"),
        ("403", "refused"),
        ("404", "refused"),
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
    ],
)
def test_each_failure_has_its_kind(server: Server, model: Callable[..., EndpointModel], wanted: str, kind: str) -> None:
    (found,) = ask(model(), [request(wanted)], Sampling())
    assert isinstance(found, Failure)
    assert found.kind == kind
    assert server.url in found.reason
    assert not wanted.isdigit() or wanted in found.reason
    assert KEY not in repr(found)


@pytest.mark.parametrize("wanted", ["content of blocks", "odd usage"])
def test_an_odd_answer_does_not_disturb_the_others(model: Callable[..., EndpointModel], wanted: str) -> None:
    odd, good = ask(model(), [request(wanted), request("a")], Sampling())
    assert isinstance(odd, Generation | Failure)
    assert good == Generation(text="said a")


def test_a_server_that_hangs_is_given_up(model: Callable[..., EndpointModel]) -> None:
    (found,) = ask(model(timeout=0.2), [request("hang")], Sampling())
    assert isinstance(found, Failure)
    assert found.kind == "timeout"
    assert KEY not in repr(found)


def test_a_server_that_is_not_there(model: Callable[..., EndpointModel]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        (found,) = ask(model(url=url), [request("a")], Sampling())
    assert isinstance(found, Failure)
    assert found.kind == "connection"
    assert url in found.reason
    assert KEY not in repr(found)


def test_answers_keep_the_order_of_the_requests(model: Callable[..., EndpointModel]) -> None:
    wanted = ["a", "500", "b", "half", "c", "429", *[f"x{number}" for number in range(20)]]
    found = ask(model(concurrency=4), [request(text) for text in wanted], Sampling())
    for text, one in zip(wanted, found, strict=True):
        if text in ("500", "half", "429"):
            assert isinstance(one, Failure)
        else:
            assert one == Generation(text=f"said {text}")


def test_a_passing_failure_is_tried_again(server: Server, model: Callable[..., EndpointModel]) -> None:
    assert ask(model(retries=1), [request("once")], Sampling()) == [Generation(text="said once")]
    assert len(server.seen) == 2


def test_no_requests_no_answers(model: Callable[..., EndpointModel]) -> None:
    assert ask(model(), [], Sampling()) == []


@pytest.mark.parametrize("url", ["localhost:8000", "", "ftp://x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="is no URL") as caught:
        EndpointModel(url, "m")
    assert caught.value.field == "url"
