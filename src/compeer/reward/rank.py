"""Several outputs for one history, ranked against each other: what serving and best-of-n need, where no reference is.

Every output is compared with some of the others, the *anchors*. A pair is judged twice, each output once as the
candidate and first, so that neither position nor role favours one. The share of a comparison that an output wins is the
probability that it is the better one, and half that of "both" and "neither"; against itself it is one half. Then

    score = 2·wins − 1,    wins = mean share over the anchors

which is the expected reward of its response with the others in the place of the reference. Steps decide among equals,
and where responses are not compared: score = Σ over the steps (2·p(True) − 1); they say next to nothing about which
reply of one supporter is better (docs/decisions.md). An output that is no better than another in anything never stands
before it. A broken output comes last, unjudged; one that the judge failed on comes before those, with the reason.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compeer.dialogue import Utterance
from compeer.reasoning import STEPS, ParsedTurn, Part
from compeer.reward.anti_gaming import COPIED_REFERENCE
from compeer.reward.conversation import Case
from compeer.reward.score import Judge, Judgment, Unscored
from compeer.ser.record import Preferred
from compeer.statistics import generator, words

COMPARE_ALL = 8  # outputs up to which each is compared with each

Outputs = Sequence[ParsedTurn]
Ask = tuple[int, int | None]  # a candidate, and the output it is compared with
Shares = Mapping[tuple[int, int], float]  # what an output wins of another


@dataclass(frozen=True)
class Ranked:
    """One output's rank: no score where it is broken or the judge failed, no wins where responses were not compared."""

    index: int
    score: float | None
    wins: float | None = None
    steps: Mapping[Part, float] = field(default_factory=dict)
    problem: str | None = None


def rank(judge: Judge, history: Sequence[Utterance], outputs: Outputs, seed: int = 0) -> list[Ranked]:
    """The outputs from the best to the worst; each is compared with its anchors."""
    return asyncio.run(arank(judge, history, outputs, seed))


async def arank(judge: Judge, history: Sequence[Utterance], outputs: Outputs, seed: int = 0) -> list[Ranked]:
    """`rank` for callers that are async."""
    responses = {index: output.turn.response for index, output in enumerate(outputs) if output.turn}
    chosen = anchors_of(responses, seed)
    asked = comparisons(responses, chosen)
    cases = [Case(tuple(history), outputs[one], None if other is None else responses[other]) for one, other in asked]
    found = dict(zip(asked, await judge.ajudge(cases), strict=True))
    judged = {index for (index, _), entry in found.items() if isinstance(entry, Judgment)}
    compared = {index for index, other in found if other is not None}
    if unjudged := sorted(compared - judged):  # what they were compared with may be more than the judge takes
        single = [Case(tuple(history), outputs[index], None) for index in unjudged]
        found |= {(index, None): one for index, one in zip(unjudged, await judge.ajudge(single), strict=True)}
    same = {(one, other): 0.5 for one in responses for other in chosen if _alike(responses[one], responses[other])}
    shares = shares_of(found)
    failed = [(ask, entry.reason) for ask, entry in found.items() if isinstance(entry, Unscored)]
    failures = {index: reason for ask, reason in failed for index in ask if index is not None}
    steps = {index: steps_of(index, found) for index in responses}
    ranked = ranking(steps, shares | same, chosen if shares else [], failures)
    broken = [index for index in range(len(outputs)) if index not in responses]
    for index in sorted(broken, key=lambda index: len(outputs[index].missing)):
        problem = "; ".join(f"{part}: {why}" for part, why in outputs[index].missing.items())
        ranked.append(Ranked(index, None, problem=problem))
    return ranked


def anchors_of(responses: Mapping[int, str], seed: int) -> list[int]:
    """Which outputs the others are compared with: all up to eight, else ⌈log₂ n⌉ + 1, sampled by text."""
    few = len(responses) <= COMPARE_ALL
    wanted = len(responses) if few else math.ceil(math.log2(len(responses))) + 1
    sampled = sorted(responses, key=lambda index: (generator(seed, "anchors", responses[index]).random(), index))
    return sorted(sampled[:wanted])


