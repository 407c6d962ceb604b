"""GRPO on TRL: whole groups are reweighted, on one process as on two, and an interrupted training ends the same."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from compeer.models.training import run_trainer
from compeer.policy.grpo import GrpoSettings, grpo_trainer
from compeer.policy.redundancy import advantages
from compeer.policy.rewards import reward_group
from compeer.reasoning import render_turn
from compeer.ser import read_records
from tests.support.grpo_worker import (
    FixedJudge,
    Scripted,
    fixed_scorer,
    scripted_scorer,
    small_model,
    small_records,
    train,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_records(tmp_path_factory.mktemp("ser") / "records.jsonl")


@pytest.fixture(scope="module")
def model(tiny_learner: Path, tiny_seeing_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tiny_learner, tiny_seeing_model, tmp_path_factory.mktemp("small_model"))


@pytest.fixture(scope="module")
def single(model: Path, records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process leaves that learns from all outputs of a step at once."""
    folder = tmp_path_factory.mktemp("alone")
    train(model, records, folder)
    return folder


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def assert_learnt_the_same(mine: Path, theirs: Path, start: Path) -> None:
    """The same rewards, advantages and weights, which moved away from the start."""
    for name in ("rewards", "advantages"):
        steps, others = result(mine)[name], result(theirs)[name]
        assert len(steps) == 3
        assert all(len(step) == 12 for step in steps)
        for step, other in zip(steps, others, strict=True):
            assert step == pytest.approx(other, abs=1e-4)
    from transformers import AutoModelForCausalLM

    before = AutoModelForCausalLM.from_pretrained(start).state_dict()
    weights, others = (torch.load(folder / "parameters.pt") for folder in (mine, theirs))
    moved = 0
    for name, value in weights.items():
        # what no gradient reaches but by rounding moves at random, by at most the learning rate a step
        close = torch.isclose(value, others[name], atol=1e-5, rtol=1e-4)
        assert close.float().mean() > 0.99, name
        assert torch.allclose(value, others[name], atol=3e-3), name
        moved += int((value - before[name]).abs().max() > 1e-4)
    assert moved > 10


