"""Judges side by side: metrics over seeds, margins over blind twins, differences, contradictions, tables."""

import json

import numpy as np
import pytest
from research.judge.compare import (
    JudgedSet,
    always_true,
    combined,
    compare_judges,
    contradiction_metrics,
    over_seeds,
)
from research.judge.comparison_table import PUBLISHED, as_markdown, comparison_tables

from compeer.errors import InputError
from compeer.reward.metrics import judge_metrics
from compeer.reward.score import Judgment, Unscored
from tests.support.judged_records import random_set, record, said


def judged(skills: list[float], twins: list[float]) -> JudgedSet:
    records, _ = random_set(240, 60, 0.0, 0)
    seeds = {number: random_set(240, 60, skill, number)[1] for number, skill in enumerate(skills)}
    twin = {number: random_set(240, 60, skill, 100 + number)[1] for number, skill in enumerate(twins)}
    return JudgedSet(records, seeds, twin)


def test_a_comparison_says_what_each_judge_says() -> None:
    ours, theirs = judged([1.0, 1.2, 1.4], [0.2, 0.3, 0.4]), judged([0.5], [])
    found = compare_judges({"ours": ours, "theirs": theirs}, [("ours", "theirs")], repeats=200)
    assert [row["judge"] for row in found["rows"]] == ["always True", "ours", "theirs"]
    baseline, row, other = found["rows"]
    assert baseline["parts"]["history"]["recall_false"]["value"] == 0.0
    by_seed = [judge_metrics(ours.records, ours.seeds[seed], repeats=1) for seed in range(3)]
    for part, name in (("history", "weighted_f1"), ("response", "acceptable_accuracy"), ("emotion", "auc")):
        metric = row["parts"][part][name]
        values = [one[part][name] for one in by_seed]
        assert metric["by_seed"] == pytest.approx(values)
        assert metric["value"] == pytest.approx(np.mean(values))
        assert metric["spread"] == pytest.approx(np.std(values, ddof=1))
        assert metric["low"] < metric["value"] < metric["high"]
        margin = row["margin"][part][name]
        assert margin["value"] == pytest.approx(metric["value"] - row["twin"][part][name]["value"])
        assert 0 < margin["low"] < margin["value"] < margin["high"]
        gap = found["differences"][0]["parts"][part][name]
        assert gap["value"] == pytest.approx(metric["value"] - other["parts"][part][name]["value"])
        assert len(gap["by_seed"]) == 3
    assert other["twin"] == other["margin"] == {}
    assert "spread" not in other["parts"]["history"]["auc"]
    json.dumps(found, allow_nan=False)


def test_a_difference_is_paired() -> None:
    one = judged([1.0], [])
    same = compare_judges({"a": one, "b": one}, [("a", "b")], repeats=50)["differences"][0]["parts"]["history"]
    assert (same["auc"]["low"], same["auc"]["value"], same["auc"]["high"]) == (0.0, 0.0, 0.0)
    # the same records in another order are the same test set
    turned = JudgedSet(one.records[::-1], {0: one.seeds[0][::-1]})
    found = compare_judges({"a": one, "b": turned}, [("a", "b")], repeats=50)["differences"][0]["parts"]["history"]
    assert found["weighted_f1"]["low"] == found["weighted_f1"]["high"] == 0.0
    # what one of the two failed on counts for neither
    wrong = [Unscored("away") if number % 2 else judgment for number, judgment in enumerate(one.seeds[0])]
    half = JudgedSet(one.records, {0: wrong})
    found = compare_judges({"a": one, "b": half}, [("a", "b")], repeats=50)["differences"][0]["parts"]["history"]
    assert found["weighted_f1"]["value"] == 0.0


def test_seeds_are_sampled_as_well() -> None:
    # metrics that differ by seed and not by dialogue: the variance of a mean of three is s² / 3
    samples = np.repeat(np.array([[0.1], [0.4], [0.7]]), 20_001, axis=1)
    found = over_seeds(samples, 0)
    assert found[0] == pytest.approx(0.4)
    assert found[1:].var() == pytest.approx(0.09 / 3, rel=0.05)
    assert found[1:].mean() == pytest.approx(0.4, abs=0.01)
    # one seed: its samples as they are
    assert (over_seeds(samples[:1], 0) == samples[0]).all()


