"""`compeer serve`: what its words come to, and how the process ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from compeer.cli.serve import _notes, read_keys, serve
from compeer.errors import InputError
from compeer.progress import console
from compeer.web.serving import bound_socket, served_hosts
from tests.support.scripted_supporter import ScriptedSupporter
from tests.support.served import http, served

PROGRAM = """
from compeer.chat.app import create_app
from compeer.web.serving import serve
from compeer.web.serving import bound_socket
from tests.support.scripted_supporter import ScriptedSupporter
sock = bound_socket("127.0.0.1", 0)
app = create_app(ScriptedSupporter(), on_close=lambda: print("closed", flush=True))
serve(app, sock, grace=5, on_start=lambda: print(sock.getsockname()[1], flush=True))
print("ended", flush=True)
"""


def test_a_signal_lets_open_streams_finish_and_waits_no_longer_than_it_should() -> None:
    root = Path(__file__).parents[2]
    words = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{process.stdout.readline().strip()}/v1/chat/completions"
    slow = {"messages": [{"role": "user", "content": "slow"}], "stream": True}
    endless = {"messages": [{"role": "user", "content": "hold on"}]}
    with ThreadPoolExecutor(1) as pool, http.stream("POST", url, json=slow) as answer:
        held = pool.submit(http.post, url, json=endless)
        lines = answer.iter_lines()
        for _ in range(6):
            next(lines)
        process.send_signal(signal.SIGTERM)
        assert "data: [DONE]" in list(lines)
        assert held.result(timeout=60).status_code == 503
    out, err = process.communicate(timeout=120)  # a busy machine takes its time to unload torch
    assert (process.returncode, out.split()) == (0, ["closed", "ended"])
    assert "Traceback" not in err


def command(*words: str) -> Any:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(serve)
    return CliRunner().invoke(app, list(words))


def test_the_command_says_at_once_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        done = command("--port", str(taken.getsockname()[1]))
    assert isinstance(done.exception, InputError)
    assert "--port" in str(done.exception)
    done = command("--port", "0", "--model", str(tmp_path))
    assert "config.json" in str(done.exception)
    done = command("--port", "0", "--no-guard", "--webhook", "https://example.org/hook")
    assert done.exception.field == "webhook"
    monkeypatch.setenv("COMPEER_API_KEY", "hunter2")
    done = command("--port", "0")
    assert done.exception.field == "COMPEER_API_KEY"
    assert "hunter2" not in str(done.exception)


def test_the_command_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the words of the command line come to, up to the port."""
    opened: dict[str, Any] = {}

    def resolve_supporter(name: str, guard: Any, judge: Any, **more: Any) -> ScriptedSupporter:
        opened.update(name=name, guard=guard, judge=judge, **more)
        return ScriptedSupporter(guarded=guard is not None)

    def serve_app(app: Any, sock: Any, *, grace: float, on_start: Callable[[], object], proxies: Any) -> None:
        opened.update(app=app, host=sock.getsockname()[0], grace=grace, proxies=proxies)
        on_start()

    monkeypatch.setenv("COMPEER_API_KEY", "first-key-0123456789, second-key-0123456789")
    monkeypatch.setattr("compeer.chat.resolve.resolve_supporter", resolve_supporter)
    monkeypatch.setattr("compeer.web.serving.serve", serve_app)
    with console.capture() as displayed:
        done = command(
            "--port", "0", "--locale", "en-GB", "--keep", str(tmp_path / "kept"), "--grace", "9", "--waiting", "3"
        )
    assert done.exit_code == 0, done.exception
    assert (opened["name"], opened["host"], opened["grace"], opened["waiting"]) == ("best", "127.0.0.1", 9, 3)
    assert opened["guard"] is not None
    assert "Page   http://127.0.0.1:" in displayed.get()
    assert "kept" in displayed.get()
    assert "first-key" not in displayed.get()
    with served(opened["app"]) as started:
        assert http.get(f"{started.url}/v1/models").status_code == 401
        assert http.get(f"{started.url}/healthz", headers={"Host": "evil.example"}).status_code == 421
    with console.capture() as displayed:
        command("--port", "0", "--host", "0.0.0.0", "--no-guard")
    assert "The guard is OFF" in displayed.get()
    assert opened["guard"] is None


def test_only_this_machine_is_let_in_unless_set_otherwise() -> None:
    assert "evil.example" not in served_hosts("127.0.0.1", ())
    assert served_hosts("::1", ("chat.example",))[-1] == "chat.example"
    assert served_hosts("0.0.0.0", ()) == ()
    assert read_keys("") == ()


@pytest.mark.parametrize(("language", "warned"), [("es", True), ("pt-BR", True), ("en", False), ("zh-CN", False)])
def test_a_language_that_the_guard_cannot_read_is_reported_at_the_start(language: str, warned: bool) -> None:
    notes = " ".join(_notes(guarded=True, keyed=True, outside=False, keep=None, language=language))
    assert ("reads English and Chinese only" in notes) == warned
