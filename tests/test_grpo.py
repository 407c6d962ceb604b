"""GRPO on TRL: whole groups are reweighted, on one process as on two, and an interrupted training ends the same."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compeer.models.training import run_trainer
from compeer.policy.grpo import GrpoSettings, Scorer, grpo_trainer
from compeer.policy.redundancy import advantages, group_rewards
from compeer.reasoning import render_turn
from compeer.reward import Case, Judgment, Unscored
from compeer.ser import SerRecord, SerSettings, build_ser, read_records
from tests.grpo_worker import scripted_scorer

WORKER = Path(__file__).parent / "grpo_worker.py"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ser")
    build_ser(SerSettings(rounds=1), folder, 0)
    return folder / "records.jsonl"


def run_worker(tiny_model: Path, records: Path, folder: Path, processes: int) -> dict[str, Any]:
    folder.mkdir()
    start = [sys.executable] if processes == 1 else [sys.executable, "-m", "torch.distributed.run"]
    start += [] if processes == 1 else ["--nproc_per_node", str(processes), "--master_port", "29517"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(WORKER.parents[1])
    command = [*start, str(WORKER), str(tiny_model), str(records), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def test_one_process_and_two_come_to_the_same(tiny_model: Path, records: Path, tmp_path: Path) -> None:
    alone = run_worker(tiny_model, records, tmp_path / "one", 1)
    pair = run_worker(tiny_model, records, tmp_path / "two", 2)
    for name in ("rewards", "advantages"):
        assert len(alone[name]) == 3
        assert all(len(step) == 12 for step in alone[name])
        for mine, theirs in zip(alone[name], pair[name], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)
    assert any(value is None for step in alone["rewards"] for value in step)
    assert len({value for step in alone["rewards"] for value in step}) > 6
    weights, others = (torch.load(tmp_path / name / "parameters.pt") for name in ("one", "two"))
    from transformers import AutoModelForCausalLM

    start = AutoModelForCausalLM.from_pretrained(tiny_model).state_dict()
    moved = 0
    for name, value in weights.items():
        # what no gradient reaches but by rounding moves at random, by at most the learning rate a step
        close = torch.isclose(value, others[name], atol=1e-5, rtol=1e-4)
        assert close.float().mean() > 0.99, name
        assert torch.allclose(value, others[name], atol=3e-3), name
        moved += int((value - start[name]).abs().max() > 1e-4)
    assert moved > 10
    alone_rows, pair_rows = (steps_logged(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert list(alone_rows) == list(pair_rows) == [1, 2, 3]
    for step, row in alone_rows.items():
        ours = [key for key in row if key.split("/")[0] in ("raw", "reweighted", "variance", "redundancy", "source")]
        assert len(ours) > 30
        theirs = pair_rows[step]
        assert {key: row[key] for key in ours} == pytest.approx({key: theirs[key] for key in ours}, abs=1e-4)


def steps_logged(path: Path) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["step"]: row for row in rows}


def test_an_interrupted_training_ends_the_same(tiny_model: Path, records: Path, tmp_path: Path) -> None:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                raise KeyboardInterrupt

    settings = GrpoSettings(
        steps=3, learning_rate=1e-3, lora_rank=0, prompts=2, max_tokens=12, history=1, save_every=1, temperature=1.0
    )
    chosen = {record.id: record for record in read_records(records) if record.author == "corpus"}

    def train(folder: Path, interrupted: bool) -> Any:
        trainer = grpo_trainer(tiny_model, scripted_scorer(chosen), chosen, settings, folder, 5)
        if interrupted:
            trainer.add_callback(Stop())
            with pytest.raises(KeyboardInterrupt):
                run_trainer(trainer, folder, settings, "interrupted")
            trainer = grpo_trainer(tiny_model, scripted_scorer(chosen), chosen, settings, folder, 5)
        run_trainer(trainer, folder, settings, "whole")
        return trainer

    whole, resumed = train(tmp_path / "whole", False), train(tmp_path / "resumed", True)
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert (tmp_path / "whole" / name).read_text() == (tmp_path / "resumed" / name).read_text()
    for (name, mine), theirs in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_rewards_and_advantages_are_those_of_the_pure_functions(
    tiny_model: Path, records: Path, tmp_path: Path
) -> None:
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

    trainer = grpo_trainer(tiny_model, scripted_scorer(chosen), chosen, settings, tmp_path, 0, kind=Keeps)
    run_trainer(trainer, tmp_path, settings, "contract")
    assert len(kept["rewards"]) == 8
    expected = [*advantages(kept["rewards"][:4]), *advantages(kept["rewards"][4:])]
    assert kept["advantages"] == pytest.approx(expected, abs=1e-3)
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    for group in (rows[:4], rows[4:]):
        scored = scripted_scorer(chosen)
        rollouts = scored([r["record"] for r in group], [r["output"] for r in group], [False] * 4)
        wanted = group_rewards(
            [rollout.raw for rollout in rollouts],
            np.stack([rollout.response for rollout in rollouts]),
            rollouts[0].history,
            [rollout.length for rollout in rollouts],
            settings.alpha,
            settings.beta,
            settings.negatives,
        )
        assert [r["reward"] for r in group] == [None if w != w else pytest.approx(w, abs=1e-5) for w in wanted]


class FixedJudge:
    """Says True to everything, prefers the candidate, and fails where told to."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.cases: list[Case] = []

    def judge(self, cases: list[Case]) -> list[Judgment | Unscored]:
        self.cases.extend(cases)
        if self.fails:
            return [Unscored("out of order") for _ in cases]
        verdicts = {"history": 0.9, "emotion": 0.2, "strategy": 0.8}
        return [Judgment(verdicts, {"candidate": 0.7, "reference": 0.3}) for _ in cases]  # type: ignore[arg-type]


class LengthEmbedder:
    def embed(self, texts: list[str]) -> Any:
        return np.array([[1.0, len(text)] for text in texts], dtype=np.float32)


def scorer(record: SerRecord, judge: FixedJudge) -> Scorer:
    return Scorer(judge, LengthEmbedder(), {record.id: record}, 0)  # type: ignore[arg-type]


def test_scores_come_from_parser_and_judge(records: Path) -> None:
    record = next(iter(read_records(records)))
    judge = FixedJudge()
    whole = render_turn(record.candidate)
    texts = [whole, whole.split("Response:")[0], "nonsense", whole]
    rollouts = scorer(record, judge)([record.id] * 4, texts, [False, False, False, True])
    assert [rollout.score.total for rollout in rollouts] == [3, -1, -5, -1]
    assert len(judge.cases) == 3, "an output with nothing in it needs no judge"
    assert [rollout.length > 0 for rollout in rollouts] == [True, False, False, False]


def test_a_failing_judge_leaves_rows_unscored(records: Path) -> None:
    record = next(iter(read_records(records)))
    rollouts = scorer(record, FixedJudge(fails=True))([record.id] * 2, [render_turn(record.candidate), ""], [False] * 2)
    assert rollouts[0].score.unscored == "out of order"
    assert rollouts[0].raw != rollouts[0].raw
    assert rollouts[1].score.total == -5
