"""A whole build: its summary, its bytes, and what happens when it is stopped."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from compeer.errors import InputError
from compeer.ser import SerRecord, SerSettings, build_ser, read_records
from compeer.ser.build import BuildSettings, build_records
from tests.support.contexts import SEED


def test_the_summary_counts_what_was_made(built: tuple[Path, dict[str, Any]], records: list[SerRecord]) -> None:
    _, summary = built
    assert summary["records"] == len(records)
    assert summary["histories"] == sum(record.author == "corpus" for record in records) > 250
    assert summary["records_by_split"] == dict(Counter(record.split for record in records))
    assert summary["dropped"]["badly rated reply"] > 0
    assert summary["dropped"]["dialogue did not help"] > 0
    assert summary["dropped"]["language not wanted"] == 12
    assert len({record.id for record in records}) == len(records)


def test_the_same_seed_gives_the_same_bytes(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    for seed, same in ((SEED, True), (SEED + 1, False)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        build_ser(SerSettings(embedder="words"), folder, seed)
        assert ((folder / "records.jsonl").read_bytes() == built[0].read_bytes()) == same


def test_languages_are_chosen(tmp_path: Path, records: list[SerRecord]) -> None:
    assert {record.language for record in records} == {"en"}
    chinese = SerSettings(languages=("zh",), shares=(0.4, 0.3, 0.3), embedder="words")
    build_ser(chinese, tmp_path, SEED)
    made = list(read_records(tmp_path / "records.jsonl"))
    assert {record.language for record in made} == {"zh"}
    with pytest.raises(InputError, match="no record for the reward split"):
        build_ser(SerSettings(languages=("fr",), embedder="words"), tmp_path, SEED)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_build_gives_the_same_bytes_with_any_number_of_workers(
    built: tuple[Path, dict[str, Any]], tmp_path: Path, workers: int
) -> None:
    settings = BuildSettings(embedder="words")
    build_records(["sample"], tmp_path, settings, SEED, workers=workers)
    assert files_of(tmp_path) == files_of(built[0].parent)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


STAGES_OF_A_BUILD = ("screened.jsonl", "splits.jsonl", "contexts.jsonl", "records.jsonl")


KILLED = """
import os, signal, sys, traceback
from pathlib import Path

import compeer.pipeline
import compeer.ser.sampling, compeer.ser.screen, compeer.ser.silver, compeer.ser.split
from compeer.ser.build import BuildSettings, build_records

folder, seed, *stages = sys.argv[1:]
compeer.ser.sampling.DIALOGUES_A_UNIT = compeer.ser.screen.DIALOGUES_A_UNIT = 10
compeer.ser.silver.BLOCK = 60
add = compeer.pipeline.Stage.add


def dying_in(stage):
    def dying(self, done):
        add(self, done)
        if self.out.name == stage and self.units == (1 if stage == "splits.jsonl" else 2):
            self._open[""].write(b'{"half a li')
            self._open[""].flush()
            os.kill(os.getpid(), signal.SIGKILL)
    return dying


def build(place, stage=None):
    child = os.fork()  # what it loaded is there already
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if stage:
        compeer.pipeline.Stage.add = dying_in(stage)
    try:
        build_records(["sample"], place, BuildSettings(embedder="words"), int(seed))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


for stage in stages:
    place = Path(folder) / stage
    place.mkdir()
    print(stage, build(place, stage) == -signal.SIGKILL, (place / f"{stage}.unfinished").exists(), build(place))
(Path(folder) / "whole").mkdir()
print("whole", build(Path(folder) / "whole"))
"""
"""For each stage a process that is killed when the stage has written some of its lines, and one that goes on."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of builds by the stage in which they were killed; "whole" was not."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", KILLED, str(folder), str(SEED), *STAGES_OF_A_BUILD]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [f"{stage} True True 0" for stage in STAGES_OF_A_BUILD]
    assert [line for line in done.stdout.splitlines() if line] == [*told, "whole 0"], done.stderr
    return folder


@pytest.mark.parametrize("stage", STAGES_OF_A_BUILD)
def test_a_build_killed_in_any_stage_goes_on_to_the_same_bytes(killed: Path, stage: str) -> None:
    assert set(files_of(killed / "whole")) > set(STAGES_OF_A_BUILD)
    assert files_of(killed / stage) == files_of(killed / "whole")


def test_a_stage_is_done_again_when_its_settings_change_and_not_otherwise(tmp_path: Path) -> None:
    build_records(["sample"], tmp_path, BuildSettings(embedder="words"), SEED)
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    build_records(["sample"], tmp_path, BuildSettings(embedder="words"), SEED)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    build_records(["sample"], tmp_path, BuildSettings(embedder="words", false_share=0.4), SEED)
    changed = {path.name for path in tmp_path.iterdir() if path.stat().st_mtime_ns != times[path.name]}
    assert changed == {"records.jsonl", "records.jsonl.manifest.json"}


def test_a_file_that_was_tampered_with_is_made_again(tmp_path: Path) -> None:
    build_records(["sample"], tmp_path, BuildSettings(embedder="words"), SEED)
    path = tmp_path / "contexts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + b" " * 99 + b"\n")
    build_records(["sample"], tmp_path, BuildSettings(embedder="words"), SEED)
    assert path.read_bytes() == whole


def test_building_leaves_the_number_of_threads_as_it_was(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        build_ser(SerSettings(rounds=1), tmp_path, SEED)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
