"""What goes in and out: files of items, exports with consensus and pseudonyms, and the commands."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from compeer.annotate.items import add_items, read_items
from compeer.annotate.labels import submit
from compeer.annotate.people import Person
from compeer.annotate.projects import Project, ProjectSettings, add_project, change_settings
from compeer.annotate.questions import DIMENSIONS
from compeer.annotate.queue import next_task
from compeer.annotate.results import export_project
from compeer.annotate.store import Store, create_store, open_store
from compeer.cli import app
from compeer.cli.annotate import annotate
from compeer.errors import InputError
from compeer.reward import LocalJudge
from compeer.ser.record import PreferenceLabel, StepLabel, StepLabels, is_judged, read_records, write_records
from tests.support.annotation import (  # noqa: F401
    RIGHT,
    Clock,
    cheap_hashes_fixture,
    clock_fixture,
    person,
    record,
    steps_project,
)

AT_ONCE = ProjectSettings(correction_seconds=0)
"""Labels count at once."""


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path, clock: Clock) -> Store:
    return create_store(str(tmp_path / "store.sqlite"), clock)


def label_all(store: Store, who: Person, project: Project, **changes: Any) -> int:
    """One person does all there is; `changes` go to items whose history ends with the number given as key."""
    count = 0
    while not isinstance(task := next_task(store, who, project.id), str):
        number = task.history[0].text.rpartition(" ")[2].rstrip(".")
        answers = {**RIGHT, **changes.get(f"_{number}", {})}
        submit(
            store, who, task.item, {question.name: answers[question.name] for question in task.questions}, seconds=10
        )
        count += 1
    return count


def test_the_consensus_is_exported_as_records(store: Store, tmp_path: Path) -> None:
    ann, ben = person(store, "Ann"), person(store, "Ben", program=True)
    project = steps_project(store, 5)
    label_all(store, ann, project)
    label_all(store, ben, project, _1={"emotion": False}, _2={"preference": "neither"})
    cleo = person(store, "Cleo", "adjudicator")
    assert label_all(store, cleo, project, _2={"preference": "first"}) == 2, "only where they differ"
    counts = export_project(store, project, tmp_path / "out")
    assert counts["with consensus"] == 4
    assert counts["left out: no consensus"] == counts["no consensus on preference"] == 1
    found = {one.id: one for one in read_records(tmp_path / "out" / "records.jsonl")}
    assert set(found) == {"r0", "r1", "r3", "r4"}
    assert all(is_judged(one) for one in found.values())
    labels = found["r1"].labels
    assert labels is not None
    assert labels.emotion == StepLabel(
        value=True, source="human", how="A1 and A3 agree, P2 differs; guidelines 1", kind=None
    )
    assert labels.history.source == "llm", "a consensus with a program is not people's alone"
    assert labels.strategy.value is False
    assert found["r0"].preference is not None
    assert found["r0"].preference.value == "both"
    assert found["r0"].model_copy(update={"labels": None, "preference": None}) == record(0)
    text = (tmp_path / "out" / "annotations.jsonl").read_text()
    assert "Ann" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert {label["annotator"] for line in lines for label in line["labels"]} == {"A1", "P2", "A3"}
    measured = json.loads((tmp_path / "out" / "agreement.json").read_text())
    assert measured["questions"]["emotion"]["percent"] == 0.8
    with pytest.raises(InputError, match="there already"):
        export_project(store, project, tmp_path / "out")


def test_a_judge_is_trained_on_an_export_as_it_is(store: Store, tmp_path: Path, tiny_learner: Path) -> None:
    project = steps_project(store, 4)
    for name in ("Ann", "Ben"):
        label_all(store, person(store, name), project, _1={"emotion": False})
    export_project(store, project, tmp_path / "out")
    settings = {"model": tiny_learner, "steps": 2, "batch": 2, "lora_rank": 0, "learning_rate": 1e-3}
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    folder = tmp_path / "judge"
    done = CliRunner().invoke(app, ["reward", "train", str(tmp_path / "out" / "records.jsonl"), str(folder), *changes])
    assert done.exit_code == 0, done.output
    assert LocalJudge(folder / "model").form.kind == "unified"


def test_records_with_labels_are_training_and_gold_and_labels_stay_hidden(store: Store, tmp_path: Path) -> None:
    step = StepLabel(value=True, source="human", how="known")
    labels = StepLabels(history=step, emotion=step, strategy=step)
    preference = PreferenceLabel(value="candidate", source="human", how="known")
    judged = record(1).model_copy(update={"labels": labels, "preference": preference})
    write_records(tmp_path / "records.jsonl", [judged, record(2)])
    project = steps_project(store)
    with pytest.raises(InputError, match=r"line 2.*needs its known answers"):
        add_items(store, project, read_items(tmp_path / "records.jsonl", project.task, known=True), "gold")
    assert add_items(store, project, read_items(tmp_path / "records.jsonl", project.task))["added"] == 2
    assert add_items(store, project, read_items(tmp_path / "records.jsonl", project.task))["already there"] == 2
    assert all("labels" not in item.content for item in read_items(tmp_path / "records.jsonl", "steps"))
    danger = record(3).model_copy(
        update={"history": (record(3).history[0].model_copy(update={"text": "I am going to kill myself tonight."}),)}
    )
    write_records(tmp_path / "danger.jsonl", [danger])
    assert add_items(store, project, read_items(tmp_path / "danger.jsonl", project.task))["marked as crisis"] == 1


def test_models_are_compared_blind(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    history = [{"speaker": "seeker", "text": "I failed 0."}]
    given = {"id": "c1", "language": "en", "history": history, "responses": {"m1": "one", "m2": "two", "m3": "three"}}
    path.write_text(json.dumps(given) + "\n")
    project = add_project(store, "models", "compare", settings=AT_ONCE)
    assert add_items(store, project, read_items(path, project.task))["added"] == 3, "every pair"
    ann, ben = person(store, "Ann"), person(store, "Ben")
    for who in (ann, ben):
        while not isinstance(task := next_task(store, who, project.id), str):
            assert "m1" not in task.model_dump_json()
            best = min(task.responses, key=["three", "one", "two"].index)
            place = "first" if task.responses[0] == best else "second"
            submit(store, who, task.item, {"preference": place})
    counts = export_project(store, project, tmp_path / "out")
    assert counts["with consensus"] == 3
    lines = [json.loads(line) for line in (tmp_path / "out" / "annotations.jsonl").read_text().splitlines()]
    better = {line["id"]: line["models"][line["consensus"]["preference"]] for line in lines}
    assert better == {"c1/m1/m2": "m1", "c1/m1/m3": "m3", "c1/m2/m3": "m3"}
    path.write_text(json.dumps({**given, "responses": {"m1": "one"}}) + "\n")
    with pytest.raises(InputError, match=r"line 1, field 'responses'"):
        add_items(store, project, read_items(path, project.task))


def test_conversations_are_rated(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "conversations.jsonl"
    history = [{"speaker": "seeker", "text": "Hi 0."}, {"speaker": "supporter", "text": "Hello."}]
    path.write_text(json.dumps({"id": "k", "language": "en", "model": "m1", "history": history}) + "\n")
    project = add_project(store, "rating", "rating", settings=AT_ONCE)
    add_items(store, project, read_items(path, project.task))
    scores = dict.fromkeys(DIMENSIONS, 3)
    for number, name in enumerate(("Ann", "Ben")):
        who = person(store, name)
        task = next_task(store, who, project.id)
        assert not isinstance(task, str)
        with pytest.raises(InputError, match="'True' is no answer to 'empathy'"):
            submit(store, who, task.item, {**scores, "empathy": True})
        submit(store, who, task.item, {**scores, "humanoid": number})
    task = next_task(store, person(store, "Cleo", "adjudicator"), project.id)
    assert not isinstance(task, str)
    assert [question.name for question in task.questions] == ["humanoid"]


def test_the_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    store, records = str(tmp_path / "a.sqlite"), tmp_path / "records.jsonl"
    write_records(records, [record(number) for number in range(3)])

    def call(*words: str, code: int = 0) -> str:
        done = runner.invoke(
            annotate, [str(word) for word in words], env={"COMPEER_ADMIN_PASSWORD": "long enough, this"}
        )
        assert done.exit_code == code, (done.output, done.exception)
        return done.stdout

    call("init", store, "--admin", "Boss")
    link = call("invite", store, "--role", "annotator", "--language", "en", "--url", "https://x.org/")
    assert link.startswith("https://x.org/join#1.")
    assert call("invitations", store).startswith("1  annotator, en, until ")
    call("invitations", store, "--withdraw", 1)
    assert call("invitations", store) == ""
    call("import", store, records, "--project", "first", "--task", "steps")
    opened = open_store(store)
    change_settings(opened, 1, AT_ONCE)
    project = add_project(opened, "second", "rating").model_copy(update={"id": 1, "name": "first", "task": "steps"})
    for name in ("Ann", "Ben"):
        label_all(opened, person(opened, name), project)
    assert json.loads(call("agreement", store, "--project", "first", "--json"))["stages"] == {"closed": 3}
    assert "100.0 %" in call("agreement", store, "--project", "first")
    call("export", store, tmp_path / "out", "--project", "first")
    card = (tmp_path / "out" / "card.md").read_text(encoding="utf-8")
    assert "Agreement of annotators" in card
    assert "| emotion | 3 | 100" in card.replace("  ", " ")
    assert len(list(read_records(tmp_path / "out" / "records.jsonl"))) == 3
    call("backup", store, tmp_path / "copy.sqlite")
    call("verify", tmp_path / "copy.sqlite")
    call("delete", store, "d1")
    call("verify", store)
    with opened.engine.connect() as connection:
        connection.exec_driver_sql("UPDATE labels SET person = 9 WHERE person = 2")
        connection.commit()
    call("verify", store, code=1)
    for wrong in (["agreement", store], ["import", store, str(records), "--project", "third"], ["verify", "none"]):
        done = runner.invoke(annotate, wrong)
        assert isinstance(done.exception, InputError)
