"""`compeer evaluate compare`: two runs of ESC-Eval or SAGE, pair by pair."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compeer.cli.printing import plain

if TYPE_CHECKING:
    from compeer.evaluate.compare import Comparison
    from compeer.statistics import Estimate


def compare(
    first: Annotated[Path, typer.Argument(help="The folder of a run.")],
    second: Annotated[Path, typer.Argument(help="Another run's, on the same scenarios, of another supporter.")],
    seed: Annotated[int, typer.Option(help="Of the intervals' draws.")] = 0,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON.")] = None,
) -> None:
    """Compare two supporters on the same scenarios: differences and win rates by dimension, with paired intervals."""
    from compeer.cli.evaluate.writing import check_place, write_figures
    from compeer.evaluate.compare import compare_runs, read_run

    check_place(out)
    found = compare_runs(read_run(first), read_run(second), seed)
    _print(found)
    if out:
        write_figures(out, {"seed": seed, "folders": [str(first), str(second)], **found.model_dump()})


def _print(found: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    typer.echo(f"{found.protocol}, {found.pairs:,} pairs of conversations about {found.scenarios:,} scenarios")
    typer.echo(f"A: {found.first}\nB: {found.second}")
    for note in found.notes:
        typer.echo(f"Note: {note}")
    table = Table(box=None)
    for title in ("", "A", "B", "A − B", "A wins", "won-tied-lost"):
        table.add_column(title, no_wrap=True)
    for name, one in found.dimensions.items():
        means = ["–" if value is None else f"{value:.1f}" for value in (one.first, one.second)]
        table.add_row(
            name,
            *means,
            _shown(one.difference, "+.1f"),
            _shown(one.win_rate, ".0%"),
            f"{one.wins}-{one.ties}-{one.losses}",
        )
    Console(soft_wrap=True).print(table)
    typer.echo("95 % intervals over scenarios; where one holds 0 (50 % for wins), chance may explain the difference.")


def _shown(figure: Estimate, form: str) -> str:
    if figure.value is None:
        return "–"
    if figure.low is None or figure.high is None:
        return f"{figure.value:{form}}"
    return plain(f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]")