def comparisons(responses: Mapping[int, str], anchors: Sequence[int]) -> list[Ask]:
    """What the judge is asked: each pair that differs both ways, and what has no partner by itself, for its steps."""
    apart = ((one, other) for one in responses for other in anchors if not _alike(responses[one], responses[other]))
    pairs = {(min(pair), max(pair)) for pair in apart}
    paired = {index for pair in pairs for index in pair}
    both_ways: list[Ask] = [ask for one, other in sorted(pairs) for ask in ((one, other), (other, one))]
    return [*both_ways, *((index, None) for index in responses if index not in paired)]


def shares_of(found: Mapping[Ask, Judgment | Unscored]) -> dict[tuple[int, int], float]:
    """What each output wins of each other, where both ways of asking gave an answer: one way would favour a place."""
    judgments = [(ask[0], entry) for ask, entry in found.items() if isinstance(entry, Judgment)]
    judged = {index for index, _ in judgments}
    void = {index for index, entry in judgments if entry.void not in (None, COPIED_REFERENCE)}
    shares = {}
    for (one, other), entry in found.items():
        if other is None:
            continue
        back = found.get((other, one))
        if (one in void) != (other in void) and {one, other} <= judged:
            # what counts for nothing (it repeats the history, say) loses, even if the judge was asked one way only
            shares[one, other] = 0.0 if one in void else 1.0
        elif isinstance(entry, Judgment) and isinstance(back, Judgment) and entry.response and back.response:
            shares[one, other] = (won(entry.response) + 1 - won(back.response)) / 2
    return shares


def steps_of(index: int, found: Mapping[Ask, Judgment | Unscored]) -> dict[Part, float]:
    """An output's step probabilities, over all times it was asked about; they are the same but for rounding."""
    given = [entry.steps for ask, entry in found.items() if ask[0] == index and isinstance(entry, Judgment)]
    by_part = {part: [one[part] for one in given if part in one] for part in STEPS}
    return {part: sum(values) / len(values) for part, values in by_part.items() if values}


def won(response: Mapping[Preferred, float]) -> float:
    """The share of a comparison that the candidate wins; "both" and "neither" are shared."""
    return response.get("candidate", 0.0) + (response.get("both", 0.0) + response.get("neither", 0.0)) / 2


def ranking(
    steps: Mapping[int, Mapping[Part, float]], shares: Shares, anchors: Sequence[int], failures: Mapping[int, str]
) -> list[Ranked]:
    """The outputs in order; a comparison that failed is left out of the mean, an output with none left comes last."""
    found = []
    for index, probabilities in steps.items():
        met = [shares[index, anchor] for anchor in anchors if (index, anchor) in shares]
        unmatched = not any(index != anchor and (index, anchor) in shares for anchor in anchors)
        values = [probabilities[part] for part in STEPS if part in probabilities]
        if any(not math.isfinite(value) for value in [*values, *met]):
            found.append(Ranked(index, None, problem="the judge's probabilities are not numbers"))
        elif (not values and not met) or (anchors and unmatched and index in failures):
            found.append(Ranked(index, None, problem=failures.get(index, "the judge gave no verdict")))
        else:
            wins = sum(met) / len(met) if met else None
            score = 2 * wins - 1 if wins is not None else _right(probabilities)
            found.append(Ranked(index, score, wins, probabilities, failures.get(index)))
    return sorted(found, key=lambda one: (one.score is None, -(one.score or 0.0), -_right(one.steps), one.index))


def _right(steps: Mapping[Part, float]) -> float:
    return sum(2 * steps[part] - 1 for part in STEPS if part in steps)


def _alike(one: str, other: str) -> bool:
    return one == other or (words(one) == words(other) != [])
