"""One stage of a pipeline: files in, files out, in units that many workers can do and that resume after a stop.

A stage goes through its input in *units* (a block of lines, a batch of questions), whose order and contents depend on
the input alone. What they give is written in that order, so the number of workers changes nothing, and a stage that was
stopped anywhere goes on after the last unit that was written whole:

    records.jsonl.unfinished    what has been written so far
    records.jsonl.progress      the stage's fingerprint, then a line a unit: where each file stood, and the counts
    records.jsonl               takes its name when everything is there
    records.jsonl.manifest.json the fingerprint, what was read, the counts, the files' hashes; written last

A stage whose manifest matches its settings and inputs is not done again. Whoever writes it holds its progress locked.
"""

import asyncio
import fcntl
import json
import multiprocessing
import os
import platform
import shutil
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar

from compeer import __version__
from compeer.errors import InputError
from compeer.io import check_writable, file_hash, read_json, value_hash, write_json
from compeer.progress import console

T = TypeVar("T")
Counts = dict[str, Counter[str]]


@dataclass(frozen=True)
class Done:
    """What one unit gave: lines for the main file, lines for files beside it, and counts by group and name."""

    lines: Sequence[str] = ()
    beside: Mapping[str, Sequence[str]] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Stage:
    """The files of one stage, written unit by unit; see the module's text. Use it as a context."""

    def __init__(
        self, out: Path, settings: Mapping[str, Any], inputs: Mapping[str, Path | str], beside: Sequence[str] = ()
    ) -> None:
        """`inputs` are files, hashed by what they hold, or words that say what went in; `beside` names more files."""
        self.out = check_writable(out)
        for value in inputs.values():
            if isinstance(value, Path) and not value.is_file():
                raise InputError("there is no such file.", file=value, do="Give the file that an earlier stage wrote.")
        self._files = {"": out, **{name: out.with_name(name) for name in beside}}
        hashes = {name: file_hash(value) if isinstance(value, Path) else value for name, value in inputs.items()}
        wanted = {"settings": dict(settings), "inputs": hashes, "compeer": __version__}
        self._wanted: dict[str, Any] = json.loads(json.dumps(wanted, sort_keys=True, default=str))
        self._progress = out.with_name(out.name + ".progress")
        self._manifest = out.with_name(out.name + ".manifest.json")
        self.units = 0
        self.counts: Counts = {}

    def finished(self) -> dict[str, Any] | None:
        """The manifest of what lies there, if it is what this stage would write, whole and without failures."""
        found = read_manifest(self.out)
        if found is None or any(found.get(key) != value for key, value in self._wanted.items()) or found.get("failed"):
            return None
        files = {self.out.with_name(name): entry for name, entry in found["files"].items()}
        return found if all(path.is_file() and _entry(path) == entry for path, entry in files.items()) else None

    def __enter__(self) -> Self:
        self._marks = self._claimed()
        sizes = self._last_whole()
        mode = "r+b" if self.units else "wb"
        self._open = {name: self._unfinished(name).open(mode) for name in self._files}
        for name, file in self._open.items():
            file.truncate(sizes[name])
            file.seek(sizes[name])
        if not self.units:
            self._marks.truncate(0)
            self._marks.write(json.dumps(self._wanted) + "\n")
        return self

    def __exit__(self, *_: object) -> None:
        for file in (*self._open.values(), self._marks):
            file.close()

    def add(self, done: Done) -> None:
        """Writes one unit's lines; from here on the unit counts as done."""
        for name, lines in {"": done.lines, **done.beside}.items():
            self._open[name].write("".join(line + "\n" for line in lines).encode())
        for file in self._open.values():
            file.flush()
        _merge(self.counts, done.counts)
        self.units += 1
        mark = {"units": self.units, "at": {name: file.tell() for name, file in self._open.items()}}
        self._marks.write(json.dumps({**mark, "counts": done.counts}) + "\n")
        self._marks.flush()

    def finish(self, **more: Any) -> dict[str, Any]:
        """Gives the files their names and writes the manifest, with `more` in it."""
        for file in self._open.values():
            file.close()
        self._manifest.unlink(missing_ok=True)
        for name, path in self._files.items():
            os.replace(self._unfinished(name), path)
        manifest = {
            **self._wanted,
            "counts": {group: dict(sorted(names.items())) for group, names in sorted(self.counts.items())},
            **more,
            "files": {path.name: _entry(path) for path in self._files.values()},
        }
        write_json(self._manifest, manifest)
        self._progress.unlink()
        self._marks.close()
        return manifest

    def _claimed(self) -> TextIO:
        """The file of progress, locked, so that nobody else writes this stage's files meanwhile."""
        while True:
            marks = self._progress.open("a", encoding="utf-8")
            try:
                fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                marks.close()
                do = "Wait for it, or stop it."
                raise InputError("another run is writing this file.", file=self.out, do=do) from None
            with suppress(FileNotFoundError):  # whoever had it has just finished
                if os.path.samestat(os.fstat(marks.fileno()), self._progress.stat()):
                    return marks
            marks.close()

    def _unfinished(self, name: str) -> Path:
        path = self._files[name]
        return path.with_name(path.name + ".unfinished")

    def _last_whole(self) -> dict[str, int]:
        """Where each file stood after the last whole unit; takes up that unit's number and counts."""
        start = dict.fromkeys(self._files, 0)
        try:
            lines = self._progress.read_text(encoding="utf-8").split("\n")[:-1]  # the last one ends in a line break
            marks = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return start
        if not marks or marks[0] != self._wanted:
            return start
        sizes = start
        for mark in marks[1:]:
            self.units, sizes = mark["units"], mark["at"]
            _merge(self.counts, mark["counts"])
        for name in self._files:
            path = self._unfinished(name)
            if sizes.keys() != start.keys() or not path.is_file() or path.stat().st_size < sizes[name]:
                self.units, self.counts = 0, {}
                return start
        with self._progress.open("r+", encoding="utf-8") as file:  # a mark cut short is dropped
            file.truncate(len(("\n".join(lines) + "\n").encode()))
        return sizes


