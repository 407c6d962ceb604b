"""`compeer evaluate`: measure what a supporter is like."""

from __future__ import annotations

import typer

from compeer.cli.evaluate.conversing import esc_eval, sage
from compeer.cli.evaluate.measuring import compare, decisions, diversity, train_seeker
from compeer.cli.evaluate.safety import safety

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
