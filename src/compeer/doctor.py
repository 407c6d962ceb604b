"""What this machine can do, line by line, and what to do where something is wrong."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

from compeer.engine.gguf import cache_folder
from compeer.io import file_hash
from compeer.models.catalogue import BASES, PACKAGED_FILES, is_verified

Verdict = Literal["good", "note", "wrong"]


@dataclass(frozen=True)
class DoctorFinding:
    """One line of the examination; `do` says what to do unless all is well."""

    what: str
    found: str
    verdict: Verdict = "good"
    do: str = ""


def examine(folder: Path) -> list[DoctorFinding]:
    """All findings; `folder` is where runs will be written. A check that fails is a finding, not an error."""
    found: list[DoctorFinding] = []
    for check in (_python(), _libraries(), _torch(), _memory(), _disk(folder), _packaged(), _bases(), _cache()):
        try:
            found += list(check)
        except Exception as error:
            name, what = getattr(check, "__name__", "").strip("_"), f"could not be examined: {error}"
            found.append(DoctorFinding(name, what, "wrong", "Set the environment up again."))
    return found


def _checked(what: str, found: str, good: bool, do: str) -> DoctorFinding:
    """A finding that is good, or wrong with what to do about it."""
    return DoctorFinding(what, found) if good else DoctorFinding(what, found, "wrong", do)


def _python() -> Iterator[DoctorFinding]:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield _checked("Python", text, sys.version_info >= (3, 11), "Use Python 3.11 or newer.")


def _libraries() -> Iterator[DoctorFinding]:
    needed = {"trl": "1.16.", "transformers": "5.", "peft": "", "llguidance": "", "xllamacpp": "2026.10.11549"}
    for name, wanted in needed.items():
        installed = next((found.version for found in distributions(name=name)), "not installed")
        do = f"We rely on its inner workings: pip install '{name}=={wanted}*'"
        yield _checked(name, installed, installed != "not installed" and installed.startswith(wanted), do)


def _torch() -> Iterator[DoctorFinding]:
    import torch

    from compeer.engine.int8 import has_eight_bits
    from compeer.engine.network import best_device, fast_dtype

    device = best_device()
    dtype = str(fast_dtype(device)).removeprefix("torch.")
    yield DoctorFinding("torch", torch.__version__)
    if device.type == "cuda":
        yield DoctorFinding("device", torch.cuda.get_device_name(0))
        yield DoctorFinding("float type", f"{dtype} (fast on this GPU)")
    else:
        do = "Fine for the demo; train larger models on a GPU."
        yield DoctorFinding("device", "CPU, no CUDA device", "note", do)
        yield DoctorFinding("float type", f"{dtype} (bfloat16 and float16 are emulated, slowly, on most CPUs)")
        engine = "eight bits on torch (VNNI)" if has_eight_bits() else "llama.cpp"
        yield DoctorFinding("engine for talking", engine)
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    do = f"More threads than cores slows it down: export OMP_NUM_THREADS={cores}"
    yield _checked("threads", f"{threads} on {cores} cores", threads <= cores, do)


def _memory() -> Iterator[DoctorFinding]:
    import psutil

    free = psutil.virtual_memory().available / 2**30
    do = "The demo needs about 6 GiB: close other programs, or set a smaller batch."
    yield _checked("free memory", f"{free:.1f} GiB", free >= 6, do)


def _disk(folder: Path) -> Iterator[DoctorFinding]:
    free = shutil.disk_usage(folder if folder.exists() else Path.cwd()).free / 2**30
    do = "A run of the demo needs about 8 GiB: free some, or give another folder with --runs."
    yield _checked("free disk", f"{free:.1f} GiB for {folder}", free >= 10, do)


def _packaged() -> Iterator[DoctorFinding]:
    for model in PACKAGED_FILES:
        if path := model.path():
            digest = file_hash(path)
            do = f"The file is not the one we know: {model.install} --force-reinstall"
            yield _checked(model.title, f"sha256 {digest[:16]}…", digest == model.sha256, do)
        else:
            yield DoctorFinding(model.title, "not installed", "wrong", model.install)


def _bases() -> Iterator[DoctorFinding]:
    for base in BASES.values():
        if is_verified(base):
            unpacked = ", unpacked for training" if base.folder.is_dir() else ""
            yield DoctorFinding(base.title, f"here{unpacked}: --model {base.name}")
        elif base.path.is_file():
            yield DoctorFinding(base.title, "here, not checked yet", "note", f"compeer models get {base.name}")
        else:
            do = f"A larger model, {base.size} to download: compeer models get {base.name}"
            yield DoctorFinding(base.title, "not here", "note", do)


def _cache() -> Iterator[DoctorFinding]:
    folder = cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    do = "It cannot be written to: set COMPEER_CACHE to a folder that can."
    yield _checked("cache", str(folder), os.access(existing, os.W_OK), do)