def _merge(counts: Counts, more: Mapping[str, Mapping[str, int]]) -> None:
    for group, names in more.items():
        counts.setdefault(group, Counter()).update(names)


def read_manifest(out: Path) -> dict[str, Any] | None:
    """The manifest beside a stage's main file, or None."""
    found = read_json(out.with_name(out.name + ".manifest.json"))
    return found if found is not None and "files" in found else None


def _entry(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": file_hash(path)}


def _whole(manifest: dict[str, Any], folder: Path) -> bool:
    """Whether all of a manifest's files are there, as long as they were."""
    files = {folder / name: entry for name, entry in manifest["files"].items()}
    return all(path.is_file() and path.stat().st_size == entry["bytes"] for path, entry in files.items())


def in_blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


def work_through(stage: Stage, units: Iterable[T], work: Callable[[T], Done], workers: int = 1) -> None:
    """Does the units that are left, writes what they give in order; for other processes `work` must be picklable."""
    left = islice(units, stage.units, None)
    if workers <= 1:
        for unit in left:
            stage.add(work(unit))
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: deque[Future[Done]] = deque()
        try:
            for unit in left:
                waiting.append(pool.submit(work, unit))
                if len(waiting) > 2 * workers:
                    stage.add(waiting.popleft().result())
            while waiting:
                stage.add(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()


async def ask_through(stage: Stage, units: Iterable[T], work: Callable[[T], Awaitable[Done]], at_once: int) -> None:
    """Like `work_through` for units that wait for a model: up to `at_once` are under way, written in their order."""
    waiting: deque[asyncio.Future[Done]] = deque()
    try:
        for unit in islice(units, stage.units, None):
            waiting.append(asyncio.ensure_future(work(unit)))
            if len(waiting) >= at_once:
                stage.add(await waiting.popleft())
        while waiting:
            stage.add(await waiting.popleft())
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


MANIFEST, STATE = "manifest.json", "state.json"
_NOT_OUTPUT = ("checkpoints", "tensorboard", "times.jsonl", MANIFEST, STATE)


@dataclass(frozen=True)
class FolderStage:
    """One stage of a run: what it depends on, and what it does in its folder. Its work returns metrics."""

    name: str
    title: str
    settings: Mapping[str, Any]
    work: Callable[[Path], dict[str, Any]]
    after: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)  # hashes of what it reads from outside the run


def run_stage(stage: FolderStage, folder: Path, seed: int, done: Mapping[str, str], versions: Sequence[str]) -> str:
    """Does a stage unless it is done; returns the hash of its manifest, which later stages depend on.

    It ends by writing `manifest.json`; one whose manifest matches is skipped. One that was stopped goes on from what it
    had, unless settings or inputs have changed. A finished stage of other settings is kept under `before/`, until then.
    """
    wanted = {
        "stage": stage.name,
        "seed": seed,
        "settings": dict(stage.settings),
        "inputs": {**stage.inputs, **{name: done[name] for name in stage.after}},
        "versions": {"compeer": __version__, **{name: version(name) for name in versions}},
    }
    fingerprint = value_hash(wanted)
    if not _is_done(folder, fingerprint):
        _set_aside(folder)
        if _is_done(before := _aside(folder, fingerprint), fingerprint):
            shutil.rmtree(folder, ignore_errors=True)
            before.rename(folder)
    if _is_done(folder, fingerprint):
        console.print(f"[green]✓[/] {stage.title}: done before", highlight=False)
        return _comparable_hash(read_json(folder / MANIFEST) or {})
    state = read_json(folder / STATE)
    if folder.exists() and (state is None or state.get("fingerprint") != fingerprint):
        shutil.rmtree(folder)
    elif folder.exists():
        console.print(f"[yellow]↻[/] {stage.title}: going on from where it was stopped", highlight=False)
    folder.mkdir(exist_ok=True)
    write_json(folder / STATE, {"fingerprint": fingerprint})
    console.print(f"[bold]→[/] {stage.title}", highlight=False)
    start = time.monotonic()
    metrics = stage.work(folder)
    seconds = time.monotonic() - start
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    manifest = {
        **wanted,
        "fingerprint": fingerprint,
        "figures": metrics,
        "files": _outputs(folder),
        "machine": {"platform": platform.machine(), "python": platform.python_version()},
        "times": {"seconds": round(seconds, 1), "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z")},
    }
    write_json(folder / MANIFEST, manifest)
    duration = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
    console.print(f"[green]✓[/] {stage.title}: {duration}", highlight=False)
    return _comparable_hash(manifest)


