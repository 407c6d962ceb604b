"""What this machine can do, line by line, and what to do where something is wrong."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
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
    checks: list[Callable[[], list[DoctorFinding]]] = [
        _python,
        _libraries,
        _torch,
        _memory,
        lambda: _disk(folder),
        _packaged,
        _bases,
        _cache,
    ]
    found: list[DoctorFinding] = []
    for check in checks:
        try:
            found.extend(check())
        except Exception as error:
            name = getattr(check, "__name__", "check").strip("_<>")
            found.append(
                DoctorFinding(name, f"could not be examined: {error}", "wrong", "Set the environment up again.")
            )
    return found


def _python() -> list[DoctorFinding]:
    good = sys.version_info >= (3, 11)
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return [DoctorFinding("Python", text, "good" if good else "wrong", "" if good else "Use Python 3.11 or newer.")]


def _libraries() -> list[DoctorFinding]:
    found = []
    for name, wanted in (
        ("trl", "1.16."),
        ("transformers", "5."),
        ("peft", ""),
        ("llguidance", ""),
        ("xllamacpp", "2026.10.11549"),
    ):
        try:
            installed = version(name)
        except PackageNotFoundError:
            found.append(DoctorFinding(name, "not installed", "wrong", f"pip install '{name}=={wanted or ''}*'"))
            continue
        good = installed.startswith(wanted)
        do = "" if good else f"We rely on its inner workings: pip install '{name}=={wanted}*'"
        found.append(DoctorFinding(name, installed, "good" if good else "wrong", do))
    return found


def _torch() -> list[DoctorFinding]:
    import torch

    from compeer.engine.int8 import has_eight_bits
    from compeer.engine.network import best_device, fast_dtype

    device = best_device()
    dtype = str(fast_dtype(device)).removeprefix("torch.")
    found = [DoctorFinding("torch", torch.__version__)]
    if device.type == "cuda":
        found.append(DoctorFinding("device", torch.cuda.get_device_name(0)))
        found.append(DoctorFinding("float type", f"{dtype} (fast on this GPU)"))
    else:
        do = "Fine for the demo; train larger models on a GPU."
        found.append(DoctorFinding("device", "CPU, no CUDA device", "note", do))
        found.append(DoctorFinding("float type", f"{dtype} (bfloat16 and float16 are emulated, slowly, on most CPUs)"))
        engine = "eight bits on torch (VNNI)" if has_eight_bits() else "llama.cpp"
        found.append(DoctorFinding("engine for talking", engine))
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    do = "" if threads <= cores else f"More threads than cores slows it down: export OMP_NUM_THREADS={cores}"
    found.append(DoctorFinding("threads", f"{threads} on {cores} cores", "good" if threads <= cores else "wrong", do))
    return found


def _memory() -> list[DoctorFinding]:
    import psutil

    free = psutil.virtual_memory().available / 2**30
    good = free >= 6
    do = "" if good else "The demo needs about 6 GiB: close other programs, or set a smaller batch."
    return [DoctorFinding("free memory", f"{free:.1f} GiB", "good" if good else "wrong", do)]


def _disk(folder: Path) -> list[DoctorFinding]:
    existing = folder if folder.exists() else Path.cwd()
    free = shutil.disk_usage(existing).free / 2**30
    good = free >= 10
    do = "" if good else "A run of the demo needs about 8 GiB: free some, or give another folder with --runs."
    return [DoctorFinding("free disk", f"{free:.1f} GiB for {folder}", "good" if good else "wrong", do)]


def _packaged() -> list[DoctorFinding]:
    found = []
    for model in PACKAGED_FILES:
        path = model.path()
        if path is None:
            found.append(DoctorFinding(model.title, "not installed", "wrong", model.install))
            continue
        digest = file_hash(path)
        good = digest == model.sha256
        do = "" if good else f"The file is not the one we know: {model.install} --force-reinstall"
        found.append(DoctorFinding(model.title, f"sha256 {digest[:16]}…", "good" if good else "wrong", do))
    return found


def _bases() -> list[DoctorFinding]:
    found = []
    for base in BASES.values():
        if is_verified(base):
            unpacked = ", unpacked for training" if base.folder.is_dir() else ""
            found.append(DoctorFinding(base.title, f"here{unpacked}: --model {base.name}"))
        elif base.path.is_file():
            found.append(DoctorFinding(base.title, "here, not checked yet", "note", f"compeer models get {base.name}"))
        else:
            do = f"A larger model, {base.size} to download: compeer models get {base.name}"
            found.append(DoctorFinding(base.title, "not here", "note", do))
    return found


def _cache() -> list[DoctorFinding]:
    folder = cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    good = os.access(existing, os.W_OK)
    do = "" if good else "It cannot be written to: set COMPEER_CACHE to a folder that can."
    return [DoctorFinding("cache", str(folder), "good" if good else "wrong", do)]
