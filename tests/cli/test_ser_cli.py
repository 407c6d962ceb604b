"""`compeer ser`: every stage as a command, a whole build, and what a person did wrong."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compeer.corpora import sample_path
from compeer.io import only_one
from compeer.pipeline import Done, Stage
from compeer.ser import read_records
from tests.support.commands import exit_code


def run_cli(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command."""
    return exit_code(monkeypatch, "ser", *words)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        words = ["build", "sample", "--language", "en", "--out", str(folder), "--embedder", "words", "--seed", "7"]
        assert run_cli(patch, *words, "--workers", "1") == 0
    return folder


def test_a_build_ends_with_records_a_check_and_a_card(built: Path) -> None:
    assert sum(1 for _ in read_records(built / "records.jsonl")) > 900
    assert json.loads((built / "check.json").read_text(encoding="utf-8"))["passed"]
    for name in ("card.md", "card.html"):
        text = (built / name).read_text(encoding="utf-8")
        assert "No label of this set was given by a person." in text
        assert "was not run" not in text


def test_probes_stay_on_the_card_until_the_records_change(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes, records = built / "probes.json", (built / "records.jsonl").stat().st_mtime
    probes.write_text('{"probes": [{"label": "history step", "sees": "tea leaves"}]}', encoding="utf-8")
    words = ["build", "sample", "--language", "en", "--out", str(built), "--embedder", "words", "--seed", "7"]
    for made, kept in ((records + 9, True), (records - 9, False)):
        os.utime(probes, (made, made))
        assert run_cli(monkeypatch, *words, "--workers", "1") == 0
        assert ("tea leaves" in (built / "card.md").read_text(encoding="utf-8")) is kept
        assert probes.exists() is kept


def test_a_second_build_or_stage_at_once_is_told_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["build", "sample", "--language", "en", "--out", str(tmp_path), "--embedder", "words", "--workers", "1"]
    with only_one(tmp_path):  # as another build would
        assert run_cli(monkeypatch, *words) == 2
    assert "another run is at work in this folder" in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"], "nothing was begun"
    out = tmp_path / "screened.jsonl"
    with Stage(out, {}, {}) as stage:
        stage.add(Done(lines=["{}"]))
        assert run_cli(monkeypatch, "screen", "sample", "--language", "en", "--out", str(out)) == 2
        assert "another run is writing this file" in capsys.readouterr().err.replace("\n", " ")
        stage.add(Done(lines=["{}"]))
        stage.finish()
    assert out.read_text() == "{}\n{}\n", "the first one was not disturbed"
    assert run_cli(monkeypatch, "screen", "sample", "--language", "en", "--out", str(out)) == 0


def test_stage_by_stage_gives_what_a_build_gives(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(monkeypatch, "screen", "sample", "--language", "en") == 0
    assert run_cli(monkeypatch, "split", "screened.jsonl", "splits.jsonl", "--seed", "7") == 0
    assert run_cli(monkeypatch, "sample", "screened.jsonl", "splits.jsonl", "contexts.jsonl", "--seed", "7") == 0
    words = ["silver", "contexts.jsonl", "records.jsonl", "--embedder", "words", "--seed", "7"]
    assert run_cli(monkeypatch, *words) == 0
    for name in ("screened.jsonl", "splits.jsonl", "contexts.jsonl", "records.jsonl"):
        assert (tmp_path / name).read_bytes() == (built / name).read_bytes()
    assert run_cli(monkeypatch, "check", "records.jsonl", "--splits", "splits.jsonl") == 0
    assert run_cli(monkeypatch, "export", "records.jsonl", "out") == 0
    assert list((tmp_path / "out").rglob("*.parquet"))


def test_a_check_that_fails_ends_with_one(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (built / "records.jsonl").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "records.jsonl"
    moved = next(line for line in lines if '"split":"reward"' in line)
    elsewhere = moved.replace('"split":"reward"', '"split":"test"')
    path.write_text("\n".join(elsewhere if line is moved else line for line in lines) + "\n", encoding="utf-8")
    assert run_cli(monkeypatch, "check", str(path)) == 1
    path.write_text("\n".join([*lines, lines[0]]) + "\n", encoding="utf-8")
    assert run_cli(monkeypatch, "check", str(path)) == 1


def test_a_server_that_cannot_be_reached_leaves_the_stage_unfinished(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = (built / "contexts.jsonl").read_text(encoding="utf-8").splitlines()[:3]
    (tmp_path / "contexts.jsonl").write_text("\n".join(few) + "\n", encoding="utf-8")
    call = ["--call", "retries=1", "--call", "first_pause=0.01"]
    words = ["reason", "contexts.jsonl", "turns.jsonl", "--model", "m@http://127.0.0.1:9/v1", *call]
    for _ in range(2):
        assert run_cli(monkeypatch, *words) == 2
        assert "3 questions got no answer" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "turns.jsonl.manifest.json").read_text(encoding="utf-8"))
    assert manifest["failed"] == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["build", "nowhere.jsonl"], "no such corpus file"),
        (["build", "sample", "--false-share", "0.7"], "false_share"),
        (["split", "nowhere.jsonl", "out.jsonl"], "nowhere.jsonl"),
        (["silver", "nowhere.jsonl", "out.jsonl"], "nowhere.jsonl"),
        (["check", "nowhere.jsonl"], "no such file of SER records"),
        (["export", "nowhere.jsonl", "out", "--format", "xml"], "is not one of"),
        (["reason", "nowhere.jsonl", "out.jsonl", "--model", "http://127.0.0.1:9/v1"], "name is missing"),
        (["reason", "nowhere.jsonl", "out.jsonl", "--model", "m@http://127.0.0.1:9/v1", "--call", "speed=3"], "speed"),
        (["reason", "nowhere.jsonl", "out.jsonl", "--model", "m@http://127.0.0.1:9/v1", "--call", "x"], "key=value"),
    ],
)
def test_what_a_person_did_wrong_is_told(words: list[str], expected: str, refused: Callable[..., str]) -> None:
    assert expected in refused("ser", *words)


def test_a_corpus_without_labels_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = sample_path().read_text(encoding="utf-8").splitlines()
    bare = []
    for line in lines[:30]:
        value = json.loads(line)
        for utterance in value["utterances"]:
            utterance.pop("strategy", None)
        bare.append(json.dumps(value))
    (tmp_path / "bare.jsonl").write_text("\n".join(bare) + "\n", encoding="utf-8")
    assert run_cli(monkeypatch, "build", "bare.jsonl", "--embedder", "words", "--workers", "1") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no strategy label" in said
    assert "--model" in said
