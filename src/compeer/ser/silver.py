"""Silver labels: step verdicts and preferences made by rule from what a corpus knows, where no people are at hand.

A context's *reference turn* carries the decisions that the corpus gives for the moment, and the corpus' reply. Contexts
are paired, and each pair *exchanges* one thing, which is then False in its new place and True at home
(`compeer.ser.pairing`). Each context gives three records: `reference`, its reference turn with nothing to compare;
`true`, with its response against one of the partner's; `spoiled`, in other words, with what the pair exchanged.

Where the strategy is exchanged, in a share of the pairs (`coherent`) the wrong plan is carried out, as a model would;
in all other records which reply is the candidate's has nothing to do with its steps. Turns that models wrote are
compared with what the corpus knows; where that cannot decide, the record waits for people. Contexts are taken in blocks
of one split: so memory stays bounded however large the corpus, and the workers change nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from compeer.io import Frozen, json_line, read_lines
from compeer.pipeline import Done, Stage
from compeer.reasoning import STEPS, HistoryStep, Part, Step, SupportTurn
from compeer.ser import pairing, wording
from compeer.ser.asking import one_thread, run_stage
from compeer.ser.check import shared_texts
from compeer.ser.pairing import CONTRADICTS, SWAPPED_FACT, WRONG_STAGE, Moments, Pattern
from compeer.ser.reason import CandidateTurn
from compeer.ser.record import PreferenceLabel, SerRecord, Split, StepLabel, StepLabels, silver_label
from compeer.ser.sampling import Context, read_contexts, record_of
from compeer.ser.split import words_hash
from compeer.ser.wording import Reference
from compeer.statistics import generator, words

BLOCK = 1000  # contexts that are at least taken together, where there are so many


class SilverSettings(Frozen):
    """How labels are made by rule."""

    false_share: float = Field(default=0.23, gt=0, lt=0.5, description="share of False among candidates' step labels")
    coherent: float = Field(default=0.8, ge=0, le=1, description="share of wrong strategies that responses carry out")
    embedder: str = Field(
        default="embedded", description="who is near: 'embedded', a sentence-transformers folder, or 'words' (fast)"
    )


Turns = Mapping[str, Sequence[CandidateTurn]]  # what models wrote for contexts, by the context's id
Written = tuple[Context, Sequence[CandidateTurn]]  # a context with the turns that models wrote for it
Responses = tuple[str, str, PreferenceLabel | None]  # the candidate's, the other one, and which is better


def silver_stage(
    contexts: Path, out: Path, settings: SilverSettings, seed: int, workers: int = 1, turns: Path | None = None
) -> dict[str, Any]:
    """Writes the records of a file of contexts; returns the stage's manifest."""
    inputs = {"contexts": contexts, **({"turns": turns} if turns else {})}
    stage = Stage(out, {**settings.model_dump(mode="json"), "seed": seed}, inputs)
    if found := stage.finished():
        return found
    moments, shared = _first_reading(contexts)
    return run_stage(stage, _blocks(contexts, turns), partial(_work, moments, shared, settings, seed), workers)


def _first_reading(contexts: Path) -> tuple[Moments, frozenset[int]]:
    """The statistics of strategies, and the hashes of long replies that stand in more than one split."""
    moments = Moments()

    def replies() -> Iterator[tuple[str, Split]]:
        for context in read_contexts(contexts):
            moments.add(context)
            for text in _texts(context):
                yield text, context.split

    return moments, shared_texts(replies())


def _texts(context: Context) -> tuple[str, ...]:
    """The reply, whole and halved, as records may show it."""
    return (context.reply.text, *(wording.halves(context.reply.text) or ()))


def _work(moments: Moments, shared: frozenset[int], how: SilverSettings, seed: int, block: Sequence[Written]) -> Done:
    contexts = [context for context, _ in block if not any(words_hash(text) in shared for text in _texts(context))]
    turns = {context.id: written for context, written in block if written}
    dropped = Counter({"the same reply in another split": len(block) - len(contexts)})
    records = list(silver_records(contexts, turns, moments, how, seed, dropped))
    counts: dict[str, Counter[str]] = {
        "records": Counter(record.author for record in records),
        "splits": Counter(record.split for record in records),
        "no record": dropped,
    }
    if records:
        counts["labels"] = Counter("unlabelled" if record.labels is None else "labelled" for record in records)
    return Done([json_line(record) for record in records], counts=counts)


