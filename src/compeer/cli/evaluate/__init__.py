"""`compeer evaluate`: measure what a supporter is like; a command a file."""

from __future__ import annotations

import typer

from compeer.cli.evaluate.compare import compare
from compeer.cli.evaluate.decisions import decisions
from compeer.cli.evaluate.diversity import diversity
from compeer.cli.evaluate.esc_eval import esc_eval
from compeer.cli.evaluate.safety import safety
from compeer.cli.evaluate.sage import sage
from compeer.cli.evaluate.train_seeker import train_seeker

evaluate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure supporters and the guard.")


@evaluate.callback()
def _evaluate() -> None:
    """Measure supporters and the guard around them."""


evaluate.command(name="esc-eval")(esc_eval)
evaluate.add_typer(sage, name="sage")
evaluate.command()(compare)
evaluate.command()(diversity)
evaluate.command()(decisions)
evaluate.command(name="train-seeker")(train_seeker)
evaluate.command()(safety)
