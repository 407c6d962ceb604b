"""`compeer reward`: from records to a trained judge, its judgments, its figures, and a table of several judges."""

import json
import sys
from pathlib import Path

import pytest

from compeer import cli
from compeer.ser import SerSettings, build_ser, read_records, write_records


def run_cli(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["compeer", "reward", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few records of each split of the sample corpus."""
    folder = tmp_path_factory.mktemp("records")
    build_ser(SerSettings(embedder="words"), folder, 3)
    every = [record for record in read_records(folder / "records.jsonl") if record.preference]
    few = [record for split in ("reward", "test") for record in [r for r in every if r.split == split][:12]]
    write_records(folder / "few.jsonl", few)
    return folder / "few.jsonl"


def test_train_judge_evaluate_compare(
    records: Path,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    base = ["--set", f"model={tiny_model}", "--set", "steps=2", "--set", "history=2", "--set", "max_length=1024"]
    for name, kind, blind in (
        ("u", "unified", "false"),
        ("ut", "unified", "true"),
        ("p", "process", "false"),
        ("o", "outcome", "false"),
    ):
        words = ["train", str(records), name, *base, "--set", f"kind={kind}", "--set", f"blind={blind}"]
        assert run_cli(monkeypatch, *words) == 0
        assert json.loads((tmp_path / name / "model" / "compeer.json").read_text())["kind"] == kind
        assert run_cli(monkeypatch, "judge", str(records), f"{name}/model", f"{name}.jsonl", "--both-orders") == 0
    capsys.readouterr()
    assert run_cli(monkeypatch, "train", str(records), "u", *base, "--set", "steps=3") == 2
    assert "a training with other settings was begun here (steps)" in " ".join(capsys.readouterr().err.split())
    assert run_cli(monkeypatch, "evaluate", str(records), "u.jsonl") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["records"] == figures["scored"] == 12
    assert {"history", "emotion", "strategy", "response", "calibration", "position", "test_set"} <= set(figures)
    rows = ["UnifiReward=u.jsonl::ut.jsonl", "PRM=p.jsonl", "ORM=o.jsonl"]
    assert run_cli(monkeypatch, "compare", str(records), *rows, "--out", "table.md") == 0
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    for name in ("UnifiReward", "PRM + ORM", "always True"):
        assert name.lower() in table.lower()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "RECORDS", "out", "--set", "kind=best"], "kind"),
        (["train", "RECORDS", "out", "--set", "stepz=3"], "Known settings"),
        (["train", "RECORDS", "out", "--set", "steps"], "key=value"),
        (["train", "RECORDS", "out", "--split", "valid"], "unknown split"),
        (["train", "RECORDS", "out", "--split", "policy"], "no record with a preference"),
        (["train", "nowhere.jsonl", "out"], "no such file"),
        (["judge", "RECORDS", "nowhere", "out.jsonl"], "no model folder"),
        (["judge", "RECORDS", "m@http://127.0.0.1:9/v1", "out.jsonl", "--kind", "best"], "unknown kind"),
        (["evaluate", "RECORDS", "nowhere.jsonl"], "nowhere.jsonl"),
        (["compare", "RECORDS", "nowhere.jsonl"], "NAME=FILE"),
    ],
)
def test_what_a_person_did_wrong_is_told(
    words: list[str],
    expected: str,
    records: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(monkeypatch, *(str(records) if word == "RECORDS" else word for word in words)) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert expected in said
    assert "Traceback" not in said
