"""A judge behind a server that goes away: for a while it costs no step, for good it costs nothing but the wait."""

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from compeer.errors import InputError
from compeer.models import CallSettings, EndpointModel, Failure, Generation, Request, Sampling
from compeer.models.training import run_trainer
from compeer.policy import sources
from compeer.policy.grpo import GrpoSettings, Rollout, Scorer, grpo_trainer
from compeer.policy.rewards import JudgeAway, JudgeSource, Weighted
from compeer.policy.sources import Patient
from compeer.reward.conversation import RESPONSE_WORDS, STEP_WORDS
from compeer.reward.endpoint import ModelJudge
from compeer.ser import SerRecord, read_records
from tests.support.grpo_worker import HashSource, WordRows, small_model, small_records, whole
from tests.support.virtual_time import run_virtually

SETTINGS = GrpoSettings(steps=3, learning_rate=1e-3, lora_rank=0, prompts=1, max_tokens=8, history=1, save_every=10)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SerRecord]:
    found = read_records(small_records(tmp_path_factory.mktemp("ser") / "records.jsonl"))
    return {record.id: record for record in found}


@pytest.fixture(scope="module")
def small(tiny_learner: Path, tiny_seeing_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tiny_learner, tiny_seeing_model, tmp_path_factory.mktemp("small_model"))


class JudgeServer:
    """A real server whose verdicts hang on the questions; it goes away before its `fails`-th answer."""

    def __init__(self) -> None:
        self.port, self.answers, self.away, self.fails, self.pause = 0, 0, 0, -1, 0.0
        self._http: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.answers += 1
                if server.answers == server.fails:
                    server.away += 1
                    threading.Thread(target=server.leave).start()
                    return
                question = json.loads(body)["messages"][-1]["content"]
                words = RESPONSE_WORDS if "Reply A" in question else STEP_WORDS
                word = words[hashlib.sha256(question.encode()).digest()[0] % len(words)]
                message = {"message": {"role": "assistant", "content": word}, "finish_reason": "stop"}
                answer = json.dumps({"choices": [message]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def leave(self) -> None:
        """Goes away, and comes back after the pause if there is one."""
        self.stop()
        if self.pause:
            time.sleep(self.pause)
            self.start()

    def stop(self) -> None:
        if self._http:
            self._http.shutdown()
            self._http.server_close()
            self._http = None


@pytest.fixture
def server() -> Any:
    found = JudgeServer()
    yield found
    found.stop()


def train(model: Path, records: dict[str, SerRecord], server: JudgeServer, folder: Path, outage: float) -> Any:
    """Three steps with the server's verdicts and another source; what the model writes is made a whole turn."""
    endpoint = EndpointModel(server.url, "m", CallSettings(retries=1, first_pause=0.01))
    judge = ModelJudge(Patient(endpoint, outage, first_pause=0.05))
    weighted = [Weighted(JudgeSource(judge, 0, "words")), Weighted(HashSource("other"), 0.5)]
    scorer = Scorer(weighted, WordRows(), records, 0)

    def scored(ids: Sequence[str], texts: Sequence[str], _: Sequence[bool]) -> list[Rollout]:
        return scorer(ids, [whole(text) for text in texts], [False] * len(texts))

    trainer = grpo_trainer(model, scored, records, SETTINGS, folder, 3)
    run_trainer(trainer, folder, SETTINGS, "outage")
    return trainer


def same(one: Any, other: Any, folder: Path, another: Path) -> None:
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert (folder / name).read_text() == (another / name).read_text()
    for (name, mine), theirs in zip(one.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_outages_short_and_long(
    small: Path, records: dict[str, SerRecord], server: JudgeServer, tmp_path: Path
) -> None:
    whole_run = train(small, records, server, tmp_path / "whole", 60)
    asked = server.answers
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    assert all(row["raw/unscored_share"] == 0 for row in rows)
    assert any(row["variance/total"] > 0 for row in rows)
    assert asked > 20

    server.answers, server.fails, server.pause = 0, asked // 2, 1.0
    short = train(small, records, server, tmp_path / "short", 60)
    assert server.away == 1
    same(whole_run, short, tmp_path / "whole", tmp_path / "short")

    server.answers, server.fails, server.pause = 0, asked - 2, 0.0
    with pytest.raises(InputError, match="stopped after step 2, since a judge is away: m cannot be asked") as error:
        train(small, records, server, tmp_path / "long", 0.3)
    assert "start again" in str(error.value)
    assert (tmp_path / "long" / "checkpoints" / "checkpoint-2" / "complete").is_file()
    server.start()
    resumed = train(small, records, server, tmp_path / "long", 60)
    same(whole_run, resumed, tmp_path / "whole", tmp_path / "long")


# --- patience alone ---------------------------------------------------------------------------------------------------


class Flaky:
    """Answers by a function of the request's text and how often anything was asked."""

    name, batch_size, at_once = "flaky", 4, 2

    def __init__(self, answer: Any) -> None:
        self._answer, self.asked = answer, 0

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        self.asked += 1
        return [self._answer(str(request.messages[0]["content"]), self.asked) for request in requests]


def questions(*texts: str) -> list[Request]:
    return [Request(({"role": "user", "content": text},)) for text in texts]


def ask(model: Patient, *texts: str) -> list[Generation | Failure]:
    return asyncio.run(model.generate(questions(*texts), Sampling()))


def test_what_failed_in_an_outage_is_asked_again() -> None:
    def answer(text: str, asked: int) -> Generation | Failure:
        return Failure("connection", "gone") if 1 <= asked < 4 and text != "early" else Generation(text)

    model = Flaky(answer)
    found = ask(Patient(model, 60, first_pause=0.01), "early", "a", "b")
    assert [one.text for one in found if isinstance(one, Generation)] == ["early", "a", "b"]
    assert model.asked == 5, "the first try, two tiny questions in vain, one that is answered, the second try"


def test_one_question_that_always_fails_is_no_outage() -> None:
    model = Flaky(lambda text, _: Failure("server", "500") if text == "poison" else Generation(text))
    found = ask(Patient(model, 60, first_pause=0.01), "fine", "poison")
    assert isinstance(found[0], Generation)
    assert found[1] == Failure("server", "500")
    assert model.asked < 10


def test_refusals_are_not_waited_for() -> None:
    model = Flaky(lambda text, _: Failure("refused", "too long") if text == "long" else Generation(text))
    assert ask(Patient(model, 60), "long") == [Failure("refused", "too long")]
    assert model.asked == 1


@pytest.mark.parametrize(("kind", "seconds"), [("access", 0), ("connection", 500)])
def test_one_that_stays_away_says_so(kind: Any, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = Patient(Flaky(lambda *_: Failure(kind, "no luck")), 500, first_pause=50)

    async def work() -> None:
        with pytest.raises(JudgeAway, match=r"flaky cannot be asked .*: no luck"):
            await patient.generate(questions("a"), Sampling())

    assert run_virtually(monkeypatch, work(), sources) == seconds


def test_a_server_that_hangs_counts_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hangs(Flaky):
        async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
            self.asked += 1
            if self.asked > 1:
                await asyncio.sleep(10_000)
            return [Failure("timeout", "slow") for _ in requests]

    patient = Patient(Hangs(None), 500, first_pause=50)

    async def work() -> None:
        with pytest.raises(JudgeAway):
            await patient.generate(questions("a"), Sampling())

    assert run_virtually(monkeypatch, work(), sources) == 500
