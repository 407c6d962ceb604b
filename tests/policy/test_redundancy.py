"""Equations 3 and 5 to 7 against numbers worked out by hand, and what must hold for any group."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from compeer.policy import rewards
from compeer.policy.grpo_settings import GrpoSettings
from compeer.policy.redundancy import (
    advantages,
    factors,
    history_similarity,
    in_group_similarity,
    length_gate,
    reweight,
    tied,
)
from compeer.policy.rewards import Rollout, reward_group
from compeer.reward import Score

RESPONSES = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
HISTORY = [[1.0, 0.0], [-1.0, 0.0]]
NOTHING = np.zeros((0, 2))


@st.composite
def groups(draw: st.DrawFn, negative: bool = True) -> tuple[list[float], Any, Any, list[int]]:
    """Rewards, responses, history and lengths of one group."""
    size = draw(st.integers(1, 6))
    values = st.floats(-1, 1).map(lambda value: round(value, 3))
    responses = draw(hnp.arrays(np.float64, (size, 4), elements=values))
    history = draw(hnp.arrays(np.float64, (draw(st.integers(0, 5)), 4), elements=values))
    rewards = draw(st.lists(st.integers(-5 if negative else 0, 5).map(float), min_size=size, max_size=size))
    lengths = draw(st.lists(st.integers(0, 40), min_size=size, max_size=size))
    return rewards, responses, history, lengths


# --- by hand --------------------------------------------------------------------------------------------------------


def test_equation_6_within_the_group() -> None:
    # pairs: 1·2 = 0, 1·3 = 0.6, 2·3 = 0.8; so (0 + 0.6)/2, (0 + 0.8)/2, (0.6 + 0.8)/2
    assert in_group_similarity(RESPONSES) == pytest.approx([0.3, 0.4, 0.7])
    assert in_group_similarity([[3.0, 0.0], [0.0, 0.2], [6.0, 8.0]]) == pytest.approx([0.3, 0.4, 0.7])


def test_equation_6_with_the_history() -> None:
    # to (1, 0): 1, 0, 0.6; to (−1, 0): −1, 0, −0.6, which count as 0; so the means are 0.5, 0, 0.3
    assert history_similarity(RESPONSES, HISTORY) == pytest.approx([0.5, 0.0, 0.3])


def test_equation_7() -> None:
    assert length_gate([5, 5], 0.5, 5) == 0.5
    # L = 9: 1 / (1 + exp(−0.5·4)) = 1 / (1 + 0.135335)
    assert length_gate([8, 10], 0.5, 5) == pytest.approx(0.880797, abs=1e-6)
    # L = 1: 1 / (1 + exp(2)) = 1 / 8.389056
    assert length_gate([1], 0.5, 5) == pytest.approx(0.119203, abs=1e-6)
    assert length_gate([0], 1e6, 5) == pytest.approx(0.0)
    assert length_gate([1e9], 1e6, 5) == pytest.approx(1.0)
    assert length_gate([], 0.5, 5) == 0.0


@pytest.mark.parametrize(
    ("negatives", "third"),
    [("paper", -3 / 1.5525), ("mirrored", -3 * 1.5525), ("off", -3.0)],
)
def test_equation_5(negatives: Any, third: float) -> None:
    # mean length 5, so τ = 0.5. Divisors: (1 + 0.15)(1 + 0.25) = 1.4375, (1 + 0.2)(1 + 0) = 1.2,
    # (1 + 0.35)(1 + 0.15) = 1.5525
    found = reweight([5, 3, -3], RESPONSES, HISTORY, [4, 5, 6], negatives=negatives)
    first, second = (5.0, 3.0) if negatives == "off" else (5 / 1.4375, 2.5)
    assert found == pytest.approx([first, second, third])


def test_equation_3() -> None:
    # mean 3, squares 4 + 1 + 0 + 9 = 14, unbiased std √(14/3) = 2.160247
    found = advantages([1, 2, 3, 6])
    assert found == pytest.approx([-2 / 2.160347, -1 / 2.160347, 0, 3 / 2.160347], abs=1e-6)


# --- for any group --------------------------------------------------------------------------------------------------


@given(groups(), st.sampled_from(["paper", "mirrored", "off"]), st.randoms(use_true_random=False))
def test_permuting_the_members_permutes_the_result(group: Any, negatives: Any, shuffler: Any) -> None:
    rewards, responses, history, lengths = group
    order = list(range(len(rewards)))
    shuffler.shuffle(order)
    found = reweight(rewards, responses, history, lengths, negatives=negatives)
    moved = reweight(
        [rewards[i] for i in order], responses[order], history, [lengths[i] for i in order], negatives=negatives
    )
    assert moved == pytest.approx([found[i] for i in order])


@given(groups(), st.sampled_from(["paper", "mirrored"]))
def test_short_groups_are_left_alone(group: Any, negatives: Any) -> None:
    rewards, responses, history, lengths = group
    assert reweight(rewards, responses, history, lengths, beta=1e6, negatives=negatives) == rewards


@given(groups(), st.sampled_from(["paper", "mirrored"]))
def test_signs_stay_and_nothing_grows_beyond_fourfold(group: Any, negatives: Any) -> None:
    rewards, responses, history, lengths = group
    for before, after in zip(rewards, reweight(rewards, responses, history, lengths, negatives=negatives), strict=True):
        assert np.sign(before) == np.sign(after)
        if before > 0 or negatives == "paper":
            assert abs(before) / 4 - 1e-9 <= abs(after) <= abs(before)
        else:
            assert abs(before) <= abs(after) <= 4 * abs(before) + 1e-9


@given(groups(), st.data())
def test_mirrored_redundancy_never_helps(group: Any, data: st.DataObject) -> None:
    rewards, responses, history, lengths = group
    member = data.draw(st.integers(0, len(rewards) - 1))
    echoed = np.concatenate([history, responses[member : member + 1]])
    before = reweight(rewards, responses, history, lengths, negatives="mirrored")[member]
    after = reweight(rewards, responses, echoed, lengths, negatives="mirrored")[member]
    assert after <= before + 1e-9
    same = [rewards[member]] * len(rewards)
    within, to_history = in_group_similarity(responses), history_similarity(responses, history)
    found = reweight(same, responses, history, lengths, negatives="mirrored")
    for other in range(len(rewards)):
        if within[member] >= within[other] and to_history[member] >= to_history[other]:
            assert found[member] <= found[other] + 1e-9


@given(groups(), st.data(), st.floats(0, 1))
def test_a_more_redundant_output_never_gains(group: Any, data: st.DataObject, share: float) -> None:
    """One member's embedding moves toward another's: its similarity to the group rises, and its reward does not."""
    rewards, responses, history, lengths = group
    member, model = (data.draw(st.integers(0, len(rewards) - 1)) for _ in range(2))
    moved = responses.copy()
    moved[member] = (1 - share) * responses[member] + share * responses[model]
    before, after = (
        (in_group_similarity(rows)[member], history_similarity(rows, history)[member]) for rows in (responses, moved)
    )
    if after[0] >= before[0] and after[1] >= before[1]:
        old, new = (
            reweight(rewards, rows, history, lengths, negatives="mirrored")[member] for rows in (responses, moved)
        )
        assert new <= old + 1e-9


@given(groups(), st.sampled_from(["paper", "mirrored"]))
def test_the_reward_goes_to_the_raw_one_as_the_gate_closes(group: Any, negatives: Any) -> None:
    """τ → 0: the distance to the raw rewards shrinks with every step and ends below any bound."""
    rewards, responses, history, lengths = group
    length = float(np.mean(lengths))
    distances = []
    for beta in (length, length + 10, length + 20, length + 40, length + 100):
        gate = length_gate(lengths, 0.5, beta)
        found = reweight(rewards, responses, history, lengths, beta=beta, negatives=negatives)
        distances.append(max(abs(new - old) for new, old in zip(found, rewards, strict=True)))
        assert distances[-1] <= 5 * ((1 + gate) ** 2 - 1) + 1e-9
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-9


@given(groups(), st.sampled_from(["paper", "mirrored", "off"]))
def test_rewards_are_raw_ones_times_factors(group: Any, negatives: Any) -> None:
    rewards, responses, history, lengths = group
    found = factors(rewards, responses, history, lengths, 0.5, 5.0, negatives)
    assert reweight(rewards, responses, history, lengths, negatives=negatives) == pytest.approx(
        [reward * factor for reward, factor in zip(rewards, found, strict=True)]
    )
    assert all(0.25 <= factor <= 4 for factor in found)


def test_a_whole_group_by_hand() -> None:
    # L = 9, so τ = 0.880797. Two alike and one across: s_in = 0.5, 0.5, 0; history like the third: s_hi = 0, 0, 1.
    # Divisors: 1 + 0.440399 twice, and 1 + 0.880797
    rows, to_history = [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], [[0.0, 3.0]]
    assert reweight([5, -5, 1], rows, to_history, [8, 9, 10], negatives="mirrored") == pytest.approx(
        [3.471262, -7.201994, 0.531690], abs=1e-5
    )
    assert reweight([5, -5, 1], rows, to_history, [8, 9, 10], negatives="paper") == pytest.approx(
        [3.471262, -3.471262, 0.531690], abs=1e-5
    )


def test_as_published_redundancy_pays_among_bad_outputs() -> None:
    # documented behaviour of "paper": the third response is the most redundant and loses least
    paper = reweight([-3, -3, -3], RESPONSES, HISTORY, [20] * 3, negatives="paper")
    assert paper[2] > paper[0] > paper[1] > -3
    mirrored = reweight([-3, -3, -3], RESPONSES, HISTORY, [20] * 3, negatives="mirrored")
    assert mirrored[2] < mirrored[0] < mirrored[1] < -3


@given(groups(), st.data())
def test_a_reward_that_is_no_number_stays_so(group: Any, data: st.DataObject) -> None:
    rewards, responses, history, lengths = group
    member = data.draw(st.integers(0, len(rewards) - 1))
    without = reweight(rewards, responses, history, lengths)
    rewards[member] = math.nan
    found = reweight(rewards, responses, history, lengths)
    assert math.isnan(found[member])
    assert found[:member] + found[member + 1 :] == without[:member] + without[member + 1 :]


# --- edges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [NOTHING, [], np.zeros((0, 384))])
def test_an_empty_history_is_like_nothing(history: Any) -> None:
    assert history_similarity(RESPONSES, history) == [0.0] * 3
    # τ = 0.5, s_in = 0.3, 0.4, 0.7
    found = reweight([1, 1, 1], RESPONSES, history, [5] * 3)
    assert found == pytest.approx([1 / 1.15, 1 / 1.2, 1 / 1.35])


def test_a_group_of_one_is_unlike_its_group() -> None:
    assert in_group_similarity([[1.0, 0.0]]) == [0.0]
    assert reweight([4.0], [[1.0, 0.0]], NOTHING, [5]) == [4.0]
    # s_hi = 0.5 and τ = 0.5
    assert reweight([4.0], [[1.0, 0.0]], HISTORY, [5]) == pytest.approx([4 / 1.25])


def test_an_empty_response_is_like_nothing() -> None:
    assert in_group_similarity([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]) == [0.0] * 3
    assert history_similarity([[0.0, 0.0]], HISTORY) == [0.0]


def test_an_empty_group() -> None:
    assert reweight([], NOTHING, HISTORY, []) == []
    assert advantages([]) == []
    assert tied([])


def test_an_unknown_rule_for_negatives_is_refused() -> None:
    with pytest.raises(ValueError, match="mirrored"):
        reweight([1], [[1.0, 0.0]], NOTHING, [5], negatives="upside down")  # type: ignore[arg-type]


def test_a_reward_without_its_response_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        reweight([1, 2], [[1.0, 0.0]], NOTHING, [5, 5])


def rewards_of(raw: list[float]) -> list[float]:
    """What training makes of a group with these totals."""
    settings = GrpoSettings(steps=1, learning_rate=1e-3, lora_rank=0, guard=False)
    rows, history = np.array(RESPONSES), np.array(HISTORY)
    scores = [Score(unscored="no") if math.isnan(one) else Score(total=one) for one in raw]
    rollouts = [Rollout("r", "", one, 20, row, history) for one, row in zip(scores, rows, strict=True)]
    return list(reward_group(rollouts, settings).rewards)


def test_training_calls_this_very_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "reweight", lambda raw, *_: [100 * one for one in raw])
    assert rewards_of([1.0, 2.0, 3.0]) == [100.0, 200.0, 300.0]
    assert rewards_of([2.0, 2.0, 2.0]) == [2.0, 2.0, 2.0]


def test_tied_raw_rewards_are_left_alone() -> None:
    for raw in ([2.0, 2.0, 2.0], [2.0, math.nan, 2.0], [math.nan] * 3):
        found = rewards_of(raw)
        np.testing.assert_equal(found, raw)
        assert advantages(found) == [0.0] * 3
    raw = [2.0, 2.0, 3.0]
    assert not tied(raw)
    found = rewards_of(raw)
    assert found == reweight(raw, RESPONSES, HISTORY, [20] * 3, 0.5, 5.0, "mirrored")
    assert found[0] != found[1]


# --- advantages as TRL takes them -----------------------------------------------------------------------------------


@given(st.lists(st.integers(-5, 5).map(float) | st.just(math.nan), min_size=2, max_size=8))
def test_advantages_agree_with_trl(rewards: list[float]) -> None:
    from trl.trainer.utils import nanstd

    group = torch.tensor(rewards, dtype=torch.float64)
    expected = (group - torch.nanmean(group)) / (nanstd(group) + 1e-4)
    assert advantages(rewards) == pytest.approx(torch.nan_to_num(expected, nan=0.0).tolist(), abs=1e-6)


def test_what_is_no_number_gets_no_advantage_and_moves_no_other() -> None:
    found = advantages([1, math.nan, 2, 3, math.nan, 6])
    assert found[1] == found[4] == 0.0
    assert [found[i] for i in (0, 2, 3, 5)] == advantages([1, 2, 3, 6])
    assert advantages([5, math.nan]) == [0.0, 0.0]
