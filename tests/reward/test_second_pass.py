"""Two passes over a response: how they are weighed, how the weights are found, and that a trained judge keeps them."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compeer.models.training import CARD
from compeer.reasoning import STEPS, Part
from compeer.reward.conversation import record_case
from compeer.reward.judge import LocalJudge
from compeer.reward.score import Judgment, Unscored
from compeer.reward.second_pass import FEWEST, PassWeights, fit_weights, weighed, would_contradict
from compeer.reward.train import RewardSettings, train_judge
from compeer.ser.record import ACCEPTABLE, PREFERENCES, PreferenceLabel, Preferred, SerRecord
from compeer.statistics import generator
from tests.support.judging import record

PROBABILITIES = st.lists(st.floats(0.01, 1), min_size=4, max_size=4).map(
    lambda values: {name: value / sum(values) for name, value in zip(PREFERENCES, values, strict=True)}
)
WEIGHTS = PassWeights(with_steps=1, alone=1, follows_right=0.5, follows_wrong=-0.5, steps=0.1, plan=0.1, offset=-0.2)


def steps_with(plan: float | None) -> dict[Part, float]:
    """Two steps that are right, and how likely the third is."""
    sure: dict[Part, float] = {"history": 1.0, "emotion": 1.0}
    return sure if plan is None else {**sure, "strategy": plan}


def preferring(number: int, value: Preferred, does: str) -> SerRecord:
    label = PreferenceLabel(value=value, source="silver", how="test")
    return record(number).model_copy(update={"preference": label, "response_strategy": does})


def accepting(probability: float) -> dict[Preferred, float]:
    return {"candidate": probability, "reference": 1 - probability, "both": 0.0, "neither": 0.0}


@given(PROBABILITIES, PROBABILITIES, st.floats(0, 1) | st.none(), st.floats(0, 1) | st.none())
def test_one_verdict_of_two_passes(
    one: dict[Preferred, float], other: dict[Preferred, float], does: float | None, plan: float | None
) -> None:
    looks, steps = [one, other], steps_with(plan)
    mean = weighed(looks, does, steps)
    assert mean == pytest.approx({value: (one[value] + other[value]) / 2 for value in PREFERENCES})
    found = weighed(looks, does, steps, WEIGHTS)
    assert sum(found.values()) == pytest.approx(1)
    assert found["candidate"] * mean["both"] == pytest.approx(found["both"] * mean["candidate"])
    assert found["reference"] * mean["neither"] == pytest.approx(found["neither"] * mean["reference"])
    probability = sum(found[value] for value in ACCEPTABLE)
    assert math.log(probability / (1 - probability)) == pytest.approx(WEIGHTS.odds(looks, does, steps), abs=1e-6)
    assert weighed([one], does, steps, WEIGHTS) == pytest.approx(one), "one look is what it is"


@given(PROBABILITIES, PROBABILITIES, st.floats(0, 1), st.floats(0, 1))
def test_to_carry_out_a_plan_is_as_good_as_the_plan(
    one: dict[Preferred, float], other: dict[Preferred, float], less: float, more: float
) -> None:
    low, high = sorted((less, more))
    for plan, worse, better in ((1.0, low, high), (0.0, high, low)):
        verdicts = [weighed([one, other], does, steps_with(plan), WEIGHTS) for does in (worse, better)]
        probabilities = [sum(verdict[value] for value in ACCEPTABLE) for verdict in verdicts]
        assert probabilities[0] <= probabilities[1] + 1e-12


def test_certainty_is_no_error() -> None:
    sure: dict[Preferred, float] = {"candidate": 1.0, "reference": 0.0, "both": 0.0, "neither": 0.0}
    strong = PassWeights(with_steps=50, alone=50, follows_right=50, follows_wrong=0, steps=0, plan=0, offset=0)
    steps = steps_with(1.0)
    assert weighed([sure, sure], 1.0, steps, strong) == pytest.approx(sure, abs=1e-6)
    refused = weighed([sure, sure], 1.0, steps, strong.model_copy(update={"offset": -5000.0}))
    assert refused == pytest.approx({"candidate": 0, "reference": 0.5, "both": 0, "neither": 0.5}, abs=1e-6)


def test_what_contradicts() -> None:
    plan = record().candidate.strategy.strategy
    assert not would_contradict(record()), "what it does is not known"
    assert not would_contradict(preferring(0, "reference", plan))
    assert would_contradict(preferring(0, "reference", "Question"))
    wrong = record(wrong=["emotion"]).model_copy(update={"response_strategy": "Question"})
    assert not would_contradict(wrong), "a step is wrong: the response need not follow"
    assert not would_contradict(wrong.model_copy(update={"labels": None}))
    misled = record(wrong=["strategy"]).model_copy(update={"response_strategy": plan})
    assert would_contradict(misled), "it does just what was called wrong"
    assert not would_contradict(misled.model_copy(update={"response_strategy": "Question"}))


def sampled(count: int) -> tuple[list[SerRecord], list[Judgment | Unscored]]:
    """Responses that do what step 3 says and are right, or do something else; the comparisons see half of it."""
    rng = generator(0, "looks")
    records: list[SerRecord] = []
    judgments: list[Judgment | Unscored] = []
    for number in range(count):
        right = bool(rng.random() < 0.6)
        plan = record().candidate.strategy.strategy
        records.append(preferring(number, "candidate" if right else "reference", plan if right else "Question"))
        looks = tuple(accepting(float(rng.beta(3, 2) if right else rng.beta(2.5, 2.5))) for _ in range(2))
        carried = float(rng.beta(3, 2) if right else rng.beta(1, 4))
        judgments.append(Judgment(dict.fromkeys(STEPS, 0.9), looks[0], looks=looks, carried=carried))
    return records, judgments


def test_weights_are_found_where_the_truth_is_known() -> None:
    records, judgments = sampled(400)
    weights = fit_weights(records, judgments, cost=0)
    assert weights is not None
    assert weights.follows_right > 0.3

    def accepted(chosen: PassWeights | None) -> list[bool]:
        found = [weighed(j.looks, j.carried, j.steps, chosen) for j in judgments if isinstance(j, Judgment)]
        return [one["candidate"] > one["reference"] for one in found]

    truth = [would_contradict(one) for one in records]
    right = [sum(a != t for a, t in zip(accepted(w), truth, strict=True)) for w in (None, weights)]
    assert right[1] > right[0] + 40, "what kind of help it is tells more than both comparisons"
    careful = fit_weights(records, judgments, cost=3)
    against = [sum(a and t for a, t in zip(accepted(w), truth, strict=True)) for w in (weights, careful)]
    assert against[1] < against[0] / 1.5, "contradictions that cost more are fewer"


def test_records_that_do_not_say_what_the_response_does_count_only_among_themselves() -> None:
    records, judgments = sampled(200)
    hidden = [one.model_copy(update={"response_strategy": None}) for one in records]
    assert fit_weights(records + hidden, judgments * 2, 1) == fit_weights(records, judgments, 1)
    assert fit_weights(hidden, judgments, 1) == fit_weights(records, judgments, 0)


def test_too_little_to_find_weights() -> None:
    records, judgments = sampled(FEWEST)
    assert fit_weights(records, judgments, 1) is not None
    assert fit_weights(records[1:], judgments[1:], 1) is None
    assert fit_weights(records, [Unscored("it failed"), *judgments[1:]], 1) is None
    assert fit_weights([record(n) for n in range(FEWEST)], judgments, 1) is None, "all are accepted"
    assert fit_weights([record(n, None) for n in range(FEWEST)], judgments, 1) is None
    assert fit_weights(records, [Judgment({}, {"candidate": 1.0})] * FEWEST, 1) is None


def test_a_judge_finds_its_weights_on_held_out_dialogues_and_keeps_them(tiny_learner: Path, tmp_path: Path) -> None:
    records, _ = sampled(120)
    shape = {"steps": 2, "learning_rate": 1e-3, "batch": 4, "lora_rank": 0, "evaluate_every": 2, "validation": 0.5}
    settings = RewardSettings.model_validate({"model": str(tiny_learner), "alone": True, **shape})
    measured = train_judge(records, settings, tmp_path, 0)
    assert measured["validation_records"] >= FEWEST
    card = json.loads((tmp_path / "model" / CARD).read_text(encoding="utf-8"))
    judge = LocalJudge(tmp_path / "model", device=torch.device("cpu"))
    assert judge.pass_weights == PassWeights.model_validate(card["looks"])
    (found,) = judge.judge([record_case(records[0])])
    assert isinstance(found, Judgment)
    assert found.response == pytest.approx(weighed(found.looks, found.carried, found.steps, judge.pass_weights))
    lines = (tmp_path / "validated.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == measured["validation_records"]
    assert all(json.loads(line)["judgment"]["carried"] > 0 for line in lines)
