"""The supporter and the judge that come with the package, and adapters taken out of any training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from compeer.cli import app
from compeer.engine.gguf import cache_folder
from compeer.engine.network import load_network
from compeer.errors import InputError
from compeer.models import catalogue
from compeer.models.catalogue import ADAPTERS, PACKAGED_MODELS, SMALL, best_supporter, find_base, packaged_adapters
from compeer.models.resolve import model_folder, model_mark, open_model, prepare
from compeer.models.training import model_card


def test_the_packaged_models_are_unpacked_once_with_their_cards() -> None:
    for name in SMALL:
        folder = model_folder(name)
        assert folder == model_folder(name)
        assert model_card(folder)["role"] == name
        assert model_mark(name) == PACKAGED_MODELS[name].sha256
    before, after = (load_file(model_folder(name) / "model.safetensors") for name in ("embedded", "supporter"))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.endswith("_proj.weight")}


def test_adapters_that_were_changed_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPEER_CACHE", str(tmp_path))
    other = PACKAGED_MODELS["supporter"].model_copy(update={"sha256": "0" * 64})
    monkeypatch.setitem(PACKAGED_MODELS, "supporter", other)
    with pytest.raises(InputError, match="hash differs"):
        model_folder("supporter")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_that_name_is_not_meant_and_others_must_be_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("supporter").mkdir()
    assert model_folder("supporter").parent == cache_folder()
    with pytest.raises(InputError, match="no such folder"):
        open_model("./supporter")


SAID = "I did not get the job and I feel useless."
RIGHT = """History: They did not get a job and feel useless. The picture is only beginning to form. [exploration]
Emotion: There is hopelessness behind “I feel useless”, strong. [negative, depression, 4]
Strategy: I do not know enough yet, so I ask. [Question]
Response: I am sorry to hear that. What happened?"""
WRONG = """History: They tell of their wedding day and the cake. The talk has moved on to ways out. [action]
Emotion: They are overjoyed, as strong as it gets. [positive, joy, 5]
Strategy: What they do well deserves to be seen. [Affirmation and Reassurance]
Response: Congratulations on the wedding!"""


def judged(*arguments: str, given: str | None = None) -> dict[str, object]:
    result = CliRunner().invoke(app, ["reward", "judge", "--said", SAID, "--json", *arguments], input=given)
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.output)
    return found


def test_the_packaged_judge_tells_a_fitting_turn_from_a_foreign_one() -> None:
    fits, foreign = judged("--output", RIGHT), judged("--output", WRONG, "--reference", "I am sorry. What happened?")
    assert fits["score"]["total"] == 4  # type: ignore[index]
    assert fits["score"]["response"] is None  # type: ignore[index]
    assert foreign["score"]["total"] <= -1  # type: ignore[index,operator]
    assert foreign["preferred"] == "reference"


def test_a_turn_can_be_piped_as_json_and_nonsense_is_named() -> None:
    turn = {
        "turn": {
            "history": {"text": "They did not get a job.", "stage": "exploration"},
            "emotion": {"text": "They feel low.", "sentiment": "negative", "emotion": "depression", "intensity": 4},
            "strategy": {"text": "I ask.", "strategy": "Question"},
            "response": "What happened?",
        }
    }
    assert judged("--output", "-", given=json.dumps(turn))["missing"] == []
    for given, what in (("", "no output to judge"), ('{"turn": null}', "holds no turn"), ("{", "holds no turn")):
        result = CliRunner().invoke(app, ["reward", "judge", "--said", SAID, "--output", "-"], input=given)
        assert result.exit_code != 0
        assert what in str(result.exception)
    with pytest.raises(InputError, match="says nothing"):
        CliRunner().invoke(app, ["reward", "judge", "--said", " ", "--output", "x"], catch_exceptions=False)
    assert judged("--output", "nonsense")["missing"] == ["history", "emotion", "strategy", "response"]
    with pytest.raises(InputError, match="nothing to judge"):
        CliRunner().invoke(app, ["reward", "judge"], catch_exceptions=False)


def test_adapters_lie_where_they_are_looked_for() -> None:
    for name in PACKAGED_MODELS:
        folder = Path(catalogue.__file__).parents[1] / "weights" / name
        assert {path.name for path in folder.iterdir()} >= {
            ADAPTERS,
            "adapter_config.json",
            "compeer.json",
            "README.md",
        }


def test_damaged_weights_are_named_and_those_of_the_cache_may_be_deleted(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPEER_CACHE", str(tmp_path / "cache"))
    for folder, advice in ((tmp_path / "mine", False), (tmp_path / "cache" / "judge-1", True)):
        shutil.copytree(tiny_model, folder)
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        with pytest.raises(InputError, match="cannot load it") as caught:
            load_network(folder, torch.device("cpu"), torch.float32)
        assert ("Delete this folder" in str(caught.value)) == advice


def test_the_large_supporter_is_taken_as_soon_as_its_base_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPEER_CACHE", str(tmp_path))
    assert best_supporter() == "supporter"
    with pytest.raises(InputError, match=r"compeer models get qwen-1\.5b"):
        prepare("supporter-1.5b")
    base = find_base("qwen-1.5b").path
    base.parent.mkdir(parents=True)
    base.touch()
    assert best_supporter() == "supporter-1.5b"


def test_the_large_supporter_names_its_base_and_its_task() -> None:
    card = model_card(packaged_adapters("supporter-1.5b"))
    assert card == {"role": "supporter", "history": 12, "task": "guided", "base": "qwen-1.5b"}