def _blocks(contexts: Path, turns: Path | None) -> Iterator[list[Written]]:
    """The contexts of each split in blocks; the last of a split takes the rest, up to twice the size."""
    waiting: dict[str, list[Written]] = {}
    for context, written in _with_turns(contexts, turns):
        here = waiting.setdefault(context.split, [])
        here.append((context, written))
        if len(here) == 2 * BLOCK:
            yield here[:BLOCK]
            waiting[context.split] = here[BLOCK:]
    for split in sorted(waiting):
        yield waiting[split]


def _with_turns(contexts: Path, turns: Path | None) -> Iterator[Written]:
    """Each context with its turns, which stand in the same order in their own file."""
    written = groupby(read_lines(turns, CandidateTurn) if turns else (), key=lambda turn: turn.context)
    ahead = next(written, None)
    for context in read_contexts(contexts):
        here = ahead is not None and ahead[0] == context.id
        yield context, list(ahead[1]) if ahead and here else ()
        ahead = next(written, None) if here else ahead


def silver_records(
    contexts: Sequence[Context], turns: Turns, moments: Moments, how: SilverSettings, seed: int, dropped: Counter[str]
) -> Iterator[SerRecord]:
    """The records of contexts of one split; what gives none is counted in `dropped`, by reason."""
    reasons = [wording.why_not(context) for context in contexts]
    dropped.update(filter(None, reasons))
    judged = list(zip(contexts, reasons, strict=True))
    references = [wording.reference_of(context, seed) for context, reason in judged if not reason]
    if references:
        rng = generator(seed, "silver", references[0].context.id)
        partners, patterns = pairing.pair_up(references, moments, one_thread(how.embedder), how.false_share, rng)
        halved = wording.choose_halved(references, partners, rng)
        for index, reference in enumerate(references):
            turn, meant = reference.turn, reference.context.reply.strategy
            more = {"author": "corpus", "response_strategy": meant}
            same = turn.response, turn.response, None
            yield _record(reference.context, "reference", turn, _labels({}), same, True, **more)
            if partners[index] < 0:
                dropped["no partner to exchange with"] += 1
                continue
            partner, pattern = references[partners[index]], patterns[index]
            pairs = wording.response_pairs(reference, partner, index in halved, rng)
            both = sorted((reference.context.id, partner.context.id))  # so that both sides get the same number
            number = generator(seed, "coherent", *both).random()
            if pattern is not None and pattern.plans and number < how.coherent:
                pairs = wording.own_first(reference, partner, pairs)
            yield from _candidates(reference, partner, pattern, pairs, rng)
        bad = [context for context, reason in judged if reason == "badly rated reply" and context.emotion]
        yield from _badly_rated(bad, references, moments, seed, rng)
    yield from _by_models(contexts, turns, moments, seed)


def _candidates(
    own: Reference, partner: Reference, pattern: Pattern | None, pairs: wording.ResponsePairs, rng: np.random.Generator
) -> Iterator[SerRecord]:
    for kind, pair in zip(("true", "spoiled"), pairs, strict=True):
        turn = own.turns[kind == "spoiled"]
        false: dict[Part, StepLabel] = {}
        if kind == "spoiled" and pattern is not None:
            turn = turn.model_copy(update={part: _exchanged(part, own, partner, pattern) for part in pattern.steps})
            false = {part: _false(part, own, partner, pattern) for part in pattern.steps}
        writer = own if wording.is_of(pair[0], own) else partner
        first, meant = bool(rng.random() < 0.5), writer.context.reply.strategy
        yield _record(own.context, kind, turn, _labels(false), pair, first, response_strategy=meant)


def _exchanged(part: Part, own: Reference, partner: Reference, pattern: Pattern) -> Step:
    """The step that the context shows after the exchange."""
    mine, theirs = own.turn.step(part), partner.turn.step(part)
    if pattern.kind == WRONG_STAGE:
        text = replace(own.history, stage=partner.history.stage).text
        return HistoryStep(text=text, stage=partner.turn.history.stage)
    if pattern.kind == SWAPPED_FACT:
        swapped = replace(own.quotes, detail=partner.quotes.detail)
        text = replace(own.history, issue=wording.fill_history(own.history.template or "", swapped)).text
        return HistoryStep(text=text, stage=own.turn.history.stage)
    if pattern.kind == CONTRADICTS:
        return mine.model_copy(update={"text": theirs.text})
    return theirs


