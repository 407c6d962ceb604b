"""A model behind a real server: llama.cpp's own, in a process of its own, spoken to over the network.

The package of llama.cpp brings its server; it listens on a free port and speaks the protocol of OpenAI's clients.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from compeer.chat import TurnDone, TurnRequest
from compeer.chat.resolve import resolve_supporter
from compeer.dialogue import Utterance
from compeer.models import Generation, Request, Sampling, ask, open_model
from compeer.models.catalogue import SMOLLM2
from compeer.policy.control import Control

SERVE = """
import sys, xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path, settings.n_ctx, settings.n_parallel = sys.argv[1], 2048, 2
settings.hostnames, settings.port, settings.cpuparams.n_threads = ["127.0.0.1"], 0, 2
server = xllamacpp.Server(settings)
print("LISTENING", server.listening_address, flush=True)
sys.stdin.read()
"""
HISTORY = (Utterance(speaker="seeker", text="They let me go on Friday, after eleven years in the same office."),)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the server listens; it ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(SMOLLM2.checked_path())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    found = next((line.split()[1] for line in process.stdout if line.startswith("LISTENING ")), None)
    assert found, f"the server ended with {process.wait()}"
    yield found
    process.stdin.close()
    process.wait(60)


def test_a_model_behind_llama_cpp_answers(address: str) -> None:
    model = open_model(f"SmolLM2@{address}/v1")
    requests = [Request(({"role": "user", "content": f"Name {what}."},)) for what in ("a colour", "a river")]
    for answer in ask(model, requests, Sampling(temperature=0, max_tokens=8)):
        assert isinstance(answer, Generation)
        assert answer.text.strip()


def test_a_supporter_behind_llama_cpp_is_steered(address: str) -> None:
    """The model knows nothing of the form: the lines that hold the decisions are given to it."""
    control = Control(stage="exploration", emotion="anxiety", strategy="Question")
    request = TurnRequest(HISTORY, control, sampling=Sampling(temperature=0, max_tokens=40))
    supporter = resolve_supporter(f"SmolLM2@{address}/v1")

    async def last() -> TurnDone:
        events = [event async for event in supporter.converse(request)]
        assert isinstance(events[-1], TurnDone)
        return events[-1]

    done = asyncio.run(last())
    supporter.close()
    assert done.turn is not None, done.problems
    assert (done.turn.history.stage, done.turn.emotion.emotion) == ("exploration", "anxiety")
    assert done.turn.strategy.strategy == "Question"
    assert done.reply
    assert done.tokens > 3
