"""A public chat client, unmodified, against the real application: the program `llm`, as a process of its own.

It knows the server by an address in a file of its own, keeps the conversation itself, and sends it whole each time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compeer.chat.app import ServeSettings, create_app
from tests.support.scripted_supporter import ScriptedSupporter
from tests.support.served import served

MODELS = """
- model_id: compeer
  model_name: scripted
  api_base: {url}/v1
  api_key_name: compeer
"""
KEY = "first-key-0123456789"


def llm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What the program does with these words; its settings and its log lie in the folder.

    The packaged model is a plugin of it that wants more packages than are here, so plugins are off.
    """
    environment = {**os.environ, "LLM_USER_PATH": str(folder), "LLM_LOAD_PLUGINS": ""}
    command = [sys.executable, "-m", "llm", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, input="", timeout=300)


@pytest.mark.skipif(importlib.util.find_spec("llm") is None, reason="the client llm is not installed")
def test_llm_talks_streamed_and_whole_and_says_what_is_refused(tmp_path: Path) -> None:
    supporter = ScriptedSupporter()
    with served(create_app(supporter, settings=ServeSettings(keys=(KEY,)))) as started:
        (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(url=started.url))
        (tmp_path / "keys.json").write_text(json.dumps({"compeer": KEY}))
        streamed = llm(tmp_path, "-m", "compeer", "I failed the exam.")
        whole = llm(tmp_path, "--continue", "--no-stream", "Again.")
        refused = llm(tmp_path, "-m", "compeer", "--key", "wrong", "Hello.")
    assert (streamed.stdout, streamed.stderr) == ("Message 1 had 18 characters. What then?\n", "")
    assert (whole.stdout, whole.stderr) == ("Message 3 had 6 characters. What then?\n", "")
    texts = [utterance.text for utterance in supporter.requests[-1].history]
    assert texts == ["I failed the exam.", "Message 1 had 18 characters. What then?", "Again."]
    assert refused.returncode == 1
    assert "A valid API key is needed." in refused.stderr
