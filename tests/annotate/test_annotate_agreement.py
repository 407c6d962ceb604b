"""Agreement against values worked by hand, and the figures of a project."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from compeer.annotate.agreement import cohens_kappa, krippendorff, percent
from compeer.annotate.consensus import consensus, disputed
from compeer.annotate.dashboard import dashboard, figures
from compeer.annotate.gather import Given, LabelledItem
from compeer.annotate.labels import submit
from compeer.annotate.looking import disagreements
from compeer.annotate.projects import Project, ProjectSettings
from compeer.annotate.queue import Rest, next_task
from compeer.annotate.store import Store, create_store
from compeer.annotate.tasks import DIMENSIONS, QUESTIONS
from compeer.evaluate.esc_eval import DIMENSIONS as THEIRS
from tests.support.annotation import (  # noqa: F401
    RIGHT,
    Clock,
    cheap_hashes_fixture,
    clock_fixture,
    person,
    steps_project,
)

FOUR_OBSERVERS = [
    [1, 1, 1],
    [2, 2, 3, 2],
    [3, 3, 3, 3],
    [3, 3, 3, 3],
    [2, 2, 2, 2],
    [1, 2, 3, 4],
    [4, 4, 4, 4],
    [1, 1, 2, 1],
    [2, 2, 2, 2],
    [5, 5, 5],
    [1, 1],
    [3],
]
"""Krippendorff's own example (Computing Krippendorff's Alpha-Reliability, 2011): twelve units, values missing."""


def test_alpha_of_two_observers_by_hand() -> None:
    one, other = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    found = krippendorff(list(zip(one, other, strict=True)), (0, 1))
    # Five units 0-0, one 1-1, four that differ: o_01 = 4, n_0 = 14, n_1 = 6; α = 1 - 19 · 4 / (14 · 6)
    assert found.value == pytest.approx(1 - 76 / 84)
    assert found.units == 10
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def test_alpha_of_four_observers_as_published() -> None:
    nominal = krippendorff(FOUR_OBSERVERS, (1, 2, 3, 4, 5))
    ordinal = krippendorff(FOUR_OBSERVERS, (1, 2, 3, 4, 5), ordered=True)
    assert nominal.value == pytest.approx(0.743, abs=5e-4)
    assert ordinal.value == pytest.approx(0.815, abs=5e-4)
    assert nominal.units == 11, "a unit with one value says nothing of agreement"


def test_alpha_of_three_ordered_values_by_hand() -> None:
    # Units 0-0, 1-1, 2-2, 0-1: margins 3, 3, 2; middle ranks 1.5, 4.5, 7; o_01 = 1 with distance 9.
    # D_o = 9; D_e = (3·3·9 + 3·2·30.25 + 3·2·6.25) / 7 = 300 / 7; α = 1 - 7 · 9 / 300
    found = krippendorff([(0, 0), (1, 1), (2, 2), (0, 1)], (0, 1, 2), ordered=True)
    assert found.value == pytest.approx(1 - 63 / 300)


def test_alpha_where_nothing_can_be_told() -> None:
    assert krippendorff([], (0, 1)).value is None
    assert krippendorff([(1,), (0,)], (0, 1)).units == 0
    assert krippendorff([(1, 1), (1, 1)], (0, 1)).value is None
    assert krippendorff([(1, 1), (0, 0)], (0, 1)).value == 1


def test_kappa_and_percent_by_hand() -> None:
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert percent(pairs) == pytest.approx(0.7)
    assert cohens_kappa(pairs) == pytest.approx(0.4)  # by chance 0.5 · 0.6 + 0.5 · 0.4
    assert cohens_kappa([(True, True)] * 4) is None
    assert cohens_kappa([]) is None
    assert percent([]) is None


def test_groups_that_belong_together_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    right = np.repeat(rng.random(30) < 0.7, 10)  # ten items of a dialogue agree or differ together
    units = [(bool(place % 2), bool(place % 2) == same) for place, same in enumerate(right)]
    alone = krippendorff(units, (True, False))
    together = krippendorff(units, (True, False), groups=[place // 10 for place in range(300)])
    assert alone.value == together.value
    widths = [math.dist([one.low or 0], [one.high or 0]) for one in (alone, together)]
    assert widths[1] > 1.8 * widths[0]


@given(some.lists(some.lists(some.sampled_from([0, 1, 2]), max_size=3), max_size=12), some.booleans())
def test_alpha_is_at_most_one_and_one_only_without_dispute(units: Sequence[Sequence[int]], ordered: bool) -> None:
    found = krippendorff(units, (0, 1, 2), ordered=ordered, repeats=5)
    if found.value is not None:
        assert found.value <= 1
        assert (found.value == pytest.approx(1)) == all(len(set(unit)) == 1 for unit in units if len(unit) > 1)


def test_consensus_is_by_question() -> None:
    labels = [{"a": 1, "b": "x", "c": 0}, {"a": 1, "b": "y", "c": 2}, {"b": "y", "c": 1}]
    assert consensus(labels, "abcd") == {"a": 1, "b": "y", "c": None, "d": None}
    assert consensus([{"a": False}, {"a": False}], "a") == {"a": False}
    assert disputed(labels[0], labels[1]) == ("b", "c")


def test_the_dimensions_are_those_of_esc_eval() -> None:
    assert DIMENSIONS == THEIRS
    assert all(question.ordered and question.values == (0, 1, 2, 3, 4) for question in QUESTIONS["rating"])


@pytest.fixture(name="plain")
def plain_fixture(tmp_path: object, clock: Clock) -> Store:
    return create_store(f"{tmp_path}/store.sqlite", clock)


def test_a_project_on_the_dashboard(plain: Store, clock: Clock) -> None:
    ann, ben, cleo = person(plain, "Ann"), person(plain, "Ben"), person(plain, "Cleo", "adjudicator")
    project = steps_project(plain, 10, gold_every=1000)
    wrong = {"I feel low about matter 3.", "I feel low about matter 4."}
    for who in (ann, ben):
        while not isinstance(task := next_task(plain, who, project.id), Rest):
            differs = who is ben and task.content["history"][0]["text"] in wrong
            submit(plain, who, task.item, {**RIGHT, "history": not differs}, seconds=36)
        clock.seconds += 60
    told = dashboard(plain, project.id)
    history = told["questions"]["history"]
    assert history["percent"] == 0.8
    # Eight units True-True, two True-False: o = 2, n_True = 18, n_False = 2; α = 1 - 19 · 2 / 36
    assert history["alpha"]["value"] == pytest.approx(1 - 38 / 36)
    assert history["balance"] == {"A1": {"True": 10}, "A2": {"False": 2, "True": 8}}
    assert history["by_annotator"]["A1"]["items"] == 10
    assert history["by_author"]["model-a"]["alpha"]["value"] == history["alpha"]["value"]
    assert list(history["by_week"]) == ["2027-W02"]
    assert told["pairs"] == [
        {
            "annotators": ["A1", "A2"],
            "items": 10,
            "questions": {
                "history": {"percent": 0.8, "kappa": 0.0},
                "emotion": {"percent": 1.0, "kappa": None},
                "strategy": {"percent": 1.0, "kappa": None},
                "preference": {"percent": 1.0, "kappa": None},
            },
        }
    ]
    assert told["stages"] == {"adjudicate": 2, "closed": 8}
    assert told["pace"]["annotators"]["A1"] == {"labels": 10, "hours": 0.1, "labels_an_hour": 100.0, "last_week": 10}
    assert told["pace"]["adjudications_expected"] == 2
    assert told["pace"]["hours_left"] == pytest.approx(0.02)
    listed = disagreements(plain, project.id, "history")
    assert [row["answers"] for row in listed] == [{"A1": True, "A2": False}] * 2
    task = next_task(plain, cleo, project.id)
    assert not isinstance(task, Rest)
    submit(plain, cleo, task.item, {"history": False})
    assert dashboard(plain, project.id)["questions"]["history"]["without_consensus"] == 0


def test_who_drifts_from_gold_is_seen() -> None:
    known = {"history": True, "emotion": True, "strategy": True, "preference": "both"}
    worse = {**known, "emotion": False, "strategy": False}
    day = 86_400_000
    now = 1_800_000_000_000
    items = []
    for number in range(12):
        late = number >= 6
        labels = tuple(
            Given(who, f"A{who}", "human", "gold", answers, 1, (), 20, now - (1 if late else 9) * day, None)
            for who, answers in ((1, worse if late else known), (2, known))
        )
        items.append(LabelledItem(number, "gold", "gold", "en", "model", f"d{number}", None, known, labels))
    project = Project(1, "p", "steps", ProjectSettings(), 1)
    told = figures(project, items, now)["gold"]
    assert [told[name]["drifting"] for name in ("A1", "A2")] == [True, False]
    assert [round(figure["right"], 2) for figure in told["A1"]["by_week"].values()] == [1.0, 0.5]
    assert told["A1"]["answers"] == 48
