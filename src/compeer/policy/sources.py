"""The sources of rewards that a recipe names, opened; the simulated seeker among them; and servers that go away."""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
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
from compeer.reward import Judge, Score
from compeer.reward.judges import open_judges
from compeer.reward.strategies import StrategyClassifier, split_replies
from compeer.ser.record import SerRecord
from compeer.simulate import Agent, Scenario, SupporterAgent, Turn
from compeer.simulate.conversation import view_of
from compeer.simulate.engine import ask_together
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
            opened = PlanSource(StrategyClassifier(split_replies(turns, seed)[0]), name)
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
    names: list[str | Path] = [name for name in (source.judge, source.outcome) if name is not None]
    if "run" in names and run_judge is None:
        raise InputError("there is no run whose judge it could be.", field=field, do="Name a judge's folder.")
    return open_judges(
        [run_judge if name == "run" and run_judge else name for name in names],
        source.form,
        model=partial(_patient, outage=outage),
        trained=source.trained,
        batch=batch,
    )


# --- a simulated seeker -----------------------------------------------------------------------------------------------
#
# The seeker is any agent that notes its `emotion` in the `extra` of its turns, as SAGE's sentient seeker does. It reads
# a record's history with the response at its end, and feels `start` before it. The score is the change of its emotion;
# over several turns a fixed supporter goes on with the conversation, and the score is the change a turn. Outputs for
# one history meet the same seeker with the same random numbers.

WORST = -10.0
"""What a missing response scores: the most that the emotion falls in a turn."""
_RETRIES = 2


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

    A missing response scores `WORST` without asking anybody: a broken output is never better off than a bad one. A
    seeker whose model gives nothing of use leaves the output unscored.
    """

    def __init__(
        self,
        seeker: Agent,
        seed: int,
        *,
        start: float = 40,
        turns: int = 1,
        supporter: Agent | None = None,
        name: str = "seeker",
    ) -> None:
        """`turns`: replies that are felt, the output's own the first; the `supporter` gives the others."""
        if turns > 1 and supporter is None:
            raise ValueError("a conversation of more than one turn needs a supporter to go on with it")
        self._agents: dict[Speaker, Agent] = {"seeker": seeker, "supporter": supporter or seeker}
        self._seed, self._start, self._turns, self.name = seed, start, turns, name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        """The change of emotion for each output, given the record whose history it answers, in their order."""
        return asyncio.run(self._score(records, outputs))

    async def _score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        responses = [str(output.parts.get("response", "")) for output in outputs]
        talks = {
            index: _SeekerTalk(record, response, self._start)
            for index, (record, response) in enumerate(zip(records, responses, strict=True))
            if response.strip()
        }
        for turn in range(1, self._turns + 1):
            if turn > 1:
                await self._take("supporter", [talk for talk in talks.values() if not talk.over], turn)
            await self._take("seeker", [talk for talk in talks.values() if not talk.over], turn)
        return [talks[index].score() if index in talks else Score(total=WORST) for index in range(len(outputs))]

    async def _take(self, speaker: Speaker, talks: Sequence[_SeekerTalk], turn: int) -> None:
        """One turn of a side in each talk, asked for together; after the last one the seeker need not answer."""
        agent = self._agents[speaker]
        over = speaker == "seeker" and turn == self._turns
        takings = []
        for talk in talks:
            view = view_of(talk.scenario, talk.turns, speaker, with_reasoning=agent.keeps_reasoning, over=over)
            seed_of = partial(self._call_seed, talk.scenario.id, speaker, turn)
            takings.append(Taking(agent.turn(view), speaker, agent.sampling, _RETRIES, seed_of))
        while asking := [taking for taking in takings if taking.request]:
            if agent.model is None:
                raise ValueError("an agent that asks needs a model")
            await ask_together(agent.model, asking)
        for talk, taking in zip(talks, takings, strict=True):
            talk.add(taking)

    def _call_seed(self, record: str, speaker: Speaker, turn: int, call: int) -> int:
        return int(generator(self._seed, "seeker reward", record, speaker, str(turn), str(call)).integers(2**31))


class _SeekerTalk:
    """The turns of a record's history and after it, how the seeker has felt, and whether it is over, or why it failed.

    A talk that the seeker ended early has fewer turns.
    """

    def __init__(self, record: SerRecord, response: str, start: float) -> None:
        self.scenario = Scenario(id=record.id, language=record.language, facts=dict(facts_from_history(record)))
        turns = [Turn(speaker=one.speaker, text=one.text) for one in record.history if one.text.strip()]
        for index in [index for index, one in enumerate(turns) if one.speaker == "seeker"][-1:]:
            turns[index] = turns[index].model_copy(update={"extra": {"emotion": start}})
        self.turns = [*turns, Turn(speaker="supporter", text=response)]
        self.over = False
        self._felt, self._failed = [start], ""

    def add(self, taking: Taking) -> None:
        """Takes a turn that was made, or why there is none."""
        turn = taking.said
        emotion = turn.extra.get("emotion") if turn else None
        if turn is None:
            self._failed = f"the {taking.speaker} gave nothing of use: {taking.failed.why if taking.failed else ''}"
        elif taking.speaker == "seeker" and isinstance(emotion, int | float):
            self._felt.append(float(emotion))
            self.over = turn.stop is not None or not turn.text.strip()
        elif taking.speaker == "seeker":
            self._failed = "the seeker noted no emotion"
        self.over = self.over or bool(self._failed)
        if turn and turn.text.strip():
            self.turns.append(Turn(speaker=taking.speaker, text=turn.text, reasoning=turn.reasoning, extra=turn.extra))

    def score(self) -> Score:
        """The change a turn."""
        if self._failed:
            return Score(unscored=self._failed)
        changes = [after - before for before, after in pairwise(self._felt)]
        parts = {f"change {turn}": change for turn, change in enumerate(changes, 1)}
        return Score(total=sum(changes) / len(changes), more={**parts, "emotion": self._felt[-1]})


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
        self.name, self.batch_size, self.at_once = model.name, model.batch_size, model.at_once
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._there = 0.0
        """When the server last answered the tiny question."""

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
