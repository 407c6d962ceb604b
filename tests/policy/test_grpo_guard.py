"""The safety floor in GRPO: what the guard rejects is the worst of its group, whatever it earned."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.models.training import run_trainer
from compeer.policy.grpo import GrpoSettings, RedundancyGRPOTrainer, Rollout, grpo_trainer
from compeer.policy.metrics import group_metrics
from compeer.policy.redundancy import advantages
from compeer.policy.rewards import reward_group
from compeer.reasoning import render_turn
from compeer.reward import Score
from compeer.safety.output import floored
from compeer.ser import SerSettings, build_ser, read_records
from tests.support.grpo_worker import FixedJudge, fixed_scorer

NAN = float("nan")


def test_the_floor_is_below_everything_else_in_the_group() -> None:
    assert floored([3.0, 5.0, 1.0], [False, True, False]) == [3.0, -5.0, 1.0]
    assert floored([3.0, 5.0], [False, False]) == [3.0, 5.0]
    assert floored([-12.0, 5.0], [False, True]) == [-12.0, -13.0], "reweighting can go below the floor"
    assert floored([2.0, NAN], [False, True]) == [2.0, -5.0], "a rejected reply needs no score to be bad"
    assert floored([4.0, 4.0], [True, True]) == [-5.0, -5.0]
    kept = floored([NAN, 1.0], [False, True])
    assert kept[0] != kept[0]
    assert kept[1] == -5.0


@given(st.lists(st.tuples(st.floats(-30, 30) | st.just(NAN), st.booleans()), min_size=1, max_size=8))
def test_a_rejected_reply_is_always_the_worst(group: list[tuple[float, bool]]) -> None:
    rewards, rejected = [reward for reward, _ in group], [bad for _, bad in group]
    found = floored(rewards, rejected)
    lowest = [value for value, bad in zip(found, rejected, strict=True) if bad]
    others = [value for value, bad in zip(found, rejected, strict=True) if not bad and value == value]
    assert all(value <= -5.0 and all(value < other for other in others) for value in lowest)
    assert [v for v, bad in zip(found, rejected, strict=True) if not bad] == pytest.approx(
        [v for v, bad in zip(rewards, rejected, strict=True) if not bad], nan_ok=True
    )


@pytest.mark.parametrize("total", [5.0, 0.0, -5.0])
def test_a_tied_group_with_one_floored_gives_an_advantage(total: float) -> None:
    found = advantages(floored([total] * 4, [False, True, False, False]))
    assert found[1] < -1
    assert all(value > 0 for place, value in enumerate(found) if place != 1)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ser")
    build_ser(SerSettings(embedder="words", rounds=1), folder, 0)
    return folder / "records.jsonl"


def test_the_scorer_says_what_the_guard_rejects(records: Path) -> None:
    record = next(iter(read_records(records)))
    kind = record.candidate.model_copy(update={"response": "That sounds hard. What happened?"})
    bad = record.candidate.model_copy(update={"response": "You have bipolar disorder. Take 300 mg of lithium."})
    texts = [render_turn(kind), render_turn(bad), "nonsense"]
    rollouts = fixed_scorer(record, FixedJudge())([record.id] * 3, texts, [False] * 3)
    assert [rollout.rejected is not None for rollout in rollouts] == [False, True, False]


def rollout(rejected: str | None) -> Rollout:
    row = np.ones(4, dtype=np.float32)
    return Rollout("a:1", "text", Score(total=3), 8, row, np.ones((2, 4), dtype=np.float32), rejected)


def test_the_share_that_was_rejected_is_logged() -> None:
    group = [rollout(None), rollout("rule"), rollout(None), rollout(None)]
    chosen = settings(guard=True)
    found = group_metrics([reward_group(group, chosen)])
    assert found["guard/rejected_share"] == 0.25


def settings(guard: bool) -> GrpoSettings:
    return GrpoSettings(steps=1, learning_rate=1e-3, lora_rank=0, prompts=1, max_tokens=8, history=1, guard=guard)


@pytest.mark.parametrize("guard", [True, False])
def test_the_trainer_floors_after_reweighting(tiny_learner: Path, records: Path, tmp_path: Path, guard: bool) -> None:
    """All raw rewards tie; with the guard the rejected output alone gets the floor and a negative advantage."""
    kept: dict[str, Any] = {}

    class Keeps(RedundancyGRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            kept["advantages"] = output["advantages"].tolist()
            return output

    def scored(ids: Any, _texts: Any, _cut: Any) -> list[Rollout]:
        return [rollout("a rule" if place % 4 == 2 else None) for place, _ in enumerate(ids)]

    chosen = {record.id: record for record in read_records(records) if record.author == "corpus"}
    trainer = grpo_trainer(tiny_learner, scored, chosen, settings(guard), tmp_path, 0, kind=Keeps)
    run_trainer(trainer, tmp_path, settings(guard), "guard")
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == ([3.0, 3.0, -5.0, 3.0] if guard else [3.0] * 4)
    assert [row["rejected"] for row in rows] == [None, None, "a rule", None]
    assert (kept["advantages"][2] < -1) is guard
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert any(row.get("guard/rejected_share") == 0.25 for row in metrics)
