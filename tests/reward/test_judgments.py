"""Files of judgments: they belong to the records that were judged, and hold probabilities."""

import json
from pathlib import Path
from typing import Any

import pytest

from compeer.dialogue import Utterance
from compeer.errors import InputError
from compeer.reward.judgments import read_judgments, write_judgments
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import SerRecord
from tests.support.judged_records import record, said, turn

OTHERS: dict[str, dict[str, Any]] = {
    "history": {"history": (Utterance(speaker="seeker", text="they kept me"),)},
    "speaker": {"history": (Utterance(speaker="supporter", text="they let me go"),)},
    "candidate": {"candidate": turn(response="Go on.")},
    "reference": {"reference": "What then?"},
    "order": {"candidate_first": False},
}


def written(folder: Path, records: list[SerRecord], judgments: list[Judgment | Unscored]) -> Path:
    path = folder / "judgments.jsonl"
    write_judgments(path, records, judgments)
    return path


@pytest.mark.parametrize("judgment", [said(), Unscored("away")], ids=["judged", "unscored"])
@pytest.mark.parametrize("what", OTHERS)
def test_judgments_of_other_records_are_refused(tmp_path: Path, what: str, judgment: Judgment | Unscored) -> None:
    path = written(tmp_path, [record(0), record(1)], [said(), judgment])
    changed = record(1).model_copy(update=OTHERS[what])
    with pytest.raises(InputError) as caught:
        read_judgments(path, [record(0), changed])
    error = caught.value
    assert (error.file, error.line, error.field) == (path, 2, "shown")
    assert "record 'r1'" in error.what
    assert error.do is not None
    assert "compeer reward judge" in error.do
    assert read_judgments(path, [record(0)]) == [said()], "who does not ask for the record is not bothered"


def test_labels_may_be_corrected_later(tmp_path: Path) -> None:
    path = written(tmp_path, [record(0)], [said()])
    corrected = record(0, false=("history", "emotion"), preferred="neither", source="llm", kind="stage")
    assert read_judgments(path, [corrected]) == [said()]
    assert read_judgments(path, [record(0, preferred=None)]) == [said()]


def test_older_files_are_still_read(tmp_path: Path) -> None:
    path = written(tmp_path, [record(0), record(1)], [said(), Unscored("away")])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [sorted(line) for line in lines] == [["id", "judgment", "shown"], ["id", "shown", "unscored"]]
    assert len({line.pop("shown") for line in lines}) == 1, "both records show the same"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert read_judgments(path, [record(0), record(1)]) == [said(), Unscored("away")]


@pytest.mark.parametrize(
    ("judgment", "field"),
    [
        ('{"steps": {"history": 7.0}}', "judgment.steps.history"),
        ('{"steps": {"history": 0.5, "emotion": -0.01}}', "judgment.steps.emotion"),
        ('{"steps": {"history": NaN}}', "judgment.steps.history"),
        ('{"steps": {}, "response": {"both": Infinity}}', "judgment.response.both"),
        ('{"steps": {}, "orders": {"candidate first": {"both": 1.1}}}', "judgment.orders.candidate first.both"),
        ('{"steps": {}, "looks": [{"both": 1.0}, {"both": 2}]}', "judgment.looks.1.both"),
        ('{"steps": {}, "carried": 1.5}', "judgment.carried"),
        ('{"steps": {}, "threshold": 50}', "judgment.threshold"),
    ],
)
def test_what_is_no_probability_is_refused(tmp_path: Path, judgment: str, field: str) -> None:
    path = tmp_path / "judgments.jsonl"
    path.write_text(
        '{"id": "r9", "unscored": "away"}\n' + f'{{"id": "r0", "judgment": {judgment}}}\n', encoding="utf-8"
    )
    with pytest.raises(InputError, match="Input should be") as caught:
        read_judgments(path, [record(0)])
    assert (caught.value.file, caught.value.line, caught.value.field) == (path, 2, field)


def test_a_sum_of_probabilities_may_be_a_little_more_than_one(tmp_path: Path) -> None:
    """The verdict on a copied reference adds up numbers of single precision."""
    judgment = Judgment({"history": 1.0}, {"both": 1.0000001, "neither": 0.0})
    assert read_judgments(written(tmp_path, [record(0)], [judgment]), [record(0)]) == [judgment]
