"""Training a judge: a generative reward model, taught by the verdicts of SER records.

A judge is trained in the form in which it will be asked, which its card keeps. Which records it sees how often is
decided before training: sources of labels can be weighted, records with mistakes drawn more often, and the order of the
two responses drawn anew each time a record comes round. With `evaluate_every` some dialogues are held out, the best
weights on them are kept, and the threshold for False is tuned on them if they are enough.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from compeer.dialogue import Utterance
from compeer.engine.multimodal import PictureError, open_picture, picture_reader
from compeer.engine.network import load_tokenizer
from compeer.errors import InputError
from compeer.models.distributed import first_process
from compeer.models.resolve import model_folder
from compeer.models.training import CARD, SftSettings, train_sft
from compeer.reasoning import STEPS
from compeer.reward.compare import write_judgments
from compeer.reward.conversation import branches, chats, record_case
from compeer.reward.form import Form
from compeer.reward.judge import LocalJudge
from compeer.reward.looks import find_weights
from compeer.reward.validation import Watch, best_threshold, hold_out, judged, part_figures
from compeer.ser.record import SerRecord
from compeer.statistics import generator

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RewardSettings(SftSettings):
    """How the judge is trained."""

    model: str = Field(default="embedded", description="the model to start from: a folder, or 'embedded'")
    kind: Literal["unified", "process", "outcome"] = Field(
        default="unified", description="UnifiReward, steps alone (PRM) or responses alone (ORM)"
    )
    reasons: bool = Field(default=False, description="a short reason before each verdict, or the verdict alone")
    history: int | None = Field(default=None, ge=1, description="utterances of the history the judge sees; none: all")
    blind: bool = Field(default=False, description="the blind twin: the history is not shown at all")
    marked: bool = Field(default=True, description="UnifiReward is told which response was written after the steps")
    alone: bool = Field(
        default=False,
        description="UnifiReward looks at the responses once more without the steps; `batch` counts both chats",
    )
    sources: dict[Literal["human", "llm", "silver"], NonNegative] = Field(
        default={}, description="how often records of a label source are drawn, beside 1 for the others"
    )
    balance: float = Field(default=0, ge=0, lt=1, description="share of False among the steps drawn; 0: as they are")
    order: Literal["recorded", "drawn"] = Field(
        default="recorded", description="order of the two responses: as recorded, or drawn anew each epoch"
    )
    response_weight: float = Field(
        default=1.0, gt=0, description="weight of the response's verdict in UnifiReward's loss; a step's is 1"
    )
    contradiction_cost: float = Field(
        default=1.0,
        ge=0,
        description="`alone`: how much worse than another mistake it is to accept a response against accepted steps",
    )
    evaluate_every: int = Field(
        default=0, ge=0, description="steps between measurements on held-out dialogues; 0: none"
    )
    validation: float = Field(default=0.1, gt=0, lt=1, description="share of the dialogues held out for measurements")
    patience: int = Field(default=0, ge=0, description="measurements without a better one before stopping; 0: never")
    media: str = Field(default="", description="the folder from which paths of pictures count, for a judge that sees")

    @property
    def form(self) -> Form:
        return Form(**{name: getattr(self, name) for name in Form.model_fields})


def train_judge(records: Sequence[SerRecord], settings: RewardSettings, folder: Path, seed: int) -> dict[str, Any]:
    """Trains on the records that have the labels a judge of this form needs; leaves it in `folder/model`."""
    usable = [record for record in records if is_usable(record, settings.form)]
    model = model_folder(settings.model)
    card = {"role": "judge", **settings.form.model_dump()}
    if sees := picture_reader(model) is not None:
        usable = with_pictures(usable, settings)
        card |= {"media": settings.media} if settings.media else {}
    title = "Training the judge"
    weigh = None
    if settings.kind == "unified" and settings.response_weight != 1:
        from compeer.models.training import round_weights

        weigh = partial(round_weights, number=len(STEPS) + 1, weight=settings.response_weight)
    if not settings.evaluate_every or len({record.dialogue for record in usable}) < 2:
        chosen = training_chats(usable, settings, seed, sees)
        return train_sft(model, chosen, settings, folder, seed, title, card, weigh=weigh)
    training, held_out = hold_out(usable, settings.validation, seed)
    batch = max(8, settings.batch)
    tokenizer = load_tokenizer(model)
    watch = Watch(held_out, settings.form, model, tokenizer, folder, settings.evaluate_every, settings.patience, batch)
    chosen = training_chats(training, settings, seed, sees)
    how = settings.model_copy(update={"steps": watch.stopped() or settings.steps})  # what stopped early has ended
    figures = train_sft(model, chosen, how, folder, seed, title, card, callbacks=[watch], weigh=weigh)
    said = judged(LocalJudge(folder / "model", batch, threshold=0.5), held_out)
    if first_process():
        write_judgments(folder / "validated.jsonl", held_out, said)
    threshold = best_threshold(held_out, said)
    card = {**card, "threshold": threshold}
    if looks := find_weights(held_out, said, settings.contradiction_cost):
        card["looks"] = looks.model_dump()
    (folder / "model" / CARD).write_text(json.dumps(card, sort_keys=True) + "\n", encoding="utf-8")
    return {
        **figures,
        "validation_records": len(held_out),
        "validation_best": dict(watch.best or {}),
        "validation_last": part_figures(held_out, said),
        "threshold": threshold,
    }


def is_usable(record: SerRecord, form: Form) -> bool:
    """Whether a record has the labels that a judge of this form learns from."""
    if form.kind == "process":
        return record.labels is not None
    if form.kind == "outcome":
        return record.preference is not None
    return record.labels is not None and record.preference is not None


def with_pictures(records: Sequence[SerRecord], settings: RewardSettings) -> list[SerRecord]:
    """The records with the whole paths of their pictures; an error that names the record if one cannot be read."""
    folder = Path(settings.media).absolute()
    readable: set[str] = set()
    found = []
    for record in records:
        shown = set(branches(record_case(record), settings.form, images=True)[0][0].images)
        for path in sorted(shown - readable):
            try:
                open_picture(path, folder)
            except PictureError as error:
                raise InputError(f"record '{record.id}': {error.what}", file=error.file, do=error.do) from None
        readable |= shown
        found.append(_in_folder(record, folder) if shown else record)
    return found


def _in_folder(record: SerRecord, folder: Path) -> SerRecord:
    def placed(utterance: Utterance) -> Utterance:
        media = tuple(one.model_copy(update={"path": str(folder / one.path)}) for one in utterance.media)
        return utterance.model_copy(update={"media": media})

    return record.model_copy(update={"history": tuple(placed(utterance) for utterance in record.history)})


def training_chats(
    records: Sequence[SerRecord], settings: RewardSettings, seed: int, sees: bool = False
) -> list[list[dict[str, Any]]]:
    """The chats of one epoch, or of all where the order of the responses is drawn anew in each.

    A judge that sees is given the pictures too.
    """
    weights = draw_weights(records, settings)
    epochs = 1
    if settings.order == "drawn" and records:
        epochs = math.ceil(settings.steps * settings.batch / len(records))
    found = []
    for epoch in range(epochs):
        rng = generator(seed, "draw", str(epoch))
        for index in spread(weights, len(records), float(rng.random())):
            record = records[index]
            first = bool(rng.random() < 0.5) if settings.order == "drawn" else None
            found.extend(chats(record, settings.form, first, sees))
    return found


def draw_weights(records: Sequence[SerRecord], settings: RewardSettings) -> list[float]:
    """How often each record is to be drawn, relative to the others."""
    weights = [_source_weight(record, settings) for record in records]
    if weights and not any(weights):
        what = "no record would ever be drawn: all their labels are of sources with weight 0."
        raise InputError(what, field="sources", do="Give a source of these records a weight above 0.")
    if not settings.balance or settings.kind == "outcome":
        return weights
    wrong = [sum(not getattr(record.labels, part).value for part in STEPS) / len(STEPS) for record in records]
    return tilted(weights, wrong, settings.balance)


def _source_weight(record: SerRecord, settings: RewardSettings) -> float:
    """The mean weight of the labels that are learnt from."""
    labels: list[Any] = [] if settings.kind == "outcome" else [getattr(record.labels, part) for part in STEPS]
    labels += [] if settings.kind == "process" else [record.preference]
    return sum(settings.sources.get(label.source, 1.0) for label in labels) / len(labels)


def tilted(weights: Sequence[float], wrong: Sequence[float], share: float) -> list[float]:
    """Weights under which the mean of `wrong` is `share`: each times exp(λ · wrong), the mildest change that does it.

    Where the mean is that high already nothing changes; where no weights reach it, λ stops at 50.
    """
    weight, values = np.array(weights, dtype=float), np.array(wrong, dtype=float)
    if not len(weight) or float(np.average(values, weights=weight)) >= share:
        return list(weights)
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = float(np.average(values, weights=weight * np.exp(middle * (values - 1))))
        low, high = (middle, high) if reached < share else (low, middle)
    return [float(value) for value in weight * np.exp(high * (values - 1))]


def spread(weights: Sequence[float], count: int, start: float) -> list[int]:
    """`count` indices, each as often as its weight's share asks for, up or down to a whole number (systematic
    resampling); equal weights and as many draws give each index once. `start` in [0, 1) decides the roundings."""
    total = sum(weights)
    if not total:
        return []
    edges = np.cumsum(np.array(weights, dtype=float)) / total * count
    edges[-1] = count
    places = np.arange(count) + start
    return [int(index) for index in np.searchsorted(edges - 1e-9, places, side="right")]
