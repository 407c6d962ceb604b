"""Disks that are full and power that fails: what was acknowledged stays, and what is half written is never read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from compeer import io
from compeer.annotate.backup import backup, restore, verify
from compeer.annotate.items import add_items
from compeer.annotate.store import Store, create_store
from compeer.chat.api import Keeper
from compeer.chat.turn import TurnDone, TurnRequest
from compeer.io import atomic_folder, read_json, write_json
from compeer.pipeline import Done, Stage
from compeer.safety.guard import GuardedTurn
from compeer.safety.risk import Risk
from tests.support.annotation import cheap_hashes_fixture, new_item, record, steps_project  # noqa: F401
from tests.support.scripted_writer import JOB
from tests.support.workbench import workbench


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, left: int = 0) -> Path:
    """Leaves so many bytes on a disk."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("wb") as file:
        file.write(bytes(max(0, free.f_bavail * free.f_frsize - left)))
    return ballast


# --- a full disk ------------------------------------------------------------------------------------------------------


def test_a_file_on_a_full_disk_stays_as_it_was(small_disk: Path) -> None:
    path = small_disk / "manifest.json"
    write_json(path, {"version": 1})
    fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"version": 2, "more": "x" * 10_000})
    assert read_json(path) == {"version": 1}
    assert sorted(one.name for one in small_disk.iterdir()) == ["ballast", "manifest.json"]


def test_a_model_folder_on_a_full_disk_is_not_there(small_disk: Path) -> None:
    fill(small_disk, left=100_000)

    def save() -> None:
        with atomic_folder(small_disk / "model") as folder:
            (folder / "compeer.json").write_text("{}", encoding="utf-8")
            (folder / "model.safetensors").write_bytes(bytes(500_000))

    with pytest.raises(OSError, match="No space left"):
        save()
    assert [one.name for one in small_disk.iterdir()] == ["ballast"]


def units(count: int) -> list[Done]:
    return [Done(lines=[f'{{"unit": {number}, "text": "{"x" * 2000}"}}']) for number in range(count)]


def test_a_stage_on_a_full_disk_goes_on_to_the_same_bytes(small_disk: Path, tmp_path: Path) -> None:
    def build(out: Path) -> dict[str, Any]:
        with Stage(out, {"seed": 0}, {"input": "words"}) as stage:
            for done in units(40)[stage.units :]:
                stage.add(done)
            return stage.finish()

    whole = build(tmp_path / "records.jsonl")
    ballast = fill(small_disk, left=30_000)
    out = small_disk / "records.jsonl"
    with pytest.raises(OSError, match="No space left"):
        build(out)
    assert not out.exists(), "half a file never has the final name"
    ballast.unlink()
    assert build(out) == whole
    assert out.read_bytes() == (tmp_path / "records.jsonl").read_bytes()


