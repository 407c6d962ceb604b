"""Training a judge: a generative reward model that learns the verdicts of SER records.

A judge is trained in the form in which it will be asked, which its card keeps. Sources of labels can be weighted,
records with mistakes sampled more often, and the order of the two responses sampled anew in each epoch.

With `evaluate_every` some dialogues are held out, to keep the best weights by the mean Weighted-F1 of the parts and to
tune the threshold for False. A training that was killed goes on with the measurements up to its last whole checkpoint;
one that stopped because nothing got better has a checkpoint of that step, and is not taken up again.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from compeer.engine.multimodal import PictureError, open_picture, picture_reader
from compeer.engine.network import load_tokenizer
from compeer.errors import InputError
from compeer.models.resolve import model_folder
from compeer.models.training import CARD, SftSettings, last_step, rows_until, train_sft
from compeer.progress import first_process
from compeer.reasoning import STEPS
from compeer.reward.conversation import Chat, JudgeForm, chats, pictures_of, record_case, with_whole_paths
from compeer.reward.judge import LocalJudge
from compeer.reward.judgments import write_judgments
from compeer.reward.metrics import Judgments, Records
from compeer.reward.score import Judgment
from compeer.reward.second_pass import FEWEST, fit_weights
from compeer.ser.record import SerRecord
from compeer.statistics import generator, mean, weighted_f1

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
THRESHOLDS = tuple(round(0.05 * number, 2) for number in range(1, 20))


class RewardSettings(JudgeForm, SftSettings):
    """How the judge is trained, and the form in which it will be asked; with `alone`, `batch` counts both chats."""

    model: str = Field(default="embedded", description="the model to start from: a folder, or 'embedded'")
    sources: dict[Literal["human", "llm", "silver"], NonNegative] = Field(default={})
    """how often records of a label source are sampled, beside 1 for the others"""
    balance: float = Field(default=0, ge=0, lt=1, description="share of False among the sampled steps; 0: as they are")
    order: Literal["recorded", "drawn"] = "recorded"
    """order of the two responses: as recorded, or sampled anew each epoch"""
    response_weight: float = Field(default=1.0, gt=0, description="the response's weight in the loss; a step's is 1")
    contradiction_cost: float = Field(default=1.0, ge=0)
    """`alone`: extra cost of accepting a response against steps that were accepted"""
    evaluate_every: int = Field(default=0, ge=0, description="steps between measurements on held-out dialogues, or 0")
    validation: float = Field(default=0.1, gt=0, lt=1, description="share of the dialogues held out for measurements")
    patience: int = Field(default=0, ge=0, description="measurements without a better one before stopping; 0: never")
    media: str = Field(default="", description="the folder from which paths of pictures count, for a multimodal judge")

    @property
    def form(self) -> JudgeForm:
        return JudgeForm(**{name: getattr(self, name) for name in JudgeForm.model_fields})


def train_judge(records: Records, settings: RewardSettings, folder: Path, seed: int) -> dict[str, Any]:
    """Trains on the records that have the labels a judge of this form needs; leaves it in `folder/model`."""
    usable = [record for record in records if is_usable(record, settings.form)]
    model = model_folder(settings.model)
    card = {"role": "judge", **settings.form.model_dump()}
    if images := picture_reader(model) is not None:
        usable = usable if settings.blind else with_pictures(usable, settings.media, settings.history)
        card |= {"media": settings.media} if settings.media else {}
    title, weighs = "Training the judge", settings.kind == "unified" and settings.response_weight != 1
    weigh = partial(round_weights, number=len(STEPS) + 1, weight=settings.response_weight) if weighs else None
    if not settings.evaluate_every or len({record.dialogue for record in usable}) < 2:
        chosen = training_chats(usable, settings, seed, images)
        return train_sft(model, chosen, settings, folder, seed, title, card, weigh=weigh)
    training, held_out = hold_out(usable, settings.validation, seed)
    validation = Validation(held_out, settings, model, folder)
    chosen = training_chats(training, settings, seed, images)
    how = settings.model_copy(update={"steps": validation.stopped() or settings.steps})  # what stopped early has ended
    metrics = train_sft(model, chosen, how, folder, seed, title, card, callbacks=[validation], weigh=weigh)
    judgments = _judged(LocalJudge(folder / "model", max(8, settings.batch), threshold=0.5), held_out)
    if first_process():
        write_judgments(folder / "validated.jsonl", held_out, judgments)
    threshold = best_threshold(held_out, judgments)
    card = {**card, "threshold": threshold}
    if weights := fit_weights(held_out, judgments, settings.contradiction_cost):
        card["looks"] = weights.model_dump()
    (folder / "model" / CARD).write_text(json.dumps(card, sort_keys=True) + "\n", encoding="utf-8")
    return {
        **metrics,
        "validation_records": len(held_out),
        "validation_best": dict(validation.best or {}),
        "validation_last": part_metrics(held_out, judgments),
        "threshold": threshold,
    }


def is_usable(record: SerRecord, form: JudgeForm) -> bool:
    """Whether a record has the labels that a judge of this form learns from."""
    steps = form.kind == "outcome" or record.labels is not None
    return steps and (form.kind == "process" or record.preference is not None)


def with_pictures(records: Records, media: str | Path, last: int | None) -> list[SerRecord]:
    """The records with whole paths of their pictures; an error names the record if one of the last cannot be read."""
    readable: set[str] = set()
    found = []
    for record in records:
        history = with_whole_paths(record.history, media)
        visible = set(pictures_of(history[-last:] if last else history))
        for path in sorted(visible - readable):
            try:
                open_picture(path)
            except PictureError as error:
                raise InputError(f"record '{record.id}': {error.what}", file=error.file, do=error.do) from None
        readable |= visible
        found.append(record.model_copy(update={"history": history}))
    return found


def training_chats(records: Records, settings: RewardSettings, seed: int, images: bool = False) -> list[Chat]:
    """The chats of one epoch, or of all where the order of the responses is sampled anew in each."""
    weights = sampling_weights(records, settings)
    sampled = settings.order == "drawn" and len(records) > 0
    epochs = math.ceil(settings.steps * settings.batch / len(records)) if sampled else 1
    found = []
    for epoch in range(epochs):
        rng = generator(seed, "draw", str(epoch))
        for index in resampled(weights, len(records), float(rng.random())):
            record = records[index]
            first = bool(rng.random() < 0.5) if sampled else None
            found.extend(chats(record, settings.form, first, images))
    return found


def sampling_weights(records: Records, settings: RewardSettings) -> list[float]:
    """How often each record is sampled, relative to the others."""
    weights = [_source_weight(record, settings) for record in records]
    if weights and not any(weights):
        what = "no record would ever be sampled: all their labels are of sources with weight 0."
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


def round_weights(labels: torch.Tensor, number: int, weight: float) -> torch.Tensor:
    """One for each label, but `weight` for those of the assistant's `number`-th answer (from 1) in each row."""
    learnt = labels != -100
    before = torch.nn.functional.pad(learnt, (1, 0))[:, :-1]
    answers = (learnt & ~before).cumsum(1)
    return torch.where(learnt & (answers == number), weight, 1.0)


