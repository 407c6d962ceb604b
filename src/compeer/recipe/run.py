"""The run that a recipe describes: stages in order, each in its own folder, each resumable.

`run_recipe` does a recipe's stages under `runs/<name>/`:

    1-ser        records.jsonl                  corpus to SER records with silver labels
    2-judge      model/, metrics.jsonl          UnifiReward, trained on the reward split
    3-sft        model/, metrics.jsonl          the supporter, fine-tuned on the policy split
    4-grpo       model/, metrics, samples       the supporter, trained by the judge's rewards
    5-evaluate   judge.json, outputs-*.json     judge and supporters on the test split
    6-report     report.html                    what was found, for people

A stage ends by writing `manifest.json`: a fingerprint of its settings and inputs, the hashes of its files, its figures.
A stage whose manifest matches is skipped. One that was stopped half-way, by whatever, is called again and goes on from
what it had; if its settings or inputs have changed since, it starts anew. A finished stage of other settings is kept
under `before/`, and taken back when those settings return.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from compeer import __version__
from compeer.corpora import corpus_path
from compeer.errors import InputError
from compeer.evaluate import evaluate_run
from compeer.evaluate.supporters import starting_supporters
from compeer.io import file_hash, only_one
from compeer.models.catalogue import find_base, is_base
from compeer.models.embedder import Embedder
from compeer.models.packaged import SMOLLM2
from compeer.models.resolve import model_folder
from compeer.policy import train_supporter
from compeer.policy.grpo import GrpoSettings, train_grpo
from compeer.policy.sources import open_sources
from compeer.progress import console
from compeer.recipe.file import Recipe
from compeer.report import write_report
from compeer.reward import train_judge
from compeer.ser import build_ser, read_records
from compeer.ser.record import SerRecord, Split

MANIFEST, STATE = "manifest.json", "state.json"
_NOT_OUTPUT = ("checkpoints", "tensorboard", "times.jsonl", MANIFEST, STATE)
_VERSIONS = ("torch", "transformers", "trl", "peft", "accelerate", "sentence-transformers")


@dataclass(frozen=True)
class Stage:
    """One stage: what it depends on, and what it does in its folder. Returns its figures."""

    name: str
    title: str
    settings: Mapping[str, Any]
    work: Callable[[Path], dict[str, Any]]
    after: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Hashes of what it reads from outside the run."""


def stages_of(recipe: Recipe, run: Path) -> list[Stage]:
    """The recipe's stages, in the order in which they are done."""
    seed = recipe.seed

    def records(split: Split) -> list[SerRecord]:
        return [record for record in read_records(run / "1-ser" / "records.jsonl") if record.split == split]

    def grpo(folder: Path) -> dict[str, Any]:
        own, settings = run / "2-judge" / "model", recipe.grpo
        taught = records("policy")
        sources = open_sources(settings.rewards, own, recipe.evaluate.batch, settings.outage, seed, taught)
        return train_grpo(run / "3-sft" / "model", sources, Embedder(), taught, settings, folder, seed)

    def evaluate(folder: Path) -> dict[str, Any]:
        supporters = {
            **starting_supporters(recipe.sft),
            "sft": run / "3-sft" / "model",
            "grpo": run / "4-grpo" / "model",
        }
        found = evaluate_run(records("test"), run / "2-judge" / "model", supporters, recipe.evaluate, folder, seed)
        for figures in found["supporters"].values():
            del figures["outputs"]  # they lie in files of their own
        return found

    def report(folder: Path) -> dict[str, Any]:
        write_report(run, recipe.model_dump(mode="json"), folder / "report.html")
        return {}

    return [
        Stage(
            "1-ser",
            "Building SER records",
            recipe.ser.model_dump(mode="json"),
            lambda folder: build_ser(recipe.ser, folder, seed),
            inputs={"corpus": corpus_hash(recipe.ser.corpus)},
        ),
        Stage(
            "2-judge",
            "Training the judge" if recipe.judge.steps else "Taking the judge as it is",
            recipe.judge.model_dump(mode="json"),
            lambda folder: train_judge(records("reward"), recipe.judge, folder, seed),
            after=("1-ser",),
            inputs={"model": model_hash(recipe.judge.model)},
        ),
        Stage(
            "3-sft",
            "Training the supporter" if recipe.sft.steps else "Taking the supporter as it is",
            recipe.sft.model_dump(mode="json"),
            lambda folder: train_supporter(records("policy"), recipe.sft, folder, seed),
            after=("1-ser",),
            inputs={"model": model_hash(recipe.sft.model)},
        ),
        Stage(
            "4-grpo",
            "Training the supporter by reward",
            {**recipe.grpo.model_dump(mode="json"), "judge_batch": recipe.evaluate.batch},
            grpo,
            after=("1-ser", "2-judge", "3-sft"),
            inputs=judges_hash(recipe.grpo),
        ),
        Stage(
            "5-evaluate",
            "Measuring on the test split",
            recipe.evaluate.model_dump(mode="json"),
            evaluate,
            after=("1-ser", "2-judge", "3-sft", "4-grpo"),
        ),
        Stage(
            "6-report",
            "Writing the report",
            {"page": page_hash()},
            report,
            after=("1-ser", "2-judge", "3-sft", "4-grpo", "5-evaluate"),
        ),
    ]


def corpus_hash(corpus: str) -> str:
    """What a corpus is: the hash of its file, or of all files in its folder."""
    if corpus != "sample" and Path(corpus).is_dir():
        return _digest({path.name: file_hash(path) for path in sorted(Path(corpus).iterdir()) if path.is_file()})
    return file_hash(corpus_path(corpus))