def test_a_conversation_on_a_full_disk_is_answered_and_the_next_is_kept(small_disk: Path) -> None:
    keeper = Keeper(small_disk / "kept")
    done = TurnDone(None, "What worries you most?", GuardedTurn("What worries you most?", Risk("none")))
    keeper.keep("first", TurnRequest(JOB), done)
    ballast = fill(small_disk)
    kept = 0
    with suppress(OSError):
        while True:
            keeper.keep(f"more {kept}", TurnRequest(JOB), done)
            kept += 1
    ballast.unlink()
    keeper.keep("last", TurnRequest(JOB), done)
    (file,) = (small_disk / "kept").iterdir()
    found = [json.loads(line)["id"] for line in file.read_text(encoding="utf-8").splitlines()]
    assert found == ["first", *(f"more {number}" for number in range(kept)), "last"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = create_store(str(tmp_path / "labels.sqlite"))
    yield made
    made.close()


def test_a_label_store_on_a_full_disk_refuses_and_loses_nothing(store: Store) -> None:
    """SQLite reports a full disk for a file that may not grow, as it does for a disk without room."""
    project = steps_project(store)
    add_items(store, project, [new_item(record(number)) for number in range(1, 30)])
    with workbench(store) as bench:
        ann = bench.someone("Ann")
        answers = {"history": True, "emotion": True, "strategy": False, "preference": "both"}

        def label() -> int:
            answer = ann("POST", "/next", {})
            if answer.is_success:
                item = answer.json()["task"]["item"]
                answer = ann("PUT", f"/items/{item}/labels", {"answers": answers, "seconds": 20})
            return answer.status_code

        assert label() == 200

        @event.listens_for(store.engine, "begin")
        def no_room(connection: Any) -> None:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

        given = 1
        for _ in range(40):
            status = label()
            if status != 200:
                break
            given += 1
        assert status == 503, "a full disk is told as one, and no label is acknowledged"
        event.remove(store.engine, "begin", no_room)

        @event.listens_for(store.engine, "begin")
        def room(connection: Any) -> None:
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")

        assert label() == 200
        event.remove(store.engine, "begin", room)
    assert verify(store).problems == ()
    with store.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM labels").scalar() == given + 1


# --- a loss of power --------------------------------------------------------------------------------------------------


class Disk:
    """Notes what the disk is asked for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self._names: dict[int, str] = {}
        opened, synced, replaced, renamed = os.open, os.fsync, os.replace, Path.rename

        def open_(path: Any, *more: Any, **rest: Any) -> int:
            descriptor = opened(path, *more, **rest)
            self._names[descriptor] = str(path)
            return descriptor

        def fsync(descriptor: int) -> None:
            self.calls.append(("sync", self._names[descriptor]))
            synced(descriptor)

        def replace(source: Any, target: Any) -> None:
            self.calls.append(("rename", str(target)))
            replaced(source, target)

        def rename(source: Path, target: Any) -> Path:
            self.calls.append(("rename", str(target)))
            return renamed(source, target)

        monkeypatch.setattr(io.os, "open", open_)
        monkeypatch.setattr(io.os, "fsync", fsync)
        monkeypatch.setattr(io.os, "replace", replace)
        monkeypatch.setattr(Path, "rename", rename)


def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    write_json(tmp_path / "manifest.json", {"a": 1})
    (first, name), *rest = disk.calls
    assert first == "sync"
    assert name.endswith(".unfinished")
    assert rest == [("rename", str(tmp_path / "manifest.json")), ("sync", str(tmp_path))]


def test_all_files_of_a_folder_are_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "tokenizer").mkdir()
        for name in ("config.json", "tokenizer/vocab.json"):
            (folder / name).write_text("{}", encoding="utf-8")
    kinds = [kind for kind, _ in disk.calls]
    assert kinds == ["sync"] * 3 + ["rename", "sync"]
    assert {Path(name).name for _, name in disk.calls[:3]} == {"tokenizer", "config.json", "vocab.json"}
    assert disk.calls[-1] == ("sync", str(tmp_path))


@pytest.mark.parametrize("step", ["sync", "rename"])
def test_power_lost_before_the_name_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "manifest.json"
    write_json(path, {"version": 1})

    class Power(BaseException):
        """It is dark."""

    def lost(*_: Any) -> None:
        raise Power

    monkeypatch.setattr(io.os, "fsync" if step == "sync" else "replace", lost)
    with pytest.raises(Power):
        write_json(path, {"version": 2})
    assert read_json(path) == {"version": 1}


def test_a_stage_whose_manifest_is_lost_is_done_again(tmp_path: Path) -> None:
    """The manifest is written last: power lost before it leaves files without one, which count as nothing."""
    out = tmp_path / "records.jsonl"
    stage = Stage(out, {"seed": 0}, {"input": "words"})
    with stage:
        for done in units(3):
            stage.add(done)
        stage.finish()
    assert stage.finished() is not None
    manifest = out.with_name("records.jsonl.manifest.json")
    for broken in (b"", b"{", b"null", b"\x00" * 512):
        manifest.write_bytes(broken)
        assert Stage(out, {"seed": 0}, {"input": "words"}).finished() is None


# --- a process that is killed -----------------------------------------------------------------------------------------

BACKUP = """
import sys
from pathlib import Path
from compeer.annotate.backup import backup
from compeer.annotate.store import open_store

backup(open_store(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_backup_killed_half_way_leaves_no_file_of_that_name(store: Store, tmp_path: Path) -> None:
    project = steps_project(store)
    add_items(store, project, [new_item(record(number)) for number in range(1, 400)])
    copy = tmp_path / "copy.backup"
    command = [sys.executable, "-c", BACKUP, str(tmp_path / "labels.sqlite"), str(copy)]
    with subprocess.Popen(command) as worker:
        while not list(tmp_path.glob("copy.backup*")) and worker.poll() is None:
            time.sleep(0.001)
        worker.kill()
    assert not copy.exists(), "only a whole copy has the name"
    assert verify(store).problems == ()
    whole = backup(store, copy)
    assert verify(restore(copy, str(tmp_path / "again.sqlite"))) == whole
