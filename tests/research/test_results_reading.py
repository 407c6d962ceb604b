"""Blind reading: the reader is not told whose an output is, and what it finds is counted for the right one."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compeer.ser.record import write_records
from tests.support.annotation import record
from tests.support.scripts import ROOT, script

PARTS = ("history", "emotion", "strategy", "response")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "research" / "results" / "supporter")
    return script("supporter/read")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of measurements in which every output names its supporter."""
    records = [record(number) for number in range(130)]
    write_records(tmp_path / "test.jsonl", records)
    (tmp_path / "said").mkdir()
    for name in ("sft", *(f"{way}-{seed}" for way in ("reweighted", "plain") for seed in (1, 2, 3))):
        rows = [
            {"judge_1": [5 if name != "sft" else 1] * 4, "judge_2": [5] * 4, "rejected": [None] * 4} for _ in records
        ]
        texts = [f"{name} says {number}" for number in range(4 * len(records))]
        told = {"records": [one.id for one in records], "rows": rows, "texts": texts}
        (tmp_path / "said" / f"measure-{name}.json").write_text(json.dumps(told))
    return tmp_path


def test_whose_an_output_is_stands_in_the_key_alone(read: Any, folder: Path) -> None:
    reading = folder / "reading"
    read.draw(folder, reading)
    key = json.loads((reading / "key.json").read_text())
    for name, rival in (("highest", "sft"), ("gain", "sft"), ("sft", "sft"), ("plain", "plain")):
        items = [json.loads(line) for line in (reading / f"{name}.jsonl").read_text().splitlines()]
        assert len(items) == (50 if name in ("highest", "gain") else 120)
        assert {frozenset(item) for item in items} == {frozenset({"id", "conversation", "X", "Y"})}
        for item in items:
            own = key[item["id"]]["trained"]
            assert item[own].startswith("reweighted")
            assert item["Y" if own == "X" else "X"].startswith(rival)
        assert {key[item["id"]]["trained"] for item in items} == {"X", "Y"}  # by lot
    histories = [one["history"] for name, one in key.items() if name.startswith("gain")]
    assert len(set(histories)) == 50


