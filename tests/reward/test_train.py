"""A training of a judge that stopped early stays where it stopped, and tunes nothing on a handful of records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import compeer.reward.train as training
from compeer.reasoning import STEPS
from compeer.reward import Judgment, RewardSettings, Unscored, train_judge
from compeer.reward.second_pass import FEWEST
from compeer.reward.train import best_threshold, round_weights
from tests.support.judging import RECORDS, record

KEPT = ("validation.jsonl", "validated.jsonl", "metrics.jsonl", "model/model.safetensors", "model/compeer.json")


def settings(model: Path, **changes: Any) -> RewardSettings:
    shape = {"steps": 8, "batch": 2, "lora_rank": 0, "evaluate_every": 2, "save_every": 2, "validation": 0.3}
    return RewardSettings.model_validate(
        {"model": str(model), "learning_rate": 1e-9, "patience": 1, **shape, **changes}
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in KEPT}


class Killed(TrainerCallback):  # type: ignore[misc]
    """Ends everything at one moment of a step, as if the process were gone."""

    def __init__(self, moment: str, step: int) -> None:
        self._step = step
        setattr(self, moment, self._end)

    def _end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            raise KeyboardInterrupt


def with_callback(monkeypatch: pytest.MonkeyPatch, callback: TrainerCallback) -> None:
    train: Callable[..., Any] = training.train_sft

    def trained(*args: Any, callbacks: Any, **more: Any) -> Any:
        return train(*args, callbacks=[*callbacks, callback], **more)

    monkeypatch.setattr(training, "train_sft", trained)


@pytest.mark.parametrize("changes", [{}, {"save_every": 3, "lora_rank": 2, "learning_rate": 0.005}], ids=str)
def test_a_stopped_training_is_not_taken_up_again(
    tiny_learner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    metrics = train_judge(RECORDS, settings(tiny_learner, **changes), tmp_path, 0)
    assert metrics["steps"] == 4
    before = contents(tmp_path)
    steps: list[int] = []

    class Count(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            steps.append(state.global_step)

    with_callback(monkeypatch, Count())
    for _ in range(2):
        assert train_judge(RECORDS, settings(tiny_learner, **changes), tmp_path, 0) == metrics
        assert contents(tmp_path) == before
    assert steps == []


@pytest.fixture(scope="module")
def undisturbed(
    tiny_learner: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return train_judge(RECORDS, settings(tiny_learner, learning_rate=0.02), folder, 0), contents(folder)


@pytest.mark.parametrize("moment", ["on_save", "on_train_end"])
def test_a_training_killed_as_it_stops_ends_like_an_undisturbed_one(
    tiny_learner: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: tuple[dict[str, Any], dict[str, bytes]],
    moment: str,
) -> None:
    metrics, files = undisturbed
    chosen = settings(tiny_learner, learning_rate=0.02)
    assert metrics["steps"] < chosen.steps
    with monkeypatch.context() as patch:
        with_callback(patch, Killed(moment, metrics["steps"]))
        with pytest.raises(KeyboardInterrupt):
            train_judge(RECORDS, chosen, tmp_path, 0)
    assert not (tmp_path / "model").exists()
    assert train_judge(RECORDS, chosen, tmp_path, 0) == metrics
    assert contents(tmp_path) == files


def test_more_patience_takes_a_training_up_again(tiny_learner: Path, tmp_path: Path) -> None:
    train_judge(RECORDS, settings(tiny_learner), tmp_path, 0)
    assert train_judge(RECORDS, settings(tiny_learner, patience=2), tmp_path, 0)["steps"] == 6


def test_the_threshold_is_tuned_on_enough_records_alone() -> None:
    """All steps of every other record are wrong, and the judge tells them apart between 0.6 and 0.8."""
    records = [record(number, wrong=STEPS if number % 2 else ()) for number in range(FEWEST)]
    said: list[Judgment | Unscored] = [Judgment(dict.fromkeys(STEPS, 0.6 if n % 2 else 0.8)) for n in range(FEWEST)]
    assert best_threshold(records, said) == 0.75
    assert best_threshold(records[1:], said[1:]) == 0.5
    assert best_threshold(records, [Unscored("away"), *said[1:]]) == 0.5


def test_weights_of_rounds() -> None:
    labels = torch.tensor([[-100, 5, 6, -100, 7, -100], [4, -100, 5, -100, -100, 6]])
    found = round_weights(labels, number=2, weight=3.0)
    assert found.tolist() == [[1, 1, 1, 1, 3, 1], [1, 1, 3, 1, 1, 1]]
