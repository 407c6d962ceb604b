"""Figures against hand-made values and against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.statistics import (
    accuracy_of,
    auc_by_group,
    balanced_accuracy_of,
    confusion_by_group,
    distinct,
    generator,
    group_weights,
    mean,
    mean_interval,
    percentile_interval,
    precision_of,
    ratio,
    recall_of,
    reweighted,
    weighted_f1,
    weighted_f1_of,
    wilson,
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


labels = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcde")), min_size=1, max_size=40)


@given(labels)
@pytest.mark.filterwarnings("ignore")
def test_figures_agree_with_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    from sklearn.metrics import f1_score

    truth, predicted = [a for a, _ in pairs], [b for _, b in pairs]
    expected = f1_score(truth, predicted, average="weighted", zero_division=0)
    assert weighted_f1(truth, predicted) == pytest.approx(expected)


def test_figures_of_nothing() -> None:
    assert weighted_f1([], []) == 0.0
    with pytest.raises(ValueError, match="zip"):
        weighted_f1(["a"], [])


def test_a_bootstrap_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(80):
        values = rng.normal(2.0, 1.0, 60)
        low, high = mean_interval(values.tolist(), 200)
        assert low < values.mean() < high
        covered += low <= 2.0 <= high
    assert 0.85 <= covered / 80 < 1


def test_a_bootstrap_interval_is_stable_and_narrows() -> None:
    values = np.arange(50.0).tolist()
    wide, narrow = mean_interval(values, 300), mean_interval(values * 16, 300)
    assert wide == mean_interval(values, 300)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert mean_interval([3.0], 10) == (3.0, 3.0)
    assert mean_interval([]) == (0.0, 0.0)


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


# --- figures from counts --------------------------------------------------------------------------------------------

grouped = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40)


@given(grouped, st.lists(st.integers(0, 3), min_size=4, max_size=4))
@pytest.mark.filterwarnings("ignore")
def test_figures_from_counts_are_those_of_the_items_drawn(rows: list[tuple[int, int, int]], drawn: list[int]) -> None:
    from sklearn.metrics import balanced_accuracy_score, precision_score, recall_score

    group, truth, said = np.array(rows).T
    items = [row for row in rows for _ in range(drawn[row[0]])]
    counts = confusion_by_group(group, truth, said, (4, 3))
    confusion = reweighted(np.array([drawn], dtype=float), counts)
    if not items:
        assert np.isnan([weighted_f1_of(confusion), accuracy_of(confusion), balanced_accuracy_of(confusion)]).all()
        return
    right, told = [row[1] for row in items], [row[2] for row in items]
    assert weighted_f1_of(confusion)[0] == pytest.approx(weighted_f1(right, told))
    assert balanced_accuracy_of(confusion)[0] == pytest.approx(balanced_accuracy_score(right, told))
    assert accuracy_of(confusion)[0] == pytest.approx(np.mean(np.array(right) == np.array(told)))
    for value in range(3):
        found = recall_of(confusion, value)[0]
        if value in right:
            assert found == pytest.approx(recall_score(right, told, labels=[value], average="macro", zero_division=0))
        else:
            assert np.isnan(found)
        if value in told:
            precise = precision_score(right, told, labels=[value], average="macro", zero_division=0)
            assert precision_of(confusion, value)[0] == pytest.approx(precise)
        else:
            assert np.isnan(precision_of(confusion, value)[0])


scored = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 5)), min_size=1, max_size=30)


@given(scored, st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_auc_is_that_of_the_items_drawn(rows: list[tuple[int, bool, int]], drawn: list[int]) -> None:
    from sklearn.metrics import roc_auc_score

    items = [row for row in rows for _ in range(drawn[row[0]])]
    group, truth, score = (np.array(column) for column in zip(*rows, strict=True))
    weights = np.array([[1.0] * 4, drawn])
    found = auc_by_group(group, truth, score.astype(float), weights)
    for value, these in zip(found, (rows, items), strict=True):
        if len({row[1] for row in these}) < 2:
            assert np.isnan(value)
        else:
            assert value == pytest.approx(roc_auc_score([row[1] for row in these], [row[2] for row in these]))


def test_auc_by_hand() -> None:
    # True: 0.8 and 0.4, False: 0.4 and 0.1. Of four pairs three are won and one is a tie: 3.5 / 4
    truth, scores = np.array([True, True, False, False]), np.array([0.8, 0.4, 0.4, 0.1])
    groups = np.arange(4)
    # with the second item drawn three times: pairs 2 + 3 · 1.5 of 2 · 4
    weights = np.array([[1.0, 1, 1, 1], [1, 3, 1, 1]])
    assert auc_by_group(groups, truth, scores, weights).tolist() == [3.5 / 4, 6.5 / 8]


def test_group_weights_are_the_sample_and_then_draws_of_its_size() -> None:
    weights = group_weights(7, 200, seed=3)
    assert weights.shape == (201, 7)
    assert weights[0].tolist() == [1.0] * 7
    assert set(weights.sum(1)) == {7.0}
    assert weights[1:].mean() == pytest.approx(1.0)
    assert (weights == group_weights(7, 200, seed=3)).all()
    assert (weights != group_weights(7, 200, seed=4)).any()
    assert group_weights(0, 5).shape == (6, 0)


def test_an_interval_leaves_out_draws_without_a_value() -> None:
    assert percentile_interval(np.array([np.nan, 1.0, 3.0, 2.0]), share=1.0) == (1.0, 3.0)
    assert percentile_interval(np.array([np.nan])) is None
    assert ratio(np.array([1.0, 1.0]), np.array([2.0, 0.0]))[0] == 0.5
    assert np.isnan(ratio(np.array([1.0]), np.array([0.0]))[0])


def test_wilson_by_hand() -> None:
    # share 0.8, z² / n = 0.38416: middle (0.8 + 0.19208) / 1.38416, half 1.96 / 1.38416 · sqrt(0.016 + 0.009604)
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.490157, abs=1e-6)
    assert high == pytest.approx(0.943319, abs=1e-6)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10) == (0.0, pytest.approx(3.8416 / 13.8416))
    assert wilson(10, 10) == (pytest.approx(10 / 13.8416), 1.0)


@given(st.integers(1, 10**6).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_wilson_holds_the_share_mirrors_and_agrees_with_scipy(part: tuple[int, int]) -> None:
    from scipy.stats import binomtest

    successes, count = part
    low, high = wilson(successes, count)
    assert 0 <= low <= successes / count <= high <= 1
    assert wilson(count - successes, count) == (pytest.approx(1 - high), pytest.approx(1 - low))
    theirs = binomtest(successes, count).proportion_ci(method="wilson")
    assert (low, high) == (pytest.approx(theirs.low, abs=1e-4), pytest.approx(theirs.high, abs=1e-4))
