"""The sources of rewards that a recipe names, opened; the simulated seeker among them; and servers that go away."""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from compeer.dialogue import Speaker
from compeer.errors import InputError
from compeer.models import TextModel
from compeer.models.base import Failure, Generation, Request, Sampling
from compeer.models.resolve import ModelSettings, open_model
from compeer.policy.grpo_settings import SourceSettings
from compeer.policy.rewards import DecisionSource, JudgeAway, JudgeSource, PlanSource, RewardSource, Weighted, shares_of
from compeer.progress import console
from compeer.reasoning import ParsedTurn
from compeer.reward import Judge, JudgeForm, PairJudge, Score, open_judge
from compeer.reward.contradiction import StrategyClassifier
from compeer.ser.record import SerRecord
from compeer.simulate import Agent, Scenario, SupporterAgent, Turn
from compeer.simulate.conversation import view_of
from compeer.simulate.runner import Taking
from compeer.simulate.sentient import SentientSeeker
from compeer.statistics import generator

_QUICK = ModelSettings(retries=2)
"""For servers: longer outages are waited for by `Patient`."""


def open_sources(
    settings: Mapping[str, SourceSettings],
    run_judge: Path | None,
    batch: int,
    outage: float,
    seed: int,
    records: Sequence[SerRecord] = (),
) -> list[Weighted]:
    """The sources that a recipe names, ready to score; `run_judge` is the folder of the run's own judge.

    A judge behind a server may stay away for `outage` seconds. A plan's words are learnt from `records`.
    """
    if not any(source.weight for source in settings.values()):
        raise InputError("no source of rewards has a weight above 0.", field="grpo.rewards", do="Give one a weight.")

    def talker(name: str) -> TextModel:
        local = ModelSettings(batch=batch)
        return _patient(name, outage) if "@http" in name else open_model(name, settings=local)

    found = []
    own = [record for record in records if record.author == "corpus"]
    for name, source in settings.items():
        opened: RewardSource
        if source.decisions:
            opened = DecisionSource(name, shares_of(own) if source.beyond_chance else None)
        elif source.plan:
            turns = [(one.candidate.response, one.candidate.strategy.strategy, one.dialogue) for one in own]
            opened = PlanSource(StrategyClassifier.taught(turns, seed), name)
        elif source.seeker is None:
            opened = JudgeSource(_judge(f"grpo.rewards.{name}", source, run_judge, batch, outage), seed, name)
        else:
            supporter = SupporterAgent(talker(source.supporter), "plain") if source.turns > 1 else None
            seeker = SentientSeeker(talker(source.seeker))
            opened = SeekerSource(seeker, seed, turns=source.turns, supporter=supporter, name=name)
        found.append(Weighted(opened, source.weight))
    return found


def _judge(field: str, source: SourceSettings, run_judge: Path | None, batch: int, outage: float) -> Judge:
    """The judge, or the pair of judges, that a source names."""

    def opened(key: str, name: str, kind: str | None = None) -> Judge:
        if name == "run" and run_judge is None:
            what = "there is no run whose judge it could be."
            raise InputError(what, field=f"{field}.{key}", do="Name a judge's folder.")
        server = "@http" in name
        form = source.form.model_copy(update={"kind": kind or source.form.kind})
        judge = open_judge(
            run_judge if name == "run" and run_judge else name,
            form if server else None,
            model=lambda name: _patient(name, outage),
            trained=source.trained,
            batch=batch,
        )
        own = getattr(judge, "form", JudgeForm()).kind
        if form.kind != "unified" and not server and own != form.kind:
            what = f"this is no judge of the kind '{form.kind}' but '{own}'."
            raise InputError(what, field=f"{field}.{key}")
        if kind is None and own == "outcome":
            do = "Name it as `outcome`, beside a judge of the steps."
            raise InputError("this judge compares responses only.", field=f"{field}.{key}", do=do)
        return judge

    if source.outcome is None:
        return opened("judge", source.judge)
    return PairJudge(opened("judge", source.judge, "process"), opened("outcome", source.outcome, "outcome"))


# --- a simulated seeker -----------------------------------------------------------------------------------------------
#
# The seeker is any agent that notes its `emotion` in the `extra` of its turns, as SAGE's sentient seeker does. It reads
# a record's history with the response at its end, and feels `start` before it. The score is the change of its emotion;
# over several turns a fixed supporter goes on with the conversation, and the score is the change a turn. Outputs for
# one history meet the same seeker with the same random numbers.

Facts = Callable[[SerRecord], Mapping[str, Any]]
"""What the seeker of a record's dialogue knows of itself."""


def facts_from_history(record: SerRecord) -> dict[str, str]:
    """A person, a scene and an intention where nothing is known but what the seeker has said."""
    words = _wording()["zh" if record.language.split("-")[0] == "zh" else "en"]
    lines = "\n".join(f"- {' '.join(one.text.split())}" for one in record.history if one.speaker == "seeker")
    return {name: text.strip().replace("{said}", lines) for name, text in words.items()}


