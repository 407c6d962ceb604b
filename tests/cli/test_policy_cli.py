"""`compeer policy`: from records to a supporter by example, its outputs, the best of them, rewards, and adapters."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compeer.models.training import model_card
from compeer.ser import SerSettings, build_ser, read_records, write_records
from tests.support.commands import exit_code

SMALL = ["--set", "steps=2", "--set", "history=1", "--set", "batch=2"]


def run_cli(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """The exit code of a command."""
    return exit_code(monkeypatch, "policy", *words)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few records of the policy split of the sample corpus, and one of another."""
    folder = tmp_path_factory.mktemp("records")
    build_ser(SerSettings(embedder="words", rounds=1), folder, 3)
    every = list(read_records(folder / "records.jsonl"))
    few = [one for one in every if one.split == "policy" and one.author == "corpus"][:4]
    others = [one for one in every if one.split == "test" and one.author != "corpus"][:1]
    write_records(folder / "few.jsonl", [*few, *others])
    return folder / "few.jsonl"


@pytest.fixture(scope="module")
def judge(tiny_learner: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random judge."""
    folder = tmp_path_factory.mktemp("judge") / "model"
    shutil.copytree(tiny_learner, folder)
    (folder / "compeer.json").write_text(json.dumps({"role": "judge", "kind": "unified", "history": 1}))
    return folder


def test_sft_generate_and_the_best_again(
    records: Path,
    judge: Path,
    tiny_learner: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(monkeypatch, "sft", records, "sft", "--set", "model=nowhere", *SMALL) == 2
    assert run_cli(monkeypatch, "sft", records, "sft", "--set", f"model={tiny_learner}", *SMALL, "--seed", "5") == 0
    assert model_card(tmp_path / "sft/model") == {"role": "supporter", "history": 1}
    assert json.loads((tmp_path / "sft/settings.json").read_text())["seed"] == 5
    words = ["generate", records, "out.jsonl", "--model", "sft/model", "--n", "2", "--max-tokens", "12"]
    capsys.readouterr()
    assert run_cli(monkeypatch, *words, "--control", "strategy=question", "--score", judge) == 0
    assert '"outputs": 8' in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row.get("number", 1) for row in rows] == [1, 2] * 4
    assert all(row["control"] == {"strategy": "Question"} for row in rows)
    assert {row["total"] for row in rows} == {-5}, "a random model writes nothing that can be read"
    assert all(set(row["parts"]) == {"history", "emotion", "strategy", "response", "format"} for row in rows)
    written = (tmp_path / "out.jsonl").stat().st_mtime_ns
    assert run_cli(monkeypatch, *words, "--control", "strategy=question", "--score", judge) == 0
    assert (tmp_path / "out.jsonl").stat().st_mtime_ns == written, "it was done before"
    best = {"record": rows[0]["record"], "output": _whole(records), "total": 5}
    (tmp_path / "best.jsonl").write_text(json.dumps(best) + "\n")
    chosen = ["--set", "candidates=best.jsonl", "--set", "model=sft/model"]
    assert run_cli(monkeypatch, "sft", records, "again", *chosen, *SMALL) == 0
    assert '"histories_kept": 1' in capsys.readouterr().err


def _whole(records: Path) -> str:
    from compeer.reasoning import render_turn

    return render_turn(next(read_records(records)).candidate)


def test_grpo_from_a_supporter(
    records: Path,
    judge: Path,
    tiny_learner: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_learner, "sft")
    Path("sft/compeer.json").write_text(json.dumps({"role": "supporter", "history": 1}))
    words = ["grpo", records, "grpo", "--model", "sft", "--judge", judge, "--set", "steps=1"]
    words += ["--set", "group=2", "--set", "prompts=1", "--set", "max_tokens=6"]
    assert run_cli(monkeypatch, *words) == 0
    assert model_card(tmp_path / "grpo/model")["history"] == 1, "as the supporter was trained"
    assert len(Path("grpo/samples.jsonl").read_text().splitlines()) == 2
    assert run_cli(monkeypatch, *words, "--set", "steps=2") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "a training with other settings was begun here (steps)" in said
    for kinds, expected in (((judge, judge), "the process judge is needed"), ((tiny_learner,), "holds no judge")):
        options = [word for folder in kinds for word in ("--judge", folder)]
        assert run_cli(monkeypatch, "grpo", records, "other", "--model", "sft", *options) == 2
        assert expected in " ".join(capsys.readouterr().err.split())


def test_merge(records: Path, tiny_learner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    adapters = ["--set", f"model={tiny_learner}", "--set", "lora_rank=2"]
    assert run_cli(monkeypatch, "sft", records, "sft", *adapters, *SMALL) == 0
    assert run_cli(monkeypatch, "merge", "sft/checkpoints/checkpoint-2", tiny_learner, "merged") == 0
    assert {"model.safetensors", "tokenizer.json", "compeer.json"} <= {path.name for path in Path("merged").iterdir()}
    assert not list(tmp_path.glob("*.unfinished"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sft", "RECORDS", "out", "--set", "stepz=3"], "Known settings: steps"),
        (["sft", "RECORDS", "out", "--set", "control_share=2"], "control_share"),
        (["sft", "RECORDS", "out", "--set", "steps"], "key=value"),
        (["sft", "RECORDS", "out", "--set", "model=nowhere"], "no model folder"),
        (["sft", "RECORDS", "out", "--set", "candidates=nowhere.jsonl"], "compeer policy generate"),
        (["sft", "RECORDS", "out", "--split", "valid"], "unknown split"),
        (["sft", "RECORDS", "out", "--split", "test"], "no turn of the corpus"),
        (["sft", "RECORDS", "RECORDS"], "this is a file"),
        (["sft", "nowhere.jsonl", "out"], "no such file"),
        (["grpo", "RECORDS", "out", "--model", "nowhere", "--judge", "nowhere"], "no model folder"),
        (["grpo", "RECORDS", "out", "--model", "MODEL", "--judge", "nowhere"], "no model folder"),
        (["grpo", "RECORDS", "out", "--model", "MODEL", "--judge", "MODEL", "--set", "grop=2"], "Known settings"),
        (["grpo", "RECORDS", "out", "--model", "MODEL", *["--judge", "MODEL"] * 3], "too many judges"),
        (["generate", "RECORDS", "out.jsonl", "--model", "nowhere"], "there is no model 'nowhere'"),
        (["generate", "RECORDS", "no/out.jsonl", "--model", "MODEL"], "no such folder"),
        (["generate", "RECORDS", "out.jsonl", "--model", "MODEL", "--control", "strategy=Hug"], "Known: Question"),
        (["generate", "RECORDS", "out.jsonl", "--model", "MODEL", "--control", "mood=low"], "Known fields: strategy"),
        (["generate", "RECORDS", "out.jsonl", "--model", "MODEL", "--score", "MODEL"], "holds no judge"),
        (["generate", "RECORDS", "o.jsonl", "--model", "MODEL", "--n", "2", "--temperature", "0"], "all the same"),
        (["merge", "MODEL", "MODEL", "out"], "no adapter"),
    ],
)
def test_what_a_person_did_wrong_is_told(
    words: list[str], expected: str, records: Path, tiny_learner: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    named = {"RECORDS": str(records), "MODEL": str(tiny_learner)}
    assert expected in refused("policy", *(named.get(word, word) for word in words))
    assert not (tmp_path / "out" / "model").exists()
