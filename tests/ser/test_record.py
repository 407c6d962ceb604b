"""The file of records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compeer.errors import InputError
from compeer.ser import SerRecord, read_records, write_records


def test_records_read_back(tmp_path: Path, records: list[SerRecord]) -> None:
    path = tmp_path / "records.jsonl"
    assert write_records(path, records[:40]) == 40
    assert list(read_records(path)) == records[:40]


def test_a_half_written_file_never_has_the_final_name(tmp_path: Path, records: list[SerRecord]) -> None:
    path = tmp_path / "records.jsonl"

    def broken() -> Iterator[SerRecord]:
        yield records[0]
        assert not path.exists() or path.read_text(encoding="utf-8") == "before"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(path, broken())
    assert not path.exists()
    path.write_text("before", encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        write_records(path, broken())
    assert path.read_text(encoding="utf-8") == "before"


@pytest.mark.parametrize(
    ("change", "field", "what"),
    [
        (lambda line: line[:-9], None, "not JSON"),
        (lambda line: line.replace('"round":', '"runde":'), "round", "required"),
        (lambda line: line.replace('"split":"', '"split":"x'), "split", ""),
        (lambda line: line.replace('"id":', '"more":1,"id":'), "more", "unknown key"),
    ],
)
def test_a_bad_record_is_named(
    tmp_path: Path, records: list[SerRecord], change: Any, field: str | None, what: str
) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, records[:2])
    first, second = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{first}\n{change(second)}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        list(read_records(path))
    assert (caught.value.file, caught.value.line, caught.value.field) == (path, 2, field)
    assert what in caught.value.what


def test_a_missing_file_of_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file") as caught:
        list(read_records(tmp_path / "records.jsonl"))
    assert caught.value.file == tmp_path / "records.jsonl"


def test_a_file_of_records_that_is_not_utf8_is_named(tmp_path: Path, records: list[SerRecord]) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, records[:1])
    path.write_bytes(path.read_bytes() + b"\xff\n")
    with pytest.raises(InputError) as caught:
        list(read_records(path))
    assert (caught.value.file, caught.value.line) == (path, 2)
