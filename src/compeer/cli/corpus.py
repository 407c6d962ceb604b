"""`compeer corpus`: look at corpora and convert them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compeer.cli.printing import plain
from compeer.progress import console

corpus = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at corpora and convert them.")

Format = Annotated[str | None, typer.Option(help="The corpus' format, where it is not recognised.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave bad dialogues out and count them by reason.")]
Merge = Annotated[bool, typer.Option("--merge", help="Join what one speaker says in a row.")]


@corpus.command()
def stats(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Corpus files or folders, or 'sample'.")],
    format: Format = None,
    skip_bad: SkipBad = False,
    merge: Merge = False,
) -> None:
    """Count what corpora hold: dialogues, utterances, and every kind of label; a column a corpus."""
    from rich.console import Console
    from rich.table import Table

    from compeer.corpora import BadDialogues, read_corpus
    from compeer.corpora.counting import count_corpus, table_rows

    columns, table = [], Table("", box=None)
    for path in paths:
        bad = BadDialogues()
        counts = count_corpus(read_corpus(path, format, merge=merge, skip_bad=bad if skip_bad else None))
        counts.bad = bad.reasons
        columns.append(counts)
        table.add_column(plain(Path(path).name or path), justify="right")
    for what, cells in table_rows(columns):
        table.add_row(plain(what), *cells, style="" if what.startswith(" ") else "bold")
    Console().print(table)


@corpus.command()
def convert(
    path: Annotated[str, typer.Argument(help="A corpus file or folder.")],
    out: Annotated[Path, typer.Argument(help="The file to write, in our JSON lines (docs/data.md).")],
    format: Format = None,
    skip_bad: SkipBad = False,
    merge: Merge = False,
    media: Annotated[str, typer.Option(help="The folder of the corpus' clips, put before their names.")] = "",
) -> None:
    """Write a corpus as our JSON lines, whole or not at all."""
    from compeer.corpora import BadDialogues, read_corpus, write_jsonlines

    bad = BadDialogues()
    dialogues = read_corpus(path, format, merge=merge, skip_bad=bad if skip_bad else None, media=media)
    count = write_jsonlines(dialogues, out)
    console.print(f"{count:,} dialogues written to {plain(str(out))}", highlight=False, soft_wrap=True)
    for reason, number in bad.reasons.most_common():
        first = str(bad.first[reason]).partition("\n")[0]
        console.print(
            f"  {number:,} left out: {plain(reason)} (first: {plain(first)})", highlight=False, soft_wrap=True
        )
