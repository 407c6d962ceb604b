"""`compeer evaluate diversity`: how varied replies are, of one set or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compeer.cli.printing import plain, silence_libraries
from compeer.errors import InputError
from compeer.progress import console

if TYPE_CHECKING:
    from compeer.evaluate.diversity import DiversityFigures
from compeer.statistics import Estimate


def diversity(
    sets: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="Runs' folders, files of outputs, corpora; several are counted alike."),
    ],
    speaker: Annotated[str, typer.Option(help="Whose replies: supporter or seeker.")] = "supporter",
    records: Annotated[
        Path | None, typer.Option(help="The SER records that outputs answer; else each history stands for itself.")
    ] = None,
    language: Annotated[str, typer.Option(help="The language of outputs without records.")] = "en",
    embedder: Annotated[str, typer.Option(help="'embedded', or a sentence-transformers folder.")] = "embedded",
    seed: Annotated[int, typer.Option(help="All randomness comes from it.")] = 0,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON.")] = None,
) -> None:
    """Measure how varied replies are: distinct-n, self-BLEU, openings, similarity; at equal sizes, with intervals."""
    from compeer.cli.evaluate.writing import check_place, write_figures
    from compeer.evaluate.diversity import HALVES, compare_diversity, read_replies
    from compeer.models.embedder import Embedder
    from compeer.ser.record import read_records

    if speaker not in ("supporter", "seeker"):
        raise InputError(f"unknown speaker '{speaker}'.", field="speaker", do="Known: supporter, seeker")
    check_place(out)
    silence_libraries()
    known = list(read_records(records)) if records else []
    read = [read_replies(name, "seeker" if speaker == "seeker" else "supporter", known, language) for name in sets]
    console.print(f"  {sum(len(one) for one in read):,} replies are read and embedded", highlight=False)
    found = compare_diversity(read, Embedder(embedder), seed)
    for code in sorted({figures.language for one in found for figures in one}):
        chosen = [(name, f) for name, one in zip(sets, found, strict=True) for f in one if f.language == code]
        _print(code, chosen, embedder == "embedded")
    if out:
        told = {
            "speaker": speaker,
            "seed": seed,
            "halves": HALVES,
            "bleu": "sacrebleu, effective order, exponential smoothing, case kept; zh for Chinese, else 13a",
            "embedder": embedder,
            "sets": [
                {"name": name, "figures": [figures.model_dump() for figures in one]}
                for name, one in zip(sets, found, strict=True)
            ],
        }
        write_figures(out, told)


ROWS = {
    "distinct-1": "distinct_1",
    "distinct-2": "distinct_2",
    "distinct-3": "distinct_3",
    "self-BLEU": "self_bleu",
    "open alike": "open_alike",
    "largest opening": "largest_opening",
    "similarity in a dialogue": "in_dialogue",
    "similarity across": "across_dialogues",
}


def _print(language: str, found: Sequence[tuple[str, DiversityFigures]], packaged: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    first = found[0][1]
    typer.echo(
        f"{language}: distinct-n over {first.at_words:,} words, self-BLEU and openings over {first.at_replies:,} "
        "replies of each; 95 % intervals over dialogues."
    )
    table = Table("", box=None)
    for name, _ in found:
        table.add_column(plain(name), overflow="fold")
    for name, value in (("replies", "replies"), ("dialogues", "dialogues")):
        table.add_row(name, *(f"{getattr(figures, value):,}" for _, figures in found))
    table.add_row("characters" if language == "zh" else "words", *(f"{figures.words:.1f}" for _, figures in found))
    for name, value in ROWS.items():
        table.add_row(name, *(_shown(getattr(figures, value), value) for _, figures in found))
    Console(soft_wrap=True).print(table)
    if packaged and language != "en":
        typer.echo("The packaged embedder knows English only: similarity here is that of wording, not of meaning.")
    if first.dialogues == first.replies:
        typer.echo("No dialogue has two replies, so there is no similarity within one.")
    typer.echo()


def _shown(figure: Estimate, name: str) -> str:
    if figure.value is None:
        return "–"
    digits = 1 if name == "self_bleu" else 3
    if figure.low is None or figure.high is None:
        return f"{figure.value:.{digits}f}"
    return plain(f"{figure.value:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]")
