"""The sources of rewards that a recipe names, opened; the simulated seeker among them; and servers that go away."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from compeer.errors import InputError
from compeer.io import table
from compeer.models import TextModel
from compeer.models.base import Failure, Generation, Request, Sampling
from compeer.models.resolve import ModelSettings, open_model
from compeer.policy.grpo_settings import GrpoSettings
from compeer.policy.rewards import DecisionSource, JudgeAway, JudgeSource, PlanSource, RewardSource, Weighted, shares_of
from compeer.progress import console
from compeer.reasoning import ParsedTurn
from compeer.reward import Score
from compeer.reward.judges import open_judges
from compeer.reward.strategies import StrategyClassifier, split_replies
from compeer.ser.record import SerRecord
from compeer.simulate import Agent, AgentTurn, Scenario, Turn
from compeer.simulate.conversation import view_of
from compeer.simulate.engine import ask_together
from compeer.simulate.runner import Taking
from compeer.simulate.seekers import prompt_language
from compeer.simulate.sentient import SentientSeeker

_QUICK = ModelSettings(retries=2)  # for servers: longer outages are waited for by `Patient`


def open_sources(
    settings: GrpoSettings, run_judge: Path | None, batch: int, seed: int, records: Sequence[SerRecord] = ()
) -> list[Weighted]:
    """The sources that a recipe names, ready to score; a plan's words are learnt from `records`."""
    if not any(source.weight for source in settings.rewards.values()):
        raise InputError("no source of rewards has a weight above 0.", field="grpo.rewards", do="Give one a weight.")

    def patient(name: str) -> TextModel:
        return Patient(open_model(name, settings=_QUICK), settings.outage)

    found = []
    own = [record for record in records if record.author == "corpus"]
    for name, source in settings.rewards.items():
        opened: RewardSource
        if source.decisions:
            opened = DecisionSource(name, shares_of(own) if source.beyond_chance else None)
        elif source.plan:
            turns = [(one.candidate.response, one.candidate.strategy.strategy, one.dialogue) for one in own]
            opened = PlanSource(StrategyClassifier(split_replies(turns, seed)[0]), name)
        elif source.seeker is not None:
            local, remote = ModelSettings(batch=batch), "@http" in source.seeker
            talker = patient(source.seeker) if remote else open_model(source.seeker, settings=local)
            opened = SeekerSource(SentientSeeker(talker), seed, name=name)
        else:
            names: list[str | Path] = [one for one in (source.judge, source.outcome) if one is not None]
            if "run" in names and run_judge is None:
                field = f"grpo.rewards.{name}"
                raise InputError("there is no run whose judge it could be.", field=field, do="Name a judge's folder.")
            judges = [run_judge if one == "run" and run_judge else one for one in names]
            judge = open_judges(judges, source.form, model=patient, trained=source.trained, batch=batch)
            opened = JudgeSource(judge, seed, name)
        found.append(Weighted(opened, source.weight))
    return found


# The seeker is any agent that notes its `emotion` in the `extra` of its turns, as SAGE's sentient seeker does. It reads
# a record's history with the response at its end, and feels `start` before it. Outputs for one history meet the same
# seeker with the same random numbers.

WORST = -10.0  # what a missing response scores: the most that the emotion falls
_RETRIES = 2


def facts_from_history(record: SerRecord) -> dict[str, str]:
    """A person, a scene and an intention where nothing is known but the seeker's own messages."""
    words = table("policy/prompts/seeker_facts")[prompt_language(record.language)]
    lines = "\n".join(f"- {' '.join(one.text.split())}" for one in record.history if one.speaker == "seeker")
    return {name: text.strip().replace("{said}", lines) for name, text in words.items()}


