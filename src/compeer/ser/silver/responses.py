"""Pairs of responses, and which is better: a reply at home against its partner's, or the halves of one reply.

Whatever stands as the better one in one history stands as the worse one in another, and halves that are both good at
home are neither acceptable elsewhere: the same texts, of the same length, on both sides of every verdict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from compeer.ser.record import PreferenceLabel, Preferred
from compeer.ser.sampling import Context
from compeer.ser.silver.reference import Reference
from compeer.statistics import words

HALVED = 0.4
"""Share of pairs whose replies are halved, where so many can be."""

ResponsePair = tuple[str, str, PreferenceLabel]


def choose_halved(references: Sequence[Reference], partner: Sequence[int], rng: np.random.Generator) -> set[int]:
    """Which contexts show halves of replies: pairs of which both replies can be halved, up to the share wanted."""
    able = [halves(reference.turn.response) is not None for reference in references]
    pairs = [(one, other) for one, other in enumerate(partner) if one < other]
    could = [pair for pair in pairs if able[pair[0]] and able[pair[1]]]
    wanted = min(len(could), round(HALVED * len(pairs)))
    return {index for chosen in rng.permutation(len(could))[:wanted].tolist() for index in could[chosen]}


def response_pairs(
    own: Reference, partner: Reference, halved: bool, rng: np.random.Generator
) -> tuple[ResponsePair, ResponsePair]:
    """Two pairs of responses for a context: the candidate's, the other one, and which is better."""
    mine, theirs = halves(own.turn.response), halves(partner.turn.response)
    if halved and mine and theirs:
        both = _halved(mine, "both", f"two halves of {_rated(own.context)} reply to this history", rng)
        neither = _halved(theirs, "neither", f"two halves of the reply of {partner.context.id}", rng)
        return (both, neither) if rng.random() < 0.5 else (neither, both)
    how = f"{_rated(own.context)} reply to this history against that of {partner.context.id}"
    return (
        decisive(own.turn.response, partner.turn.response, how, rng),
        decisive(own.turn.response, partner.turn.response, how, rng),
    )


def own_first(
    own: Reference, partner: Reference, pairs: tuple[ResponsePair, ResponsePair]
) -> tuple[ResponsePair, ResponsePair]:
    """The two pairs such that the first has the context's own reply as candidate, and the second its partner's."""
    good, bad = sorted(pairs, key=lambda pair: pair[2].value not in ("both", "candidate"))
    if good[2].value == "both":
        return good, bad
    mine, theirs, how = own.turn.response, partner.turn.response, good[2].how
    return (
        (mine, theirs, PreferenceLabel(value="candidate", source="silver", how=how)),
        (theirs, mine, PreferenceLabel(value="reference", source="silver", how=how)),
    )


def is_of(response: str, reference: Reference) -> bool:
    """Whether a response is a context's own reply, or a half of it."""
    return response in (reference.turn.response, *(halves(reference.turn.response) or ()))


def decisive(better: str, worse: str, how: str, rng: np.random.Generator) -> ResponsePair:
    """The two responses, the better one as candidate or as the other by chance."""
    if rng.random() < 0.5:
        return better, worse, PreferenceLabel(value="candidate", source="silver", how=how)
    return worse, better, PreferenceLabel(value="reference", source="silver", how=how)


def _halved(parts: tuple[str, str], value: Preferred, how: str, rng: np.random.Generator) -> ResponsePair:
    one, other = parts if rng.random() < 0.5 else parts[::-1]
    return one, other, PreferenceLabel(value=value, source="silver", how=how)


def _rated(context: Context) -> str:
    return "the well-rated" if (context.reply.feedback or 0) >= 4 else "the"


_BREAK = re.compile(r"\n+|(?<=[.!?…])\s+|(?<=[。！？])")


def halves(text: str) -> tuple[str, str] | None:
    """A reply cut in two that both say something, of about equal length; None where it cannot be."""
    parts = [part.strip() for part in _BREAK.split(text) if part and part.strip()]
    sizes = [len(words(part)) for part in parts]
    best: tuple[float, int] | None = None
    for cut in range(1, len(parts)):
        one, other = sum(sizes[:cut]), sum(sizes[cut:])
        if min(one, other) >= 3 and max(one, other) <= 3 * min(one, other):
            best = min(best or (9.0, cut), (max(one, other) / min(one, other), cut))
    if best is None:
        return None
    return " ".join(parts[: best[1]]), " ".join(parts[best[1] :])
