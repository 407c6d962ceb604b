"""What TRL is told: parts of a step, and rollouts by vLLM."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.errors import InputError
from compeer.policy.fast_rollouts import FastRollouts
from compeer.policy.grpo import GrpoSettings, grpo_trainer
from compeer.policy.grpo_settings import grpo_config, part_size


def settings(**changes: Any) -> GrpoSettings:
    return GrpoSettings.model_validate({"steps": 1, "learning_rate": 1e-6, **changes})


@given(st.integers(1, 128), st.integers(0, 200))
def test_parts_are_equal_and_as_large_as_they_may_be(outputs: int, at_once: int) -> None:
    size = part_size(outputs, at_once)
    assert outputs % size == 0
    assert size <= (at_once or outputs)
    assert not [larger for larger in range(size + 1, (at_once or outputs) + 1) if outputs % larger == 0]


@pytest.mark.parametrize(("at_once", "part"), [(0, 32), (4, 4), (6, 4), (64, 32)])
def test_a_step_is_drawn_once_and_learnt_from_in_parts(at_once: int, part: int) -> None:
    arguments = grpo_config(settings(group=4, prompts=8, at_once=at_once), Path("unused"), 0)
    assert arguments.per_device_train_batch_size == part
    assert arguments.steps_per_generation == arguments.gradient_accumulation_steps == 32 // part
    assert arguments.generation_batch_size == 32


def test_outputs_that_cannot_be_spread_evenly_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match="32 outputs a step cannot be spread evenly over 3"):
        grpo_config(settings(), Path("unused"), 0)


def test_vllm_as_trl_wants_it() -> None:
    off = grpo_config(settings(), Path("unused"), 0)
    assert not off.use_vllm
    server = grpo_config(settings(vllm="server", vllm_server="http://rollouts:8001"), Path("unused"), 0)
    assert (server.use_vllm, server.vllm_mode) == (True, "server")
    assert server.vllm_server_base_url == "http://rollouts:8001"
    beside = grpo_config(settings(vllm="colocate", vllm_memory=0.45), Path("unused"), 0)
    assert (beside.use_vllm, beside.vllm_mode) == (True, "colocate")
    assert beside.vllm_gpu_memory_utilization == 0.45
    assert beside.vllm_server_base_url is None
    for config in (server, beside):
        assert config.vllm_importance_sampling_correction, "its probabilities are not quite those of training"


@pytest.mark.parametrize("where", ["server", "colocate"])
def test_vllm_that_is_not_installed_is_refused(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else find(name, *rest))
    with pytest.raises(InputError, match=r"field 'vllm'.*not installed"):
        grpo_trainer(tmp_path / "nowhere", lambda *_: [], {}, settings(vllm=where), tmp_path, 0)


@pytest.mark.parametrize("wrong", [{"vllm": "on"}, {"vllm_server": "localhost:8000"}, {"vllm_memory": 1.5}])
def test_settings_of_vllm_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        settings(**wrong)


def test_our_decoder_steps_aside_for_vllm() -> None:
    class FromTrl:
        use_vllm = True

        def _generate_single_turn(self, *given: Any) -> Any:
            return [[given[0][0][0] + 1]], [[-0.5]]

    class Trainer(FastRollouts, FromTrl):
        pass

    trainer = Trainer()
    assert trainer._generate_single_turn([[7]], None, {}, 1) == ([[8]], [[-0.5]])
    assert trainer._decoder is None