def tilted(weights: Sequence[float], wrong: Sequence[float], share: float) -> list[float]:
    """Weights times exp(λ · wrong), the mildest change by which the mean of `wrong` rises to `share`; λ stops at 50."""
    weight, values = np.array(weights, dtype=float), np.array(wrong, dtype=float)
    if not len(weight) or float(np.average(values, weights=weight)) >= share:
        return list(weights)
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = float(np.average(values, weights=weight * np.exp(middle * (values - 1))))
        low, high = (middle, high) if reached < share else (low, middle)
    return [float(value) for value in weight * np.exp(high * (values - 1))]


def resampled(weights: Sequence[float], count: int, start: float) -> list[int]:
    """Systematic resampling: `count` indices as often as their weights say, rounded as `start` in [0, 1) decides."""
    total = sum(weights)
    if not total:
        return []
    edges = np.cumsum(np.array(weights, dtype=float)) / total * count
    edges[-1] = count
    return [int(index) for index in np.searchsorted(edges - 1e-9, np.arange(count) + start, side="right")]


def hold_out(records: Records, share: float, seed: int) -> tuple[list[SerRecord], list[SerRecord]]:
    """Records to train on and records to validate on; no dialogue is in both."""
    dialogues = sorted({record.dialogue for record in records})
    count = min(len(dialogues) - 1, max(1, round(share * len(dialogues))))
    held = set(generator(seed, "validation").permutation(np.array(dialogues, dtype=object))[:count].tolist())
    return [r for r in records if r.dialogue not in held], [r for r in records if r.dialogue in held]


