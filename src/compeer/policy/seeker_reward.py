"""Rewards by a simulated seeker: how its emotion moves when it is given the response, over one turn or several.

The seeker is any agent that notes its `emotion` in the `extra` of its turns, as SAGE's sentient seeker does. It is
shown a record's history with the response at its end, and feels `start` before it. What it notes then, less what it
felt before, is the score; over several turns a fixed supporter goes on with the conversation, and the score is
the change a turn. All outputs for one history meet the same seeker with the same random numbers, so that they differ by
what they say alone.

A response that is missing scores `worst` without asking anybody: a broken output must never be better off than a bad
one. A seeker whose model gives nothing of use leaves the output unscored. A model behind a server should be wrapped in
`Patient`, which waits for it or raises `JudgeAway`; what still fails then is unscored too.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import pairwise
from typing import Any

from compeer.dialogue import Speaker
from compeer.models.base import Request, Sampling, TextModel
from compeer.policy.rewards import SourceScore
from compeer.reasoning import ParsedTurn
from compeer.reward import Unscored
from compeer.ser.record import SerRecord
from compeer.simulate import Agent, Scenario, Turn
from compeer.simulate.conversation import view_of
from compeer.simulate.runner import Taking
from compeer.statistics import generator

Facts = Callable[[SerRecord], Mapping[str, Any]]
"""What the seeker of a record's dialogue knows of itself."""


def facts_from_history(record: SerRecord) -> dict[str, str]:
    """A person, a scene and an intention where nothing is known but what the seeker has said."""
    words = _wording()["zh" if record.language.split("-")[0] == "zh" else "en"]
    said = "\n".join(f"- {' '.join(one.text.split())}" for one in record.history if one.speaker == "seeker")
    return {name: text.strip().replace("{said}", said) for name, text in words.items()}


@cache
def _wording() -> dict[str, dict[str, str]]:
    text = files("compeer.policy").joinpath("prompts", "seeker_facts.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


class SeekerSource:
    """A simulated seeker as a source of rewards: the change of its emotion a turn, in its own points."""

    def __init__(
        self,
        seeker: Agent,
        seed: int,
        *,
        start: float = 40,
        worst: float = -10,
        turns: int = 1,
        supporter: Agent | None = None,
        facts: Facts = facts_from_history,
        retries: int = 2,
        name: str = "seeker",
    ) -> None:
        """`turns`: replies that are felt, the output's own the first; the `supporter` gives the others."""
        if turns > 1 and supporter is None:
            raise ValueError("a conversation of more than one turn needs a supporter to go on with it")
        self._agents: dict[Speaker, Agent] = {"seeker": seeker}
        if supporter:
            self._agents["supporter"] = supporter
        self._seed, self._start, self._worst, self._turns = seed, start, worst, turns
        self._facts, self._retries, self._name = facts, retries, name

    @property
    def name(self) -> str:
        return self._name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[SourceScore | Unscored]:
        """The change of emotion for each output, given the record whose history it answers, in their order."""
        return asyncio.run(self._score(records, outputs))

    async def _score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[SourceScore | Unscored]:
        talks: list[_Talk | None] = []
        for record, output in zip(records, outputs, strict=True):
            response = output.parts.get("response")
            spoken = isinstance(response, str) and response.strip()
            talks.append(_Talk(record, str(response), self._facts(record), self._start) if spoken else None)
        going = [talk for talk in talks if talk]
        for turn in range(1, self._turns + 1):
            if turn > 1:
                await self._take("supporter", going, turn)
                going = [talk for talk in going if talk.failed is None]
            await self._take("seeker", going, turn)
            going = [talk for talk in going if not talk.over and talk.failed is None]
        return [talk.score() if talk else SourceScore(self._worst) for talk in talks]

    async def _take(self, speaker: Speaker, talks: Sequence[_Talk], turn: int) -> None:
        """One turn of a side in each talk, asked for together; after the last one the seeker need not answer."""
        agent = self._agents[speaker]
        over = speaker == "seeker" and turn == self._turns
        takings = []
        for talk in talks:
            view = view_of(talk.scenario, talk.turns, speaker, with_reasoning=agent.keeps_reasoning, over=over)
            seed_of = partial(self._draw, talk.scenario.id, speaker, turn)
            takings.append(Taking(agent.turn(view), speaker, agent.sampling, self._retries, seed_of))
        while asking := [taking for taking in takings if taking.request]:
            await _ask(agent.model, asking)
        for talk, taking in zip(talks, takings, strict=True):
            talk.add(taking)

    def _draw(self, record: str, speaker: Speaker, turn: int, call: int) -> int:
        return int(generator(self._seed, "seeker reward", record, speaker, str(turn), str(call)).integers(2**31))


class _Talk:
    """What was said so far in a record's history and after it, and how the seeker has felt."""

    def __init__(self, record: SerRecord, response: str, facts: Mapping[str, Any], start: float) -> None:
        self.scenario = Scenario(id=record.id, language=record.language, facts=dict(facts))
        said = [Turn(speaker=one.speaker, text=one.text) for one in record.history if one.text.strip()]
        for place in [place for place, one in enumerate(said) if one.speaker == "seeker"][-1:]:
            said[place] = said[place].model_copy(update={"extra": {"emotion": start}})
        self.turns = [*said, Turn(speaker="supporter", text=response)]
        self.felt = [start]
        self.over = False
        self.failed: str | None = None

    def add(self, taking: Taking) -> None:
        """Takes a turn that was made, or why there is none."""
        said = taking.said
        if said is None:
            why = taking.failed
            self.failed = f"the {taking.speaker} gave nothing of use: {why.why}" if why else "no reason was given"
            return
        if taking.speaker == "seeker":
            emotion = said.extra.get("emotion")
            if not isinstance(emotion, int | float):
                self.failed = "the seeker noted no emotion"
                return
            self.felt.append(float(emotion))
            self.over = said.stop is not None or not said.text.strip()
        if said.text.strip():
            self.turns.append(Turn(speaker=taking.speaker, text=said.text, reasoning=said.reasoning, extra=said.extra))

    def score(self) -> SourceScore | Unscored:
        """The change a turn. A talk that the seeker ended early has fewer turns."""
        if self.failed is not None:
            return Unscored(self.failed)
        changes = [after - before for before, after in pairwise(self.felt)]
        parts = {f"change {turn}": change for turn, change in enumerate(changes, 1)}
        return SourceScore(sum(changes) / len(changes), {**parts, "emotion": self.felt[-1]})


async def _ask(model: TextModel | None, takings: Sequence[Taking]) -> None:
    """Puts the next question of each and hands back the answers; those drawn alike are put together."""
    if model is None:
        raise ValueError("an agent that asks needs a model")
    by_sampling: dict[Sampling, list[tuple[Taking, Request]]] = {}
    for taking in takings:
        if taking.request:
            by_sampling.setdefault(taking.sampling, []).append((taking, taking.request))
    for sampling, members in by_sampling.items():
        answers = await model.generate([request for _, request in members], sampling)
        for (taking, _), answer in zip(members, answers, strict=True):
            taking.give(answer)
