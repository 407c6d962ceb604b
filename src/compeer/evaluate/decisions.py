"""A supporter's decisions against those of the corpus: stage, emotion, intensity and strategy, and the form.

Held-out turns come from SER records or straight from a corpus. What the corpus labels is gold; what a rule derived from
the history (a stage by the round's number, say) is reported apart. A decision that could not be read counts as wrong.
Macro-F1 is the mean F1 of the classes that the gold has. Beside each metric stands what the most frequent class would
always reach on the same turns. Intervals are bootstrap ones over dialogues.

How a supporter distributes its strategies is compared with the humans' of the same turns, stage by stage:

    KL(human ‖ model) = Σ p·log(p / q)    p, q = (count + ½) / (turns + ½·8), in nats

It is what one loses by taking the model's distribution for the humans', and is never 0 in a small sample: `by_chance`
is its mean if the model sampled its strategies from the humans' own distribution.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from compeer.corpora import read_corpus
from compeer.engine.network import position_limit
from compeer.errors import InputError
from compeer.evaluate.diversity import first_keys
from compeer.io import Frozen
from compeer.models.base import Message
from compeer.models.local import LocalModel
from compeer.policy.control import decisions
from compeer.policy.prompt import supporter_prompt
from compeer.reasoning import STAGES, STRATEGIES, ParsedTurn, SupportTurn, render_turn
from compeer.ser.record import SPLITS, SerRecord, read_records
from compeer.ser.sampling import contexts_of, record_of
from compeer.ser.wording import reference_of, why_not
from compeer.simulate import Scenario, Turn, chat
from compeer.simulate.agents import Mode, plain_prompt
from compeer.simulate.conversation import view_of
from compeer.statistics import (
    FEW_GROUPS,
    Estimate,
    Numbers,
    accuracy_of,
    confusion_by_group,
    generator,
    group_weights,
    mean_interval,
    ratio,
    reweighted,
)

DECISIONS = ("stage", "emotion", "strategy")
SMOOTHING = 0.5
_BASELINE_SAMPLES = 400


def measure_decisions(outputs: Sequence[ParsedTurn], gold: Sequence[SupportTurn]) -> dict[str, Any]:
    """Accuracy with its 95 % interval, beside the largest class of the gold; a missing decision counts as wrong."""
    predicted, truth = list(map(decisions, outputs)), list(map(decisions, gold))
    metrics: dict[str, Any] = {
        "outputs": len(outputs),
        "format_complete": sum(output.complete for output in outputs) / max(1, len(outputs)),
        "missing": dict(Counter(part for output in outputs for part in output.missing)),
    }
    for name in ("stage", "emotion", "intensity", "strategy"):
        values = [row[name] for row in truth]
        hits = [float(found.get(name) == value) for found, value in zip(predicted, values, strict=True)]
        low, high = mean_interval(hits)
        metrics[name] = {
            "accuracy": sum(hits) / max(1, len(hits)),
            "low": low,
            "high": high,
            "majority": max(Counter(values).values(), default=0) / max(1, len(values)),
        }
    return metrics


def held_out(turns: str | Path, split: str, rounds: int, seed: int, dropped: Counter[str]) -> list[SerRecord]:
    """The corpus' own turns: of a split (or `all`) of records, or of some rounds of a corpus; others are `dropped`."""
    if split not in (*SPLITS, "all"):
        raise InputError(f"unknown split '{split}'.", field="split", do=f"Known: {', '.join(SPLITS)}, all")
    if {"candidate", "reference", "author"} <= first_keys(Path(turns)):
        own = [record for record in read_records(Path(turns)) if record.author == "corpus"]
        if found := [record for record in own if split in ("all", record.split)]:
            return found
        do = "Try --split all, or give records of another file."
        raise InputError(f"there is no turn of the corpus in the {split} split.", file=turns, do=do)
    if found := corpus_records(turns, rounds, seed, dropped):
        return found
    do = "A corpus needs a strategy on supporters' messages, and an emotion."
    raise InputError("there is no labelled turn of a supporter in it.", file=turns, do=do)


def corpus_records(path: str | Path, rounds: int, seed: int, dropped: Counter[str]) -> list[SerRecord]:
    """The reference turns of up to `rounds` rounds of each dialogue, sampled as the dataset's are."""
    found = []
    for dialogue in read_corpus(path):
        for context in contexts_of(dialogue, "test", rounds, seed):
            if reason := why_not(context):
                dropped[reason] += 1
                continue
            turn = reference_of(context, seed).turn
            found.append(record_of(context, turn, author="corpus", reference=turn.response, candidate_first=True))
    return found


class DecisionMetrics(Frozen):
    """How often one decision is that of the corpus."""

    turns: int
    missing: int = Field(description="decisions that could not be read; they count as wrong")
    accuracy: Estimate
    macro_f1: Estimate
    majority: str = Field(description="the most frequent class of these turns")
    majority_accuracy: float
    majority_macro_f1: float
    above_majority: Estimate = Field(description="accuracy less that of the majority class")


