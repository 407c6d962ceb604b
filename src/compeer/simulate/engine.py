"""The conversation engine: many dialogues between two agents, saved turn by turn, the same bytes from the same seed.

The seeker speaks first, then both in turn, until a limit is reached, somebody stops, or somebody's model fails. A model
that could not be asked (the client's `Failure`) is told apart from one that gave nothing of use: the first kind is
tried again when the same run is started again, the second is a result.

Who works with whom never depends on timing. If a model takes requests in batches, all dialogues advance in lock-step:
the seekers' turns of a round, then the supporters', cut into batches by the order of the scenarios. If none does, as
behind endpoints, each dialogue goes its own way, and the client's places are what limits them.

    FOLDER/dialogues/NAME.jsonl   what was asked for, then a line a turn with all calls that it took, then the end
    FOLDER/conversations.jsonl    a line a conversation, in the scenarios' order; written last

A run that was killed takes up each dialogue after its last whole line. Lock-step is kept then, too: turns that are
there already are not saved again, but their requests still fill their places in a batch of which a part is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from compeer.errors import InputError
from compeer.io import Frozen, write_lines
from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.simulate.agents import Agent
from compeer.simulate.conversation import Conversation, Outcome, Scenario
from compeer.simulate.runner import RunningDialogue, Taking


class DialogueSettings(Frozen):
    """The limits of a simulated conversation."""

    rounds: int = Field(default=5, ge=1, description="seeker turns at most, each with the supporter's answer")
    tokens: int = Field(
        default=200_000, ge=1, description="prompt and answer tokens of both sides, after which no new round begins"
    )
    retries: int = Field(default=2, ge=0, description="further tries when an answer cannot be used")
    seconds: float = Field(
        default=86_400, gt=0, description="for the whole run; what is not finished by then is left for the next one"
    )


@dataclass(frozen=True)
class Simulated:
    """All conversations in the order of their scenarios, and how many ended how."""

    conversations: list[Conversation]
    counts: dict[str, dict[str, int]]
    """By status, then by reason: `{"ended": {"turns reached": 9}, "model failed": {"seeker: empty": 1}}`."""

    @property
    def ended(self) -> list[Conversation]:
        """Those that came to their end, and can be judged."""
        return [one for one in self.conversations if one.outcome.status == "ended"]


async def run_dialogues(
    scenarios: Sequence[Scenario],
    make_seeker: Callable[[Scenario], Agent],
    make_supporter: Callable[[], Agent],
    settings: DialogueSettings,
    folder: Path,
    seed: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Simulated:
    """Lets the agents talk, or takes up where an earlier run in the same folder was stopped.

    `advance` is told of each conversation that is over. What failed for reasons of infrastructure is tried once more.
    """
    if twice := [name for name, count in Counter(one.id for one in scenarios).items() if count > 1]:
        raise InputError(f"the scenario '{twice[0]}' is given twice.", field="id", do="Give each an id of its own.")
    place = folder / "dialogues"
    place.mkdir(parents=True, exist_ok=True)
    limits = settings.model_dump(exclude={"seconds"})
    dialogues = [RunningDialogue(one, make_seeker(one), make_supporter(), limits, place, seed) for one in scenarios]
    run = _Run(time.monotonic() + settings.seconds, advance)
    batched = any(run.batch(agent.model) > 1 for dialogue in dialogues for agent in dialogue.agents.values())
    groups = [dialogues] if batched else [[dialogue] for dialogue in dialogues]
    await _all(run.advance_group(group) for group in groups)
    conversations = [dialogue.conversation for dialogue in dialogues]
    write_lines(folder / "conversations.jsonl", conversations)
    return Simulated(conversations, _counts(one.outcome for one in conversations))


def _counts(outcomes: Iterable[Outcome]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        why = outcome.why if outcome.status == "ended" else f"{outcome.who}: {outcome.why}"
        counts.setdefault(outcome.status, Counter())[why] += 1
    return {status: dict(sorted(found.items())) for status, found in sorted(counts.items())}


class _Run:
    """What the dialogues of a run share: the time that is left, and each model's places."""

    def __init__(self, deadline: float, advance: Callable[[int], None]) -> None:
        self._deadline, self._advance = deadline, advance
        self._places: dict[int, asyncio.Semaphore] = {}

    @staticmethod
    def batch(model: TextModel | None) -> int:
        """How many requests a model likes at once."""
        return model.batch_size if model else 1

    async def advance_group(self, dialogues: Sequence[RunningDialogue]) -> None:
        """Takes all dialogues to their end, a turn at a time, none before the others."""
        going = list(dialogues)
        while going:
            await _all(self._take(batch) for batch in self._batches(going))
            for dialogue in going:
                if dialogue.outcome:
                    self._advance(1)
            going = [dialogue for dialogue in going if not dialogue.outcome]

    def _batches(self, dialogues: Sequence[RunningDialogue]) -> list[list[RunningDialogue]]:
        """The dialogues by the model that comes next in them, in batches of its size, in their order."""
        by_model: dict[int, list[RunningDialogue]] = {}
        for dialogue in dialogues:
            by_model.setdefault(id(dialogue.next_agent.model), []).append(dialogue)
        found = []
        for members in by_model.values():
            size = self.batch(members[0].next_agent.model)
            found += [members[start : start + size] for start in range(0, len(members), size)]
        return found

    async def _take(self, batch: Sequence[RunningDialogue]) -> None:
        """One turn of each dialogue of a batch: as it was saved, if all were; else asked for together."""
        if all(dialogue.has_saved for dialogue in batch):
            for dialogue in batch:
                dialogue.replay()
            return
        takings = [dialogue.take() for dialogue in batch]
        if model := batch[0].next_agent.model:
            async with self._places.setdefault(id(model), asyncio.Semaphore(model.at_once)):
                while asking := [taking for taking in takings if taking.request]:
                    await self._ask(model, asking)
        for dialogue, taking in zip(batch, takings, strict=True):
            if dialogue.has_saved:
                dialogue.replay()
            else:
                dialogue.add(taking)

    async def _ask(self, model: TextModel, takings: Sequence[Taking]) -> None:
        """Puts the next question of each and hands back the answers; those drawn alike are put together."""
        by_sampling: dict[Sampling, list[Taking]] = {}
        for taking in takings:
            by_sampling.setdefault(taking.sampling, []).append(taking)
        for sampling, members in by_sampling.items():
            requests = [taking.request for taking in members if taking.request]
            answers = await self._answers(model, requests, sampling)
            for taking, answer in zip(members, answers, strict=True):
                taking.give(answer)

    async def _answers(
        self, model: TextModel, requests: Sequence[Request], sampling: Sampling
    ) -> Sequence[Generation | Failure]:
        left = self._deadline - time.monotonic()
        try:
            if left > 0:
                async with asyncio.timeout(left):
                    return await model.generate(requests, sampling)
        except TimeoutError:
            pass
        return [Failure("timeout", "the time for the whole run was up")] * len(requests)


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Does all of it at once; if one part raises, the others are stopped before the error is passed on."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