class SeekerSource:
    """A simulated seeker as a source: the change of its emotion, in points; a missing response has `WORST`."""

    def __init__(self, seeker: Agent, seed: int, *, start: float = 40, name: str = "seeker") -> None:
        self._seeker, self._seed, self._start, self.name = seeker, seed, start, name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[Score]:
        responses = [str(output.parts.get("response", "")) for output in outputs]
        takings = {
            index: self._taking(record, response)
            for index, (record, response) in enumerate(zip(records, responses, strict=True))
            if response.strip()
        }
        if self._seeker.model:
            asyncio.run(ask_together(self._seeker.model, list(takings.values())))
        return [self._change(takings[i]) if i in takings else Score(total=WORST) for i in range(len(outputs))]

    def _taking(self, record: SerRecord, response: str) -> Taking:
        """The seeker's turn after the response; nothing more is said then, so it need not answer."""
        scenario = Scenario(id=record.id, language=record.language, facts=dict(facts_from_history(record)))
        turns = [Turn(speaker=one.speaker, text=one.text) for one in record.history if one.text.strip()]
        for index in [index for index, one in enumerate(turns) if one.speaker == "seeker"][-1:]:
            turns[index] = turns[index].model_copy(update={"extra": {"emotion": self._start}})
        turns.append(Turn(speaker="supporter", text=response))
        view = view_of(scenario, turns, "seeker", over=True)
        names = ("seeker reward", record.id, "seeker", "1")
        return Taking(self._seeker.turn(view), "seeker", self._seeker.sampling, _RETRIES, self._seed, *names)

    def _change(self, taking: Taking) -> Score:
        """The score of a turn that was made, or why there is none."""
        if not isinstance(taking.result, AgentTurn):
            return Score(unscored=f"the seeker gave nothing of use: {taking.result.why if taking.result else ''}")
        emotion = taking.result.extra.get("emotion")
        if not isinstance(emotion, int | float):
            return Score(unscored="the seeker noted no emotion")
        change = float(emotion) - self._start
        return Score(total=change, more={"change 1": change, "emotion": float(emotion)})


_AWAY = ("connection", "timeout", "rate limit", "server", "access")
_TRIES = 3  # how often a question is asked again that fails though the server is there
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class Patient:
    """Asks another model, and waits up to `outage` seconds for a server that is away.

    What such a server could not answer is asked again once it answers a tiny question, put to it after growing pauses.
    What fails although the server is there fails for good after a few tries. A server that stays away longer, or that
    refuses its key, raises `JudgeAway`.
    """

    def __init__(self, model: TextModel, outage: float = 600.0, first_pause: float = FIRST_PAUSE) -> None:
        self._model, self._outage, self._first_pause = model, outage, first_pause
        self.name, self.batch_size, self.at_once = model.name, model.batch_size, model.at_once
        self._announced = False

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        found = await self._model.generate(requests, sampling)
        for _ in range(_TRIES):
            away = [number for number, answer in enumerate(found) if _is_away(answer)]
            if not away:
                break
            await self._wait(found[away[0]])
            again = await self._model.generate([requests[number] for number in away], sampling)
            for number, answer in zip(away, again, strict=True):
                found[number] = answer
        return found

    async def _wait(self, failure: Generation | Failure) -> None:
        """Comes back when the server has answered something."""
        start, pause = time.monotonic(), self._first_pause
        while isinstance(failure, Failure) and _is_away(failure):
            away = time.monotonic() - start
            if failure.kind == "access" or away + pause > self._outage:
                raise JudgeAway(f"{self.name} cannot be asked ({away:.0f} s by now): {failure.reason}")
            if not self._announced:
                console.print(f"  {self.name} is away, waiting: {failure.reason}", highlight=False)
                self._announced = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            failure = await self._tiny(start + self._outage - time.monotonic())
        self._announced = False

    async def _tiny(self, seconds: float) -> Generation | Failure:
        """The answer to a tiny question, no two of which are alike, so that no cache has it."""
        asked = Request(({"role": "user", "content": f"Say True. ({time.time_ns()})"},))
        try:
            async with asyncio.timeout(max(seconds, 1.0)):
                return (await self._model.generate([asked], Sampling(temperature=0, max_tokens=4)))[0]
        except TimeoutError:
            return Failure("timeout", "it did not answer in time")


def _is_away(answer: Generation | Failure) -> bool:
    """Whether it is a failure of the server, not of what it was asked."""
    return isinstance(answer, Failure) and answer.kind in _AWAY
