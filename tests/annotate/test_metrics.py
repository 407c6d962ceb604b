"""Consensus, and the metrics of a project."""

from types import SimpleNamespace

import pytest

from compeer.annotate.labels import submit
from compeer.annotate.projects import Project, ProjectSettings
from compeer.annotate.questions import DIMENSIONS, QUESTIONS
from compeer.annotate.queue import next_task
from compeer.annotate.results import LabelledItem, dashboard, disagreements, project_metrics
from compeer.annotate.store import Store, create_store
from compeer.evaluate.answers import DIMENSIONS as THEIRS
from tests.support.annotation import (  # noqa: F401
    RIGHT,
    Clock,
    cheap_hashes_fixture,
    clock_fixture,
    person,
    steps_project,
)


def test_consensus_is_by_question() -> None:
    firsts = ({"history": False, "emotion": True, "preference": "both"}, {"history": False, "emotion": False})
    labels = [SimpleNamespace(role="first", answers=answers) for answers in firsts]
    labels.append(SimpleNamespace(role="adjudication", answers={"emotion": False, "preference": "candidate"}))
    labels.append(SimpleNamespace(role="gold", answers={"preference": "both"}))
    shared = {"history": False, "emotion": False, "strategy": None, "preference": None}
    assert LabelledItem(SimpleNamespace(), tuple(labels)).consensus("steps") == shared


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
        while not isinstance(task := next_task(plain, who, project.id), str):
            differs = who is ben and task.history[0].text in wrong
            submit(plain, who, task.item, {**RIGHT, "history": not differs}, seconds=36)
        clock.seconds += 60
    found = dashboard(plain, project.id)
    history = found["questions"]["history"]
    assert history["percent"] == 0.8
    # Eight units True-True, two True-False: o = 2, n_True = 18, n_False = 2; α = 1 - 19 · 2 / 36
    assert history["alpha"]["value"] == pytest.approx(1 - 38 / 36)
    assert history["balance"] == {"A1": {"True": 10}, "A2": {"False": 2, "True": 8}}
    assert history["by_annotator"]["A1"]["items"] == 10
    assert history["by_author"]["model-a"]["alpha"]["value"] == history["alpha"]["value"]
    assert list(history["by_week"]) == ["2027-W02"]
    assert found["pairs"] == [
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
    assert found["stages"] == {"adjudicate": 2, "closed": 8}
    assert found["pace"]["annotators"]["A1"] == {
        "labels": 10,
        "hours": 0.1,
        "labels_an_hour": 100.0,
        "last_week": 10,
    }
    assert found["pace"]["adjudications_expected"] == 2
    assert found["pace"]["hours_left"] == pytest.approx(0.02)
    listed = disagreements(plain, project.id, "history")
    assert [row["answers"] for row in listed] == [{"A1": True, "A2": False}] * 2
    task = next_task(plain, cleo, project.id)
    assert not isinstance(task, str)
    submit(plain, cleo, task.item, {"history": False})
    assert dashboard(plain, project.id)["questions"]["history"]["without_consensus"] == 0


def test_who_drifts_from_gold_is_noticed() -> None:
    known = {"history": True, "emotion": True, "strategy": True, "preference": "both"}
    worse = {**known, "emotion": False, "strategy": False}
    day = 86_400_000
    now = 1_800_000_000_000
    items = []
    for number in range(12):
        late = number >= 6
        labels = tuple(
            SimpleNamespace(pseudonym=name, role="gold", answers=answers, seconds=20, at=now - (1 if late else 9) * day)
            for name, answers in (("A1", worse if late else known), ("A2", known))
        )
        row = SimpleNamespace(id=number, kind="gold", stage="gold", author="model", dialogue="d", answers=known)
        items.append(LabelledItem(row, labels))
    project = Project(id=1, name="p", task="steps", settings=ProjectSettings(), guideline=1)
    found = project_metrics(project, items, now)["gold"]
    assert [found[name]["drifting"] for name in ("A1", "A2")] == [True, False]
    assert [round(metric["right"], 2) for metric in found["A1"]["by_week"].values()] == [1.0, 0.5]
    assert found["A1"]["answers"] == 48
