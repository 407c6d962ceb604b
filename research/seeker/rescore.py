"""Mean final emotion, successes and failures of SAGE transcripts that somebody else made.

python research/seeker/rescore.py transcripts.jsonl
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import run_command

from compeer.evaluate.sage import rescore_command


def main(transcripts: Annotated[Path, typer.Argument(help="Transcripts of the released kind, one a line.")]) -> None:
    """Score transcripts again by their final emotions."""
    typer.echo(rescore_command(transcripts))


if __name__ == "__main__":
    run_command(main)