class StrategyMetrics(Frozen):
    """How a supporter distributes its strategies, beside the humans of the same turns."""

    turns: int
    missing: int = Field(description="turns without a strategy that could be read; not in its distribution")
    human: dict[str, float]
    model: dict[str, float]
    kl: Estimate = Field(description="KL(human ‖ model) in nats, smoothed by half a turn a strategy")
    by_chance: float | None = Field(description="its mean if the model sampled from the humans' own distribution")


class DecisionReport(Frozen):
    """All metrics of a supporter's decisions."""

    turns: int
    dialogues: int
    complete: float | None = Field(description="share of the outputs in which everything could be read")
    gold: dict[str, DecisionMetrics] = Field(description="by decision, where the corpus labels it")
    derived: dict[str, DecisionMetrics] = Field(description="by decision, where a rule gave it")
    strategies: dict[str, StrategyMetrics] = Field(description="by the gold stage, and over all")


def decision_report(records: Sequence[SerRecord], outputs: Sequence[ParsedTurn], seed: int = 0) -> DecisionReport:
    """The metrics of outputs for the records' histories, in the same order."""
    dialogues = {name: number for number, name in enumerate(dict.fromkeys(record.dialogue for record in records))}
    groups = [dialogues[record.dialogue] for record in records]
    weights = group_weights(len(dialogues), seed=seed)
    predicted, truth = list(map(decisions, outputs)), [decisions(record.candidate) for record in records]
    rows = range(len(records))

    def values(name: str, chosen: Iterable[int]) -> list[tuple[int, str, object]]:
        return [(groups[row], str(truth[row][name]), predicted[row].get(name)) for row in chosen]

    def agreement(derived: bool) -> dict[str, DecisionMetrics]:
        chosen = {name: [row for row in rows if (name in records[row].derived) == derived] for name in DECISIONS}
        return {name: _agreement(values(name, own), weights) for name, own in chosen.items() if own}

    stages = {stage: [row for row in rows if stage in ("all", truth[row]["stage"])] for stage in ("all", *STAGES)}
    return DecisionReport(
        turns=len(records),
        dialogues=len(dialogues),
        complete=sum(output.complete for output in outputs) / len(outputs) if outputs else None,
        gold=agreement(False),
        derived=agreement(True),
        strategies={
            stage: _distribution(values("strategy", own), weights, generator(seed, "chance", stage))
            for stage, own in stages.items()
            if own
        },
    )


def _agreement(rows: Sequence[tuple[int, str, object]], weights: Numbers) -> DecisionMetrics:
    """The metrics of one decision; a row is the dialogue's index, the truth, and the answer or None."""
    groups = np.array([group for group, _, _ in rows])
    counts = Counter(truth for _, truth, _ in rows)
    classes = {value: number for number, value in enumerate(sorted(counts))}
    other = len(classes)  # what is missing, or no class of the gold
    true = np.array([classes[truth] for _, truth, _ in rows])
    predicted = np.array([classes.get(str(answer), other) for _, _, answer in rows])
    majority = max(sorted(counts), key=counts.__getitem__)
    size = (weights.shape[1], other + 1)
    confusions = reweighted(weights, confusion_by_group(groups, true, predicted, size))
    always = reweighted(weights, confusion_by_group(groups, true, np.full(len(rows), classes[majority]), size))
    units = len(set(groups.tolist()))
    return DecisionMetrics(
        turns=len(rows),
        missing=sum(answer is None for _, _, answer in rows),
        accuracy=Estimate.of_resamples(accuracy_of(confusions), units, FEW_GROUPS),
        macro_f1=Estimate.of_resamples(macro_f1_of(confusions), units, FEW_GROUPS),
        majority=majority,
        majority_accuracy=float(accuracy_of(always)[0]),
        majority_macro_f1=float(macro_f1_of(always)[0]),
        above_majority=Estimate.of_resamples(accuracy_of(confusions) - accuracy_of(always), units, FEW_GROUPS),
    )


def macro_f1_of(confusions: Numbers) -> Numbers:
    """The mean F1 of the classes that each confusion matrix has in its rows; NaN of an empty one."""
    hits, true, predicted = np.diagonal(confusions, axis1=-2, axis2=-1), confusions.sum(-1), confusions.sum(-2)
    scores = np.where(true > 0, ratio(2 * hits, true + predicted), 0)
    return ratio(scores.sum(-1), (true > 0).sum(-1).astype(np.float64))