def _is_done(folder: Path, fingerprint: str) -> bool:
    """Whether the stage that the fingerprint describes lies whole in the folder."""
    manifest = read_json(folder / MANIFEST)
    return manifest is not None and manifest.get("fingerprint") == fingerprint and _whole(manifest, folder)


def _set_aside(folder: Path) -> None:
    """Keeps a finished stage of other settings under `before/`: it cost time, and may be wanted again."""
    manifest = read_json(folder / MANIFEST)
    if manifest is None:
        return
    if not _whole(manifest, folder):
        shutil.rmtree(folder)
        return
    aside = _aside(folder, manifest["fingerprint"])
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(exist_ok=True)
    folder.rename(aside)
    console.print(f"[yellow]•[/] {folder.name} was done with other settings: kept as {aside}", highlight=False)


def _aside(folder: Path, fingerprint: str) -> Path:
    return folder.parent / "before" / f"{folder.name}-{fingerprint[:8]}"


def _comparable_hash(manifest: dict[str, Any]) -> str:
    """The hash of a manifest without what differs between two equal runs."""
    return value_hash({key: value for key, value in manifest.items() if key != "times"})


def _outputs(folder: Path) -> dict[str, dict[str, Any]]:
    """What a manifest says of the files that a stage has left in its folder."""
    tops = [path for path in folder.iterdir() if path.name not in _NOT_OUTPUT and path.suffix != ".unfinished"]
    paths = sorted(path for top in tops for path in (top, *top.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): _entry(path) for path in paths}