def _false(part: Part, own: Reference, partner: Reference, pattern: Pattern) -> StepLabel:
    kind = pattern.kind or {"history": "another seeker's issue", "strategy": "improbable strategy"}.get(part)
    kind = kind or pairing.wrong_emotion(own.context, own.turn.emotion, partner.turn.emotion)
    named = {WRONG_STAGE: "the stage of", SWAPPED_FACT: "a fact of", CONTRADICTS: "the reasoning of"}
    return silver_label(False, f"{named.get(kind, 'the reference step of')} {partner.context.id}", kind)


def _record(
    context: Context,
    kind: str,
    turn: SupportTurn,
    labels: StepLabels | None,
    found: Responses,
    first: bool,
    **more: Any,
) -> SerRecord:
    response, other, preference = found
    own = {"id": f"{context.id}:{kind}", "author": "silver", "candidate_first": first, **more}
    turn = turn.model_copy(update={"response": response})
    return record_of(context, turn, labels=labels, reference=other, preference=preference, **own)


def _labels(given: Mapping[Part, StepLabel]) -> StepLabels:
    """The labels given, and True for the other steps."""
    true = silver_label(True, "the reference step of this moment")
    return StepLabels(**{part: given.get(part, true) for part in STEPS})


def _badly_rated(
    bad: Sequence[Context], references: Sequence[Reference], moments: Moments, seed: int, rng: np.random.Generator
) -> Iterator[SerRecord]:
    """A badly rated reply beside one to another history, or a badly rated one, of about its length: neither will do."""
    for context in bad:
        usual = moments.most_usual(context)
        reply = context.reply.model_copy(update={"strategy": usual, "notes": None})
        turn = wording.reference_of(context.model_copy(update={"reply": reply}), seed).turn
        own = context.reply.text
        others = [r.turn.response for r in references if r.context.dialogue != context.dialogue]
        if not (others := [*others, *(one.reply.text for one in bad if one.reply.text != own)]):
            continue
        size = len(words(own))
        near = sorted(others, key=lambda text: abs(len(words(text)) - size))[:8]
        other = near[int(rng.integers(len(near)))]
        pair = (own, other) if rng.random() < 0.5 else (other, own)
        how = "the badly rated reply to this history against a reply to another"
        label = PreferenceLabel(value="neither", source="silver", how=how)
        labels = _labels({"strategy": silver_label(True, "the strategy most usual at this moment")})
        first = bool(rng.random() < 0.5)
        meant = context.reply.strategy if pair[0] == own else None
        more = {"derived": (*context.derived, "strategy"), "response_strategy": meant}
        yield _record(context, "badly-rated", turn, labels, (*pair, label), first, **more)


def _by_models(contexts: Sequence[Context], turns: Turns, moments: Moments, seed: int) -> Iterator[SerRecord]:
    """Turns that models wrote: steps compared with the corpus; responses against the same model's elsewhere."""
    written: dict[tuple[str, int], list[tuple[Context, SupportTurn]]] = {}
    for context in contexts:
        for candidate in turns.get(context.id, ()):
            if candidate.turn is not None:
                written.setdefault((candidate.model, candidate.number), []).append((context, candidate.turn))
    for (model, number), those in sorted(written.items(), key=lambda entry: entry[0]):
        rng = generator(seed, "models", model, str(number), those[0][0].id)
        for index, (context, turn) in enumerate(those):
            labels = pairing.compare_turn(turn, context, moments, wording.derived_stage(context.round))
            how = "this model's reply to this history against its reply to "
            partner = those[index ^ 1] if (index ^ 1) < len(those) else None
            found: Responses = turn.response, context.reply.text.strip(), None
            if labels and partner and partner[0].dialogue != context.dialogue and partner[1].response != found[0]:
                found = wording.decisive(turn.response, partner[1].response, how + partner[0].id, rng)
            if found[1]:
                first = bool(rng.random() < 0.5)
                yield _record(context, f"{model}:{number}", turn, labels, found, first, author=model)
