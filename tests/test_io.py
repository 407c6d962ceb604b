"""Files written whole or not at all, JSON lines read into models, and locks."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.errors import InputError
from compeer.io import (
    Frozen,
    atomic,
    atomic_folder,
    loaded_once,
    only_one,
    read_json,
    read_lines,
    value_hash,
    write_json,
    write_lines,
)


class Point(Frozen):
    x: int
    label: str = ""


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), atomic(path) as unfinished:
        unfinished.write_text(f"half {1 // 0}")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with atomic(path) as unfinished:
        unfinished.write_text("after")
    assert path.read_text() == "after"


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "model") as unfinished:
        (unfinished / "weights").write_text(f"half {1 // 0}")
    assert not list(tmp_path.iterdir())
    with atomic_folder(tmp_path / "model") as unfinished:
        (unfinished / "weights").write_text("all")
    with atomic_folder(tmp_path / "model") as unfinished:
        (unfinished / "weights").write_text("too late")
    assert (tmp_path / "model" / "weights").read_text() == "all"


def test_lines_that_end_early_leave_nothing(tmp_path: Path) -> None:
    def values() -> object:
        yield Point(x=1)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_lines(tmp_path / "points.jsonl", values())  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@given(st.lists(st.builds(Point, x=st.integers(), label=st.text().filter(lambda t: t.isprintable()))))
def test_lines_are_read_as_written(tmp_path_factory: pytest.TempPathFactory, points: list[Point]) -> None:
    path = tmp_path_factory.mktemp("lines") / "points.jsonl"
    assert write_lines(path, points) == len(points)
    assert list(read_lines(path, Point)) == points


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"x": "no"}', "line 2, field 'x'"),
        ('{"x": 1, "y": 2}', "unknown key"),
        ("{", "this is not JSON"),
        ('{"x": "\\ud800"}', "line 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "points.jsonl"
    path.write_text(f'{{"x": 1}}\n{line}\n', encoding="utf-8")
    with pytest.raises(InputError, match=complaint):
        list(read_lines(path, Point))


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_bytes(b'{"x": 1}\n{"x": 2, "label": "\xff"}\n')
    with pytest.raises(InputError, match="not UTF-8"):
        list(read_lines(path, Point))


@pytest.mark.parametrize("name", ["", "missing/points.jsonl"])
def test_where_nothing_can_be_written_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"(?i)give"):
        write_lines(tmp_path / name, [])


def test_json_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert read_json(path) is None
    path.write_text("{")
    assert read_json(path) is None
    write_json(path, {"é": [1, None]})
    assert read_json(path) == {"é": [1, None]}


def test_the_order_of_keys_does_not_change_a_hash() -> None:
    assert value_hash({"a": 1, "b": 2}) == value_hash({"b": 2, "a": 1}) != value_hash({"a": 2, "b": 1})


def test_a_second_process_does_not_get_the_lock(tmp_path: Path) -> None:
    lock = f"only_one(Path({json.dumps(str(tmp_path))}))"
    code = f"from pathlib import Path; from compeer.io import only_one\nwith {lock}: pass"
    with only_one(tmp_path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode
    assert "another run is at work" in done.stderr
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_threads_that_ask_together_load_once() -> None:
    began, loads = threading.Barrier(8), []

    @loaded_once
    def load() -> object:
        loads.append(1)
        time.sleep(0.05)
        return object()

    def ask(_: int) -> object:
        began.wait()
        return load()

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(ask, range(8)))
    assert len(found) == len(loads) == 1