def test_judges_of_different_test_sets_are_not_compared() -> None:
    one = judged([1.0], [])
    other = JudgedSet(one.records[:-1], {0: one.seeds[0][:-1]})
    with pytest.raises(InputError, match="different test sets"):
        compare_judges({"a": one, "b": other})
    with pytest.raises(InputError, match="no judge"):
        compare_judges({})


def test_process_and_outcome_as_one_judge() -> None:
    records = [record(0), record(1), record(2)]
    process = JudgedSet(records, {0: [Judgment({"history": 0.2}, threshold=0.1), Unscored("p"), said()]})
    outcome = JudgedSet(records, {0: [Judgment({}, {"both": 1.0}), said(), Unscored("o")], 1: [said()] * 3})
    both = combined(process, outcome)
    assert both.seeds == {0: [Judgment({"history": 0.2}, {"both": 1.0}, 0.1), Unscored("p"), Unscored("o")]}
    assert both.twin == {}


def test_the_baseline_gives_the_most_frequent_preference() -> None:
    records = [record(0, preferred="neither"), record(1, preferred="neither"), record(2, preferred=None)]
    found = always_true(records).seeds[0]
    assert {one.preferred() for one in found if isinstance(one, Judgment)} == {"neither"}


def test_tables() -> None:
    process = judged([1.0, 1.1], [0.1, 0.2])
    steps = {
        seed: [Judgment(one.steps) for one in given if isinstance(one, Judgment)]
        for seed, given in process.seeds.items()
    }
    sets = {"Unifi|Reward": process, "PRM": JudgedSet(process.records, steps)}
    found = compare_judges(sets, [("Unifi|Reward", "PRM")], repeats=20)
    tables = comparison_tables(found)
    assert [len(heads) for _, (heads, *_) in tables] == [6, 5, 5]
    assert all(len(row) == len(rows[0]) for _, rows in tables for row in rows)
    _, (_, *rows) = tables[0]
    assert [row[0] for row in rows] == ["always True", "Unifi|Reward", "PRM", *(f"*{name}*" for name in PUBLISHED)]
    assert rows[2][4] == "–"
    metric = found["rows"][1]["parts"]["history"]["weighted_f1"]
    shown = (100 * metric[key] for key in ("value", "spread", "low", "high"))
    assert rows[1][1].startswith("{:.1f} ± {:.1f} ({:.1f} to {:.1f}) / ".format(*shown))
    markdown = as_markdown(tables)
    assert (
        "| *UnifiReward-P, by personality* | 77.12 / 67.23 | 82.18 / 36.04 | 81.79 / 44.65 | 57.03 / 61.15 | – |"
        in markdown
    )
    assert "| Unifi\\|Reward, margin |" in markdown
    assert found["test_set"][:12] in markdown


def test_contradictions_are_counted_on_the_same_outputs() -> None:
    follows = [False, False, True, True, None, False]
    ours = [said(), said(response="reference"), said(), said(), said(), said()]
    theirs = [said(), said(), said(strategy=0.1), said(), said(), Unscored("away")]
    judges = {"ours": {0: ours, 1: [said(response="reference")] * 6}, "theirs": {0: theirs}}
    found = contradiction_metrics(list("aabbcc"), follows, judges, rival="theirs", repeats=30)
    # the fifth is undecided, the sixth not judged by all
    assert (found["outputs"], found["judged"], found["decided"], found["following"]) == (6, 5, 4, 2)
    # ours: one of four with the first seed, none with the second
    assert found["judges"]["ours"]["contradictions"] == 1 / 8
    assert found["judges"]["ours"]["all_accepted"] == (3 / 4 + 0) / 2
    rival = found["judges"]["theirs"]
    assert (rival["contradictions"], rival["against_the_steps"], rival["despite_the_steps"]) == (0.75, 0.5, 0.25)
    assert found["judges"]["ours"]["to_rival"] == pytest.approx(1 / 6)
    assert rival["to_rival"] == 1.0
    nothing = contradiction_metrics(["a"], [None], {"ours": {0: [said()]}})
    assert (nothing["decided"], nothing["judges"]) == (0, {})
