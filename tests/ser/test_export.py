"""Parquet files hold every record as it was, in bounded memory, whole or not at all; `datasets` opens them offline."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compeer.dialogue import Media, Utterance
from compeer.errors import InputError
from compeer.reasoning import EMOTIONS, SENTIMENTS, STAGES, STRATEGIES
from compeer.ser import export
from compeer.ser.export import COLUMNS, export_records
from compeer.ser.record import SPLITS, SerRecord, write_records
from tests.support.parquet import records_from_parquet

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=20)
STEP = WORDS.map(lambda text: f"Tired of waiting: {text}")
MAYBE = st.none() | WORDS
SOURCE = st.sampled_from(["human", "llm", "silver"])


def step_labels() -> st.SearchStrategy[Any]:
    label = st.fixed_dictionaries(
        {"value": st.booleans(), "source": SOURCE, "how": WORDS, "kind": MAYBE, "reason": MAYBE}
    )
    return st.fixed_dictionaries({"history": label, "emotion": label, "strategy": label})


def utterances() -> st.SearchStrategy[Utterance]:
    seconds = st.none() | st.floats(0, 1e6)
    kinds = st.sampled_from(["image", "video", "audio"])
    media = st.builds(Media, kind=kinds, path=WORDS, start=seconds, end=seconds)
    return st.builds(
        Utterance,
        speaker=st.sampled_from(["seeker", "supporter"]),
        text=WORDS,
        media=st.lists(media, max_size=2).map(tuple),
    )


@st.composite
def records(draw: st.DrawFn) -> SerRecord:
    preference = st.fixed_dictionaries(
        {
            "value": st.sampled_from(["candidate", "reference", "both", "neither"]),
            "source": SOURCE,
            "how": WORDS,
            "reason": MAYBE,
        }
    )
    return SerRecord.model_validate(
        {
            "id": draw(WORDS),
            "dialogue": draw(WORDS),
            "round": draw(st.integers(1, 1000)),
            "language": draw(st.sampled_from(["en", "zh"])),
            "source": draw(WORDS),
            "split": draw(st.sampled_from(SPLITS)),
            "history": draw(st.lists(utterances(), max_size=3)),
            "candidate": {
                "history": {"text": draw(STEP), "stage": draw(st.sampled_from(STAGES))},
                "emotion": {
                    "text": draw(STEP),
                    "sentiment": draw(st.sampled_from(SENTIMENTS)),
                    "emotion": draw(st.sampled_from(EMOTIONS)),
                    "intensity": draw(st.integers(1, 5)),
                },
                "strategy": {"text": draw(STEP), "strategy": draw(st.sampled_from(STRATEGIES))},
                "response": draw(STEP),
            },
            "author": draw(WORDS),
            "response_strategy": draw(st.none() | st.sampled_from(STRATEGIES)),
            "reference": draw(WORDS),
            "labels": draw(st.none() | step_labels()),
            "preference": draw(st.none() | preference),
            "candidate_first": draw(st.booleans()),
            "derived": draw(st.lists(WORDS, max_size=2)),
            "rewritten": draw(st.sampled_from([None, "plain", "personality"])),
        }
    )


def plain(number: int = 0, **changes: Any) -> SerRecord:
    value = {
        "id": f"r{number}",
        "dialogue": f"d{number}",
        "round": 1,
        "language": "en",
        "source": "ours",
        "split": SPLITS[number % 3],
        "history": [{"speaker": "seeker", "text": "The lift is stuck again."}],
        "candidate": {
            "history": {"text": "Stuck, and late.", "stage": "exploration"},
            "emotion": {"text": "Fed up.", "sentiment": "negative", "emotion": "frustration", "intensity": 3},
            "strategy": {"text": "Ask.", "strategy": "Question"},
            "response": "How long have you been in there?",
        },
        "author": "corpus",
        "reference": "Press the bell.",
        "candidate_first": True,
        **changes,
    }
    return SerRecord.model_validate(value)


def sorted_by_id(found: Iterator[SerRecord]) -> list[SerRecord]:
    return sorted(found, key=lambda record: record.id)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(records(), min_size=1, max_size=6, unique_by=lambda record: record.id))
def test_what_was_exported_comes_back_equal(tmp_path_factory: pytest.TempPathFactory, given: list[SerRecord]) -> None:
    folder = tmp_path_factory.mktemp("export")
    write_records(folder / "records.jsonl", given)
    told = export_records(folder / "records.jsonl", folder / "out", "parquet")
    assert sorted_by_id(records_from_parquet(folder / "out")) == sorted_by_id(iter(given))
    assert told["records"] == {split: sum(record.split == split for record in given) for split in SPLITS}


def test_there_is_a_file_for_each_split_that_has_records(tmp_path: Path) -> None:
    write_records(tmp_path / "records.jsonl", [plain(0), plain(2), plain(3)])
    told = export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")
    assert sorted(told["files"]) == ["reward.parquet", "test.parquet"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", *sorted(told["files"])]
    assert [record.id for record in records_from_parquet(tmp_path / "out" / "reward.parquet")] == ["r0", "r3"]


def test_columns_are_flat_documented_and_compressed(tmp_path: Path) -> None:
    write_records(tmp_path / "records.jsonl", [plain()])
    export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")
    file = parquet.ParquetFile(tmp_path / "out" / "reward.parquet")
    schema = file.schema_arrow
    assert schema.names == list(COLUMNS)
    assert {field.name: field.metadata[b"description"].decode() for field in schema} == COLUMNS
    assert str(schema.field("history").type).startswith("list<element: struct<speaker: string, text: string, media:")
    assert {file.metadata.row_group(0).column(index).compression for index in range(3)} == {"ZSTD"}
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` | {what} |" in readme for name, what in COLUMNS.items())


def test_records_are_written_a_group_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "RECORDS_A_GROUP", 4)
    write_records(tmp_path / "records.jsonl", [plain(number) for number in range(30)])
    export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")
    metadata = parquet.ParquetFile(tmp_path / "out" / "reward.parquet").metadata
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [4, 4, 2]


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    write_records(tmp_path / "records.jsonl", [plain(number) for number in range(9)])
    told = [export_records(tmp_path / "records.jsonl", tmp_path / name, "parquet")["files"] for name in ("a", "b")]
    assert told[0] == told[1]


def test_datasets_opens_the_folder_offline(tmp_path: Path) -> None:
    from datasets import load_dataset

    given = [plain(number) for number in range(7)]
    write_records(tmp_path / "records.jsonl", given)
    (tmp_path / "card.md").write_text("---\nlicense: other\n---\n\n# Ours\n", encoding="utf-8")
    export_records(tmp_path / "records.jsonl", tmp_path / "out", "datasets")
    found = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {split: found[split].num_rows for split in found} == {"reward": 3, "policy": 2, "test": 2}
    row = found["policy"][0]
    assert (row["id"], row["strategy"], row["history_label"]) == ("r1", "Question", None)
    assert row["history"] == [{"speaker": "seeker", "text": "The lift is stuck again.", "media": []}]
    assert sorted_by_id(records_from_parquet(tmp_path / "out")) == given
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert readme.startswith("---\nconfigs:\n")
    assert "\nlicense: other\n---\n\n# Ours\n" in readme


def test_a_bad_record_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "RECORDS_A_GROUP", 1)
    write_records(tmp_path / "records.jsonl", [plain(0), plain(1)])
    with (tmp_path / "records.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "r2"}\n')
    with pytest.raises(InputError, match="line 3"):
        export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_what_was_left_by_a_kill_is_cleared_away(tmp_path: Path) -> None:
    write_records(tmp_path / "records.jsonl", [plain()])
    left = tmp_path / f"out.{os.getpid()}.unfinished"
    left.mkdir()
    (left / "test.parquet").write_text("half", encoding="utf-8")
    export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")
    assert not left.exists()
    assert not (tmp_path / "out" / "test.parquet").exists()


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    write_records(tmp_path / "records.jsonl", [plain()])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="there already"):
        export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")
    (tmp_path / "out" / "letter.txt").unlink()
    export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")  # an empty folder is as good as none


def test_no_records_no_folder_and_labels_in_a_history_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")
    write_records(tmp_path / "records.jsonl", [])
    with pytest.raises(InputError, match="no record"):
        export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")
    said = {"speaker": "seeker", "text": "Nobody answers the bell.", "emotion": "fear"}
    write_records(tmp_path / "records.jsonl", [plain(history=[said])])
    with pytest.raises(InputError, match="labels in its history") as caught:
        export_records(tmp_path / "records.jsonl", tmp_path / "out", "parquet")
    assert "bell" not in str(caught.value)
    with pytest.raises(InputError, match="no such folder"):
        export_records(tmp_path / "records.jsonl", tmp_path / "no" / "out", "parquet")
