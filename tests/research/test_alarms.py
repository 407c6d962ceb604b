"""Tables of alarms that a person has read: what was filled in is counted, and a spoilt table is an error."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from research.guard.alarms import read_alarms
from research.guard.raise_alarms import Alarm, write_alarms

from compeer.errors import InputError
from compeer.safety.risk import Level, Risk, Trigger
from compeer.statistics import Estimate


def alarm(dialogue: str, utterance: int, level: Level, *rules: str, text: str = "") -> Alarm:
    return Alarm(dialogue, utterance, Risk(level, tuple(Trigger("suicide", level, rule, 0) for rule in rules)), text)


def count(estimate: Estimate) -> tuple[int, int]:
    """How many of how many."""
    return round((estimate.value or 0) * estimate.n), estimate.n


def test_alarms_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "alarms.csv"
    alarms = [alarm("d1", 1, "crisis", "danger"), alarm("d1", 3, "crisis", "gloom", "danger")]
    write_alarms(path, [*alarms, alarm("d2", 1, "concern", "gloom")], 4, texts=False)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, true in zip(rows, ("yes", "No ", ""), strict=True):
        row["true"] = true
    _write(path, rows)
    read = read_alarms(path)
    assert (read.alarms, read.true_alarms, read.unread) == (3, 1, 1)
    assert count(read.false_alarms) == (2, 4)
    assert {level: count(share)[0] for level, share in read.levels.items()} == {"concern": 1, "crisis": 1}
    assert read.false_by_rule == {"suicide: gloom": 1, "suicide: danger": 1}


def _write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


ROW = {"dialogue": "d", "utterance": "1", "level": "crisis", "by": "suicide: x", "utterances": "9", "true": "yes"}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([ROW, ROW | {"true": "perhaps"}], "line 3, field 'true'"),
        ([ROW, ROW | {"level": "high"}], "line 3, field 'level'"),
        ([ROW, ROW | {"utterances": "many"}], "line 3, field 'utterances'"),
        ([ROW, ROW | {"utterances": "10"}], "do not agree"),
        ([ROW] * 10, "do not agree"),
        ([{"dialogue": "d", "true": "yes"}], "no column utterance, level"),
    ],
)
def test_a_table_that_was_spoilt_is_told(tmp_path: Path, rows: list[dict[str, str]], expected: str) -> None:
    _write(tmp_path / "alarms.csv", rows)
    with pytest.raises(InputError, match=expected):
        read_alarms(tmp_path / "alarms.csv")


def test_a_table_without_alarms_or_that_is_no_text_is_told(tmp_path: Path) -> None:
    write_alarms(tmp_path / "none.csv", [], 7, texts=True)
    with pytest.raises(InputError, match="no alarm"):
        read_alarms(tmp_path / "none.csv")
    (tmp_path / "sheet.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="UTF-8"):
        read_alarms(tmp_path / "sheet.csv")


@given(st.lists(st.tuples(st.text(min_size=1), st.sampled_from(["yes", "no", ""])), min_size=1, max_size=8))
def test_no_text_spoils_the_table(tmp_path_factory: pytest.TempPathFactory, said: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("alarms") / "alarms.csv"
    risk = Risk("concern", (Trigger("abuse", "concern", "x", 0),))
    written = [text.encode("utf-8", "replace").decode("utf-8").replace("\0", "") for text, _ in said]
    write_alarms(path, [Alarm(text, 1, risk, text) for text in written], 8, texts=True)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == written
    for row, (_, true) in zip(rows, said, strict=True):
        row["true"] = true
    _write(path, rows)
    read = read_alarms(path)
    assert read.true_alarms == sum(true == "yes" for _, true in said)
    assert read.unread == sum(true == "" for _, true in said)
