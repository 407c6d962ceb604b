"""A whole run on a tiny random model: it ends with a report, is skipped when done, and survives being killed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compeer.errors import InputError
from compeer.recipe import explain, load_recipe, run_recipe

STAGES = ["1-ser", "2-judge", "3-sft", "4-grpo", "5-evaluate", "6-report"]


def tiny_changes(model: Path) -> list[str]:
    return [
        "name=tiny",
        f"judge.model={model}",
        f"sft.model={model}",
        "ser.rounds=2",
        "ser.embedder=words",
        "judge.steps=3",
        "judge.save_every=1",
        "sft.steps=3",
        "sft.save_every=1",
        "grpo.steps=4",
        "grpo.max_tokens=24",
        "grpo.top_layers=1",
        "evaluate.histories=3",
        "evaluate.records=4",
        "evaluate.sampling.max_tokens=24",
    ]


def comparable(run: Path) -> dict[str, Any]:
    """All manifests without their times, and all metrics."""
    found: dict[str, Any] = {}
    for stage in STAGES:
        manifest = json.loads((run / stage / "manifest.json").read_text(encoding="utf-8"))
        del manifest["times"]
        found[stage] = manifest
    for path in sorted(run.rglob("metrics.jsonl")):
        found[str(path.relative_to(run))] = path.read_text(encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def undisturbed(tiny_learner: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("undisturbed")
    run_recipe(load_recipe("demo", tiny_changes(tiny_learner)), runs)
    return runs / "tiny"


def test_a_run_ends_with_a_report(undisturbed: Path) -> None:
    page = (undisturbed / "6-report" / "report.html").read_text(encoding="utf-8")
    assert "What this does not show" in page
    figures = json.loads((undisturbed / "5-evaluate" / "manifest.json").read_text())["figures"]
    assert set(figures["supporters"]) == {"untrained", "sft", "grpo", "best-of-4"}
    assert figures["judge"]["records"] == 4
    assert not list(undisturbed.rglob("*.unfinished"))
    assert not list(undisturbed.rglob("checkpoint-*"))
    rows = [json.loads(line) for line in (undisturbed / "4-grpo" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert {"raw/total", "variance/format", "redundancy/s_in", "redundancy/tau", "entropy"} <= set(rows[0])
    samples = (undisturbed / "4-grpo" / "samples.jsonl").read_text().splitlines()
    assert len(samples) == 4 * 2 * 4


def test_what_is_done_is_not_done_again(undisturbed: Path, tiny_learner: Path) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()}
    run_recipe(load_recipe("demo", tiny_changes(tiny_learner)), undisturbed.parent)
    again = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()}
    changed = {path.name for path in again if again[path] != stamps.get(path)}
    assert changed <= {"recipe.json", ".lock"}


KILLED = """
import os, signal, sys, threading, time
from pathlib import Path

from compeer.recipe import load_recipe, run_recipe

runs, *changes = sys.argv[1:]


def kill_at(file):
    while not file.is_file() or '"step": 2' not in file.read_text():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


for stage in ("2-judge", "4-grpo"):
    folder = Path(runs) / "tiny" / stage
    child = os.fork()  # what it loaded is there already
    if child == 0:
        threading.Thread(target=kill_at, args=[folder / "metrics.jsonl"], daemon=True).start()
        run_recipe(load_recipe("demo", changes), Path(runs))
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(stage, ended == -signal.SIGKILL, (folder / "manifest.json").exists(), flush=True)
"""
"""Two runs, each a process of its own, that are killed in the midst of a training."""


def test_killed_anywhere_it_goes_on_and_ends_the_same(
    undisturbed: Path, tiny_learner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = tiny_changes(tiny_learner)
    command = [sys.executable, "-c", KILLED, str(tmp_path), *changes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    own = [line for line in done.stdout.splitlines() if line[:2] in ("2-", "4-")]  # DeepSpeed, where it is, prints too
    assert own == ["2-judge True False", "4-grpo True False"], done.stderr
    run_recipe(load_recipe("demo", changes), tmp_path)
    assert "going on from where it was stopped" in capsys.readouterr().err
    assert comparable(tmp_path / "tiny") == comparable(undisturbed)


def test_changed_settings_redo_what_depends_on_them(undisturbed: Path, tiny_learner: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "tiny")
    before = comparable(tmp_path / "tiny")
    changes = [*tiny_changes(tiny_learner), "evaluate.histories=2"]
    run_recipe(load_recipe("demo", changes), tmp_path)
    after = comparable(tmp_path / "tiny")
    assert after["2-judge"] == before["2-judge"]
    assert after["5-evaluate"]["figures"]["supporters"]["sft"]["decisions"]["outputs"] == 2
    assert after["6-report"] != before["6-report"]
    kept = sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "tiny" / "before").iterdir())
    assert kept == ["5-evaluate", "6-report"]
    stamp = (tmp_path / "tiny" / "2-judge" / "manifest.json").stat().st_mtime_ns
    run_recipe(load_recipe("demo", tiny_changes(tiny_learner)), tmp_path)
    assert comparable(tmp_path / "tiny") == before, "what was kept is taken back"
    assert (tmp_path / "tiny" / "2-judge" / "manifest.json").stat().st_mtime_ns == stamp


def test_a_damaged_output_is_made_again(undisturbed: Path, tiny_learner: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "tiny")
    page = tmp_path / "tiny" / "6-report" / "report.html"
    whole = page.read_bytes()
    page.write_bytes(whole[:100])
    run_recipe(load_recipe("demo", tiny_changes(tiny_learner)), tmp_path)
    assert page.read_bytes() == whole


def test_two_runs_in_one_folder_do_not_disturb_each_other(tiny_learner: Path, tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "tiny").mkdir()
    with (tmp_path / "tiny" / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another run is at work"):
            run_recipe(load_recipe("demo", tiny_changes(tiny_learner)), tmp_path)


def test_settings_can_be_changed_from_the_command_line() -> None:
    recipe = load_recipe(
        "demo", ["grpo.steps=9", "ser.languages=[]", "grpo.negatives=paper", "judge.learning_rate=1e-5"]
    )
    assert recipe.grpo.steps == 9
    assert recipe.ser.languages == ()
    assert recipe.grpo.negatives == "paper"
    assert recipe.judge.learning_rate == 1e-5


def test_every_setting_is_explained() -> None:
    rows = list(explain(load_recipe("demo")))
    keys = [key for key, _, _ in rows]
    assert {"seed", "grpo.alpha", "evaluate.sampling.top_p", "ser.false_share"} <= set(keys)
    assert all(meaning for _, _, meaning in rows)
    for key, value, _ in rows:
        if value != "null":
            load_recipe("demo", [f"{key}={value}"])


def test_a_wrong_value_names_the_file_and_the_field() -> None:
    with pytest.raises(InputError, match=r"demo\.toml, field 'grpo\.negatives'"):
        load_recipe("demo", ["grpo.negatives=upside-down"])


def test_the_recipe_that_ships_is_valid() -> None:
    assert load_recipe("demo").name == "demo"
