"""`compeer ser`: build the dataset. A command a stage, each on its own files; `build` does them all in one folder.

A command is declared by its parameters and its help, the docstring; what a parameter is stands once, in
`compeer.cli.ser_parameters`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer

from compeer.cli.models import CACHE, counted, open_named, settings_of
from compeer.cli.printing import plain, print_counts, silence_libraries
from compeer.cli.ser_parameters import signature_of
from compeer.errors import InputError
from compeer.progress import console

if TYPE_CHECKING:
    pass

ser = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Build the SER dataset, stage by stage or at once.")
Work = TypeVar("Work", bound=Callable[..., Any])
ASKING = "call cache seed"


def command(parameters: str) -> Callable[[Work], Work]:
    """Makes a command of a function: it is called with these parameters, and False means exit code 1."""

    def declare(work: Work) -> Work:
        def run(**given: Any) -> None:
            if work(**given) is False:
                raise typer.Exit(1)

        run.__signature__ = signature_of(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        ser.command(work.__name__, help=work.__doc__)(run)
        return work

    return declare


def stage(name: str, target: str, parameters: str, what: str) -> None:
    """Makes a command of a stage: `target` ("split:split_stage", a function of `compeer.ser`) gets the parameters.

    Those that are fields of its `settings` go into these. Its manifest is printed. A stage with the parameter `call`
    asks models.
    """

    def run(**given: Any) -> None:
        module, function = target.split(":")
        work = getattr(import_module(f"compeer.ser.{module}"), function)
        if settings := get_type_hints(work).get("settings"):
            own = {key: given.pop(key) for key in settings.model_fields if key in given}
            given["settings"] = settings_of(settings, own)
        if "call" in given:
            ask_models(work, **given)
            return
        if "embedder" in parameters:
            silence_libraries()
        print_counts(work(**given), given.get("out") or given["folder"])

    run.__name__, run.__doc__ = name, what
    command(parameters)(run)


def ask_models(stage: Any, *, out: Path, call: list[str], cache: Path, **given: Any) -> None:
    """Runs a stage that asks models, and prints what it cost."""
    silence_libraries()
    several = "models" in given
    names = (given.pop("models") or ["embedded"]) if several else [given.pop("model")]
    models = [open_named(name, call, cache) for name in names]
    which = {"models": models} if several else {"model": models[0]}
    with counted(models):
        manifest: dict[str, Any] = asyncio.run(stage(out=out, **which, **given))
    print_counts(manifest, out)
    if failed := manifest.get("failed"):
        do = "Call the same command again to ask those again."
        raise InputError(f"{failed:,} questions got no answer; what came is kept.", do=do)


# --- the commands -----------------------------------------------------------------------------------------------------


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


_MADE_OF = "languages rounds false_share coherent embedder models screener call cache.own skip_bad seed workers.all"


@command(f"corpora out.folder {_MADE_OF}")
def build(
    corpora: list[str],
    out: Path,
    models: list[str],
    screener: str | None,
    call: list[str],
    cache: Path | None,
    skip_bad: bool,
    seed: int,
    workers: int,
    **chosen: Any,
) -> bool:
    """Do all stages in one folder, then the check and the card. Stopped anywhere, it goes on."""
    from compeer.io import only_one
    from compeer.ser.build import BuildSettings, build_records, summary

    settings = settings_of(BuildSettings, chosen)
    silence_libraries()
    out.mkdir(parents=True, exist_ok=True)
    with only_one(out):
        opened = [open_named(name, call, cache or out / CACHE) for name in models]
        judge = open_named(screener, call, cache or out / CACHE) if screener else None
        with counted([*opened, *([judge] if judge else [])]):
            records = build_records(
                corpora, out, settings, seed, workers=workers, skip_bad=skip_bad, screener=judge, models=opened
            )
        found = summary(out)
        false = ", ".join(f"{part} {share:.1%}" for part, share in found["false_share"].items())
        console.print(f"  {found['records']:,} records; False: {false}", highlight=False)
        checked = check(records, out / "splits.jsonl", out / "check.json", seed)
        probes = out / "probes.json"
        if probes.is_file() and probes.stat().st_mtime < records.stat().st_mtime:
            probes.unlink()  # the card would tell of other records
        card(out, 12)
    return checked


stage(
    "screen",
    "screen:screen_stage",
    "corpora out.screened languages skip_bad workers",
    "Drop by rule what is no good, and mask personal data.",
)
stage(
    "verdict",
    "screen:verdict_stage",
    f"dialogues out model {ASKING}",
    "Ask a model which dialogues are fit, with its reasons.",
)
stage(
    "split",
    "split:split_stage",
    "dialogues out shares seed workers",
    "Deal the dialogues out to judge, supporter and test; what is alike stays together.",
)
stage(
    "sample",
    "sampling:sample_stage",
    "dialogues splits out rounds seed workers",
    "Sample rounds of each dialogue, more from its middle (equation 1).",
)
stage(
    "reason",
    "reason:reason_stage",
    f"contexts out models candidates retries images {ASKING}",
    "Let models write candidate turns, three steps and a response, for each context.",
)
stage(
    "silver",
    "silver:silver_stage",
    "contexts out turns false_share coherent embedder seed workers",
    "Make labelled records by rule: matched, so that no label can be told without the history.",
)


_MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]–[/]"}


@command("records splits.known out.json seed")
def check(records: Path, splits: Path | None, out: Path | None, seed: int) -> bool:
    """Prove that splits share nothing and that labels are matched; exit code 1 if something is amiss."""
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
    return found.passed


@command("folder examples")
def card(folder: Path, examples: int) -> None:
    """Write the dataset card, card.md and card.html."""
    from compeer.report.card import write_card

    for path in write_card(folder, examples):
        console.print(f"  {plain(str(path))}", highlight=False, soft_wrap=True)


@command("records folder format")
def export(records: Path, folder: Path, format: Any) -> None:
    """Write records as Parquet, a file a split."""
    from compeer.ser.export import export_records

    found = export_records(records, folder, format)
    counts = ", ".join(f"{split} {count:,}" for split, count in found["records"].items())
    console.print(f"{counts} written to {plain(str(folder))}", highlight=False, soft_wrap=True)
