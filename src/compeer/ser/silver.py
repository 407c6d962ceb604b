"""Silver labels: step verdicts and preferences made by rule from what a corpus knows, where no people are at hand.

A *reference turn* carries the decisions that the corpus gives for a round, and the corpus' reply. A *spoiled turn* puts
the reference step of another dialogue in the place of one step, or of all three. So every text that stands as False in
one history stands as True in another, and a judge cannot tell them apart without reading the history. The pairs of
responses are made alike: the corpus' replies stand on both sides, at home or out of place.

What the corpus does not label is derived by rules that look at the history only, and the record says so:

- stage: rounds 1-3 exploration, 4-6 comforting, later action;
- emotion: the one of the seeker's last message, else of the dialogue; intensity likewise, else the initial one, else 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from compeer.dialogue import Dialogue, Round, Stage, Strategy, Utterance, last_seeker
from compeer.reasoning import (
    STEPS,
    EmotionStep,
    HistoryStep,
    Part,
    Step,
    StrategyStep,
    SupportTurn,
    one_line,
    sentiment_of,
)
from compeer.ser.record import PreferenceLabel, Preferred, SerRecord, Split, StepLabel, StepLabels
from compeer.statistics import generator

_PURPOSE: dict[Strategy, str] = {
    "Question": "More has to be known before anything else can help.",
    "Restatement or Paraphrasing": "Saying it back in other words shows that it was heard.",
    "Reflection of feelings": "Naming the feeling lets it be shared.",
    "Self-disclosure": "A like experience makes it less lonely.",
    "Affirmation and Reassurance": "What they did well deserves to be seen.",
    "Providing Suggestions": "They are ready to think about what to do.",
    "Information": "A fact is missing that would help.",
    "Others": "A plain word keeps the talk going.",
}


@dataclass(frozen=True)
class Context:
    """A sampled round with its reference turn."""

    dialogue: Dialogue
    round: Round
    turn: SupportTurn
    derived: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.dialogue.id}:{self.round.number}"


def derived_stage(number: int) -> Stage:
    """The stage by the round's number alone, where a corpus has none."""
    return "exploration" if number <= 3 else "comforting" if number <= 6 else "action"


def reference_context(dialogue: Dialogue, round_: Round) -> Context | str:
    """The round with its reference turn, or the reason why it cannot serve as one."""
    reply, seeker = round_.reply, last_seeker(round_.history)
    if reply.strategy is None:
        return "no strategy label"
    if not reply.text.strip():
        return "empty reply"
    if reply.feedback is not None and reply.feedback <= 2:
        return "badly rated reply"
    before, after = dialogue.intensity.initial, dialogue.intensity.final
    if before is not None and after is not None and after >= before and (reply.feedback or 0) < 4:
        return "dialogue did not help"
    emotion = (seeker.emotion if seeker else None) or dialogue.emotion
    if emotion is None:
        return "no emotion label"
    intensity = (seeker.intensity if seeker else None) or before
    derived = [] if reply.stage else ["stage"]
    if not (seeker and seeker.emotion):
        derived.append("emotion")
    if not (seeker and seeker.intensity):
        derived.append("intensity")
    notes = reply.notes
    said = _quote(seeker.text if seeker else round_.history[-1].text)
    turn = SupportTurn(
        history=HistoryStep(
            text=(notes and notes.history) or f"The talk has come to this: {said}",
            stage=reply.stage or derived_stage(round_.number),
        ),
        emotion=EmotionStep(
            text=(notes and notes.emotion) or f"One sees it from these words: {said}",
            sentiment=sentiment_of(emotion),
            emotion=emotion,
            intensity=intensity or 3,
        ),
        strategy=StrategyStep(text=(notes and notes.strategy) or _PURPOSE[reply.strategy], strategy=reply.strategy),
        response=reply.text,
    )
    return Context(dialogue, round_, turn, tuple(derived))


def _quote(text: str, limit: int = 12) -> str:
    said = one_line(text).split(" ")
    return "“" + " ".join(said[:limit]) + ("…" if len(said) > limit else "") + "”"


def silver_records(contexts: Sequence[Context], split: Split, false_share: float, seed: int) -> Iterator[SerRecord]:
    """Three records a context: its reference turn, and two candidates of whose step labels `false_share` are False.

    The first candidate keeps all three steps; in the second, whole turns come from another dialogue with probability
    `false_share`, and each step alone with the probability that is then still missing.
    """
    rng = generator(seed, "silver", split)
    whole = rng.random(len(contexts)) < false_share
    donors: dict[Part, list[int]] = {}
    taken = _donors(contexts, np.flatnonzero(whole).tolist(), rng, _differs_wholly)
    for part in STEPS:
        alone = ~whole & (rng.random(len(contexts)) < false_share / max(1e-9, 1 - false_share))
        own = _donors(contexts, np.flatnonzero(alone).tolist(), rng, partial(_differs, part))
        donors[part] = [w if w >= 0 else s for w, s in zip(taken, own, strict=True)]
    strangers = [_shuffled(contexts, rng) for _ in range(2)]
    for index, context in enumerate(contexts):
        yield _record(context, split, "reference", context.turn, {}, context.turn.response, None, True)
        if any(order[index] < 0 for order in strangers):
            continue  # there is nobody else whose reply could stand beside this one
        for kind in ("true", "spoiled"):
            swapped = {part: donors[part][index] for part in STEPS if kind == "spoiled" and donors[part][index] >= 0}
            steps = {part: contexts[swapped.get(part, index)].turn.step(part) for part in STEPS}
            others = [contexts[order[index]].turn.response for order in strangers]
            response, reference, preference = _pair(context.turn.response, others, rng)
            turn = SupportTurn.model_validate({**steps, "response": response})
            false = {part: contexts[donor].key for part, donor in swapped.items()}
            yield _record(context, split, kind, turn, false, reference, preference, bool(rng.random() < 0.5))


