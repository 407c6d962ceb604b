"""What an evaluation will cost, before the first call: a few of its conversations are rehearsed with made-up answers.

The rehearsal goes through the same agents, engine and judges as the run, so that every prompt is as long as it will be.
Answers have a typical length, or as many tokens as they may have: the first gives what to expect, the second what it
cannot exceed, retries apart. Tokens are counted as `models/estimate.py` does, which may be off by a third.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compeer.evaluate.esc_eval.rubric import DIMENSIONS
from compeer.evaluate.running import Evaluation, Talk
from compeer.models.base import Failure, Generation, Request, Sampling
from compeer.models.costs import prompt_tokens
from compeer.simulate import Scenario, run_dialogues

TYPICAL = {"supporter": 120, "structured": 220, "seeker": 50, "judge": 80}
"""Tokens of an answer, as larger models tend to give it. Those that think before they answer take far more."""
LONGEST_SPOKEN = 600
REHEARSED = 6
"""Scenarios that are rehearsed; the others are taken to be like them."""


@dataclass(frozen=True)
class Expected:
    """What a role will take: in the first place as expected, in the second at most, retries apart."""

    calls: int
    prompt_tokens: tuple[int, int]
    tokens: tuple[int, int]

    def took(self, place: int) -> dict[str, int]:
        """The one or the other, as costs are counted."""
        return {"calls": self.calls, "prompt_tokens": self.prompt_tokens[place], "tokens": self.tokens[place]}


async def rehearse(evaluation: Evaluation, dialogues: int, judged: int) -> dict[str, Expected]:
    """What so many of the evaluation's conversations will take, by role, if so many are still to be judged."""
    sample = _spread(evaluation.scenarios)
    typical, most = [await _rehearsed(evaluation, sample, at_most) for at_most in (False, True)]
    found = {}
    for role, one in typical.items():
        scale = (dialogues if role in ("supporter", "seeker") else judged) / len(sample)
        found[role] = Expected(
            round(scale * one.calls),
            (round(scale * one.prompt_tokens), round(scale * most[role].prompt_tokens)),
            (round(scale * one.tokens), round(scale * most[role].tokens)),
        )
    return found


async def _rehearsed(
    evaluation: Evaluation, scenarios: Sequence[Scenario], at_most: bool
) -> Mapping[str, RehearsingModel]:
    if evaluation.settings.mode == "structured":
        supporter = RehearsingModel(_structured, TYPICAL["structured"], at_most)
    else:
        supporter = RehearsingModel(_words, TYPICAL["supporter"], at_most)
    seeker = RehearsingModel(_seeker, TYPICAL["seeker"], at_most)
    judges = {
        role: RehearsingModel(_judge, TYPICAL["judge"], at_most, player.name)
        for role, player in evaluation.players.by_role.items()
        if role not in ("supporter", "seeker")
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        agents = evaluation.seeker(seeker), evaluation.supporter(supporter)
        found = await run_dialogues(
            scenarios, lambda _: agents[0], lambda: agents[1], evaluation.limits, folder, evaluation.seed
        )
        if judges:
            talks = [Talk(one.scenario, 1, one) for one in found.conversations]
            await evaluation.judge(talks, list(judges.values()), folder, lambda _: None)
    return {"supporter": supporter, "seeker": seeker, **judges}


def _spread(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """A few scenarios from the whole of the list."""
    step = max(1, len(scenarios) / REHEARSED)
    places = sorted({int(number * step) for number in range(REHEARSED)})
    return [scenarios[place] for place in places if place < len(scenarios)]


class RehearsingModel:
    """Stands in for a model: gives a made-up answer of the wanted length, and counts."""

    batch_size = 1
    at_once = 64

    def __init__(
        self, answer: Callable[[Request, int], str], tokens: int, at_most: bool, name: str = "rehearsal"
    ) -> None:
        self.name = name
        self._answer, self._typical, self._at_most = answer, tokens, at_most
        self.calls = self.prompt_tokens = self.tokens = 0

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        tokens = sampling.max_tokens if self._at_most else min(self._typical, sampling.max_tokens)
        self.calls += len(requests)
        self.prompt_tokens += sum(map(prompt_tokens, requests))
        self.tokens += tokens * len(requests)
        return [Generation(self._answer(request, tokens)) for request in requests]


def _words(_: Request, tokens: int) -> str:
    """A text of about so many tokens, of four characters each; what models think besides is not said."""
    return ("word " * min(tokens, LONGEST_SPOKEN))[: 4 * tokens].strip()


def _structured(request: Request, tokens: int) -> str:
    """A structured turn in which the response is a third: what is said aloud is what later prompts hold."""
    return (
        "History: word [exploration]\nEmotion: word [negative, sadness, 3]\nStrategy: word [Question]\n"
        f"Response: {_words(request, tokens // 3)}"
    )


def _seeker(request: Request, tokens: int) -> str:
    """A message; or, where the sentient seeker is asked what it felt, a change that ends nothing."""
    return f"Reasons: {_words(request, tokens)}\nChange: +0" if request.grammar else _words(request, tokens)


def _judge(request: Request, _: int) -> str:
    """An answer in the wanted form."""
    scores: dict[str, Any] = {key: 2 for key in ("score", *DIMENSIONS) if f'\\"{key}\\"' in (request.grammar or "")}
    return json.dumps({"reason": "word", **scores})
