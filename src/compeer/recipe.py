"""A recipe, and the run it describes: stages in order, each in its own folder, each resumable.

A recipe is a TOML file. `run_recipe` does its stages under `runs/<name>/`:

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

import difflib
import hashlib
import json
import os
import platform
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compeer import __version__
from compeer.corpora import corpus_path
from compeer.errors import InputError, from_validation
from compeer.evaluate import EvaluateSettings, evaluate_run
from compeer.evaluate.folder import only_one
from compeer.models.embedded import SMOLLM2, file_hash
from compeer.models.embedder import Embedder
from compeer.models.local import model_folder
from compeer.policy import SupporterSettings, train_supporter
from compeer.policy.grpo import GrpoSettings, train_grpo
from compeer.policy.sources import open_sources
from compeer.progress import console
from compeer.report import write_report
from compeer.reward import RewardSettings, train_judge
from compeer.ser import SerSettings, build_ser, read_records
from compeer.ser.record import SerRecord, Split

MANIFEST, STATE = "manifest.json", "state.json"
_NOT_OUTPUT = ("checkpoints", "tensorboard", "times.jsonl", MANIFEST, STATE)
_VERSIONS = ("torch", "transformers", "trl", "peft", "accelerate", "sentence-transformers")


class Recipe(BaseModel):
    """An experiment: every setting of every stage, and the one seed all randomness comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[\w.-]+$", description="the folder of the run")
    seed: int = Field(default=0, ge=0, description="all randomness comes from it")
    ser: SerSettings = Field(default=SerSettings(), description="the dataset")
    judge: RewardSettings = Field(description="UnifiReward")
    sft: SupporterSettings = Field(description="supervised fine-tuning of the supporter")
    grpo: GrpoSettings = Field(description="training the supporter by reward")
    evaluate: EvaluateSettings = Field(default=EvaluateSettings(), description="measuring on the test split")


def recipe_path(name: str | Path) -> Path:
    """The file that a recipe's name means: a path, or a recipe that comes with the package."""
    if Path(name).is_file():
        return Path(name)
    inside = Path(str(files("compeer"))) / "recipes"
    for folder in (inside, Path(__file__).resolve().parents[2] / "recipes"):
        if (found := folder / f"{name}.toml").is_file():
            return found
    known = sorted(path.stem for path in inside.glob("*.toml")) or ["demo"]
    raise InputError("there is no such recipe.", file=name, do=f"Give a TOML file, or one of: {', '.join(known)}")


def load_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Reads a recipe and applies `key=value` changes; an error names the file and the key."""
    path = recipe_path(name)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"this is not TOML: {error}", file=path) from None
    for change in changes:
        _set(values, change)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise from_validation(error, file=path, do=_hint(first["loc"], first["type"])) from None


def _set(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise InputError(f"'{change}' is not of the form key=value.", do="Write, for instance, --set grpo.steps=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise InputError(f"'{table}' in '{key}' is no table.", do="Name a key of the recipe, as grpo.steps")
    values[last] = value


def _hint(location: tuple[int | str, ...], kind: str) -> str | None:
    if kind != "extra_forbidden":
        return None
    model: Any = Recipe
    for part in location[:-1]:
        # a table of tables, as grpo.rewards: what stands in it is of one kind, whatever its name
        model = get_args(model)[-1] if get_args(model) else model.model_fields[str(part)].annotation
    near = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1)
    known = ", ".join(model.model_fields)
    return f"Did you mean '{near[0]}'?" if near else f"Known keys here: {known}"


def explain(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Each setting's key, value and meaning, tables unfolded."""
    for name, field_ in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from explain(value, f"{prefix}{name}.")
        elif isinstance(value, dict) and value and all(isinstance(one, BaseModel) for one in value.values()):
            for key, one in value.items():
                yield from explain(one, f"{prefix}{name}.{key}.")
        else:
            shown = json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{name}", shown, field_.description or ""


# --- stages ---------------------------------------------------------------------------------------------------------


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
        sources = open_sources(settings.rewards, own, recipe.evaluate.batch, settings.outage, seed)
        return train_grpo(run / "3-sft" / "model", sources, Embedder(), records("policy"), settings, folder, seed)

    def evaluate(folder: Path) -> dict[str, Any]:
        supporters = {
            "untrained": model_folder(recipe.sft.model),
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
            "Training the judge",
            recipe.judge.model_dump(mode="json"),
            lambda folder: train_judge(records("reward"), recipe.judge, folder, seed),
            after=("1-ser",),
            inputs={"model": model_hash(recipe.judge.model)},
        ),
        Stage(
            "3-sft",
            "Training the supporter",
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
    return _digest(
        {str(path.name): file_hash(path) for path in sorted(model_folder(model).iterdir()) if path.is_file()}
    )


def judges_hash(settings: GrpoSettings) -> dict[str, str]:
    """What the models are that rewards come from, as far as they are folders of their own."""
    named: set[str] = set()
    for source in settings.rewards.values():
        if source.seeker:
            named |= {source.seeker} | ({source.supporter} if source.turns > 1 else set())
        else:
            named |= {source.judge, source.outcome or "run"}
    return {f"judge {name}": model_hash(name) for name in sorted(named) if name != "run" and "@http" not in name}


def run_recipe(recipe: Recipe, runs: Path) -> Path:
    """Does what is still to be done of a recipe under `runs/<name>/` and returns the report's path."""
    run = runs / recipe.name
    run.mkdir(parents=True, exist_ok=True)
    with only_one(run):
        _write_json(run / "recipe.json", recipe.model_dump(mode="json"))
        done: dict[str, str] = {}
        for stage in stages_of(recipe, run):
            done[stage.name] = _do(stage, run / stage.name, recipe.seed, done)
    return run / "6-report" / "report.html"


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