def page_hash() -> str:
    """What the report's own code is, so that a finished run gets a new page when that changes."""
    folder = Path(str(files("compeer.report")))
    return _digest({path.name: file_hash(path) for path in sorted(folder.iterdir()) if path.is_file()})


def model_hash(model: str) -> str:
    """What a starting model is: the packaged file's hash, or that of all files in the folder."""
    if model == "embedded":
        return SMOLLM2.sha256
    if is_base(model):
        return find_base(model).sha256
    return _digest(
        {str(path.name): file_hash(path) for path in sorted(model_folder(model).iterdir()) if path.is_file()}
    )


def judges_hash(settings: GrpoSettings) -> dict[str, str]:
    """What the models are that rewards come from, as far as they are folders of their own."""
    named: set[str] = set()
    for source in settings.rewards.values():
        if source.decisions or source.plan:
            continue
        if source.seeker:
            named |= {source.seeker} | ({source.supporter} if source.turns > 1 else set())
        else:
            named |= {source.judge, source.outcome or "run"}
    return {f"judge {name}": model_hash(name) for name in sorted(named) if name != "run" and "@http" not in name}


def run_recipe(recipe: Recipe, runs: Path, until: str | None = None) -> Path:
    """Does what is still to be done of a recipe under `runs/<name>/` and returns the report's path.

    `until` names a stage without its number, as `sft`: it and what it needs are done, and its folder is returned.
    """
    run = runs / recipe.name
    stages = stages_of(recipe, run)
    if until is not None:
        stages = _until(stages, until)
    run.mkdir(parents=True, exist_ok=True)
    with only_one(run):
        _write_json(run / "recipe.json", recipe.model_dump(mode="json"))
        done: dict[str, str] = {}
        for stage in stages:
            done[stage.name] = _do(stage, run / stage.name, recipe.seed, done)
    return run / "6-report" / "report.html" if until is None else run / stages[-1].name


def _until(stages: Sequence[Stage], name: str) -> list[Stage]:
    """The named stage and those that it needs, in their order."""
    short = {stage.name.partition("-")[2]: stage for stage in stages}
    if name not in short:
        raise InputError(f"there is no stage '{name}'.", do=f"Name one of: {', '.join(short)}")
    last = short[name]
    return [stage for stage in stages if stage.name in (*last.after, last.name)]


def _do(stage: Stage, folder: Path, seed: int, done: Mapping[str, str]) -> str:
    """Does a stage unless it is done; returns the hash of its manifest, which later stages depend on."""
    wanted = {
        "stage": stage.name,
        "seed": seed,
        "settings": dict(stage.settings),
        "inputs": {**stage.inputs, **{name: done[name] for name in stage.after}},
        "versions": {"compeer": __version__, **{name: version(name) for name in _VERSIONS}},
    }
    fingerprint = _digest(wanted)
    if not _is_done(folder, fingerprint):
        _set_aside(folder)
        if _is_done(before := _aside(folder, fingerprint), fingerprint):
            shutil.rmtree(folder, ignore_errors=True)
            before.rename(folder)
    if _is_done(folder, fingerprint):
        console.print(f"[green]✓[/] {stage.title}: done before", highlight=False)
        return _digest(_comparable(_read_json(folder / MANIFEST) or {}))
    state = _read_json(folder / STATE)
    if folder.exists() and (state is None or state.get("fingerprint") != fingerprint):
        shutil.rmtree(folder)
    elif folder.exists():
        console.print(f"[yellow]↻[/] {stage.title}: going on from where it was stopped", highlight=False)
    folder.mkdir(exist_ok=True)
    _write_json(folder / STATE, {"fingerprint": fingerprint})
    console.print(f"[bold]→[/] {stage.title}", highlight=False)
    start = time.monotonic()
    figures = stage.work(folder)
    seconds = time.monotonic() - start
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    manifest = {
        **wanted,
        "fingerprint": fingerprint,
        "figures": figures,
        "files": _outputs(folder),
        "machine": {"platform": platform.machine(), "python": platform.python_version()},
        "times": {"seconds": round(seconds, 1), "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z")},
    }
    _write_json(folder / MANIFEST, manifest)
    console.print(f"[green]✓[/] {stage.title}: {_duration(seconds)}", highlight=False)
    return _digest(_comparable(manifest))


def _is_done(folder: Path, fingerprint: str) -> bool:
    """Whether the stage that the fingerprint describes lies whole in the folder."""
    manifest = _read_json(folder / MANIFEST)
    return manifest is not None and manifest.get("fingerprint") == fingerprint and _whole(manifest, folder)


def _set_aside(folder: Path) -> None:
    """Keeps a finished stage of other settings under `before/`: it cost time, and may be wanted again."""
    manifest = _read_json(folder / MANIFEST)
    if manifest is None:
        return
    if not _whole(manifest, folder):
        shutil.rmtree(folder)
        return
    place = _aside(folder, manifest["fingerprint"])
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    folder.rename(place)
    console.print(f"[yellow]•[/] {folder.name} was done with other settings: kept as {place}", highlight=False)


def _aside(folder: Path, fingerprint: str) -> Path:
    return folder.parent / "before" / f"{folder.name}-{fingerprint[:8]}"


def _comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without what differs between two equal runs."""
    return {key: value for key, value in manifest.items() if key != "times"}


def _outputs(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and relative.parts[0] not in _NOT_OUTPUT and not relative.parts[0].endswith(".unfinished"):
            found[str(relative)] = {"bytes": path.stat().st_size, "sha256": file_hash(path)}
    return found


def _whole(manifest: dict[str, Any], folder: Path) -> bool:
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == entry["bytes"]
        for name, entry in manifest["files"].items()
    )


def _write_json(path: Path, value: Any) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
