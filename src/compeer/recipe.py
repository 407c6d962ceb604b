"""A recipe, an experiment in one short TOML file, and the run that it describes.

`run_recipe` does a recipe's stages under `runs/<name>/`:

    1-ser        records.jsonl                  corpus to SER records with silver labels
    2-judge      model/, metrics.jsonl          UnifiReward, trained on the reward split
    3-sft        model/, metrics.jsonl          the supporter, fine-tuned on the policy split
    4-grpo       model/, metrics, samples       the supporter, trained by the judge's rewards
    5-evaluate   judge.json, outputs-*.json     judge and supporters on the test split
    6-report     report.html                    what was found, for people

`pipeline.run_stage` says how a stage is skipped, resumed or set aside. A recipe may extend another one and hold only
what differs: `extends = "../h200.toml"`, from its own folder. Tables are merged key by key; all else is replaced.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field, ValidationError

from compeer.corpora import corpus_path
from compeer.errors import InputError, from_validation
from compeer.evaluate import EvaluateSettings, evaluate_run
from compeer.evaluate.supporters import starting_supporters
from compeer.io import Frozen, file_hash, folder_hash, only_one, read_setting, write_json
from compeer.models.embedder import Embedder
from compeer.models.resolve import model_folder, model_mark
from compeer.pipeline import FolderStage, run_stage
from compeer.policy import SupporterSettings, train_supporter
from compeer.policy.grpo import GrpoSettings, train_grpo
from compeer.policy.sources import open_sources
from compeer.report import write_report
from compeer.reward import RewardSettings, train_judge
from compeer.ser import SerSettings, build_ser, read_records
from compeer.ser.record import SerRecord, Split


class Recipe(Frozen):
    """An experiment: every setting of every stage, and the one seed all randomness comes from."""

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
    folders = (Path(str(files("compeer"))) / "recipes", Path(__file__).resolve().parents[2] / "recipes")
    for folder in folders:
        if (found := folder / f"{name}.toml").is_file():
            return found
    known = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise InputError("there is no such recipe.", file=name, do=f"Give a TOML file, or one of: {', '.join(known)}")


def load_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Reads a recipe, with what it extends, and applies `key=value` changes; an error names the files and the key."""
    values, where = _read(recipe_path(name))
    for change in changes:
        _set(values, *read_setting(change, "--set grpo.steps=20"))
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise from_validation(error, file=where, do=_hint(first["loc"], first["type"])) from None


def _read(path: Path, below: tuple[Path, ...] = ()) -> tuple[dict[str, Any], str]:
    """A recipe's values, merged into those of what it extends, and how an error names it; `below` extend this one."""
    where = ", extended by ".join(str(one) for one in (path, *reversed(below)))
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"this is not TOML: {error}", file=where) from None
    if "extends" not in values:
        return values, str(path)
    named = values.pop("extends")
    do = "Name the file of another recipe, from this one's folder, as ../h200.toml"
    if not isinstance(named, str):
        raise InputError("this is not a path.", file=where, field="extends", do=do)
    other = path.parent / named
    if not other.is_file():
        raise InputError(f"there is no {other}.", file=where, field="extends", do=do)
    if other.resolve() in [one.resolve() for one in (*below, path)]:
        raise InputError(f"{other} extends this one, or is it: that has no end.", file=where, field="extends", do=do)
    base, of_base = _read(other, (*below, path))
    return _merged(base, values), f"{path}, which extends {of_base}"


