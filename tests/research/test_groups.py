"""Groups of outputs that are judged together: what an annotator reads, and what becomes of the answers."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "research" / "judge" / "groups.py"


@pytest.fixture(scope="module")
def groups() -> ModuleType:
    spec = importlib.util.spec_from_file_location("judge_groups", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_answers_become_labels_of_the_right_outputs(groups: ModuleType, tmp_path: Path) -> None:
    context = {"id": "esconv-train-1-2", "language": "en", "split": "reward", "reference": "i am sorry to hear that."}
    context["history"] = [{"speaker": "seeker", "text": "I lost my job, and I have no idea what comes next."}]
    contexts = written(tmp_path / "contexts.jsonl", [context])
    turn = "History: A job is lost. [exploration]\nEmotion: Worry. [negative, anxiety, 3]\n"
    rows = [
        {"id": context["id"], "number": n, "supporter": "a", "ended": True}
        | {"text": f"{turn}Strategy: I ask. [Question]\nResponse: What happened, number {n}?"}
        for n in range(4)
    ]
    folder = tmp_path / "parts"
    groups.make(contexts, folder, written(tmp_path / "outputs.jsonl", rows))
    place = json.loads((folder / "key.json").read_text())["key"]["en-1:1"]
    shown = (folder / "part-en-1.txt").read_text(encoding="utf-8")
    at = {one: n for n, one in enumerate(place["replies"], 1)}
    for id_, n in at.items():
        expected = "I am sorry to hear that." if id_ == "reference" else f"number {id_.rsplit(':', 1)[1]}?"
        assert f"[{n}]" in next(line for line in shown.splitlines() if line.endswith(expected))
    best, worst = place["steps"][0], place["steps"][3]
    order = [at[best], at["reference"], *(at[one] for one in place["steps"][1:])]
    yes = ["N" if n == at[worst] else "Y" for n in range(1, 6)]
    answer = f"1 | TTT TFT TTT FFF | 3 3 3 3 3 | {' '.join(yes)} | {at[worst]} | {'>'.join(map(str, order))}"
    (folder / "answers" / "part-en-1-A.txt").write_text(f"{answer}\n2 | nonsense\n", encoding="utf-8")
    groups.labels(contexts, folder, tmp_path / "labels.jsonl")
    labels = {row["id"]: row for row in map(json.loads, (tmp_path / "labels.jsonl").read_text().splitlines())}
    assert len(labels) == 4
    assert labels[best]["preference"] == "candidate"
    assert labels[best]["history"]
    assert labels[best]["acceptable"]
    assert not labels[best]["harm"]
    assert labels[worst]["preference"] == "reference"
    assert not labels[worst]["acceptable"]
    assert labels[worst]["harm"]
    assert not labels[worst]["strategy"]
    assert not labels[place["steps"][1]]["emotion"]


def test_amid_a_talk_there_is_no_human_reply_and_words_may_be_quoted(groups: ModuleType, tmp_path: Path) -> None:
    text = "I lost my job, and I have no idea what comes next for me and my family now."
    context = {"id": "talk-en-t01:0-2", "language": "en", "split": "policy"}
    context["history"] = [{"speaker": "seeker", "text": text}]
    contexts = written(tmp_path / "contexts.jsonl", [context])
    turn = f"History: {text} [exploration]\nEmotion: Worry. [negative, anxiety, 3]\nStrategy: I ask. [Question]\n"
    rows = [
        {"id": context["id"], "number": n, "supporter": "a", "ended": True, "text": f"{turn}Response: Why, {n}?"}
        for n in range(4)
    ]
    folder = tmp_path / "parts"
    groups.make(contexts, folder, written(tmp_path / "outputs.jsonl", rows))
    assert "[5]" not in (folder / "part-en-1.txt").read_text(encoding="utf-8")
    for reader in "AB":
        answer = "1 | TTT TFT TTT FFF | 4 3 2 1 | Y Y N N | - | 1>2>3>4\n"
        (folder / "answers" / f"part-en-1-{reader}.txt").write_text(answer, encoding="utf-8")
    groups.labels(contexts, folder, tmp_path / "labels.jsonl")
    labels = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert sorted(row["rating"] for row in labels) == [1, 2, 3, 4]
    assert all("preference" not in row for row in labels)
