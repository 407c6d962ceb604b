"""`compeer corpus`: look at corpora and convert them."""

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from compeer.cli.options import SKIP_BAD, argument, option
from compeer.cli.printing import note, plain
from compeer.corpora import BadDialogues, read_corpus, write_jsonlines
from compeer.corpora.counting import count_corpus, table_rows

corpus = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at corpora and convert them.")
FORMAT = option("The corpus' format, where it is not recognised.")
MERGE = option("Join what one speaker says in a row.", False, "--merge")


@corpus.command()
def stats(
    paths: list[str] = argument("Corpus files or folders, or 'sample'.", metavar="PATH..."),
    format: str | None = FORMAT,
    skip_bad: bool = SKIP_BAD,
    merge: bool = MERGE,
) -> None:
    """Count what corpora hold: dialogues, utterances, and every kind of label; a column a corpus."""
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
    path: str = argument("A corpus file or folder."),
    out: Path = argument("The file to write, in our JSON lines (docs/data.md)."),
    format: str | None = FORMAT,
    skip_bad: bool = SKIP_BAD,
    merge: bool = MERGE,
    media: str = option("The folder of the corpus' clips, put before their names.", ""),
) -> None:
    """Write a corpus as our JSON lines, whole or not at all."""
    bad = BadDialogues()
    dialogues = read_corpus(path, format, merge=merge, skip_bad=bad if skip_bad else None, media=media)
    count = write_jsonlines(dialogues, out)
    note(f"{count:,} dialogues written to {out}")
    for reason, number in bad.reasons.most_common():
        first = str(bad.first[reason]).partition("\n")[0]
        note(f"  {number:,} left out: {reason} (first: {first})")