def _record(
    context: Context,
    split: Split,
    kind: str,
    turn: SupportTurn,
    false: dict[Part, str],
    reference: str,
    preference: PreferenceLabel | None,
    candidate_first: bool,
) -> SerRecord:
    def label(part: Part) -> StepLabel:
        how = f"the reference step of {false[part]}" if part in false else "the reference step of this round"
        return StepLabel(value=part not in false, source="silver", how=how)

    return SerRecord(
        id=f"{context.key}:{kind}",
        dialogue=context.dialogue.id,
        round=context.round.number,
        language=context.dialogue.language,
        source=context.dialogue.source,
        split=split,
        history=tuple(_bare(utterance) for utterance in context.round.history),
        candidate=turn,
        author="corpus" if kind == "reference" else "silver",
        reference=reference,
        labels=StepLabels(history=label("history"), emotion=label("emotion"), strategy=label("strategy")),
        preference=preference,
        candidate_first=candidate_first,
        derived=context.derived,
    )


def _bare(utterance: Utterance) -> Utterance:
    return Utterance(speaker=utterance.speaker, text=utterance.text, media=utterance.media)


def _differs(part: Part, one: Context, other: Context) -> bool:
    """Whether the other's step is wrong here: another dialogue and, where the decision alone speaks, another one."""
    if one.dialogue.id == other.dialogue.id:
        return False
    mine, theirs = one.turn.step(part), other.turn.step(part)
    return part == "history" or _kind_of_decision(mine) != _kind_of_decision(theirs)


def _differs_wholly(one: Context, other: Context) -> bool:
    return all(_differs(part, one, other) for part in STEPS)


def _kind_of_decision(step: Step) -> str:
    return step.emotion if isinstance(step, EmotionStep) else step.decision


def _donors(
    contexts: Sequence[Context],
    chosen: Sequence[int],
    rng: np.random.Generator,
    differs: Callable[[Context, Context], bool],
) -> list[int]:
    """For each chosen context the index of another chosen one whose step it gets, each used once; -1 elsewhere.

    A permutation, mended by swaps until every pair differs; the few that cannot be mended stay unspoiled.
    """
    found = [-1] * len(contexts)
    order = list(rng.permutation(chosen))
    for _ in range(20):
        bad = [i for i, j in enumerate(order) if not differs(contexts[chosen[i]], contexts[j])]
        if not bad:
            break
        for i in bad:
            k = int(rng.integers(0, len(order)))
            order[i], order[k] = order[k], order[i]
    for i, j in enumerate(order):
        if differs(contexts[chosen[i]], contexts[j]):
            found[chosen[i]] = int(j)
    return found


def _shuffled(contexts: Sequence[Context], rng: np.random.Generator) -> list[int]:
    """For each context the index of one from another dialogue, with another reply; -1 where there is none."""
    return _donors(contexts, range(len(contexts)), rng, _says_otherwise)


def _says_otherwise(one: Context, other: Context) -> bool:
    return one.dialogue.id != other.dialogue.id and one.turn.response != other.turn.response


def _pair(own: str, others: Sequence[str], rng: np.random.Generator) -> tuple[str, str, PreferenceLabel]:
    """Two responses, the candidate's and the other one, and which is better."""
    shorter = _shortened(own)
    value: Preferred = str(rng.choice(["candidate", "reference", "both", "neither"], p=[0.3, 0.3, 0.2, 0.2]))  # type: ignore[assignment]
    if (value == "both" and shorter is None) or (value == "neither" and others[0] == others[1]):
        value = "candidate" if rng.random() < 0.5 else "reference"
    if value == "both" and shorter is not None:
        pair = (own, shorter) if rng.random() < 0.5 else (shorter, own)
        return *pair, PreferenceLabel(value=value, source="silver", how="the reply of this round, whole and shortened")
    if value == "neither":
        how = "replies of two other dialogues"
        return others[0], others[1], PreferenceLabel(value=value, source="silver", how=how)
    how = "the reply of this round against one of another dialogue"
    label = PreferenceLabel(value=value, source="silver", how=how)
    return (own, others[0], label) if value == "candidate" else (others[0], own, label)


def _shortened(text: str) -> str | None:
    """The reply without its last sentence, or None if it has only one."""
    sentences = re.split(r"(?<=[.!?。！？])\s+", one_line(text))
    return " ".join(sentences[:-1]) if len(sentences) > 1 else None
