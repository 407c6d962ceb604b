"""Silver labels: step verdicts and preferences made by rule from what a corpus knows, where no people are at hand.

A context's *reference turn* carries the decisions that the corpus gives for the moment, and the corpus' reply. Contexts
are then paired, near ones first, and each pair *exchanges* one thing: a step, two steps, the whole turn, the stage
alone, or one fact. What is exchanged is False in its new place and stands as True at home, once each, beside steps
that agree in all their decisions (`exchange.py`). So a judge cannot tell True from False without reading the history.
Each context gives three records:

- `reference`: its reference turn, with nothing to compare;
- `true`: the reference turn, its response against one of the partner's;
- `spoiled`: the same in other words, with what the pair exchanged.

The pair exchanges responses too: each one's reply is the better one at home and the worse one at the partner's. Or each
reply is cut in two halves, both good at home and neither acceptable at the partner's. Where the strategy is exchanged,
in a share of the pairs (`coherent`) the response goes with it: the wrong plan is carried out, as a model would. In all
other records which of the two replies is the candidate's has nothing to do with its steps. A turn that a model wrote is
compared with what the corpus knows; where that cannot decide, the record has no labels and waits for people.

What the corpus does not label is derived by rules that look at the history only, and the record says so:

- stage: rounds 1-3 exploration, 4-6 comforting, later action;
- emotion: the one of the seeker's last message, else of the dialogue; intensity likewise, else the initial one, else 3;
- the strategy of a moment whose own reply was rated badly: the most usual one there (`moments.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compeer.dialogue import Strategy
from compeer.models.embedder import Embeds
from compeer.reasoning import STEPS, HistoryStep, Part, Step, SupportTurn
from compeer.ser.reason import CandidateTurn
from compeer.ser.record import PreferenceLabel, SerRecord, StepLabel, StepLabels
from compeer.ser.sampling import Context
from compeer.ser.silver.compare import compare_turn, wrong_emotion
from compeer.ser.silver.moments import Moments
from compeer.ser.silver.pairing import CONTRADICTS, SWAPPED_FACT, WRONG_STAGE, Pattern, pair_up
from compeer.ser.silver.reference import Reference, derived_stage, reference_of, why_not
from compeer.ser.silver.responses import ResponsePair, choose_halved, decisive, is_of, own_first, response_pairs
from compeer.ser.silver.wording import HistoryWords, fill_history
from compeer.statistics import generator, words


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
    references, left = [], []
    for context in contexts:
        reason = why_not(context)
        if reason is None:
            references.append(reference_of(context, seed))
        else:
            dropped[reason] += 1
            left.append(context)
    if references:
        rng = generator(seed, "silver", references[0].context.id)
        pairing = pair_up(references, moments, embedder, false_share, rng)
        halved = choose_halved(references, pairing.partner, rng)
        bad = [context.reply.text for context in left if _is_bad_reply(context)]
        for index, reference in enumerate(references):
            own = reference.context.reply.strategy
            yield _record(reference, "reference", reference.turn, {}, reference.turn.response, None, True, own)
            if pairing.partner[index] < 0:
                dropped["no partner to exchange with"] += 1
                continue
            partner = references[pairing.partner[index]]
            pattern = pairing.pattern[index]
            carried_out = pattern is not None and pattern.plans and _drawn(reference, partner, seed) < coherent
            yield from _candidates(reference, partner, pattern, index in halved, carried_out, rng)
        yield from _badly_rated(left, references, bad, moments, seed, rng)
    yield from _by_models(contexts, turns, moments, seed)


def _drawn(one: Reference, other: Reference, seed: int) -> float:
    """A number in [0, 1) that belongs to the pair: both sides draw the same."""
    return float(generator(seed, "coherent", *sorted((one.context.id, other.context.id))).random())


def _candidates(
    reference: Reference,
    partner: Reference,
    pattern: Pattern | None,
    halved: bool,
    carried_out: bool,
    rng: np.random.Generator,
) -> Iterator[SerRecord]:
    pairs = response_pairs(reference, partner, halved, rng)
    if carried_out:
        pairs = own_first(reference, partner, pairs)
    for kind, (response, other, preference) in zip(("true", "spoiled"), pairs, strict=True):
        own = reference.turns[0 if kind == "true" else 1]
        steps: dict[Part, Step] = {part: own.step(part) for part in STEPS}
        false: dict[Part, StepLabel] = {}
        if kind == "spoiled" and pattern is not None:
            for part in pattern.steps:
                steps[part] = _exchanged(part, reference, partner, pattern)
                false[part] = _false(part, reference, partner, pattern)
        turn = SupportTurn.model_validate({**steps, "response": response})
        writer = reference if is_of(response, reference) else partner
        first = bool(rng.random() < 0.5)
        yield _record(reference, kind, turn, false, other, preference, first, writer.context.reply.strategy)


def _exchanged(part: Part, own: Reference, partner: Reference, pattern: Pattern) -> Step:
    """The step that the context shows after the exchange."""
    mine, theirs = own.turn.step(part), partner.turn.step(part)
    if pattern.kind == WRONG_STAGE:
        text = HistoryWords(own.history[0].issue, partner.history[0].stage).text
        return HistoryStep(text=text, stage=partner.turn.history.stage)
    if pattern.kind == SWAPPED_FACT:
        frame = own.history[0].frame
        assert frame is not None
        swapped = replace(own.quotes, detail=partner.quotes.detail)
        text = HistoryWords(fill_history(frame, swapped), own.history[0].stage).text
        return HistoryStep(text=text, stage=own.turn.history.stage)
    if pattern.kind == CONTRADICTS:
        return mine.model_copy(update={"text": theirs.text})
    return theirs


def _false(part: Part, own: Reference, partner: Reference, pattern: Pattern) -> StepLabel:
    whole = pattern.kind is None
    kind = pattern.kind or {"history": "another seeker's issue", "strategy": "improbable strategy"}.get(part)
    if kind is None:
        kind = wrong_emotion(own.context, own.turn.emotion, partner.turn.emotion)
    what = (
        "the reference step of"
        if whole
        else {WRONG_STAGE: "the stage of", SWAPPED_FACT: "a fact of"}.get(pattern.kind or "", "the reasoning of")
    )
    return StepLabel(value=False, source="silver", how=f"{what} {partner.context.id}", kind=kind)


def _record(
    reference: Reference,
    kind: str,
    turn: SupportTurn,
    false: Mapping[Part, StepLabel],
    other: str,
    preference: PreferenceLabel | None,
    candidate_first: bool,
    response_strategy: Strategy | None,
) -> SerRecord:
    def label(part: Part) -> StepLabel:
        return false.get(part) or StepLabel(value=True, source="silver", how="the reference step of this moment")

    return _record_of(
        reference.context,
        kind,
        turn,
        "corpus" if kind == "reference" else "silver",
        StepLabels(history=label("history"), emotion=label("emotion"), strategy=label("strategy")),
        other,
        preference,
        candidate_first,
        reference.derived,
        response_strategy,
    )


def _record_of(
    context: Context,
    kind: str,
    turn: SupportTurn,
    author: str,
    labels: StepLabels | None,
    other: str,
    preference: PreferenceLabel | None,
    candidate_first: bool,
    derived: tuple[str, ...],
    response_strategy: Strategy | None = None,
) -> SerRecord:
    return SerRecord(
        id=f"{context.id}:{kind}",
        dialogue=context.dialogue,
        round=context.round,
        language=context.language,
        source=context.source,
        split=context.split,
        history=context.history,
        candidate=turn,
        author=author,
        response_strategy=response_strategy,
        reference=other,
        labels=labels,
        preference=preference,
        candidate_first=candidate_first,
        derived=derived,
    )


# --- replies that were rated badly, and turns that models wrote -------------------------------------------------------


def _is_bad_reply(context: Context) -> bool:
    return why_not(context) == "badly rated reply" and context.emotion is not None


def _badly_rated(
    left: Sequence[Context],
    references: Sequence[Reference],
    bad: Sequence[str],
    moments: Moments,
    seed: int,
    rng: np.random.Generator,
) -> Iterator[SerRecord]:
    """At a moment whose own reply was rated badly: that reply, or two such, are not acceptable.

    Beside it stands a reply to another history, or another badly rated one, of about the same length.
    """
    for context in left:
        if not _is_bad_reply(context):
            continue
        usual = moments.most_usual(context)
        mended = context.model_copy(
            update={"reply": context.reply.model_copy(update={"strategy": usual, "notes": None})}
        )
        reference = reference_of(mended, seed)
        own = context.reply.text
        others = [r.turn.response for r in references if r.context.dialogue != context.dialogue]
        others += [text for text in bad if text != own]
        if not others:
            continue
        size = len(words(own))
        near = sorted(others, key=lambda text: abs(len(words(text)) - size))[:8]
        other = near[int(rng.integers(len(near)))]
        pair = (own, other) if rng.random() < 0.5 else (other, own)
        how = "the badly rated reply to this history against a reply to another"
        label = PreferenceLabel(value="neither", source="silver", how=how)
        turn = reference.turn.model_copy(update={"response": pair[0]})
        labels = StepLabels(
            history=StepLabel(value=True, source="silver", how="the reference step of this moment"),
            emotion=StepLabel(value=True, source="silver", how="the reference step of this moment"),
            strategy=StepLabel(value=True, source="silver", how="the strategy most usual at this moment"),
        )
        derived = (*context.derived, "strategy")
        first = bool(rng.random() < 0.5)
        meant = context.reply.strategy if pair[0] == own else None
        yield _record_of(context, "badly-rated", turn, "silver", labels, pair[1], label, first, derived, meant)


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
            labels = compare_turn(turn, context, moments, derived_stage(context.round))
            kind, how = f"{model}:{number}", "this model's reply to this history against its reply to "
            partner = those[index ^ 1] if (index ^ 1) < len(those) else None
            pair: ResponsePair | None = None
            if labels and partner and partner[0].dialogue != context.dialogue and partner[1].response != turn.response:
                pair = decisive(turn.response, partner[1].response, how + partner[0].id, rng)
            shown = turn.model_copy(update={"response": pair[0]}) if pair else turn
            other = pair[1] if pair else context.reply.text.strip()
            if not other:
                continue
            first = bool(rng.random() < 0.5)
            yield _record_of(
                context, kind, shown, model, labels, other, pair[2] if pair else None, first, context.derived
            )
