"""The commands of research/: they answer for help from any folder, and tell what a person did wrong."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

RESEARCH = Path(__file__).parents[2] / "research"


class Ended(NamedTuple):
    code: object
    out: str
    err: str


@pytest.fixture(name="run")
def run_fixture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Callable[..., Ended]]:
    """Runs a command in an empty folder, in this process: most of their time goes into what they load.

    As in a process of its own, nothing of research/ is loaded, and the script's own folder alone is on the path.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    elsewhere = [one for one in sys.path if one and Path(one).resolve() != RESEARCH.parent]
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "research"}
    for name in loaded:
        del sys.modules[name]

    def run(name: str, *words: str) -> Ended:
        script = RESEARCH / f"{name}.py"
        monkeypatch.setattr(sys, "path", [str(script.parent), *elsewhere])
        monkeypatch.setattr(sys, "argv", [str(script), *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        return Ended(ended.value.code, *capsys.readouterr())

    yield run
    for name in [name for name in sys.modules if name.split(".")[0] == "research"]:
        del sys.modules[name]
    sys.modules.update(loaded)


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("judge/importing", ["nowhere.jsonl", "out.jsonl"], "nowhere.jsonl: there is no such file"),
        ("judge/importing", ["nowhere.jsonl", "out.jsonl", "--source", "silver"], "is not one of"),
        ("judge/matching", ["nowhere.jsonl", "out.jsonl", "--mixtures", "7"], "0 to 6 mixtures"),
        ("judge/compare", ["nowhere.jsonl", "PRM=a.jsonl"], "nowhere.jsonl"),
        ("personality/profiles", ["nowhere.jsonl", "out.jsonl"], "nowhere.jsonl"),
        (
            "personality/rewriting",
            ["nowhere.jsonl", "out.jsonl", "--model", "m@http://127.0.0.1:9/v1"],
            "nowhere.jsonl",
        ),
        ("guard/alarms", ["nowhere.csv"], "no such table"),
        ("probes/probe", ["nowhere.jsonl"], "no such file of SER records"),
        ("personality/sets", ["nowhere.jsonl", "sets"], "there are no rewrites"),
    ],
)
def test_what_a_person_did_wrong_is_told(run: Callable[..., Ended], name: str, words: list[str], expected: str) -> None:
    done = run(name, *words)
    assert done.code == 2
    assert expected in " ".join(done.err.split())
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "name", ["judge/importing", "judge/matching", "personality/profiles", "personality/rewriting", "probes/probe"]
)
def test_help_names_what_a_command_needs(run: Callable[..., Ended], name: str) -> None:
    done = run(name, "--help")
    assert done.code == 0
    assert "--seed" in done.out


def test_a_process_of_its_own_does_the_same(tmp_path: Path) -> None:
    command = [sys.executable, str(RESEARCH / "judge" / "importing.py"), "nowhere.jsonl", "out.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "nowhere.jsonl: there is no such file" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