def _distribution(
    rows: Sequence[tuple[int, str, object]], weights: Numbers, rng: np.random.Generator
) -> StrategyMetrics:
    counts = np.zeros((2, weights.shape[1], len(STRATEGIES)))
    index_of = {str(name): number for number, name in enumerate(STRATEGIES)}
    for group, truth, answer in rows:
        counts[0, group, index_of[truth]] += 1
        if answer is not None:
            counts[1, group, index_of[str(answer)]] += 1
    human, model = reweighted(weights, counts[0]), reweighted(weights, counts[1])
    answered, units = int(counts[1].sum()), len({group for group, _, _ in rows})
    sampled = rng.multinomial(answered, human[0] / human[0].sum(), size=_BASELINE_SAMPLES).astype(np.float64)
    kl = Estimate.of_resamples(divergence(human, model), units, FEW_GROUPS)
    return StrategyMetrics(
        turns=len(rows),
        missing=len(rows) - answered,
        human=_shares(human[0]),
        model=_shares(model[0]),
        kl=kl if answered else Estimate(value=None, n=units),
        by_chance=float(divergence(human[0], sampled).mean()) if answered else None,
    )


def _shares(counts: Numbers) -> dict[str, float]:
    total = counts.sum()
    return {str(name): float(count / total) if total else 0.0 for name, count in zip(STRATEGIES, counts, strict=True)}


def divergence(human: Numbers, model: Numbers) -> Numbers:
    """KL(human ‖ model) of counts over the last axis, in nats, each count half a turn larger."""
    smoothed = (counts + SMOOTHING for counts in (human, model))
    p, q = (counts / counts.sum(-1, keepdims=True) for counts in smoothed)
    total: Numbers = (p * np.log(p / q)).sum(-1)
    return total


class PerplexityMetrics(Frozen):
    """How probable a model finds human responses; the lower, the more."""

    given: str = Field(description="what the model was given")
    responses: int
    tokens: int
    too_long: int = Field(description="responses left out, since the model takes no such long prompt")
    perplexity: Estimate
    bits_per_character: Estimate


def measure_perplexity(
    model: LocalModel,
    records: Sequence[SerRecord],
    mode: Mode = "structured",
    last: int | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda done: None,
) -> PerplexityMetrics:
    """The perplexity of the records' own responses; intervals over dialogues."""
    dialogues = {name: number for number, name in enumerate(dict.fromkeys(record.dialogue for record in records))}
    surprise, tokens, characters = np.zeros((3, len(dialogues)))
    known = 0
    for record in records:
        messages, prefix, response = _asked(record, mode, last)
        found = response_surprise(model, messages, prefix, response)
        advance(1)
        if found is not None:
            known, index = known + 1, dialogues[record.dialogue]
            surprise[index] += sum(found)
            tokens[index] += len(found)
            characters[index] += len(response)
    weights = group_weights(len(dialogues), seed=seed)
    total = weights @ surprise
    bits = ratio(total / np.log(2), weights @ characters)
    return PerplexityMetrics(
        given="prompt and history" if mode == "plain" else "prompt, history and reference steps",
        responses=known,
        tokens=int(tokens.sum()),
        too_long=len(records) - known,
        perplexity=Estimate.of_resamples(np.exp(ratio(total, weights @ tokens)), len(dialogues), FEW_GROUPS),
        bits_per_character=Estimate.of_resamples(bits, len(dialogues), FEW_GROUPS),
    )


def _asked(record: SerRecord, mode: Mode, last: int | None) -> tuple[list[Message], str, str]:
    """The messages, what the model has written before the response, and the response as it would write it."""
    if mode == "structured":
        steps = render_turn(record.candidate.model_copy(update={"response": "x"})).removesuffix("x")
        return supporter_prompt(record.history, last), steps, render_turn(record.candidate).removeprefix(steps)
    visible = record.history[-last:] if last else record.history
    turns = [Turn(speaker=one.speaker, text=one.text) for one in visible if one.text.strip()]
    view = view_of(Scenario(id=record.id), turns, "supporter")
    return chat(view, plain_prompt()), "", record.candidate.response


@torch.inference_mode()
def response_surprise(model: LocalModel, messages: Sequence[Message], prefix: str, response: str) -> list[float] | None:
    """−log p of each token of the response, in nats; None if the model cannot take so many tokens."""
    before = model.rows.text(messages, prefix)
    encoded = model.tokenizer(before + response, add_special_tokens=False, return_offsets_mapping=True)
    ids, ends = encoded["input_ids"], [end for _, end in encoded["offset_mapping"]]
    if len(ids) > position_limit(model.network):
        return None
    # A token that holds the blank before the response and its first word belongs to the response.
    first = max(1, next(number for number, end in enumerate(ends) if end > len(before)))
    rows = torch.tensor([ids], device=model.device)
    count = len(ids) - first
    kept = model.network(input_ids=rows, use_cache=False, logits_to_keep=count + 1).logits[0]
    scores = kept[-count - 1 : -1].float()
    return torch.nn.functional.cross_entropy(scores, rows[0, first:], reduction="none").tolist()