def _merged(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in changed.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
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
            yield f"{prefix}{name}", json.dumps(value, ensure_ascii=False), field_.description or ""


_VERSIONS = ("torch", "transformers", "trl", "peft", "accelerate", "sentence-transformers")


def stages_of(recipe: Recipe, run: Path) -> list[FolderStage]:
    """The recipe's stages, in the order in which they are done."""
    seed = recipe.seed

    def records(split: Split) -> list[SerRecord]:
        return [record for record in read_records(run / "1-ser" / "records.jsonl") if record.split == split]

    judge, sft = run / "2-judge" / "model", run / "3-sft" / "model"

    def grpo(folder: Path) -> dict[str, Any]:
        taught, own = records("policy"), recipe.grpo
        sources = open_sources(own, judge, recipe.evaluate.batch, seed, taught)
        return train_grpo(sft, sources, Embedder(), taught, own, folder, seed)

    def evaluate(folder: Path) -> dict[str, Any]:
        supporters = {**starting_supporters(recipe.sft), "sft": sft, "grpo": run / "4-grpo" / "model"}
        found = evaluate_run(records("test"), judge, supporters, recipe.evaluate, folder, seed)
        for metrics in found["supporters"].values():
            del metrics["outputs"]  # they lie in files of their own
        return found

    def report(folder: Path) -> dict[str, Any]:
        write_report(run, settings, folder / "report.html")
        return {}

    def training(name: str, who: str, own: RewardSettings | SupporterSettings, train: Any, split: Split) -> FolderStage:
        title = f"Training the {who}" if own.steps else f"Taking the {who} as it is"

        def work(folder: Path) -> dict[str, Any]:
            return dict(train(records(split), own, folder, seed))

        return FolderStage(name, title, own.model_dump(mode="json"), work, ("1-ser",), {"model": model_hash(own.model)})

    settings = recipe.model_dump(mode="json")
    by_reward = {**settings["grpo"], "judge_batch": recipe.evaluate.batch}
    trained = ("1-ser", "2-judge", "3-sft", "4-grpo")
    corpus, judges = {"corpus": corpus_hash(recipe.ser.corpus)}, judges_hash(recipe.grpo)
    page = folder_hash(Path(str(files("compeer.report"))))  # a new page when the report's own code changes
    build = partial(build_ser, recipe.ser, seed=seed)
    return [
        FolderStage("1-ser", "Building SER records", settings["ser"], build, inputs=corpus),
        training("2-judge", "judge", recipe.judge, train_judge, "reward"),
        training("3-sft", "supporter", recipe.sft, train_supporter, "policy"),
        FolderStage("4-grpo", "Training the supporter by reward", by_reward, grpo, trained[:3], judges),
        FolderStage("5-evaluate", "Measuring on the test split", settings["evaluate"], evaluate, trained),
        FolderStage("6-report", "Writing the report", {"page": page}, report, (*trained, "5-evaluate")),
    ]


def corpus_hash(corpus: str) -> str:
    """What a corpus is: the hash of its file, or of all files in its folder."""
    is_folder = corpus != "sample" and Path(corpus).is_dir()
    return folder_hash(Path(corpus)) if is_folder else file_hash(corpus_path(corpus))


def model_hash(model: str) -> str:
    """What a starting model is: the hash that the catalogue knows it by, or that of all files in the folder."""
    return model_mark(model) or folder_hash(model_folder(model))


def judges_hash(settings: GrpoSettings) -> dict[str, str]:
    """What the models are that rewards come from, as far as they are folders of their own."""
    asked = [source for source in settings.rewards.values() if not (source.decisions or source.plan)]
    named = {name for one in asked for name in ([one.seeker] if one.seeker else [one.judge, one.outcome or "run"])}
    return {f"judge {name}": model_hash(name) for name in sorted(named) if name != "run" and "@http" not in name}


def run_recipe(recipe: Recipe, runs: Path, until: str | None = None) -> Path:
    """Does what is left of a recipe, returns the report's path; `until` (as `sft`) ends there, with its folder."""
    run = runs / recipe.name
    stages = stages_of(recipe, run)
    if until is not None:
        short = {stage.name.partition("-")[2]: stage for stage in stages}
        if until not in short:
            raise InputError(f"there is no stage '{until}'.", do=f"Name one of: {', '.join(short)}")
        stages = [stage for stage in stages if stage.name in (*short[until].after, short[until].name)]
    run.mkdir(parents=True, exist_ok=True)
    with only_one(run):
        write_json(run / "recipe.json", recipe.model_dump(mode="json"))
        done: dict[str, str] = {}
        for stage in stages:
            done[stage.name] = run_stage(stage, run / stage.name, recipe.seed, done, _VERSIONS)
    return run / "6-report" / "report.html" if until is None else run / stages[-1].name
