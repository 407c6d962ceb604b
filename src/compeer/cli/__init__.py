"""The command line: parses words, calls one function below, prints with rich.

Heavy imports happen inside the commands, so that help and mistakes are answered at once.
"""

import errno
import os
import shutil
import sys
import time
import warnings
from importlib.resources import files
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from compeer import __version__
from compeer.cli.annotate import annotate
from compeer.cli.corpus import corpus
from compeer.cli.evaluate import evaluate
from compeer.cli.models import models
from compeer.cli.options import argument, option
from compeer.cli.policy import policy
from compeer.cli.printing import note, plain, print_folded
from compeer.cli.reward import reward
from compeer.cli.ser import ser
from compeer.cli.serve import serve
from compeer.cli.talk import chat, say
from compeer.doctor import examine
from compeer.errors import InputError
from compeer.io import table
from compeer.progress import console

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
groups = {"corpus": corpus, "ser": ser, "reward": reward, "policy": policy, "evaluate": evaluate, "annotate": annotate}
for title, group in {**groups, "models": models}.items():
    app.add_typer(group, name=title)
for command in (say, chat, serve):
    app.command()(command)
CHANGES = option("Change a setting, as grpo.steps=20.", None, "--set", metavar="KEY=VALUE")


def quiet() -> None:
    """No hub, no telemetry, no chatter from the libraries below; what a person set stays as it is."""
    for name, value in table("cli/environment").items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", module="(torch|transformers|trl|peft|accelerate)")
    if loaded := sys.modules.get("transformers"):  # before us, as by a script: it has read its variables already
        loaded.utils.logging.disable_progress_bar()
    if loaded := sys.modules.get("datasets"):
        loaded.disable_progress_bars()


@app.callback(invoke_without_command=True)
def root(version: bool = option("Print the version and stop.", False, "--version")) -> None:
    """Empathetic reasoning for emotional support: data, judge, supporter, evaluation."""
    quiet()
    if version:
        typer.echo(f"compeer {__version__}")
        raise typer.Exit


@app.command()
def run(
    recipe: str = argument("A recipe's name (demo) or a TOML file."),
    changes: list[str] | None = CHANGES,
    runs: Path = option("The folder under which the run gets its own.", Path("runs")),
    until: str | None = option("Only this stage and what it needs: ser, judge, sft, grpo, evaluate.", metavar="STAGE"),
) -> None:
    """Do what a recipe describes, from the corpus to the report. Stopped anywhere, it goes on when called again."""
    from compeer.recipe import load_recipe, run_recipe

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        do = "Start its stages one by one, as docs/scale.md shows: a stage needs all processes, and the next one anew."
        raise InputError("a whole recipe runs in one process.", do=do)
    loaded = load_recipe(recipe, changes or [])
    start = time.monotonic()
    try:
        found = run_recipe(loaded, runs, until)
    except Exception as error:
        if not isinstance(error, InputError) and _disk_is_full(error, runs):
            do = "Free some space (compeer doctor says how much there is), then call again to go on."
            raise InputError("the disk is full.", file=runs, do=do) from error
        raise
    console.print(f"\n[bold green]Done[/] in {(time.monotonic() - start) / 60:.1f} min.", highlight=False)
    if until:
        note(f"  Stage    {found.resolve()}")
        note("  Next     the same command without --until goes on from here")
        return
    note(f"  Report   {found.resolve()}")
    note(files("compeer.cli").joinpath("next.txt").read_text("utf-8").rstrip().format(recipe=recipe))


@app.command()
def recipe(
    name: str = argument("A recipe's name (demo) or a TOML file.", "demo"), changes: list[str] | None = CHANGES
) -> None:
    """Show every setting of a recipe: its key for --set, its value, and what it means."""
    from compeer.recipe import explain, load_recipe

    print_folded(("key", "value", "meaning"), explain(load_recipe(name, changes or [])))


@app.command()
def doctor(runs: Path = option("Where runs will be written.", Path("runs"))) -> None:
    """Examine this machine: what is there, what is wrong, what to do."""
    marks = {"good": "[green]✓[/]", "note": "[yellow]•[/]", "wrong": "[red]✗[/]"}
    table = Table(show_header=False, box=None, padding=(0, 1))
    findings = examine(runs)
    for finding in findings:
        table.add_row(marks[finding.verdict], finding.what, finding.found)
        if finding.do:
            table.add_row("", "", f"[yellow]→ {finding.do}[/]")
    Console().print(table)
    if any(finding.verdict == "wrong" for finding in findings):
        raise typer.Exit(1)


def main(commands: typer.Typer | None = None) -> None:
    """Runs the command; what a person can mend ends with one message and exit code 2, without a traceback."""
    try:
        (commands or app)()
    except InputError as error:
        first, *rest = str(error).split("\n")
        console.print(f"[bold red]Error:[/] {plain(first)}", highlight=False, soft_wrap=True)
        for line in rest:
            note(f"  {line}")
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("\n[yellow]Stopped.[/] Call the same command again to go on from here.")
        sys.exit(130)


def _disk_is_full(error: BaseException | None, folder: Path) -> bool:
    """Whether a full disk caused an error. Libraries say so in various words, or only fail to write."""
    if shutil.disk_usage(folder if folder.exists() else Path.cwd()).free < 2**24:
        return True
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(words in str(error) for words in ("No space left on device", "unexpected pos", "StreamWriter failed")):
            return True
        error = error.__cause__ or error.__context__
    return False