@cache
def _wording() -> dict[str, dict[str, str]]:
    text = files("compeer.policy").joinpath("prompts", "seeker_facts.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


class SeekerSource:
    """A simulated seeker as a source of rewards: the change of its emotion a turn, in its own points.

    A missing response scores `worst` without asking anybody: a broken output is never better off than a bad one. A
    seeker whose model gives nothing of use leaves the output unscored.
    """

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
        self._facts, self._retries, self.name = facts, retries, name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        """The change of emotion for each output, given the record whose history it answers, in their order."""
        return asyncio.run(self._score(records, outputs))

    async def _score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        talks: list[_SeekerTalk | None] = []
        for record, output in zip(records, outputs, strict=True):
            response = output.parts.get("response")
            spoken = isinstance(response, str) and response.strip()
            talks.append(_SeekerTalk(record, str(response), self._facts(record), self._start) if spoken else None)
        going = [talk for talk in talks if talk]
        for turn in range(1, self._turns + 1):
            if turn > 1:
                await self._take("supporter", going, turn)
                going = [talk for talk in going if talk.failed is None]
            await self._take("seeker", going, turn)
            going = [talk for talk in going if not talk.over and talk.failed is None]
        return [talk.score() if talk else Score(total=self._worst) for talk in talks]

    async def _take(self, speaker: Speaker, talks: Sequence[_SeekerTalk], turn: int) -> None:
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


class _SeekerTalk:
    """The turns of a record's history and after it, and how the seeker has felt."""

    def __init__(self, record: SerRecord, response: str, facts: Mapping[str, Any], start: float) -> None:
        self.scenario = Scenario(id=record.id, language=record.language, facts=dict(facts))
        turns = [Turn(speaker=one.speaker, text=one.text) for one in record.history if one.text.strip()]
        for index in [index for index, one in enumerate(turns) if one.speaker == "seeker"][-1:]:
            turns[index] = turns[index].model_copy(update={"extra": {"emotion": start}})
        self.turns = [*turns, Turn(speaker="supporter", text=response)]
        self.felt = [start]
        self.over = False
        self.failed: str | None = None

    def add(self, taking: Taking) -> None:
        """Takes a turn that was made, or why there is none."""
        turn = taking.said
        if turn is None:
            why = taking.failed
            self.failed = f"the {taking.speaker} gave nothing of use: {why.why}" if why else "no reason was given"
            return
        if taking.speaker == "seeker":
            emotion = turn.extra.get("emotion")
            if not isinstance(emotion, int | float):
                self.failed = "the seeker noted no emotion"
                return
            self.felt.append(float(emotion))
            self.over = turn.stop is not None or not turn.text.strip()
        if turn.text.strip():
            self.turns.append(Turn(speaker=taking.speaker, text=turn.text, reasoning=turn.reasoning, extra=turn.extra))

    def score(self) -> Score:
        """The change a turn. A talk that the seeker ended early has fewer turns."""
        if self.failed is not None:
            return Score(unscored=self.failed)
        changes = [after - before for before, after in pairwise(self.felt)]
        parts = {f"change {turn}": change for turn, change in enumerate(changes, 1)}
        return Score(total=sum(changes) / len(changes), more={**parts, "emotion": self.felt[-1]})


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


# --- servers that go away ---------------------------------------------------------------------------------------------

_PASSING = ("connection", "timeout", "rate limit", "server")
_TRIES = 3
"""How often a question is asked again that fails though the server is there."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


def _patient(name: str, outage: float) -> TextModel:
    return Patient(open_model(name, settings=_QUICK), outage)


class Patient:
    """Asks another model, and waits up to `outage` seconds for a server that is away.

    What a server could not answer because it was away (no connection, no answer in time, an error of its own, too many
    calls) is asked again once it answers anything: a tiny question is put to it after growing pauses. What fails
    although the server is there fails for good after a few tries. A server that stays away longer, or that refuses its
    key, raises `JudgeAway`.
    """

    def __init__(self, model: TextModel, outage: float = 600.0, first_pause: float = FIRST_PAUSE) -> None:
        self._model, self._outage, self._first_pause = model, outage, first_pause
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._there = 0.0
        """When the server last answered the tiny question."""

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def batch_size(self) -> int:
        return self._model.batch_size

    @property
    def at_once(self) -> int:
        return self._model.at_once

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        """One answer or failure for each request, in their order."""
        began = time.monotonic()
        found = await self._model.generate(requests, sampling)
        for _ in range(_TRIES):
            away = [number for number, answer in enumerate(found) if isinstance(answer, Failure) and _is_away(answer)]
            if not away:
                break
            await self._wait(began, found[away[0]])
            began = time.monotonic()
            again = await self._model.generate([requests[number] for number in away], sampling)
            for number, answer in zip(away, again, strict=True):
                found[number] = answer
        return found

    async def _wait(self, began: float, failure: Generation | Failure) -> None:
        """Comes back when the server has answered something since `began`; one caller asks for all."""
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:
            if self._there > began:
                return
            start, pause, announced = time.monotonic(), self._first_pause, False
            while True:
                if isinstance(failure, Failure):
                    away = time.monotonic() - start
                    if failure.kind == "access" or away + pause > self._outage:
                        raise JudgeAway(f"{self.name} cannot be asked ({away:.0f} s by now): {failure.reason}")
                    if not announced:
                        console.print(f"  {self.name} is away, waiting: {failure.reason}", highlight=False)
                        announced = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                failure = await self._tiny(start + self._outage - time.monotonic())
                if not (isinstance(failure, Failure) and _is_away(failure)):
                    self._there = time.monotonic()
                    return

    async def _tiny(self, seconds: float) -> Generation | Failure:
        """The answer to a tiny question, no two of which are alike, so that no cache has it."""
        asked = Request(({"role": "user", "content": f"Say True. ({time.time_ns()})"},))
        try:
            async with asyncio.timeout(max(seconds, 1.0)):
                return (await self._model.generate([asked], Sampling(temperature=0, max_tokens=4)))[0]
        except TimeoutError:
            return Failure("timeout", "it did not answer in time")


def _is_away(failure: Failure) -> bool:
    """Whether the failure is about the server, not about what it was asked."""
    return failure.kind in _PASSING or failure.kind == "access"
