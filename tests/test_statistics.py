"""Figures against hand-made values and against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.statistics import (
    balanced_accuracy,
    bootstrap_interval,
    distinct,
    generator,
    mean,
    recall,
    weighted_f1,
    words,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'm fine, Don’t ask!", ["i'm", "fine", "don’t", "ask"]),
        ("我很难过", ["我", "很", "难", "过"]),
        ("用iPhone打字 OK吗", ["用", "iphone", "打", "字", "ok", "吗"]),
        ("ひらカナ", ["ひ", "ら", "カ", "ナ"]),
        ("'quoted' snake_case 3.5", ["quoted", "snake", "case", "3", "5"]),
        ("Grüße, naïve", ["grüße", "naïve"]),
        ("…!? 。", []),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_distinct() -> None:
    # bigrams: "a b", "b a", "a b" and "a b": 2 of 4 differ; unigrams: 2 of 6
    assert distinct(["a b a b", "a b"], 2) == 0.5
    assert distinct(["a b a b", "A, B!"], 1) == pytest.approx(2 / 6)
    assert distinct(["a", ""], 2) == 0.0
    assert distinct([], 1) == 0.0
    assert distinct(["a b", "c d"], 2) == 1.0


def test_mean() -> None:
    assert mean([1, 2, 6]) == 3.0
    assert mean([]) is None


def test_recall() -> None:
    assert recall([True, False, False], [True, True, False], False) == 0.5
    assert recall([True], [True], False) is None


labels = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcde")), min_size=1, max_size=40)


@given(labels)
@pytest.mark.filterwarnings("ignore")
def test_figures_agree_with_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    from sklearn.metrics import balanced_accuracy_score, f1_score

    truth, predicted = [a for a, _ in pairs], [b for _, b in pairs]
    expected = f1_score(truth, predicted, average="weighted", zero_division=0)
    assert weighted_f1(truth, predicted) == pytest.approx(expected)
    assert balanced_accuracy(truth, predicted) == pytest.approx(balanced_accuracy_score(truth, predicted))


def test_figures_of_nothing() -> None:
    assert weighted_f1([], []) == 0.0
    assert balanced_accuracy([], []) == 0.0
    with pytest.raises(ValueError, match="zip"):
        weighted_f1(["a"], [])


def test_a_bootstrap_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(80):
        values = rng.normal(2.0, 1.0, 60)
        low, high = bootstrap_interval(60, lambda chosen, values=values: float(values[chosen].mean()), 200)
        assert low < values.mean() < high
        covered += low <= 2.0 <= high
    assert 0.85 <= covered / 80 < 1


def test_a_bootstrap_interval_is_stable_and_narrows() -> None:
    values = np.arange(50.0)

    def figure(chosen: object) -> float:
        return float(values[chosen].mean())

    wide, narrow = bootstrap_interval(50, figure, 300), bootstrap_interval(50, figure, 300, share=0.5)
    assert wide == bootstrap_interval(50, figure, 300)
    assert wide != bootstrap_interval(50, figure, 300, seed=1)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert bootstrap_interval(1, lambda chosen: float(chosen[0]), 10) == (0.0, 0.0)
    assert bootstrap_interval(0, figure) == (0.0, 0.0)


def test_a_generator_is_stable_and_independent_of_what_was_drawn_before() -> None:
    first = generator(1, "a").random(3).tolist()
    generator(1, "b").random(100)
    np.random.default_rng(0).random(5)
    assert generator(1, "a").random(3).tolist() == first
    others = [generator(2, "a"), generator(1, "b"), generator(1), generator(1, "a", "a"), generator(1, "a", "")]
    assert all(other.random(3).tolist() != first for other in others)
    assert generator(1, "ab", "c").random() != generator(1, "a", "bc").random()


def test_a_generator_gives_the_same_numbers_on_every_machine() -> None:
    assert generator(7, "split", "x").integers(0, 1000, 4).tolist() == [688, 431, 788, 507]
