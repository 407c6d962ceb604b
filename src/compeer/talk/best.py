"""The best of several outputs: how a judge's ranking becomes candidates that can be shown side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compeer.reasoning import ParsedTurn, Part
from compeer.reward.rank import Ranked, arank
from compeer.reward.score import Judge, Score, Sign
from compeer.talk.reading import problems_of
from compeer.talk.turn import Candidate, Wish


@dataclass(frozen=True)
class Contender:
    """An output of which the judge may choose: what could be read of it, what went wrong, what it took."""

    parsed: ParsedTurn
    problems: tuple[str, ...] = ()
    tokens: int = 0
    prompt_tokens: int = 0


async def candidates(
    judge: Judge, wish: Wish, outputs: Sequence[ParsedTurn], allowed: Sequence[bool]
) -> list[Candidate]:
    """The outputs with their places and verdicts, in the order they were written; what is not allowed has no place."""
    numbers = [number for number, good in enumerate(allowed) if good]
    ranking = await arank(judge, wish.history, [outputs[number] for number in numbers], seed=wish.seed)
    places = {numbers[one.index]: (place, one) for place, one in enumerate(ranking, 1)}
    found = []
    for number, output in enumerate(outputs):
        if number in places:
            place, ranked = places[number]
            given = verdicts(ranked, getattr(judge, "threshold", 0.5))
            found.append(Candidate(number + 1, output.turn, given, place, ranked.problem))
        else:
            why = "; ".join(problems_of(output)) if output.turn is None else ""
            found.append(Candidate(number + 1, None, None, None, why or "the guard does not let it pass"))
    return found


def verdicts(ranked: Ranked, threshold: float = 0.5) -> Score | None:
    """A place in a ranking as a score: a step counts +1 if it is more likely right, the response if it wins half.

    None where the judge could not place the output.
    """
    if ranked.score is None:
        return None
    steps: dict[Part, Sign] = {part: 1 if chance >= threshold else -1 for part, chance in ranked.steps.items()}
    response: Sign | None = None if ranked.wins is None else 1 if ranked.wins >= 0.5 else -1
    return Score(steps=steps, response=response, format=1, total=sum(steps.values()) + (response or 0) + 1)
