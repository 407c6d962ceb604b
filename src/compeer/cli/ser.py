"""`compeer ser`: build the dataset. A command a stage, each on its own files; `build` does them all in one folder.

The stages are declared in one table at the end: a command's name, the function that does it, its parameters by name,
its help. What a parameter is, its type, help and default, stands once, in `PARAMETERS`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.errors import InputError, from_validation
from compeer.progress import console

if TYPE_CHECKING:
    from compeer.models.base import TextModel
    from compeer.ser.check import CheckReport
    from compeer.ser.probes import Probes

ser = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Build the SER dataset, stage by stage or at once.")
CACHE = Path("answers.sqlite")
REQUIRED = inspect.Parameter.empty


def _file(what: str) -> tuple[Any, Any]:
    return Annotated[Path, typer.Argument(help=what)], REQUIRED


def _option(kind: Any, default: Any, what: str, *flags: str, **more: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(*flags, help=what, **more)], default


_CORPORA = typer.Argument(metavar="CORPUS...", help="Corpus files or folders, or 'sample'.")
_CALL = "How models are called, as concurrency=64 (see: compeer ser calls)."
PARAMETERS: dict[str, tuple[Any, Any]] = {
    "corpora": (Annotated[list[str], _CORPORA], REQUIRED),
    "dialogues": _file("A file of dialogues."),
    "splits": _file("Their splits."),
    "contexts": _file("A file of contexts."),
    "records": _file("A file of records."),
    "path": _file("Step-labelled turns from elsewhere, JSON lines."),
    "out": _file("The file to write."),
    "folder": _file("The folder to read or write."),
    "screened": _option(Path, Path("screened.jsonl"), "The file to write.", "--out"),
    "build": _option(Path, Path("ser"), "The folder to build in.", "--out"),
    "findings": _option(Path | None, None, "A JSON file to write what was found to.", "--out"),
    "known_splits": _option(Path | None, None, "The splits that the dialogues have in a build.", "--splits"),
    "languages": _option(list[str], [], "A language to take; all, if none is given.", "--language"),
    "skip_bad": _option(bool, False, "Leave bad dialogues out and count them by reason.", "--skip-bad"),
    "rounds": _option(int, 5, "Rounds sampled from a dialogue.", min=1),
    "shares": _option(tuple[float, float, float], (0.45, 0.35, 0.2), "For judge, supporter and test."),
    "turns": _option(Path | None, None, "Turns that models wrote for these contexts."),
    "false_share": _option(float, 0.23, "Share of False among candidates' step labels."),
    "coherent": _option(float, 0.8, "Share of the wrong strategies that the response carries out."),
    "embedder": _option(str, "embedded", "Who is near: 'embedded', a sentence-transformers folder, or 'words'."),
    "candidates": _option(int, 1, "Turns that each model writes for a history.", min=1),
    "retries": _option(int, 2, "How often an unreadable turn is asked for again.", min=0),
    "images": _option(bool, False, "Give the history's pictures to the models.", "--images"),
    "profiles": _option(Path | None, None, "Profiles; with them the rewriting is by personality."),
    "clusters": _option(Path | None, None, "Their clusters (clusters.jsonl)."),
    "plain": _option(Path | None, None, "The records reworded plainly."),
    "personality": _option(Path | None, None, "Those reworded by personality."),
    "source": _option(Literal["llm", "human"] | None, None, "Who labelled them: llm or human."),
    "leave_out": _option(list[str], [], "A strategy whose turns are left out."),
    "pairs": _option(Literal["near", "random"], "near", "Contexts are paired with the nearest other, or with any."),
    "mixtures": _option(int, 2, "Turns mixed of a pair's steps, beside its own two.", min=0, max=6),
    "mistakes": _option(bool, False, "Keep turns that were judged wrong as extra.", "--mistakes"),
    "limit": _option(int, 20_000, "Records looked at, chosen by the seed.", min=100),
    "examples": _option(int, 12, "Records shown, with their text.", min=0),
    "format": _option(
        Literal["parquet", "datasets", "preferences", "messages", "sharegpt"],
        "parquet",
        "All but 'parquet' are for datasets.load_dataset: all columns, preference pairs, or conversations.",
    ),
    "model": _option(str, REQUIRED, "'embedded', a model folder, or NAME@http://host:8000/v1.", "--model"),
    "describer": _option(str | None, None, "A model that describes people; none: an estimate by words.", "--model"),
    "screener": _option(str | None, None, "A model that drops unfit dialogues.", "--screen-model"),
    "models": _option(list[str], [], "As NAME@http://host:8000/v1; several may be given.", "--model"),
    "call": _option(list[str], [], _CALL, "--call", metavar="KEY=VALUE"),
    "cache": _option(Path, CACHE, "Where answers are kept, so that none is paid for twice."),
    "own_cache": _option(Path | None, None, "Where answers are kept; in the folder, if not given.", "--cache"),
    "dry_run": _option(bool, False, "Say how many calls and tokens it would take, and stop.", "--dry-run"),
    "seed": _option(int, 0, "All randomness comes from it."),
    "workers": _option(int, 1, "Processes at work; they change nothing but the time.", min=1),
    "all_workers": _option(
        int, os.cpu_count() or 1, "Processes at work; they change nothing but the time.", "--workers", min=1
    ),
}
"""What each parameter of a command is, and its default."""
ASKING = "call cache seed dry_run"
_SHORT = {"screened": "out", "build": "out", "findings": "out", "known_splits": "splits", "describer": "model"}
_SHORT |= {"own_cache": "cache", "all_workers": "workers"}
"""Parameters that are another one with a default of its own."""


def declare(name: str, target: str, parameters: str, what: str, settings: str | None = None) -> None:
    """Declares a command: `target` ("split:split_stage", a function of `compeer.ser`) is called with the parameters.

    Those that are fields of `settings` ("silver:SilverSettings") go into one. What comes back is the
    manifest of a stage, which is printed. A stage with the parameter `call` asks models. Without a module the function
    is one of this file.
    """

    def run(**given: Any) -> None:
        module, _, function = target.rpartition(":")
        found = import_module(f"compeer.ser.{module}") if module else None
        given = {_SHORT.get(key, key): value for key, value in given.items()}
        if settings:
            where, _, kind = settings.partition(":")
            given["settings"] = _settings(getattr(import_module(f"compeer.ser.{where}"), kind), given)
        if found is None:
            globals()[function](**given)
        elif "call" in given:
            _ask(getattr(found, function), **given)
        else:
            if "embedder" in parameters or name == "match":
                silence_libraries()
            _print_counts(getattr(found, function)(**given), given.get("out") or given["folder"])

    own = [(key, *PARAMETERS[key]) for key in parameters.split()]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=a) for key, a, value in own]
    )
    run.__annotations__ = {}
    ser.command(name, help=what)(run)


def _settings(model: Any, given: dict[str, Any]) -> Any:
    """The settings made of those values that are fields of it, which are taken out."""
    from pydantic import ValidationError

    try:
        return model(**{key: given.pop(key) for key in model.model_fields if key in given})
    except ValidationError as error:
        raise from_validation(error) from None


# --- asking models ----------------------------------------------------------------------------------------------------


def open_named(name: str, call: Sequence[str] | None, cache: Path) -> TextModel:
    """The model that a person named, called as --call says, its answers kept."""
    from pydantic import ValidationError

    from compeer.models.resolve import ModelSettings, open_model

    if wrong := next((change for change in call or () if "=" not in change), None):
        do = "Write, for instance, --call concurrency=64"
        raise InputError(f"'{wrong}' is not of the form key=value.", do=do)
    values = {key.strip(): value.strip() for key, value in (change.split("=", 1) for change in call or ())}
    try:
        settings = ModelSettings.model_validate(values)
    except ValidationError as error:
        raise from_validation(error, do="compeer ser calls lists the settings.") from None
    return open_model(name, settings=settings, cache=cache)


def _ask(stage: Any, *, out: Path, call: list[str], cache: Path, dry_run: bool, **given: Any) -> None:
    """Runs a stage that asks models, and prints what it cost; a dry run goes through it without asking."""
    from compeer.models.costs import DryRun

    silence_libraries()
    several = "models" in given
    names = (given.pop("models") or ["embedded"]) if several else [given.pop("model")]
    models = [open_named(name, call, cache) for name in names if name]

    def work(asked: Sequence[TextModel], to: Path) -> dict[str, Any]:
        which = {"models": asked} if several else {"model": asked[0] if asked else None}
        manifest: dict[str, Any] = asyncio.run(stage(out=to, **which, **given))
        return manifest

    if dry_run:
        rehearsed = [DryRun(model) for model in models]
        with tempfile.TemporaryDirectory() as folder:
            work(rehearsed, Path(folder) / out.name)
        for one in rehearsed:
            console.print(f"{plain(one.name)}: {one.total}", highlight=False, soft_wrap=True)
        return
    with _counted(models):
        manifest = work(models, out)
    _print_counts(manifest, out)
    if failed := manifest.get("failed"):
        do = "Call the same command again to ask those again."
        raise InputError(f"{failed:,} questions got no answer; what came is kept.", do=do)


@contextmanager
def _counted(models: Sequence[TextModel]) -> Iterator[None]:
    """Shows what the models are asked while the work inside goes on, and in a table at its end, however it ends."""
    from compeer.models.costs import counters_table, live_counters

    counted = [(model.name, counters) for model in models if (counters := getattr(model, "counters", None))]
    try:
        with ExitStack() as stack:
            for name, counters in counted:
                stack.enter_context(live_counters(name, counters))
            yield
    finally:
        for name, counters in counted:
            console.print(f"[bold]{plain(name)}[/]", highlight=False)
            console.print(counters_table(counters))


def _print_counts(manifest: dict[str, Any], out: Path) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for group, names in manifest["counts"].items():
        if any(names.values()):
            table.add_row(plain(group), "", style="bold")
        for name, count in names.items():
            if count:
                table.add_row(f"  {plain(name)}", f"{count:,}")
    console.print(table)
    console.print(f"written: {plain(str(out))}", highlight=False, soft_wrap=True)


# --- commands that are more than a stage ------------------------------------------------------------------------------


def build(
    corpora: list[str],
    out: Path,
    settings: Any,
    models: list[str],
    screener: str | None,
    call: list[str],
    cache: Path | None,
    skip_bad: bool,
    seed: int,
    workers: int,
) -> None:
    """Builds the records, checks them, and writes their card."""
    from compeer.io import only_one
    from compeer.ser.build import build_records, summary

    silence_libraries()
    out.mkdir(parents=True, exist_ok=True)
    with only_one(out):
        opened = [open_named(name, call, cache or out / CACHE) for name in models]
        judge = open_named(screener, call, cache or out / CACHE) if screener else None
        with _counted([*opened, *([judge] if judge else [])]):
            records = build_records(
                corpora, out, settings, seed, workers=workers, skip_bad=skip_bad, screener=judge, models=opened
            )
        found = summary(out)
        false = ", ".join(f"{part} {share:.1%}" for part, share in found["false_share"].items())
        console.print(f"  {found['records']:,} records; False: {false}", highlight=False)
        checked = _checked(records, out / "splits.jsonl", out / "check.json", seed)
        probed = _probed(records, out / "probes.json", seed, settings.embedder, 20_000)
        card(out, 12)
    if not (checked.passed and probed.passed):
        raise typer.Exit(1)


def personality(out: Path, seed: int, dry_run: bool, **given: Any) -> None:
    """Writes profiles, then their clusters."""
    from compeer.ser.clusters import cluster_profiles
    from compeer.ser.personality import profile_stage

    _ask(profile_stage, out=out, seed=seed, dry_run=dry_run, retries=2, **given)
    if not dry_run:
        clusters = out.with_name("clusters.json")
        _print_counts(cluster_profiles(out, clusters, seed), clusters)


def check(**given: Any) -> None:
    """Exits with 1 if something is amiss."""
    if not _checked(**given).passed:
        raise typer.Exit(1)


def probe(**given: Any) -> None:
    """Exits with 1 if a probe does better than its limit."""
    if not _probed(**given).passed:
        raise typer.Exit(1)


_MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]–[/]"}


def _checked(records: Path, splits: Path | None, out: Path | None, seed: int) -> CheckReport:
    from rich.table import Table

    from compeer.io import write_json
    from compeer.ser.check import check_records

    found = check_records(records, splits, seed)
    table = Table(show_header=False, box=None)
    for finding in found.findings:
        table.add_row(_MARKS[finding.passed], plain(finding.name), plain(finding.says))
        if finding.at_fault and finding.passed is False:
            table.add_row("", "", plain("at fault: " + ", ".join(finding.at_fault)))
    console.print(table)
    if out:
        write_json(out, found.model_dump(mode="json"))
    return found


def _probed(records: Path, out: Path | None, seed: int, embedder: str, limit: int) -> Probes:
    from rich.table import Table

    from compeer.io import write_json
    from compeer.models.embedder import Embedder
    from compeer.ser.probes import probe_records

    silence_libraries()
    found = probe_records(records, seed, None if embedder == "words" else Embedder(embedder), limit, 6_000)
    table = Table("", "what it tells", "what it sees", "balanced accuracy", "limit", "labels", box=None)
    for one in found.probes:
        accuracy = "too few labels"
        if one.balanced_accuracy is not None:
            accuracy = f"{one.balanced_accuracy:.3f} ({one.low:.3f} to {one.high:.3f}), chance {one.chance:g}"
        most = "–" if one.limit is None else f"{one.limit:g}"
        table.add_row(_MARKS[one.passed], plain(one.label), plain(one.sees), accuracy, most, f"{one.tested:,}")
    console.print(table)
    if out:
        write_json(out, found.model_dump(mode="json"))
    return found


def card(folder: Path, examples: int) -> None:
    """Writes the dataset card."""
    from compeer.report.card import write_card

    for path in write_card(folder, examples):
        console.print(f"  {plain(str(path))}", highlight=False, soft_wrap=True)


def export(records: Path, folder: Path, format: str) -> None:
    """Writes Parquet files."""
    from compeer.ser.export import export_records
    from compeer.ser.forms import TRAINING_FORMS, export_form

    write = export_form if format in TRAINING_FORMS else export_records
    found = write(records, folder, format)  # type: ignore[arg-type]
    counts = ", ".join(f"{split} {count:,}" for split, count in found["records"].items())
    console.print(f"{counts} written to {plain(str(folder))}", highlight=False, soft_wrap=True)


@ser.command()
def calls() -> None:
    """Show the settings for --call: their names, defaults and meanings."""
    from rich.console import Console
    from rich.table import Table

    from compeer.models.resolve import ModelSettings

    table = Table("key", "default", "meaning", box=None)
    for name, field in ModelSettings.model_fields.items():
        table.add_row(name, plain(str(field.default)), plain(field.description or ""))
    Console().print(table)


# --- the commands -----------------------------------------------------------------------------------------------------

_MADE_OF = "languages rounds false_share coherent embedder models screener call own_cache skip_bad seed all_workers"
declare(
    "build",
    ":build",
    f"corpora build {_MADE_OF}",
    "Do all stages in one folder, then the check, the probes and the card. Stopped anywhere, it goes on.",
    settings="build:BuildSettings",
)
declare(
    "screen",
    "screen:screen_stage",
    "corpora screened languages skip_bad workers",
    "Drop by rule what is no good, and mask personal data.",
    settings="screen:ScreenSettings",
)
declare(
    "verdict",
    "screen:verdict_stage",
    f"dialogues out model {ASKING}",
    "Ask a model which dialogues are fit, with its reasons.",
)
declare(
    "split",
    "split:split_stage",
    "dialogues out shares seed workers",
    "Deal the dialogues out to judge, supporter and test; what is alike stays together.",
)
declare(
    "sample",
    "sampling:sample_stage",
    "dialogues splits out rounds seed workers",
    "Sample rounds of each dialogue, more from its middle (equation 1).",
)
declare(
    "reason",
    "reason:reason_stage",
    f"contexts out models candidates retries images {ASKING}",
    "Let models write candidate turns, three steps and a response, for each context.",
    settings="reason:ReasonSettings",
)
declare(
    "silver",
    "silver:silver_stage",
    "contexts out turns false_share coherent embedder seed workers",
    "Make labelled records by rule: matched, so that no label can be told without the history.",
    settings="silver:SilverSettings",
)
declare(
    "personality",
    ":personality",
    f"dialogues out describer workers {ASKING}",
    "Describe both participants by DISC, and cluster the descriptions (clusters.json, elbow.svg beside them).",
)
declare(
    "rewrite",
    "rewrite:rewrite_stage",
    f"records out model profiles clusters {ASKING}",
    "Reword the records that train the judge, plainly or toward a profile of the same cluster.",
)
declare(
    "sets",
    "export:equal_sets",
    "records folder plain personality",
    "Write the sets -D, -R and -P: all records, and as many more duplicated, reworded, or reworded by personality.",
)
declare(
    "check",
    ":check",
    "records known_splits findings seed",
    "Prove that splits share nothing and that labels are matched; exit code 1 if something is amiss.",
)
declare(
    "probe",
    ":probe",
    "records findings embedder limit seed",
    "Try to tell the labels without the history; exit code 1 if a probe does better than its limit.",
)
declare("card", ":card", "folder examples", "Write the dataset card, card.md and card.html.")
declare("export", ":export", "records folder format", "Write records as Parquet, a file a split.")
declare(
    "import",
    "importing:import_turns",
    "path out source known_splits leave_out seed",
    "Take step-labelled turns from elsewhere as records.",
)
declare(
    "match",
    "export:match_turns",
    "records out pairs mixtures mistakes seed",
    "Make of judged records a matched set: every turn right in one history stands in another, where it is wrong.",
)
