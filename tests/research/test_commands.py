"""The commands of research/: they answer for help from any folder, and tell what a person did wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

RESEARCH = Path(__file__).parents[2] / "research"


def run(name: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RESEARCH / f"{name}.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


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
def test_what_a_person_did_wrong_is_told(name: str, words: list[str], expected: str, tmp_path: Path) -> None:
    done = run(name, tmp_path, *words)
    assert done.returncode == 2
    assert expected in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name", ["judge/importing", "judge/matching", "personality/profiles", "personality/rewriting", "probes/probe"]
)
def test_help_names_what_a_command_needs(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path, "--help")
    assert done.returncode == 0
    assert "--seed" in done.stdout
