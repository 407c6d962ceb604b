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
from compeer.models.embedder import Embeds
from compeer.pipeline import Done, Stage
from compeer.reasoning import STEPS, HistoryStep, Part, Step, SupportTurn
from compeer.ser import pairing, wording
from compeer.ser.asking import one_thread, run_stage
from compeer.ser.check import shared_texts
from compeer.ser.pairing import CONTRADICTS, SWAPPED_FACT, WRONG_STAGE, Moments, Pattern
from compeer.ser.reason import CandidateTurn
from compeer.ser.record import PreferenceLabel, SerRecord, Split, StepLabel, StepLabels, silver_label
from compeer.ser.sampling import Context, read_contexts
from compeer.ser.split import words_hash
from compeer.statistics import generator, words

BLOCK = 1000  # contexts that are at least taken together, where there are so many


class SilverSettings(Frozen):
    """How labels are made by rule."""

    false_share: float = Field(default=0.23, gt=0, lt=0.5, description="share of False among candidates' step labels")
    coherent: float = Field(default=0.8, ge=0, le=1, description="share of wrong strategies that responses carry out")
    embedder: str = Field(
        default="embedded", description="who is near: 'embedded', a sentence-transformers folder, or 'words' (fast)"
    )


Written = tuple[Context, Sequence[CandidateTurn]]  # a context with the turns that models wrote for it


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
    embedder, shares = one_thread(how.embedder), (how.false_share, how.coherent)
    records = list(silver_records(contexts, turns, moments, embedder, *shares, seed, dropped))
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
    contexts: Sequence[Context],
    turns: Mapping[str, Sequence[CandidateTurn]],
    moments: Moments,
    embedder: Embeds,
    false_share: float,
    coherent: float,
    seed: int,
    dropped: Counter[str],
) -> Iterator[SerRecord]:
    """The records of contexts of one split; what gives none is counted in `dropped`, by reason."""
    reasons = [wording.why_not(context) for context in contexts]
    dropped.update(filter(None, reasons))
    left = [context for context, reason in zip(contexts, reasons, strict=True) if reason]
    kept = (context for context, reason in zip(contexts, reasons, strict=True) if not reason)
    references = [wording.reference_of(context, seed) for context in kept]
    if references:
        rng = generator(seed, "silver", references[0].context.id)
        partners, patterns = pairing.pair_up(references, moments, embedder, false_share, rng)
        halved = wording.choose_halved(references, partners, rng)
        bad = [context.reply.text for context in left if _is_bad_reply(context)]
        for index, reference in enumerate(references):
            turn, meant = reference.turn, reference.context.reply.strategy
            more = {"author": "corpus", "response_strategy": meant}
            yield _record(reference.context, "reference", turn, _labels({}), turn.response, None, True, **more)
            if partners[index] < 0:
                dropped["no partner to exchange with"] += 1
                continue
            partner, pattern = references[partners[index]], patterns[index]
            both = sorted((reference.context.id, partner.context.id))  # so that both sides get the same number
            number = generator(seed, "coherent", *both).random()
            carried_out = pattern is not None and pattern.plans and number < coherent
            yield from _candidates(reference, partner, pattern, index in halved, carried_out, rng)
        yield from _badly_rated(left, references, bad, moments, seed, rng)
    yield from _by_models(contexts, turns, moments, seed)


def _candidates(
    reference: wording.Reference,
    partner: wording.Reference,
    pattern: Pattern | None,
    halved: bool,
    carried_out: bool,
    rng: np.random.Generator,
) -> Iterator[SerRecord]:
    pairs = wording.response_pairs(reference, partner, halved, rng)
    if carried_out:
        pairs = wording.own_first(reference, partner, pairs)
    for kind, (response, other, preference) in zip(("true", "spoiled"), pairs, strict=True):
        own = reference.turns[kind == "spoiled"]
        steps: dict[Part, Step] = {part: own.step(part) for part in STEPS}
        false: dict[Part, StepLabel] = {}
        if kind == "spoiled" and pattern is not None:
            for part in pattern.steps:
                steps[part] = _exchanged(part, reference, partner, pattern)
                false[part] = _false(part, reference, partner, pattern)
        turn = SupportTurn.model_validate({**steps, "response": response})
        writer = reference if wording.is_of(response, reference) else partner
        first, meant = bool(rng.random() < 0.5), writer.context.reply.strategy
        context, labels = reference.context, _labels(false)
        yield _record(context, kind, turn, labels, other, preference, first, response_strategy=meant)


