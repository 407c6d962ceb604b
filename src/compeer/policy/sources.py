"""The sources of rewards that a recipe names: judges here or behind servers, seekers, the corpus' decisions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from pydantic import Field, model_validator

from compeer.errors import InputError
from compeer.io import Frozen
from compeer.models import TextModel
from compeer.models.base import Failure, Generation, Request, Sampling
from compeer.models.opening import ModelSettings, open_model
from compeer.policy.rewards import DecisionSource, JudgeAway, JudgeSource, PlanSource, RewardSource, Weighted, shares_of
from compeer.policy.seeker_reward import SeekerSource
from compeer.progress import console
from compeer.reward import Form, Judge, PairJudge, open_judge
from compeer.reward.contradiction import StrategyClassifier
from compeer.ser.record import SerRecord
from compeer.simulate import SupporterAgent
from compeer.simulate.sentient import SentientSeeker

_QUICK = ModelSettings(retries=2)
"""For servers: longer outages are waited for by `Patient`."""


class SourceSettings(Frozen):
    """One source of rewards: a judge, a process and an outcome judge, a simulated seeker, decisions, or the plan."""

    judge: str = Field(
        default="run", description="'run': the judge that the run trains; or a judge's folder, or NAME@URL of a server"
    )
    outcome: str | None = Field(
        default=None, description="another judge for the responses (ORM); `judge` then judges the steps (PRM)"
    )
    seeker: str | None = Field(
        default=None,
        description="who plays a seeker with an emotion, named as `judge`, or 'embedded': the change of that emotion "
        "(-10 to 10 points a turn) is the score, and no judge is asked",
    )
    turns: int = Field(default=1, ge=1, description="with a `seeker`: over so many of its turns")
    supporter: str = Field(
        default="embedded", description="with a `seeker`: who goes on with the conversation after the output"
    )
    decisions: bool = Field(
        default=False,
        description="whether stage, emotion and strategy are those of the corpus (-3 to 3); no judge is asked",
    )
    beyond_chance: bool = Field(
        default=False,
        description="with `decisions`: less how common a decision is in the corpus, so that one answer for every "
        "history earns nothing",
    )
    plan: bool = Field(
        default=False,
        description="whether the response does what step 3 says, by its words (-1 to 1), learnt from the reference "
        "turns at hand; no judge is asked",
    )
    weight: float = Field(default=1.0, ge=0, description="what its score counts; 0: it is only logged")
    trained: bool = Field(
        default=False, description="whether the model behind a URL was trained as a judge, in the `form` given"
    )
    form: Form = Field(default=Form(), description="how a judge behind a URL is asked; a folder's card says it itself")

    @model_validator(mode="after")
    def _is_one_thing(self) -> SourceSettings:
        if sum((self.seeker is not None, self.decisions, self.plan)) > 1:
            raise ValueError("seeker, decisions and plan are sources of their own: give each a name and a table")
        if self.beyond_chance and not self.decisions:
            raise ValueError("beyond_chance says how decisions are counted: set decisions as well")
        return self


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
        own = getattr(judge, "form", Form()).kind
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
