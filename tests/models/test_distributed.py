"""Weights spread over processes by the settings that ship: the saved model is whole, and that of one process.

ZeRO-2 and ZeRO-3 need `pip install '.[deepspeed]'`, which compiles for a minute when it is first used; without it
their tests are skipped.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

import compeer
from compeer.models.training import SftSettings, train_sft
from tests.support.distributed_worker import CHATS, KINDS
from tests.support.grpo_worker import small_model, small_records

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
PAIR = [sys.executable, "-m", "tests.support.pair"]
CONFIGS = Path(compeer.__file__).parent / "configs"
ZERO = {"zero_stage": "ZERO_STAGE", "zero3_init_flag": "ZERO3_INIT", "zero3_save_16bit_model": "ZERO3_SAVE_16BIT_MODEL"}
"""What `accelerate launch` calls the settings of DeepSpeed before its processes."""


@pytest.fixture(scope="module")
def model(tiny_learner: Path, tiny_seeing_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tiny_learner, tiny_seeing_model, tmp_path_factory.mktemp("small_model"))


@pytest.fixture(scope="module", params=["fsdp2", "zero2", "zero3"])
def distributed(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left, each with half of every weight."""
    if request.param.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    folder = tmp_path_factory.mktemp("spread")
    records = small_records(folder / "records.jsonl")
    environment = {**os.environ, **told(request.param), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    start = TORCHRUN if request.param.startswith("zero") else PAIR
    command = [*start, "tests.support.distributed_worker", str(model), str(records), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_a_pair_is_told_what_torchrun_tells(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(TELLS, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]), "OMP_NUM_THREADS": "1"}
    found = []
    for start in (TORCHRUN, PAIR):
        folder = tmp_path / start[2]
        folder.mkdir()
        done = subprocess.run([*start, "worker", str(folder)], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append({path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()})
    assert set(found[0]) == {"0", "1"}
    assert found[0] == found[1]


TELLS = """
import json, os, sys
from pathlib import Path

def main():
    told = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
    assert os.environ["MASTER_ADDR"] and int(os.environ["MASTER_PORT"])
    Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps({name: os.environ[name] for name in told}))

if __name__ == "__main__":
    main()
"""


def told(name: str) -> dict[str, str]:
    """The settings that ship, as `accelerate launch` tells them to its processes."""
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    if name == "fsdp2":
        own = {"ACCELERATE_USE_CPU": True, "ACCELERATE_USE_FSDP": True}
        own |= {key.upper(): value for key, value in config["fsdp_config"].items()}
    else:
        own = {"ACCELERATE_USE_DEEPSPEED": True, "DS_ACCELERATOR": "cpu"}
        own |= {f"ACCELERATE_DEEPSPEED_{ZERO[key]}": config["deepspeed_config"][key] for key in ZERO}
    return {key: str(value).lower() if value in (True, False) else str(value) for key, value in own.items()}


def weights(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return found


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_saved_model_is_that_of_one_process(kind: str, distributed: Path, model: Path, tmp_path: Path) -> None:
    train_sft(model, CHATS, SftSettings(batch=4, **KINDS[kind]), tmp_path, 0, kind, {})
    alone, pair, start = weights(tmp_path / "model"), weights(distributed / kind / "model"), weights(model)
    assert {name: value.shape for name, value in pair.items()} == {name: value.shape for name, value in start.items()}
    for name, value in alone.items():
        torch.testing.assert_close(pair[name], value, atol=2e-4, rtol=0)
    moved = [name for name in start if (alone[name] - start[name]).abs().max() > 1e-3]
    assert len(moved) > 10


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_interrupted_training_goes_on_the_same(kind: str, distributed: Path) -> None:
    whole, resumed = weights(distributed / kind / "model"), weights(distributed / f"{kind}-on" / "model")
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
    assert len((distributed / f"{kind}-on" / "times.jsonl").read_text().splitlines()) == 1, "one step was left to do"


def test_rewards_teach_distributed_weights_too(distributed: Path, model: Path) -> None:
    start, after = weights(model), weights(distributed / "grpo" / "model")
    assert {name: value.shape for name, value in after.items()} == {name: value.shape for name, value in start.items()}
    assert sum(bool((after[name] - start[name]).abs().max() > 1e-4) for name in start) > 10
