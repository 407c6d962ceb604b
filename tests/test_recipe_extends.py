"""Recipes that extend others, those of the claims, and runs that stop after a stage."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from compeer import recipe as running
from compeer.cli import app
from compeer.errors import InputError
from compeer.recipe import Recipe, load_recipe, run_recipe
from tests.support.scripts import ROOT, script

RECIPES = ROOT / "recipes"
WHOLE = """name = "whole"
[judge]
steps = 3
learning_rate = 1e-4
[sft]
steps = 3
learning_rate = 1e-4
[grpo]
steps = 3
learning_rate = 1e-4
"""


def written(folder: Path, **files: str) -> Path:
    """The recipes in the folder, and the path of the last one."""
    for name, text in files.items():
        path = folder / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_changes_only_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    written(tmp_path, whole=WHOLE)
    middle = 'extends = "../whole.toml"\nname = "middle"\n[grpo]\nsteps = 9\n[evaluate.sampling]\ntop_p = 0.5\n'
    path = written(tmp_path / "below", middle=middle, last='extends = "middle.toml"\n[grpo]\nalpha = 2.0\n')
    expected = load_recipe(
        tmp_path / "whole.toml", ["name=middle", "grpo.steps=9", "grpo.alpha=2.0", "evaluate.sampling.top_p=0.5"]
    )
    assert load_recipe(path) == expected
    assert load_recipe(path, ["grpo.steps=4"]).grpo.steps == 4


@pytest.mark.parametrize(
    ("whole", "own", "words"),
    [
        (WHOLE, "[grpo]\nsteeps = 3", r"own\.toml, which extends .*whole\.toml, field 'grpo\.steeps': unknown key"),
        (WHOLE + "epsilon = -1", "", r"own\.toml, which extends .*whole\.toml, field 'grpo\.epsilon'"),
        ("name = ", "", r"whole\.toml, extended by .*own\.toml: this is not TOML"),
        ('extends = "own.toml"', "", r"whole\.toml, extended by .*own\.toml, field 'extends': .* has no end"),
        ('extends = "gone.toml"', "", r"whole\.toml, extended by .*own\.toml, field 'extends': there is no .*gone"),
        ("extends = 3", "", r"whole\.toml, extended by .*own\.toml, field 'extends': this is not a path"),
    ],
)
def test_an_error_names_both_files(tmp_path: Path, whole: str, own: str, words: str) -> None:
    path = written(tmp_path, whole=whole, own=f'extends = "whole.toml"\n{own}')
    with pytest.raises(InputError, match=words):
        load_recipe(path)


def test_every_recipe_is_accepted_and_runs_under_its_own_name() -> None:
    paths = sorted(RECIPES.rglob("*.toml"))
    assert len(paths) > 10
    assert [load_recipe(path).name for path in paths] == [path.stem for path in paths]


def test_the_recipes_are_those_of_the_figures() -> None:
    measure: ModuleType = script("judges/measure")
    told = json.loads((ROOT / "research" / "results" / "judges" / "results.json").read_text(encoding="utf-8"))[
        "settings"
    ]
    own = measure.settings_of("unified")
    assert told == {"steps": own.steps, "records_a_step": own.batch, "learning_rate": own.learning_rate}
    process = measure.settings_of("process", ["blind"])
    assert (process.kind, process.blind, process.batch, process.steps) == ("process", True, 3 * own.batch, own.steps)
    best = measure.settings_of("unified", ["weighed", "lora"])
    assert best == load_recipe(RECIPES / "h200.toml", [f"judge.save_every={best.steps}"]).judge


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(written(tmp_path, whole=WHOLE))


@pytest.mark.parametrize(
    ("until", "stages"),
    [
        ("judge", ["1-ser", "2-judge"]),
        ("sft", ["1-ser", "3-sft"]),
        ("evaluate", ["1-ser", "2-judge", "3-sft", "4-grpo", "5-evaluate"]),
    ],
)
def test_a_run_stops_after_a_stage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recipe: Recipe, until: str, stages: list[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(running, "run_stage", lambda stage, *_: done.append(stage.name) or stage.name)
    assert run_recipe(recipe, tmp_path, until) == tmp_path / "whole" / stages[-1]
    assert done == stages


def test_a_stage_that_does_not_exist_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(InputError, match=r"no stage 'sfft'\.\nName one of: ser, judge, sft, grpo, evaluate, report"):
        run_recipe(recipe, tmp_path, "sfft")
    assert not (tmp_path / "whole").exists()


def test_the_command_says_where_it_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("compeer.recipe.run_recipe", lambda _, runs, until: runs / until)
    done = CliRunner().invoke(app, ["run", "demo", "--runs", str(tmp_path), "--until", "sft"])
    assert done.exit_code == 0
    assert str(tmp_path / "sft") in done.output
    assert "without --until" in done.output
