"""Judges by name, and two judges as one. This is the one place that turns a judge's name into a judge.

judge                             the packaged judge
runs/demo/reward/model            the folder of a trained judge, or of adapters
Qwen2.5-7B@http://host:8000/v1    a model behind an OpenAI-compatible server, trained as a judge or not
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from compeer.errors import InputError
from compeer.models.base import TextModel
from compeer.models.resolve import card_folder, open_model
from compeer.reward.conversation import Case, JudgeForm, JudgeKind
from compeer.reward.score import Judge, Judgment, Unscored

Opens = Callable[[str], TextModel]  # makes the model of a server's name


def open_judge(
    name: str | Path,
    form: JudgeForm | None = None,
    *,
    model: Opens = open_model,
    trained: bool = False,  # whether the one behind a server is a judge of ours
    batch: int = 8,  # of a judge here
    threshold: float | None = None,
    both_orders: bool = False,
    progress: Callable[[int], None] | None = None,
    media: str | Path | None = None,
) -> Judge:
    """The judge of a name: a folder's, in the form of its card unless one is given, or that behind a server."""
    if "@http" in str(name):
        from compeer.reward.endpoint import ModelJudge

        asked = model(str(name))
        return ModelJudge(asked, form, trained=trained, both_orders=both_orders, progress=progress, media=media or "")
    from compeer.reward.judge import LocalJudge

    return LocalJudge(
        name, batch, progress=progress, form=form, both_orders=both_orders, threshold=threshold, media=media
    )


def open_judges(
    names: Sequence[str | Path], form: JudgeForm, *, model: Opens = open_model, trained: bool = False, batch: int = 8
) -> Judge:
    """The judge that gives rewards: one name, or the process and the outcome judge's; folders must hold such judges."""
    if len(names) > 2:
        raise InputError("there are too many judges.", field="judge", do="Give one, or one for steps and another.")
    kinds: list[JudgeKind] = ["process", "outcome"] if len(names) == 2 else [form.kind]
    if kinds == ["outcome"]:
        do = "Name it as `outcome`, beside a judge of the steps."
        raise InputError("this judge compares responses only.", file=names[0], do=do)
    found = []
    for name, kind in zip(names, kinds, strict=True):
        if "@http" in str(name):
            found.append(open_judge(name, form.model_copy(update={"kind": kind}), model=model, trained=trained))
        else:
            check_judge(name, *(("unified", "process") if kind == "unified" else (kind,)))
            found.append(open_judge(name, batch=batch))
    return PairJudge(*found) if len(found) == 2 else found[0]


def check_judge(name: str | Path, *kinds: JudgeKind) -> None:
    """An error if a folder holds no judge, or none of the kinds that will do."""
    from compeer.models.training import model_card

    card = model_card(card_folder(name))
    if card.get("role") != "judge":
        do = "Train one with: compeer reward train"
        raise InputError("this folder holds no judge: its compeer.json does not say so.", file=name, do=do)
    if kinds and (own := card.get("kind", "unified")) not in kinds:
        do = "Give one unified judge, or two: first the process judge (PRM), then the outcome judge (ORM)."
        raise InputError(f"the {kinds[0]} judge is needed here, and this is the {own} one.", file=name, do=do)


class PairJudge:
    """PRM and ORM together: whole judgments, as UnifiReward gives them."""

    def __init__(self, process: Judge, outcome: Judge) -> None:
        self._process, self._outcome = process, outcome
        self.name = f"{process.name} + {outcome.name}"

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return [join(*pair) for pair in zip(self._process.judge(cases), self._outcome.judge(cases), strict=True)]

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """The same for async callers, both judges at the same time."""
        both = await asyncio.gather(self._process.ajudge(cases), self._outcome.ajudge(cases))
        return [join(*pair) for pair in zip(*both, strict=True)]


def join(steps: Judgment | Unscored, response: Judgment | Unscored) -> Judgment | Unscored:
    """One judgment of two: the steps of the first, the response of the second; where either failed, its failure."""
    if isinstance(steps, Unscored):
        return steps
    if isinstance(response, Unscored):
        return response
    reasons = {**steps.reasons, **response.reasons}
    return Judgment(steps.steps, response.response, steps.threshold, response.orders, reasons, void=response.void)