def _exchanged(part: Part, own: wording.Reference, partner: wording.Reference, pattern: Pattern) -> Step:
    """The step that the context shows after the exchange."""
    mine, theirs = own.turn.step(part), partner.turn.step(part)
    if pattern.kind == WRONG_STAGE:
        text = wording.HistoryWords(own.history[0].issue, partner.history[0].stage).text
        return HistoryStep(text=text, stage=partner.turn.history.stage)
    if pattern.kind == SWAPPED_FACT:
        issue, swapped = own.history[0].template or "", replace(own.quotes, detail=partner.quotes.detail)
        text = wording.HistoryWords(wording.fill_history(issue, swapped), own.history[0].stage).text
        return HistoryStep(text=text, stage=own.turn.history.stage)
    if pattern.kind == CONTRADICTS:
        return mine.model_copy(update={"text": theirs.text})
    return theirs


def _false(part: Part, own: wording.Reference, partner: wording.Reference, pattern: Pattern) -> StepLabel:
    kind = pattern.kind or {"history": "another seeker's issue", "strategy": "improbable strategy"}.get(part)
    kind = kind or pairing.wrong_emotion(own.context, own.turn.emotion, partner.turn.emotion)
    named = {WRONG_STAGE: "the stage of", SWAPPED_FACT: "a fact of", CONTRADICTS: "the reasoning of"}
    return silver_label(False, f"{named.get(kind, 'the reference step of')} {partner.context.id}", kind)


def _record(
    context: Context,
    kind: str,
    turn: SupportTurn,
    labels: StepLabels | None,
    other: str,
    preference: PreferenceLabel | None,
    candidate_first: bool,
    **more: Any,
) -> SerRecord:
    names = ("dialogue", "round", "language", "source", "split", "history")
    return SerRecord(
        id=f"{context.id}:{kind}",
        **{name: getattr(context, name) for name in names},
        candidate=turn,
        reference=other,
        labels=labels,
        preference=preference,
        candidate_first=candidate_first,
        **{"author": "silver", "derived": context.derived, **more},
    )


def _labels(given: Mapping[Part, StepLabel]) -> StepLabels:
    """The labels given, and True for the other steps."""
    true = silver_label(True, "the reference step of this moment")
    return StepLabels(**{part: given.get(part, true) for part in STEPS})


def _is_bad_reply(context: Context) -> bool:
    return wording.why_not(context) == "badly rated reply" and context.emotion is not None


def _badly_rated(
    left: Sequence[Context],
    references: Sequence[wording.Reference],
    bad: Sequence[str],
    moments: Moments,
    seed: int,
    rng: np.random.Generator,
) -> Iterator[SerRecord]:
    """A badly rated reply beside one to another history, or a badly rated one, of about its length: neither will do."""
    for context in left:
        if not _is_bad_reply(context):
            continue
        usual = moments.most_usual(context)
        reply = context.reply.model_copy(update={"strategy": usual, "notes": None})
        reference = wording.reference_of(context.model_copy(update={"reply": reply}), seed)
        own = context.reply.text
        others = [r.turn.response for r in references if r.context.dialogue != context.dialogue]
        if not (others := [*others, *(text for text in bad if text != own)]):
            continue
        size = len(words(own))
        near = sorted(others, key=lambda text: abs(len(words(text)) - size))[:8]
        other = near[int(rng.integers(len(near)))]
        pair = (own, other) if rng.random() < 0.5 else (other, own)
        how = "the badly rated reply to this history against a reply to another"
        label = PreferenceLabel(value="neither", source="silver", how=how)
        turn = reference.turn.model_copy(update={"response": pair[0]})
        labels = _labels({"strategy": silver_label(True, "the strategy most usual at this moment")})
        first = bool(rng.random() < 0.5)
        meant = context.reply.strategy if pair[0] == own else None
        more = {"derived": (*context.derived, "strategy"), "response_strategy": meant}
        yield _record(context, "badly-rated", turn, labels, pair[1], label, first, **more)


def _by_models(
    contexts: Sequence[Context], turns: Mapping[str, Sequence[CandidateTurn]], moments: Moments, seed: int
) -> Iterator[SerRecord]:
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
            kind, how = f"{model}:{number}", "this model's reply to this history against its reply to "
            partner = those[index ^ 1] if (index ^ 1) < len(those) else None
            own, other, preference = turn.response, context.reply.text.strip(), None
            if labels and partner and partner[0].dialogue != context.dialogue and partner[1].response != own:
                own, other, preference = wording.decisive(own, partner[1].response, how + partner[0].id, rng)
            if other:
                first, shown = bool(rng.random() < 0.5), turn.model_copy(update={"response": own})
                yield _record(context, kind, shown, labels, other, preference, first, author=model)