def part_metrics(records: Records, judgments: Judgments) -> dict[str, float]:
    """Weighted-F1 of each part that was judged; what the judge failed on counts as wrong."""
    found: dict[str, float] = {}
    given = [judgment if isinstance(judgment, Judgment) else None for judgment in judgments]
    for part in STEPS:
        if any(one and part in one.steps for one in given):
            truth = [getattr(record.labels, part).value for record in records]
            found[part] = weighted_f1(truth, [one and one.step(part) for one in given])
    if any(one and one.response for one in given):
        truth = [record.preference and record.preference.value for record in records]
        found["response"] = weighted_f1(truth, [one and one.preferred() for one in given])
    return found


def best_threshold(records: Records, judgments: Judgments) -> float:
    """The threshold of the best mean Weighted-F1 of the steps, the middle one of equals; 0.5 below `FEWEST` records."""
    scored = [(r, j) for r, j in zip(records, judgments, strict=True) if isinstance(j, Judgment) and j.steps]
    if len(scored) < FEWEST:
        return 0.5
    truths = {part: [bool(getattr(record.labels, part).value) for record, _ in scored] for part in STEPS}
    sums = [
        sum(weighted_f1(truths[part], [judgment.steps[part] >= threshold for _, judgment in scored]) for part in STEPS)
        for threshold in THRESHOLDS
    ]
    best = [threshold for threshold, one in zip(THRESHOLDS, sums, strict=True) if one >= max(sums) - 1e-9]
    return best[len(best) // 2]


def _judged(judge: LocalJudge, records: Records) -> Judgments:
    return judge.judge([record_case(record) for record in records])


class Validation(TrainerCallback):  # type: ignore[misc]
    """Measures every `evaluate_every` steps, keeps the best weights, and stops when none got better for long."""

    def __init__(self, records: Records, settings: RewardSettings, model: Path, folder: Path) -> None:
        self._records, self._settings, self._model, self._folder = records, settings, model, folder
        self._tokenizer = load_tokenizer(model)
        self._log = folder / "validation.jsonl"
        self.measured = rows_until(last_step(folder), self._log)

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The best measurement; of equal ones the earliest."""
        return max(self.measured, key=lambda row: row["mean"]) if self.measured else None

    @property
    def out_of_patience(self) -> bool:
        """Whether so many measurements are not better than the best one that training shall stop."""
        since = {row["step"] for row in self.measured if self.best and row["step"] > self.best["step"]}
        return 0 < self._settings.patience <= len(since)

    def stopped(self) -> int | None:
        """The step at which an earlier call ran out of patience; None if training shall go on."""
        return last_step(self._folder) if self.out_of_patience else None

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self._settings.evaluate_every and state.global_step < state.max_steps:
            return
        model.eval()
        given: dict[str, Any] = {"form": self._settings.form, "network": model, "tokenizer": self._tokenizer}
        judge = LocalJudge(self._model, max(8, self._settings.batch), threshold=0.5, **given)
        metrics = part_metrics(self._records, _judged(judge, self._records))
        model.train()
        row = {"step": state.global_step, "mean": mean(list(metrics.values())) or 0.0, **metrics}
        if self.best is None or row["mean"] > self.best["mean"]:
            self._weights(state.global_step).parent.mkdir(exist_ok=True)
            trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
            weights = {name: one.detach().contiguous().cpu() for name, one in trained.items()}
            save_file(weights, self._weights(state.global_step))
        self.measured.append(row)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if self.out_of_patience:
            control.should_training_stop = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for path in (self._folder / "checkpoints").glob("best-*.safetensors"):
            if self.best and path != self._weights(self.best["step"]):
                path.unlink()

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.best is None:
            return
        kept = load_file(self._weights(self.best["step"]))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in kept:
                    parameter.copy_(kept[name].to(parameter.device))

    def _weights(self, step: int) -> Path:
        return self._folder / "checkpoints" / f"best-{step}.safetensors"