def test_one_process_and_two_come_to_the_same(model: Path, records: Path, single: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    start = [sys.executable, "-m", "tests.support.pair", "tests.support.grpo_worker"]
    command = [*start, str(model), str(records), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_learnt_the_same(single, tmp_path, model)
    rewards = result(single)["rewards"]
    assert any(value is None for step in rewards for value in step)
    assert len({value for step in rewards for value in step}) > 6
    single_rows, pair_rows = (steps_logged(folder / "metrics.jsonl") for folder in (single, tmp_path))
    assert list(single_rows) == list(pair_rows) == [1, 2, 3]
    for step, row in single_rows.items():
        ours = [key for key in row if key.split("/")[0] in ("raw", "reweighted", "variance", "redundancy", "source")]
        assert len(ours) > 30
        theirs = pair_rows[step]
        assert {key: row[key] for key in ours} == pytest.approx({key: theirs[key] for key in ours}, abs=1e-4)


@pytest.mark.parametrize(("at_once", "part"), [(3, 3), (10, 6)])
def test_a_step_in_parts_learns_the_same(
    model: Path,
    records: Path,
    single: Path,
    tmp_path: Path,
    at_once: int,
    part: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts that cut groups, of a size that divides the step: drawn and scored all at once, learnt from in parts."""
    learnt: list[int] = []
    compute = Scripted._compute_loss

    def watching(self: Any, network: Any, inputs: dict[str, Any]) -> Any:
        learnt.append(len(inputs["completion_ids"]))
        return compute(self, network, inputs)

    monkeypatch.setattr(Scripted, "_compute_loss", watching)
    train(model, records, tmp_path, at_once)
    assert learnt == [part] * (36 // part)
    assert result(tmp_path)["drawn"] == result(tmp_path)["scored"] == [12, 12, 12]
    assert_learnt_the_same(single, tmp_path, model)


def steps_logged(path: Path) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["step"]: row for row in rows}


def test_an_interrupted_training_ends_the_same(model: Path, records: Path, tmp_path: Path) -> None:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                raise KeyboardInterrupt

    settings = GrpoSettings(
        steps=3, learning_rate=1e-3, lora_rank=0, prompts=2, max_tokens=12, history=1, save_every=1, temperature=1.0
    )
    chosen = {record.id: record for record in read_records(records) if record.author == "corpus"}

    def trained(folder: Path, interrupted: bool) -> Any:
        trainer = grpo_trainer(model, scripted_scorer(chosen), chosen, settings, folder, 5)
        if interrupted:
            trainer.add_callback(Stop())
            with pytest.raises(KeyboardInterrupt):
                run_trainer(trainer, folder, settings, "interrupted")
            trainer = grpo_trainer(model, scripted_scorer(chosen), chosen, settings, folder, 5)
        run_trainer(trainer, folder, settings, "whole")
        return trainer

    whole, resumed = trained(tmp_path / "whole", False), trained(tmp_path / "resumed", True)
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert (tmp_path / "whole" / name).read_text() == (tmp_path / "resumed" / name).read_text()
    for (name, mine), theirs in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_rewards_and_advantages_are_those_of_the_pure_functions(model: Path, records: Path, tmp_path: Path) -> None:
    """The contract with TRL's private method: what it makes of our rewards is equation 3."""
    settings = GrpoSettings(steps=1, learning_rate=1e-3, lora_rank=0, prompts=2, max_tokens=8, history=1)
    chosen = {record.id: record for record in read_records(records) if record.author == "corpus"}
    kept: dict[str, Any] = {}

    from compeer.policy.grpo import RedundancyGRPOTrainer

    class Keeps(RedundancyGRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            kept["advantages"] = output["advantages"].tolist()
            return output

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            rewards = super()._calculate_rewards(*args, **kwargs)
            kept["rewards"] = rewards[:, 0].tolist()
            return rewards

    trainer = grpo_trainer(model, scripted_scorer(chosen), chosen, settings, tmp_path, 0, kind=Keeps)
    run_trainer(trainer, tmp_path, settings, "contract")
    assert len(kept["rewards"]) == 8
    expected = [*advantages(kept["rewards"][:4]), *advantages(kept["rewards"][4:])]
    assert kept["advantages"] == pytest.approx(expected, abs=1e-3)
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    for group in (rows[:4], rows[4:]):
        scored = scripted_scorer(chosen)
        rollouts = scored([r["record"] for r in group], [r["output"] for r in group], [False] * 4)
        wanted = reward_group(rollouts, settings).rewards
        assert [r["reward"] for r in group] == [None if w != w else pytest.approx(w, abs=1e-5) for w in wanted]


def test_scores_come_from_parser_and_judge(records: Path) -> None:
    record = next(iter(read_records(records)))
    judge = FixedJudge()
    whole = render_turn(record.candidate)
    texts = [whole, whole.split("Response:")[0], "nonsense", whole]
    rollouts = fixed_scorer(record, judge)([record.id] * 4, texts, [False, False, False, True])
    assert [rollout.score.total for rollout in rollouts] == [3, -1, -5, -1]
    assert len(judge.cases) == 3, "an output with nothing in it needs no judge"
    assert [rollout.length > 0 for rollout in rollouts] == [True, False, False, False]


def test_a_failing_judge_leaves_rows_unscored(records: Path) -> None:
    record = next(iter(read_records(records)))
    rollouts = fixed_scorer(record, FixedJudge(fails=True))(
        [record.id] * 2, [render_turn(record.candidate), ""], [False] * 2
    )
    assert rollouts[0].score.unscored == "out of order"
    assert rollouts[0].raw != rollouts[0].raw
    assert rollouts[1].score.total == -5
