"""The judge that a person names for `compeer reward judge`, opened as the options say.

A judge in a folder is asked in the form of its card; only of a model behind a server has the form to be told. Options
that would change nothing are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compeer.errors import InputError

if TYPE_CHECKING:
    from compeer.reward.form import Form, Judge


@dataclass(frozen=True)
class JudgeOptions:
    """What was said on the command line about how a judge is asked; None is what was not said."""

    kind: str | None = None
    reasons: bool = False
    trained: bool = False
    call: Sequence[str] | None = None
    cache: Path | None = None
    batch: int | None = None
    threshold: float | None = None
    both_orders: bool = False
    media: Path | None = None


def judge_form(model: str, options: JudgeOptions) -> Form:
    """The form in which the judge will be asked, once the options have been checked."""
    from compeer.models.resolve import card_folder
    from compeer.models.training import model_card
    from compeer.reward.form import Form

    if options.threshold is not None and not 0 <= options.threshold <= 1:
        raise InputError(f"{options.threshold:g} is no probability.", field="threshold", do="Give one from 0 to 1.")
    behind_a_server = "@http" in model
    _refuse_idle_options(behind_a_server, options)
    if not behind_a_server:
        card = model_card(card_folder(model))
        return Form.model_validate({key: card[key] for key in Form.model_fields if key in card})
    kind = options.kind or "unified"
    if kind not in ("unified", "process", "outcome"):
        raise InputError(f"unknown kind '{kind}'.", field="kind", do="Known: unified, process, outcome")
    return Form.model_validate({"kind": kind, "reasons": options.reasons})


def open_judge(model: str, form: Form, options: JudgeOptions, advance: Callable[[int], None]) -> Judge:
    """The judge itself; `advance` is told how many more cases have been judged."""
    if "@http" in model:
        from compeer.cli.ser import CACHE, open_named
        from compeer.reward.endpoint import ModelJudge

        return ModelJudge(
            open_named(model, options.call, options.cache or CACHE),
            form,
            trained=options.trained,
            both_orders=options.both_orders,
            progress=advance,
            media=options.media or "",
        )
    from compeer.reward.judge import LocalJudge

    return LocalJudge(
        model,
        options.batch or 16,
        progress=advance,
        form=form,
        both_orders=options.both_orders,
        threshold=options.threshold,
        media=options.media,
    )


def _refuse_idle_options(behind_a_server: bool, options: JudgeOptions) -> None:
    idle: dict[str, object]
    if behind_a_server:
        idle = {"--batch": options.batch, "--threshold": options.threshold}
        what = "for judges in this process; an endpoint answers in words"
    else:
        idle = {
            "--kind": options.kind,
            "--reasons": options.reasons or None,
            "--trained": options.trained or None,
            "--call": options.call or None,
            "--cache": options.cache,
        }
        what = "for endpoints (NAME@http://…); a judge's folder says itself how it is asked"
    if given := [name for name, value in idle.items() if value is not None]:
        raise InputError(
            f"{' and '.join(given)}: only {what}.", do="Leave it out." if len(given) == 1 else "Leave them out."
        )
