"""`compeer ser`: build the dataset. A command a stage, each on its own files; `build` does them all in one folder."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.errors import InputError
from compeer.progress import console

if TYPE_CHECKING:
    from compeer.models.base import TextModel

ser = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Build the SER dataset, stage by stage or at once.")

Seed = Annotated[int, typer.Option(help="All randomness comes from it.")]
Workers = Annotated[int, typer.Option(help="Processes at work; they change nothing but the time.", min=1)]
Records = Annotated[Path, typer.Argument(help="A file of records.")]
Out = Annotated[Path, typer.Argument(help="The file to write.")]
Model = Annotated[str, typer.Option("--model", help="'embedded', a model folder, or NAME@http://host:8000/v1.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="As NAME@http://host:8000/v1; several may be given.")]
Call = Annotated[
    list[str] | None,
    typer.Option(
        "--call", metavar="KEY=VALUE", help="How models are called, as concurrency=64 (see: compeer ser calls)."
    ),
]
Cache = Annotated[Path, typer.Option(help="Where answers are kept, so that none is paid for twice.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how many calls and tokens it would take, and stop.")]
Language = Annotated[list[str] | None, typer.Option("--language", help="A language to take; all, if none is given.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave bad dialogues out and count them by reason.")]
Embedder = Annotated[str, typer.Option(help="Who is near: 'embedded', a sentence-transformers folder, or 'words'.")]
Coherent = Annotated[float, typer.Option(help="Share of the wrong strategies that the response carries out.")]
CACHE = Path("answers.sqlite")
CORES = os.cpu_count() or 1


@ser.command()
def build(
    corpora: Annotated[list[str], typer.Argument(metavar="CORPUS...", help="Corpus files or folders, or 'sample'.")],
    out: Annotated[Path, typer.Option(help="The folder to build in.")] = Path("ser"),
    language: Language = None,
    rounds: Annotated[int, typer.Option(help="Rounds sampled from a dialogue.", min=1)] = 5,
    false_share: Annotated[float, typer.Option(help="Share of False among candidates' step labels.")] = 0.23,
    coherent: Coherent = 0.8,
    embedder: Embedder = "embedded",
    model: Models = None,
    screener: Annotated[str | None, typer.Option("--screen-model", help="A model that drops unfit dialogues.")] = None,
    call: Call = None,
    cache: Annotated[Path | None, typer.Option(help="Where answers are kept; in the folder, if not given.")] = None,
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    workers: Workers = CORES,
) -> None:
    """Do all stages in one folder, then the check, the probes and the card. Stopped anywhere, it goes on."""
    from pydantic import ValidationError

    from compeer.errors import from_validation
    from compeer.io import only_one
    from compeer.ser.build import BuildSettings, build_records, summary

    silence_libraries()
    try:
        settings = BuildSettings(
            languages=tuple(language or ()),
            rounds=rounds,
            false_share=false_share,
            coherent=coherent,
            embedder=embedder,
        )
    except ValidationError as error:
        raise from_validation(error) from None
    out.mkdir(parents=True, exist_ok=True)
    with only_one(out):
        kept = cache or out / CACHE
        models = [open_named(name, call, kept) for name in model or ()]
        judge = open_named(screener, call, kept) if screener else None
        with _counted([*models, *([judge] if judge else [])]):
            records = build_records(
                corpora, out, settings, seed, workers=workers, skip_bad=skip_bad, screener=judge, models=models
            )
        found = summary(out)
        false = ", ".join(f"{part} {share:.1%}" for part, share in found["false_share"].items())
        console.print(f"  {found['records']:,} records; False: {false}", highlight=False)
        good = _check(records, out / "splits.jsonl", out / "check.json", seed)
        good = _probe(records, out / "probes.json", seed, embedder, 20_000) and good
        card(out)
    if not good:
        raise typer.Exit(1)


@ser.command()
def screen(
    corpora: Annotated[list[str], typer.Argument(metavar="CORPUS...", help="Corpus files or folders, or 'sample'.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("screened.jsonl"),
    language: Language = None,
    skip_bad: SkipBad = False,
    workers: Workers = 1,
) -> None:
    """Drop by rule what is no good, and mask personal data."""
    from compeer.ser.screen import ScreenSettings, screen_stage

    settings = ScreenSettings(languages=tuple(language or ()))
    _print_counts(screen_stage(corpora, out, settings, workers, skip_bad), out)


@ser.command()
def verdict(
    dialogues: Annotated[Path, typer.Argument(help="A file of screened dialogues.")],
    out: Out,
    model: Model,
    call: Call = None,
    cache: Cache = CACHE,
    seed: Seed = 0,
    dry_run: DryRun = False,
) -> None:
    """Ask a model which dialogues are fit, with its reasons."""
    from compeer.ser.screen.verdict import verdict_stage

    _ask([model], call, cache, dry_run, out, lambda models, to: verdict_stage(dialogues, to, models[0], seed=seed))


@ser.command()
def split(
    dialogues: Annotated[Path, typer.Argument(help="A file of dialogues.")],
    out: Out,
    shares: Annotated[tuple[float, float, float], typer.Option(help="For judge, supporter and test.")] = (
        0.45,
        0.35,
        0.2,
    ),
    seed: Seed = 0,
    workers: Workers = 1,
) -> None:
    """Deal the dialogues out to judge, supporter and test; what is alike stays together."""
    from compeer.ser.split import split_stage

    _print_counts(split_stage(dialogues, out, shares, seed, workers=workers), out)


@ser.command()
def sample(
    dialogues: Annotated[Path, typer.Argument(help="A file of dialogues.")],
    splits: Annotated[Path, typer.Argument(help="Their splits.")],
    out: Out,
    rounds: Annotated[int, typer.Option(help="Rounds sampled from a dialogue.", min=1)] = 5,
    seed: Seed = 0,
    workers: Workers = 1,
) -> None:
    """Sample rounds of each dialogue, more from its middle (equation 1)."""
    from compeer.ser.sampling import sample_stage

    _print_counts(sample_stage(dialogues, splits, out, rounds, seed, workers), out)


@ser.command()
def reason(
    contexts: Annotated[Path, typer.Argument(help="A file of contexts.")],
    out: Out,
    model: Models = None,
    candidates: Annotated[int, typer.Option(help="Turns that each model writes for a history.", min=1)] = 1,
    retries: Annotated[int, typer.Option(help="How often an unreadable turn is asked for again.", min=0)] = 2,
    images: Annotated[bool, typer.Option("--images", help="Give the history's pictures to the models.")] = False,
    call: Call = None,
    cache: Cache = CACHE,
    seed: Seed = 0,
    dry_run: DryRun = False,
) -> None:
    """Let models write candidate turns, three steps and a response, for each context."""
    from compeer.ser.reason import ReasonSettings, reason_stage

    settings = ReasonSettings(candidates=candidates, retries=retries, images=images)
    names = model or ["embedded"]
    _ask(names, call, cache, dry_run, out, lambda models, to: reason_stage(contexts, to, models, settings, seed))


@ser.command()
def silver(
    contexts: Annotated[Path, typer.Argument(help="A file of contexts.")],
    out: Out,
    turns: Annotated[Path | None, typer.Option(help="Turns that models wrote for these contexts.")] = None,
    false_share: Annotated[float, typer.Option(help="Share of False among candidates' step labels.")] = 0.23,
    coherent: Coherent = 0.8,
    embedder: Embedder = "embedded",
    seed: Seed = 0,
    workers: Workers = 1,
) -> None:
    """Make labelled records by rule: matched, so that no label can be told without the history."""
    from compeer.ser.silver import SilverSettings, silver_stage

    silence_libraries()
    settings = SilverSettings(false_share=false_share, coherent=coherent, embedder=embedder)
    _print_counts(silver_stage(contexts, out, settings, seed, workers, turns), out)


@ser.command()
def personality(
    dialogues: Annotated[Path, typer.Argument(help="A file of dialogues.")],
    out: Out,
    model: Annotated[
        str | None, typer.Option(help="A model that describes people; none: an estimate by words.")
    ] = None,
    call: Call = None,
    cache: Cache = CACHE,
    seed: Seed = 0,
    workers: Workers = 1,
    dry_run: DryRun = False,
) -> None:
    """Describe both participants by DISC, and cluster the descriptions (clusters.json, elbow.svg beside them)."""
    from compeer.ser.personality import profile_stage
    from compeer.ser.personality.clusters import cluster_profiles

    silence_libraries()

    def work(models: Sequence[TextModel], to: Path) -> Coroutine[Any, Any, dict[str, Any]]:
        return profile_stage(dialogues, to, models[0] if models else None, 2, seed, workers)

    _ask([model] if model else [], call, cache, dry_run, out, work)
    if not dry_run:
        clusters = out.with_name("clusters.json")
        _print_counts(cluster_profiles(out, clusters, seed), clusters)


@ser.command()
def rewrite(
    records: Records,
    out: Out,
    model: Model,
    profiles: Annotated[Path | None, typer.Option(help="Profiles; with them the rewriting is by personality.")] = None,
    clusters: Annotated[Path | None, typer.Option(help="Their clusters (clusters.jsonl).")] = None,
    call: Call = None,
    cache: Cache = CACHE,
    seed: Seed = 0,
    dry_run: DryRun = False,
) -> None:
    """Reword the records that train the judge, plainly or toward a profile of the same cluster."""
    from compeer.ser.rewrite import RewriteSettings, rewrite_stage

    kind: Literal["plain", "personality"] = "personality" if profiles else "plain"
    settings = RewriteSettings()

    def work(models: Sequence[TextModel], to: Path) -> Coroutine[Any, Any, dict[str, Any]]:
        return rewrite_stage(records, to, kind, models[0], settings, seed, profiles=profiles, clusters=clusters)

    _ask([model], call, cache, dry_run, out, work)


@ser.command()
def sets(
    records: Records,
    folder: Annotated[Path, typer.Argument(help="The folder to write the sets to.")],
    plain_rewrites: Annotated[Path | None, typer.Option("--plain", help="The records reworded plainly.")] = None,
    by_personality: Annotated[Path | None, typer.Option("--personality", help="Those reworded by personality.")] = None,
) -> None:
    """Write the sets -D, -R and -P: all records, and as many more duplicated, reworded, or reworded by personality."""
    from compeer.ser.rewrite.sets import equal_sets

    folder.mkdir(parents=True, exist_ok=True)
    _print_counts(equal_sets(records, folder, plain_rewrites, by_personality), folder)


@ser.command()
def check(
    records: Records,
    splits: Annotated[Path | None, typer.Option(help="The splits they were made from.")] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file to write the findings to.")] = None,
    seed: Seed = 0,
) -> None:
    """Prove that splits share nothing and that labels are matched; exit code 1 if something is amiss."""
    if not _check(records, splits, out, seed):
        raise typer.Exit(1)


@ser.command()
def probe(
    records: Records,
    out: Annotated[Path | None, typer.Option(help="A JSON file to write the figures to.")] = None,
    embedder: Embedder = "embedded",
    limit: Annotated[int, typer.Option(help="Records looked at, drawn by the seed.", min=100)] = 20_000,
    seed: Seed = 0,
) -> None:
    """Try to tell the labels without the history; exit code 1 if a probe does better than its limit."""
    if not _probe(records, out, seed, embedder, limit):
        raise typer.Exit(1)


@ser.command()
def card(
    folder: Annotated[Path, typer.Argument(help="A build folder.")],
    examples: Annotated[int, typer.Option(help="Records shown, with their text.", min=0)] = 12,
) -> None:
    """Write the dataset card, card.md and card.html."""
    from compeer.report.card import write_card

    for path in write_card(folder, examples):
        console.print(f"  {plain(str(path))}", highlight=False, soft_wrap=True)


@ser.command()
def export(
    records: Records,
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    format: Annotated[
        str,
        typer.Option(
            help="'parquet'; for datasets.load_dataset 'datasets' (all columns), 'preferences' (prompt, chosen, "
            "rejected), 'messages' or 'sharegpt'."
        ),
    ] = "parquet",
) -> None:
    """Write records as Parquet, a file a split."""
    from compeer.ser.export import export_records
    from compeer.ser.forms import TRAINING_FORMS, export_form

    if format not in (known := ("parquet", "datasets", *TRAINING_FORMS)):
        raise InputError(f"unknown format '{format}'.", field="format", do=f"Known: {', '.join(known)}")
    write = export_form if format in TRAINING_FORMS else export_records
    found = write(records, out, format)  # type: ignore[arg-type]
    counts = ", ".join(f"{split} {count:,}" for split, count in found["records"].items())
    console.print(f"{counts} written to {plain(str(out))}", highlight=False, soft_wrap=True)


@ser.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="Step-labelled turns from elsewhere, JSON lines.")],
    out: Out,
    source: Annotated[str | None, typer.Option(help="Who labelled them: llm or human.")] = None,
    splits: Annotated[Path | None, typer.Option(help="Splits of a build, which the records then keep.")] = None,
    leave_out: Annotated[list[str] | None, typer.Option(help="A strategy whose turns are left out.")] = None,
    seed: Seed = 0,
) -> None:
    """Take step-labelled turns from elsewhere as records."""
    from compeer.ser.importing import import_turns

    if source not in (None, "llm", "human"):
        raise InputError(f"unknown source '{source}'.", field="source", do="Known: llm, human")
    made = import_turns(path, out, source, splits, tuple(leave_out or ()), seed)  # type: ignore[arg-type]
    _print_counts(made, out)


@ser.command()
def match(
    records: Records,
    out: Out,
    pairs: Annotated[
        Literal["near", "random"], typer.Option(help="Contexts are paired with the nearest other, or with any.")
    ] = "near",
    mixtures: Annotated[int, typer.Option(help="Turns mixed of a pair's steps, beside its own two.", min=0, max=6)] = 2,
    mistakes: Annotated[bool, typer.Option("--mistakes", help="Keep turns that were judged wrong as extra.")] = False,
    seed: Seed = 0,
) -> None:
    """Make of judged records a matched set: every turn right in one history stands in another, where it is wrong."""
    from compeer.ser.matched import match_turns

    silence_libraries()
    _print_counts(match_turns(records, out, seed, mixtures, mistakes, pairs=pairs), out)


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


# --- what the commands share ------------------------------------------------------------------------------------------


def open_named(name: str, call: Sequence[str] | None, cache: Path) -> TextModel:
    """The model that a person named, called as --call says, its answers kept."""
    from pydantic import ValidationError

    from compeer.errors import from_validation
    from compeer.models.resolve import ModelSettings, open_model

    values = {}
    for change in call or ():
        key, equals, value = change.partition("=")
        if not equals:
            raise InputError(
                f"'{change}' is not of the form key=value.", do="Write, for instance, --call concurrency=64"
            )
        values[key.strip()] = value.strip()
    try:
        settings = ModelSettings.model_validate(values)
    except ValidationError as error:
        raise from_validation(error, do="compeer ser calls lists the settings.") from None
    return open_model(name, settings=settings, cache=cache)


def _ask(
    names: Sequence[str],
    call: Sequence[str] | None,
    cache: Path,
    dry_run: bool,
    out: Path,
    work: Callable[[Sequence[TextModel], Path], Coroutine[Any, Any, dict[str, Any]]],
) -> None:
    """Runs a stage that asks models, and says what it cost; a dry run goes through it without asking."""
    from compeer.models.costs import DryRun

    silence_libraries()
    models = [open_named(name, call, cache) for name in names]
    if dry_run:
        rehearsed = [DryRun(model) for model in models]
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(work(rehearsed, Path(folder) / out.name))
        for one in rehearsed:
            console.print(f"{plain(one.name)}: {one.total}", highlight=False, soft_wrap=True)
        return
    with _counted(models):
        manifest = asyncio.run(work(models, out))
    _print_counts(manifest, out)
    if failed := manifest.get("failed"):
        raise InputError(
            f"{failed:,} questions got no answer; what came is kept.",
            do="Call the same command again to ask those again.",
        )


@contextmanager
def _counted(models: Sequence[TextModel]) -> Iterator[None]:
    """Shows what the models are asked while the work inside goes on, and in a table at its end, however it ends."""
    from compeer.models.costs import counters_table, live_counters

    counted = [(model.name, counters) for model in models if (counters := getattr(model, "counters", None))]
    try:
        with ExitStack() as shown:
            for name, counters in counted:
                shown.enter_context(live_counters(name, counters))
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


def _check(records: Path, splits: Path | None, out: Path | None, seed: int) -> bool:
    from rich.table import Table

    from compeer.io import write_json
    from compeer.ser.check import check_records

    found = check_records(records, splits, seed)
    table = Table(show_header=False, box=None)
    marks = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]–[/]"}
    for finding in found.findings:
        table.add_row(marks[finding.passed], plain(finding.name), plain(finding.says))
        if finding.at_fault and finding.passed is False:
            table.add_row("", "", plain("at fault: " + ", ".join(finding.at_fault)))
    console.print(table)
    if out:
        write_json(out, found.model_dump(mode="json"))
    return found.passed


def _probe(records: Path, out: Path | None, seed: int, embedder: str, limit: int) -> bool:
    from rich.table import Table

    from compeer.io import write_json
    from compeer.models.embedder import Embedder
    from compeer.ser.probes import probe_records

    silence_libraries()
    vectors = None if embedder == "words" else Embedder(embedder)
    found = probe_records(records, seed, vectors, limit, embedded_texts=6_000)
    table = Table("", "what it tells", "what it sees", "balanced accuracy", "limit", "labels", box=None)
    marks = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]–[/]"}
    for one in found.probes:
        if one.balanced_accuracy is None:
            figure = "too few labels"
        else:
            figure = f"{one.balanced_accuracy:.3f} ({one.low:.3f} to {one.high:.3f}), chance {one.chance:g}"
        limit_shown = "–" if one.limit is None else f"{one.limit:g}"
        table.add_row(marks[one.passed], plain(one.label), plain(one.sees), figure, limit_shown, f"{one.tested:,}")
    console.print(table)
    if out:
        write_json(out, found.model_dump(mode="json"))
    return found.passed
