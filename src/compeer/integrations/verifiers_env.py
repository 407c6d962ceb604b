"""A verifiers environment, `compeer-support`: UnifiReward and redundancy over the group, for any trainer of that kind.

A task is a history, answered by a `group` of independent turns that are scored against each other; or a role card,
played by a simulated seeker who talks with the supporter for some `rounds`. Rewards are UnifiReward's five parts (+1 or
−1 each). In a group each part is multiplied by the redundancy factor of its turn (equation 5), and `safety` takes away
what the safety floor does; the sum is the reward that `compeer policy grpo` would train with. In a conversation each
part is its mean over the supporter's turns, and responses are not compared, as there is no reference.

A turn that the judge failed to score fails the episode, which can be retried: it never becomes a number.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import verifiers.v1 as vf
from pydantic import Field

from compeer.dialogue import Utterance
from compeer.evaluate.decisions import held_out
from compeer.models.embedder import Embedder
from compeer.policy.prompt import supporter_prompt
from compeer.policy.redundancy import Negatives
from compeer.policy.rewards import RewardedGroup, Rollout, Scorer, reward_group
from compeer.reasoning import ParsedTurn, parse_turn
from compeer.reward import Case, Judge, Unscored, open_judge, score
from compeer.ser.record import SerRecord
from compeer.simulate.seekers import own_cards, read_cards, seeker_prompts

_JUDGING = threading.Lock()  # a judge in this process takes one batch at a time
_LOCAL: dict[str, Any] = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}  # no tools: it only talks
judge_of, embedder = cache(open_judge), cache(Embedder)


class SupportData(vf.TaskData):
    """A history to answer, or a card for the seeker to play."""

    record: dict[str, Any] | None = None
    card: str | None = None
    language: str = "en"


class SupportTaskConfig(vf.TaskConfig):
    """How turns are judged."""

    judge: str = "judge"
    """The judge: 'judge' (packaged), a trained judge's folder, or NAME@http://host:8000/v1."""
    seed: int = 0
    """Decides which response comes first for the judge."""


class SupportTask(vf.Task[SupportData, vf.State, SupportTaskConfig]):
    """Scores what the supporter wrote by itself; `SupportEnv` scores groups."""

    @vf.reward
    async def unifireward(self, trace: vf.Trace) -> dict[str, float]:
        """UnifiReward's parts of one turn, or their means over a conversation."""
        if self.data.record is None:
            return await asyncio.to_thread(conversation_parts, judge_of(self.config.judge), spoken(trace))
        group = await score_group(self, [trace], Reweighting(negatives="off", guard=False))
        return parts_of(group, 0)


class SupportConfig(vf.TasksetConfig):
    """Which tasks there are."""

    source: Literal["histories", "cards"] = "histories"
    """Histories for single turns, or role cards for conversations with a simulated seeker."""
    turns: str = "sample"
    """Histories: a file of SER records, a corpus, or 'sample'."""
    split: str = "policy"
    """Which records of a file: reward, policy, test, or all."""
    rounds_drawn: int = Field(5, ge=1)
    """Histories sampled from each dialogue of a corpus."""
    cards: str = ""
    """A file of role cards; ours, if not given."""
    seed: int = 0
    """Decides which histories of a corpus are sampled."""
    task: SupportTaskConfig = SupportTaskConfig()


class SupportTaskset(vf.Taskset[SupportTask, SupportConfig]):
    """Histories or role cards as tasks."""

    def load(self) -> Iterator[SupportTask]:
        rows = self._cards() if self.config.source == "cards" else self._histories()
        return (SupportTask(row, self.config.task) for row in rows)

    def _histories(self) -> Iterator[SupportData]:
        config = self.config
        for record in held_out(config.turns, config.split, config.rounds_drawn, config.seed, Counter()):
            system, asked = supporter_prompt(record.history)
            yield SupportData(
                id=record.id,
                system_prompt=str(system["content"]),
                prompt=str(asked["content"]),
                record=record.model_dump(mode="json"),
                language=record.language,
            )

    def _cards(self) -> Iterator[SupportData]:
        system = str(supporter_prompt(())[0]["content"])
        for card in read_cards(Path(self.config.cards) if self.config.cards else own_cards("en")):
            text = card.facts["card"]
            yield SupportData(id=card.id, system_prompt=system, prompt=card.opening, card=text, language=card.language)


class Reweighting(vf.BaseConfig):
    """How a group's rewards are reweighted, as in `compeer policy grpo`."""

    alpha: float = 0.5
    beta: float = 5.0
    negatives: Negatives = "mirrored"
    guard: bool = True
    """Whether a response that the safety guard rejects is put below all others of its group."""


async def score_group(task: SupportTask, traces: Sequence[vf.Trace], settings: Reweighting) -> RewardedGroup:
    """The scores of several turns for one history, and what reweighting makes of them."""
    record = SerRecord.model_validate(task.data.record)
    scorer = Scorer(judge_of(task.config.judge), embedder(), {record.id: record}, task.config.seed)

    def work() -> list[Rollout]:
        with _JUDGING:
            texts, cut_off = [one.last_reply for one in traces], [bool(one.is_truncated) for one in traces]
            return scorer([record.id] * len(traces), texts, cut_off)

    rollouts = await asyncio.to_thread(work)
    if failed := [one.score.unscored for one in rollouts if one.score.total is None]:
        raise ValueError(f"the judge failed: {failed[0]}")
    return reward_group(rollouts, settings)