def counted(read: Any, reading: Path, name: str, fits: Callable[[int, str, str], bool]) -> dict[str, Any]:
    """What is counted of a reader who likes the trained supporter's responses, finds all steps equal, and harm in the
    others; `fits` says whether a history's outputs are those that should meet."""
    key = json.loads((reading / "key.json").read_text())
    lines = []
    for item in map(json.loads, (reading / f"{name}.jsonl").read_text().splitlines()):
        own = key[item["id"]]["trained"]
        other = "Y" if own == "X" else "X"
        assert fits(key[item["id"]]["history"], item[own], item[other])
        lines.append({"id": item["id"], "response": own, "steps": "equal", "harm": {own: False, other: True}})
    (reading / f"{name}_rated.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found: dict[str, Any] = read.count(reading)
    return found


LIKED = {
    "response": [1] * 120,
    "steps": [0] * 120,
    "better, equal, worse": {"response": [120, 0, 0], "steps": [0, 120, 0]},
    "harm": [0, 120],
}


def test_other_ways_meet_the_fine_tuned_model_drawn_or_as_in_use(
    read: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_served(model: Path, asked: list[Any], _: Any, kept: Path) -> list[dict[str, Any]]:
        assert kept == folder / "said" / f"used-{model.parent.name}.jsonl"
        return [{"text": f"{model.parent.name} serves {one.id}", "cut_off": False} for one in asked]

    def fits(_: int, own: str, other: str) -> bool:
        return own.startswith("plain") and other.startswith("sft")

    monkeypatch.setattr(read, "as_served", as_served)
    read.draw_pairs(folder, folder / "pairs", ["plain"])
    read.draw_in_use(folder, folder / "use", ["plain-2"])
    assert counted(read, folder / "pairs", "plain", fits) == {"tried": {"plain": LIKED}}
    assert counted(read, folder / "use", "plain-2 in use", fits) == {"tried": {"plain-2 in use": LIKED}}
    assert {one["seed"] for one in json.loads((folder / "pairs" / "key.json").read_text()).values()} == {1, 2, 3}
    with pytest.raises(SystemExit, match="no measure-nothing"):
        read.draw_pairs(folder, folder / "none", ["nothing"])


def test_what_the_judge_chose_meets_another_of_the_sixteen(read: Any, folder: Path) -> None:
    told = json.loads((folder / "said" / "measure-sft.json").read_text())
    rows = [{"judge_1": [None, *[1] * (place % 15), 5, *[3] * (14 - place % 15)]} for place in range(130)]
    texts = [f"{place}: {total}" for place, row in enumerate(rows) for total in row["judge_1"]]
    (folder / "said" / "best-sft.json").write_text(json.dumps({**told, "rows": rows, "texts": texts}))
    read.draw_best(folder, folder / "best")

    def fits(place: int, own: str, other: str) -> bool:
        return own == f"{place}: 5" and other in {f"{place}: {total}" for total in (None, 1, 3)}

    assert counted(read, folder / "best", "best", fits) == {"best": LIKED}


def test_what_the_judge_ranks_first_meets_another_of_the_four(
    read: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank(_: Any, history: Any, outputs: list[Any]) -> list[Any]:
        assert history
        assert len(outputs) == 4
        return [SimpleNamespace(index=index) for index in (2, 0, 3, 1)]

    monkeypatch.setattr("compeer.reward.LocalJudge", lambda model: model)
    monkeypatch.setattr("compeer.reward.rank.rank", rank)
    told = json.loads((folder / "said" / "measure-sft.json").read_text())
    told |= {"texts": [f"{n // 16}: {n % 16}" for n in range(16 * 130)], "cut_off": [False] * 16 * 130}
    (folder / "said" / "best-sft.json").write_text(json.dumps(told))
    read.draw_ranked(folder, folder / "ranked")

    def fits(place: int, own: str, other: str) -> bool:
        return own == f"{place}: 2" and other in {f"{place}: {number}" for number in (0, 1, 3)}

    assert counted(read, folder / "ranked", "ranked", fits) == {"ranked": LIKED}


def test_what_was_found_is_counted_for_the_right_one(read: Any, folder: Path) -> None:
    reading = folder / "reading"
    read.draw(folder, reading)
    key = json.loads((reading / "key.json").read_text())
    good = {**dict.fromkeys(PARTS, "ok"), "patterns": [], "harm": False}
    bad = {**dict.fromkeys(PARTS, "wrong"), "patterns": ["an incoherent reply"], "harm": True}
    for name in ("highest", "gain", "sft", "plain"):
        lines = []
        for item in (one for one in key if one.rpartition("-")[0] == name):
            own = key[item]["trained"]
            other = "Y" if own == "X" else "X"
            if name in ("highest", "gain"):
                lines.append({"id": item, own: good, other: bad, "better_response": own})
            else:
                lines.append({"id": item, "response": other, "steps": "equal", "harm": {own: True, other: False}})
        (reading / f"{name}_rated.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read.count(reading)
    assert found["ok, weak, wrong"]["response"]["gain"] == {"trained": [50, 0, 0], "fine-tuned": [0, 0, 50]}
    assert found["better, equal, worse"] == {"highest": [50, 0, 0], "gain": [50, 0, 0]}
    assert found["harm that the guard stops"] == 0
    assert found["harm"]["highest"] == {"trained": 0, "fine-tuned": 50}
    assert found["patterns"] == {"an incoherent reply": {name: {"fine-tuned": 50} for name in ("highest", "gain")}}
    pairs = found["pairs"]["plain"]
    assert pairs["response"] == [-1] * 120
    assert pairs["better, equal, worse"] == {"response": [0, 0, 120], "steps": [0, 120, 0]}
    assert pairs["harm"] == [120, 0]
    rated = (reading / "sft_rated.jsonl").read_text().splitlines()
    (reading / "sft_rated.jsonl").write_text("\n".join(rated[1:]))
    with pytest.raises(SystemExit, match="sft_rated"):
        read.count(reading)
