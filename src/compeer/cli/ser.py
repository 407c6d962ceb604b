"""`compeer ser`: build the dataset. A command a stage, each on its own files; `build` does them all in one folder."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer
from rich.table import Table

from compeer.cli.models import counters_printed, open_named
from compeer.cli.options import ANSWERS, CACHE, CALL, SEED, SKIP_BAD, argument, option
from compeer.cli.printing import note, plain, print_counts, print_folded
from compeer.cli.training import settings_of
from compeer.errors import InputError
from compeer.io import only_one, write_json
from compeer.models.resolve import ModelSettings
from compeer.progress import console

ser = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Build the SER dataset, stage by stage or at once.")

_FORMATS = "All but 'parquet' are for datasets.load_dataset: all columns, preference pairs, or conversations."
_WORKERS = "Processes at work; they change nothing but the time."
CORPORA = argument("Corpus files or folders, or 'sample'.", metavar="CORPUS...")
DIALOGUES = argument("A file of dialogues.")
CONTEXTS = argument("A file of contexts.")
RECORDS = argument("A file of records.")
OUT = argument("The file to write.")
FOLDER = argument("The folder to read or write.")
LANGUAGES = option("A language to take; all, if none is given.", [], "--language")
ROUNDS = option("Rounds sampled from a dialogue.", 5, min=1)
FALSE_SHARE = option("Share of False among candidates' step labels.", 0.23)
COHERENT = option("Share of the wrong strategies that the response carries out.", 0.8)
EMBEDDER = option("Who is near: 'embedded', a sentence-transformers folder, or 'words'.", "embedded")
MODELS = option("As NAME@http://host:8000/v1; several may be given.", [], "--model")
WORKERS = option(_WORKERS, 1, min=1)


def ask_models(stage: Any, *, out: Path, call: Sequence[str] | None, cache: Path, model: str | Sequence[str]) -> None:
    """Runs a stage that asks a model, or several, and prints what it cost."""
    models = [open_named(name, call, cache) for name in ([model] if isinstance(model, str) else model)]
    which = {"model": models[0]} if isinstance(model, str) else {"models": models}
    with counters_printed(models):
        manifest: dict[str, Any] = asyncio.run(stage(out=out, **which))
    print_counts(manifest, out)
    if failed := manifest.get("failed"):
        do = "Call the same command again to ask those again."
        raise InputError(f"{failed:,} questions got no answer; what came is kept.", do=do)


@ser.command()
def calls() -> None:
    """Show the settings for --call: their names, defaults and meanings."""
    every = ModelSettings.model_fields.items()
    rows = [(name, str(field.default), field.description or "") for name, field in every]
    print_folded(("key", "default", "meaning"), rows)


@ser.command()
def build(
    corpora: list[str] = CORPORA,
    out: Path = option("The folder to build in.", Path("ser")),
    languages: list[str] = LANGUAGES,
    rounds: int = ROUNDS,
    false_share: float = FALSE_SHARE,
    coherent: float = COHERENT,
    embedder: str = EMBEDDER,
    models: list[str] = MODELS,
    screener: str | None = option("A model that drops unfit dialogues.", None, "--screen-model"),
    call: list[str] | None = CALL,
    cache: Path | None = option("Where answers are kept; in the folder, if not given."),
    skip_bad: bool = SKIP_BAD,
    seed: int = SEED,
    workers: int = option(_WORKERS, os.cpu_count() or 1, min=1),
) -> None:
    """Do all stages in one folder, then the check and the card. Stopped anywhere, it goes on."""
    from compeer.ser.build import BuildSettings, build_records, summary

    silver = {"false_share": false_share, "coherent": coherent, "embedder": embedder}
    settings = settings_of(BuildSettings, {"languages": languages, "rounds": rounds, **silver})
    out.mkdir(parents=True, exist_ok=True)
    with only_one(out):
        opened = [open_named(name, call, cache or out / CACHE) for name in models]
        judge = open_named(screener, call, cache or out / CACHE) if screener else None
        with counters_printed([*opened, *([judge] if judge else [])]):
            records = build_records(
                corpora, out, settings, seed, workers=workers, skip_bad=skip_bad, screener=judge, models=opened
            )
        found = summary(out)
        false = ", ".join(f"{part} {share:.1%}" for part, share in found["false_share"].items())
        note(f"  {found['records']:,} records; False: {false}")
        passed = _checked(records, out / "splits.jsonl", out / "check.json", seed)
        probes = out / "probes.json"
        if probes.is_file() and probes.stat().st_mtime < records.stat().st_mtime:
            probes.unlink()  # the card would describe other records
        card(out, 12)
    if not passed:
        raise typer.Exit(1)


@ser.command()
def screen(
    corpora: list[str] = CORPORA,
    out: Path = option("The file to write.", Path("screened.jsonl")),
    languages: list[str] = LANGUAGES,
    skip_bad: bool = SKIP_BAD,
    workers: int = WORKERS,
) -> None:
    """Drop by rule what is no good, and mask personal data."""
    from compeer.ser.screen import ScreenSettings, screen_stage

    settings = settings_of(ScreenSettings, {"languages": languages})
    print_counts(screen_stage(corpora, out, settings, workers, skip_bad), out)


@ser.command()
def verdict(
    dialogues: Path = DIALOGUES,
    out: Path = OUT,
    model: str = option("'embedded', a model folder, or NAME@http://host:8000/v1.", ...),
    call: list[str] | None = CALL,
    cache: Path = ANSWERS,
    seed: int = SEED,
) -> None:
    """Ask a model which dialogues are fit, with its reasons."""
    from compeer.ser.screen import verdict_stage

    stage = partial(verdict_stage, dialogues, seed=seed)
    ask_models(stage, out=out, call=call, cache=cache, model=model)


@ser.command()
def split(
    dialogues: Path = DIALOGUES,
    out: Path = OUT,
    shares: tuple[float, float, float] = option("For judge, supporter and test.", (0.45, 0.35, 0.2)),
    seed: int = SEED,
    workers: int = WORKERS,
) -> None:
    """Deal the dialogues out to judge, supporter and test; what is alike stays together."""
    from compeer.ser.split import split_stage

    print_counts(split_stage(dialogues, out, shares, seed, workers), out)


@ser.command()
def sample(
    dialogues: Path = DIALOGUES,
    splits: Path = argument("Their splits."),
    out: Path = OUT,
    rounds: int = ROUNDS,
    seed: int = SEED,
    workers: int = WORKERS,
) -> None:
    """Sample rounds of each dialogue, more from its middle (equation 1)."""
    from compeer.ser.sampling import sample_stage

    print_counts(sample_stage(dialogues, splits, out, rounds, seed, workers), out)


@ser.command()
def reason(
    contexts: Path = CONTEXTS,
    out: Path = OUT,
    models: list[str] = MODELS,
    candidates: int = option("Turns that each model writes for a history.", 1, min=1),
    retries: int = option("How often an unreadable turn is asked for again.", 2, min=0),
    images: bool = option("Give the history's pictures to the models.", False, "--images"),
    call: list[str] | None = CALL,
    cache: Path = ANSWERS,
    seed: int = SEED,
) -> None:
    """Let models write candidate turns, three steps and a response, for each context."""
    from compeer.ser.reason import ReasonSettings, reason_stage

    settings = settings_of(ReasonSettings, {"candidates": candidates, "retries": retries, "images": images})
    stage = partial(reason_stage, contexts, settings=settings, seed=seed)
    ask_models(stage, out=out, call=call, cache=cache, model=models or ["embedded"])


@ser.command()
def silver(
    contexts: Path = CONTEXTS,
    out: Path = OUT,
    turns: Path | None = option("Turns that models wrote for these contexts."),
    false_share: float = FALSE_SHARE,
    coherent: float = COHERENT,
    embedder: str = EMBEDDER,
    seed: int = SEED,
    workers: int = WORKERS,
) -> None:
    """Make labelled records by rule: matched, so that no label can be guessed without the history."""
    from compeer.ser.silver import SilverSettings, silver_stage

    settings = settings_of(SilverSettings, {"false_share": false_share, "coherent": coherent, "embedder": embedder})
    print_counts(silver_stage(contexts, out, settings, seed, workers, turns), out)


@ser.command()
def check(
    records: Path = RECORDS,
    splits: Path | None = option("The splits that the dialogues have in a build."),
    out: Path | None = option("A JSON file to write what was found to."),
    seed: int = SEED,
) -> None:
    """Prove that splits share nothing and that labels are matched; exit code 1 if something is amiss."""
    if not _checked(records, splits, out, seed):
        raise typer.Exit(1)


_MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]–[/]"}


def _checked(records: Path, splits: Path | None, out: Path | None, seed: int) -> bool:
    """Whether the records pass; prints what was found, and writes it where it is wanted."""
    from compeer.ser.check import check_records

    found = check_records(records, splits, seed)
    table = Table(show_header=False, box=None)
    for finding in found.findings:
        table.add_row(_MARKS[finding.passed], plain(finding.name), plain(finding.message))
        if finding.at_fault and finding.passed is False:
            table.add_row("", "", plain("at fault: " + ", ".join(finding.at_fault)))
    console.print(table)
    if out:
        write_json(out, found.model_dump(mode="json"))
    return found.passed


@ser.command()
def card(folder: Path = FOLDER, examples: int = option("Records that it quotes, with their text.", 12, min=0)) -> None:
    """Write the dataset card, card.md and card.html."""
    from compeer.report.card import write_card

    for path in write_card(folder, examples):
        note(f"  {path}")


@ser.command()
def export(
    records: Path = RECORDS,
    folder: Path = FOLDER,
    format: Literal["parquet", "datasets", "preferences", "messages", "sharegpt"] = option(_FORMATS, "parquet"),
) -> None:
    """Write records as Parquet, a file a split."""
    from compeer.ser.export import export_records

    found = export_records(records, folder, format)
    counts = ", ".join(f"{split} {count:,}" for split, count in found["records"].items())
    note(f"{counts} written to {folder}")
