"""Equation 1, and the contexts of sampled rounds."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.dialogue import Dialogue, Utterance
from compeer.errors import InputError
from compeer.ser import sample_rounds
from compeer.ser.sampling import contexts_of, read_contexts, round_weights


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        (1, [1.0]),
        # μ = 1, σ = 1/2: exp(0) = 1 and exp(−1 / (2·1/4)) = exp(−2) = 0.135335; sum 1.135335
        (2, [0.880797, 0.119203]),
        # μ = 2, σ = 1: exp(−1/2) = 0.606531, 1, 0.606531, exp(−2) = 0.135335; sum 2.348397
        (4, [0.258274, 0.425822, 0.258274, 0.057629]),
    ],
)
def test_equation_1_by_hand(rounds: int, expected: list[float]) -> None:
    assert round_weights(rounds) == pytest.approx(expected, abs=1e-6)


@given(st.integers(0, 60), st.integers(0, 12), st.integers(), st.booleans())
def test_sampled_rounds_are_ascending_unique_and_there(rounds: int, count: int, seed: int, numpy: bool) -> None:
    def draw() -> list[int]:
        return sample_rounds(rounds, count, np.random.default_rng(abs(seed)) if numpy else random.Random(seed))

    found = draw()
    assert found == sorted(set(found))
    assert set(found) <= set(range(1, rounds + 1))
    assert len(found) == min(count, rounds)
    assert draw() == found


def test_one_drawn_round_follows_equation_1() -> None:
    rng, draws = random.Random(1), 6000
    counts = Counter(sample_rounds(6, 1, rng)[0] for _ in range(draws))
    for number, weight in enumerate(round_weights(6), 1):
        # four standard deviations of a share
        assert counts[number] / draws == pytest.approx(weight, abs=4 * (weight * (1 - weight) / draws) ** 0.5)


def test_a_second_round_is_drawn_from_what_is_left() -> None:
    weights, rng, draws = round_weights(3), np.random.default_rng(2), 6000
    counts = Counter(tuple(sample_rounds(3, 2, rng)) for _ in range(draws))
    for pair in ((1, 2), (1, 3), (2, 3)):
        a, b = weights[pair[0] - 1], weights[pair[1] - 1]
        expected = a * b / (1 - a) + b * a / (1 - b)
        assert counts[pair] / draws == pytest.approx(expected, abs=4 * (expected * (1 - expected) / draws) ** 0.5)


def test_a_context_knows_what_came_before_and_nothing_later() -> None:
    said = [
        Utterance(speaker="seeker", text="First.", emotion="fear"),
        Utterance(speaker="supporter", text="Yes?", strategy="Question"),
        Utterance(speaker="seeker", text="Second.", emotion="relief"),
        Utterance(speaker="supporter", text="Good.", strategy="Others"),
        Utterance(speaker="seeker", text="Third.", emotion="joy"),
    ]
    context = contexts_of(Dialogue(id="d", language="en", source="s", utterances=tuple(said)), "test", 9, 0)[-1]
    assert (context.round, context.emotion, context.earlier_emotions) == (2, "relief", ("fear",))
    assert context.earlier_strategies == ("Question",)
    assert [utterance.text for utterance in context.history] == ["First.", "Yes?", "Second."]
    assert all(utterance.strategy is None and utterance.emotion is None for utterance in context.history)


def test_a_bad_context_is_named(tmp_path: Path) -> None:
    path = tmp_path / "contexts.jsonl"
    path.write_text('{"id": "x"}\n', encoding="utf-8")
    with pytest.raises(InputError) as caught:
        list(read_contexts(path))
    assert (caught.value.file, caught.value.line) == (path, 1)
    with pytest.raises(InputError, match="no such file"):
        list(read_contexts(tmp_path / "nowhere.jsonl"))
