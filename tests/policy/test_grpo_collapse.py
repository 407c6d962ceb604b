"""The rule against collapse: it stops in time, and the weights from before the fall become the model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, TrainerCallback

from compeer.policy import grpo
from compeer.policy.grpo import GrpoSettings, steps_under, train_grpo
from compeer.policy.rewards import Weighted
from compeer.reasoning import ParsedTurn
from compeer.reward import Score
from compeer.ser import SerRecord, read_records
from tests.support.grpo_worker import WordRows, small_model, small_records


@given(st.lists(st.floats(0, 2) | st.none(), max_size=12), st.floats(0.1, 1.5))
def test_steps_under_a_floor_are_counted_from_the_end(values: list[float | None], floor: float) -> None:
    rows = [{"entropy": value, "response/distinct_2": 1.0} for value in values]
    expected = 0
    while expected < len(values) and (last := values[-1 - expected]) is not None and last < floor:
        expected += 1
    assert steps_under(rows, {"entropy": floor}) == expected
    assert steps_under(rows, {}) == 0
    assert steps_under(rows, {"entropy": floor, "response/distinct_2": 1.5}) == len(values)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[SerRecord]:
    return list(read_records(small_records(tmp_path_factory.mktemp("ser") / "records.jsonl")))


@pytest.fixture(scope="module")
def small(tiny_model: Path, tiny_seeing_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tiny_model, tiny_seeing_model, tmp_path_factory.mktemp("small_model"))


class Weights(TrainerCallback):  # type: ignore[misc]
    """Keeps the weights after each step."""

    def __init__(self) -> None:
        self.after: dict[int, dict[str, torch.Tensor]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        self.after[state.global_step] = {name: value.detach().clone() for name, value in model.named_parameters()}


def fall(monkeypatch: pytest.MonkeyPatch, begins: int) -> Weights:
    """Figures whose distinct-2 is 0.9 at first and 0.1 from step `begins` on; returns what keeps the weights."""
    kept, figures, build = Weights(), grpo.group_metrics, grpo.grpo_trainer
    trainers: list[Any] = []

    def fallen(*groups: Any) -> dict[str, float]:
        step = trainers[-1].state.global_step + 1
        return {**figures(*groups), "response/distinct_2": 0.1 if step >= begins else 0.9}

    def built(*args: Any, **kwargs: Any) -> Any:
        trainers.append(build(*args, **kwargs))
        trainers[-1].add_callback(kept)
        return trainers[-1]

    monkeypatch.setattr(grpo, "group_metrics", fallen)
    monkeypatch.setattr(grpo, "grpo_trainer", built)
    return kept


class PlaceSource:
    """A score by the place in the group, whatever was written."""

    name = "place"

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        return [Score(total=place % 4) for place, _ in enumerate(outputs)]


def settings(**more: Any) -> GrpoSettings:
    values = {"steps": 9, "learning_rate": 1e-2, "lora_rank": 0, "prompts": 1, "max_tokens": 6, "history": 1}
    return GrpoSettings.model_validate(
        {**values, "save_every": 1, "warmup": 0, "stop_distinct_2": 0.5, "patience": 4, **more}
    )


def trained(model: Path, records: list[SerRecord], chosen: GrpoSettings, folder: Path) -> dict[str, Any]:
    return train_grpo(model, [Weighted(PlaceSource())], WordRows(), records, chosen, folder, 0)


def test_the_last_good_weights_become_the_model(
    small: Path, records: list[SerRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = fall(monkeypatch, begins=4)
    result = trained(small, records, settings(), tmp_path)
    assert result["steps"] == 7, "four steps under the floor"
    assert "response/distinct_2 0.1 < 0.5" in result["stopped"]
    # the figures of step 4 are of the weights after step 3: those after step 2 are the last good ones
    assert result["kept_step"] == 2
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for name, value in model.named_parameters():
        assert torch.equal(value, kept.after[2][name]), name
    assert any(not torch.equal(value, kept.after[3][name]) for name, value in model.named_parameters())
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 8))


def test_without_a_good_checkpoint_the_model_stays_what_it_was(
    small: Path, records: list[SerRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fall(monkeypatch, begins=1)
    result = trained(small, records, settings(patience=2), tmp_path)
    assert result["steps"] == 2
    assert result["kept_step"] == 0
    model, start = (AutoModelForCausalLM.from_pretrained(path) for path in (tmp_path / "model", small))
    for mine, theirs in zip(model.parameters(), start.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_adapters_go_back_too(
    small: Path, records: list[SerRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = fall(monkeypatch, begins=3)
    result = trained(small, records, settings(lora_rank=2, patience=2, steps=5), tmp_path / "fallen")
    assert result["kept_step"] == 1
    start = AutoModelForCausalLM.from_pretrained(small)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "fallen" / "model")
    after = kept.after[1]
    name = next(key for key in after if key.endswith("q_proj.lora_A.default.weight"))
    change = after[name.replace("lora_A", "lora_B")] @ after[name] * 2  # lora_alpha is twice the rank
    own = name.removeprefix("base_model.model.").removesuffix(".lora_A.default.weight") + ".weight"
    wanted = start.get_parameter(own) + change
    assert torch.allclose(model.get_parameter(own), wanted, atol=1e-6)
    assert not torch.equal(model.get_parameter(own), start.get_parameter(own))


def test_no_floor_no_stop(
    small: Path, records: list[SerRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fall(monkeypatch, begins=1)
    result = trained(small, records, settings(stop_distinct_2=None, steps=3, patience=1), tmp_path)
    assert (result["steps"], result["stopped"], result["kept_step"]) == (3, None, 3)


def test_entropy_is_a_floor_too(small: Path, records: list[SerRecord], tmp_path: Path) -> None:
    result = trained(small, records, settings(stop_distinct_2=None, stop_entropy=50, patience=2), tmp_path)
    assert result["steps"] == 2
    assert "entropy" in result["stopped"]