def parts_of(group: RewardedGroup, index: int) -> dict[str, float]:
    """The rewards of one turn by part, reweighted; with what the safety floor takes away."""
    parts = group.rollouts[index].score.given()
    found = {name: value * group.factors[index] for name, value in parts.items() if value is not None}
    return {**found, "safety": group.rewards[index] - sum(found.values())}


def spoken(trace: vf.Trace) -> list[tuple[tuple[Utterance, ...], ParsedTurn]]:
    """Each turn of the supporter with the history before it; of earlier turns only the responses count."""
    found: list[tuple[tuple[Utterance, ...], ParsedTurn]] = []
    history: list[Utterance] = []
    for message in trace.messages:
        text = message.content if isinstance(message.content, str) else ""
        if message.role == "user" and text:
            history.append(Utterance(speaker="seeker", text=text))
        elif message.role == "assistant":
            found.append((tuple(history), parse_turn(text)))
            history.append(Utterance(speaker="supporter", text=response_in(text)))
    return found


def response_in(text: str) -> str:
    """The words for the seeker: the response of a turn, or all of a text that has none."""
    return str(parse_turn(text).parts.get("response") or text.strip() or "…")


def conversation_parts(judge: Judge, turns: Sequence[tuple[tuple[Utterance, ...], ParsedTurn]]) -> dict[str, float]:
    """The mean of each part over the turns of a conversation."""
    if not turns:
        raise ValueError("the supporter said nothing")
    with _JUDGING:
        found = judge.judge([Case(history, turn, None, candidate_first=True) for history, turn in turns])
    scores = [
        score(turn, judgment if turn.parts else Unscored("nothing could be read"))
        for (_, turn), judgment in zip(turns, found, strict=True)
    ]
    if failed := [one.unscored for one in scores if one.total is None]:
        raise ValueError(f"the judge failed: {failed[0]}")
    every: list[Mapping[str, int | None]] = [one.parts() for one in scores]
    names = [name for name in every[0] if all(one[name] is not None for one in every)]
    return {name: sum(float(one[name] or 0) for one in every) / len(every) for name in names}


class SupportEnvConfig(vf.EnvConfig):
    """Who plays, how many turns make a group, and how long a conversation is."""

    supporter: vf.AgentConfig = vf.AgentConfig(**_LOCAL)
    """The supporter: the policy under evaluation or training."""
    seeker: vf.AgentConfig = vf.AgentConfig(**_LOCAL)
    """Who plays the seeker of a role card; never trained."""
    group: int = Field(4, ge=1)
    """Turns for one history, scored against each other."""
    rounds: int = Field(5, ge=1)
    """The supporter's turns in a conversation."""
    reweighting: Reweighting = Reweighting()


class SupportEnv(vf.Env[SupportEnvConfig]):
    """A group of turns for a history, or a conversation with a simulated seeker."""

    async def setup(self, agents: vf.Agents) -> None:
        agents.seeker.trainable = False

    async def run(self, task: SupportTask, agents: vf.Agents) -> None:
        if task.data.card is not None:
            await self._converse(task, agents)
            return
        async with asyncio.TaskGroup() as attempts:
            for _ in range(self.config.group):
                attempts.create_task(agents.supporter.run(task.defer_scoring()))

    async def _converse(self, task: SupportTask, agents: vf.Agents) -> None:
        card, opening = task.data.card or "", str(task.data.prompt or "")
        language = "zh" if task.data.language.startswith("zh") else "en"
        persona = seeker_prompts()[f"seeker.{language}.txt"].strip().format(card=card.strip())
        played = vf.Task(vf.TaskData(idx=task.data.idx, prompt=None, system_prompt=persona))
        async with agents.supporter.interaction(task.with_data(prompt=None)) as supporter:
            answer = await supporter.turn(opening)
            async with agents.seeker.interaction(played) as seeker:
                for _ in range(self.config.rounds - 1):
                    message = await seeker.turn(response_in(answer.last_reply))
                    if message.terminated or answer.terminated:
                        break
                    answer = await supporter.turn(message.last_reply)

    async def finalize(self, task: SupportTask, episode: vf.Episode) -> None:
        if task.data.record is None:
            return
        turns = [trace for trace in episode.traces if trace.ok]
        if not turns:
            raise ValueError("no turn was written")
        group = await score_group(task, turns, self.config.reweighting)
        for index, trace in enumerate(turns):
            for name, value in parts_of(group, index).items():
                trace.record_reward(name, value)
            trace.record_metrics(
                {
                    "unifireward": group.rollouts[index].raw,
                    "redundancy_factor": group.factors[index],
                    "similarity_in_group": group.s_in[index],
                    "similarity_to_history": group.s_hi[index],
                }
            )
