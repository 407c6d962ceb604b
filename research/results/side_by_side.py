"""Several trainings or measurements of a script at a time, each its own process; what is done is not done again."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def chosen(names: Sequence[str], only: Sequence[str]) -> list[str]:
    """Those of the names that were asked for, all if none was; ends with an error if one is not known."""
    if unknown := [one for one in only if one not in names]:
        sys.exit(f"--only: there is no '{unknown[0]}' here, but {', '.join(names)}.")
    return [one for one in names if not only or one in only]


def side_by_side(script: str, folder: Path, names: Sequence[str], parallel: int) -> None:
    """Runs `script one FOLDER --only NAME` for each name without FOLDER/said/NAME.json, `parallel` at a time."""
    (folder / "said").mkdir(exist_ok=True)
    waiting = [name for name in names if not (folder / "said" / f"{name}.json").is_file()]

    def run(name: str) -> None:
        with (folder / f"{name}.log").open("w") as log:
            command = [sys.executable, script, "one", str(folder), "--only", name]
            environment = {**os.environ, "OMP_NUM_THREADS": "2"}
            code = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False).returncode
        print(f"{name}: {'done' if not code else f'failed ({code}), see {name}.log'}", flush=True)

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(run, waiting))


def parser(script: str | None) -> argparse.ArgumentParser:
    """The command line of a script whose trainings run side by side; `script` is its text."""
    found = argparse.ArgumentParser(description=script.split("\n")[0] if script else None)
    found.add_argument("what", choices=["prepare", "train", "one", "table"])
    found.add_argument("folder", type=Path)
    found.add_argument("--only", nargs="*", default=None)
    found.add_argument("--parallel", type=int, default=6)
    return found


def done(folder: Path, name: str, figures: dict[str, Any]) -> None:
    """Writes FOLDER/said/NAME.json, with what computed it, and drops the training's checkpoints."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    figures |= {"torch": torch.__version__, "device": device}
    shutil.rmtree(folder / name / "checkpoints", ignore_errors=True)
    (folder / "said" / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
