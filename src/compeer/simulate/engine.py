"""The conversation engine: many dialogues between two agents, saved turn by turn, the same bytes from the same seed.

The seeker speaks first, then both in turn, until a limit is reached, somebody stops, or somebody's model fails. A model
that could not be asked (the client's `Failure`) differs from one that gave nothing of use: the first kind is
tried again when the same run is started again, the second is a result.

Who works with whom never depends on timing. If a model takes requests in batches, all dialogues advance in lock-step:
the seekers' turns of a round, then the supporters', cut into batches by the order of the scenarios. If none does, as
behind endpoints, each dialogue goes its own way, and the client's slots are what limits them.

    FOLDER/dialogues/NAME.jsonl   what was asked for, then a line a turn with all calls that it took, then the end
    FOLDER/conversations.jsonl    a line a conversation, in the scenarios' order; written last

A run that was killed takes up each dialogue after its last whole line. Lock-step is kept then, too: turns that are
there already are not saved again, but their requests still fill their slots in a batch of which a part is missing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from compeer.errors import InputError
from compeer.io import write_lines
from compeer.models.base import Sampling, TextModel, gathered
from compeer.pipeline import in_blocks
from compeer.simulate.agents import Agent
from compeer.simulate.conversation import Conversation, Scenario
from compeer.simulate.runner import DialogueSettings, LoggedDialogue, Taking

Semaphores = Mapping[int, asyncio.Semaphore]  # how many calls a model may have under way, by the model's identity


async def run_dialogues(
    scenarios: Sequence[Scenario],
    seeker: Agent,
    supporter: Agent,
    settings: DialogueSettings,
    folder: Path,
    seed: int,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Conversation]:
    """Lets the agents talk, or takes up where an earlier run in the same folder was stopped.

    The conversations come in the order of their scenarios. `advance` is given the rounds that are over; a conversation
    that has ended counts all it could have had. What failed for reasons of infrastructure is tried once more.
    """
    if twice := [name for name, count in Counter(one.id for one in scenarios).items() if count > 1]:
        raise InputError(f"the scenario '{twice[0]}' is given twice.", field="id", do="Give each an id of its own.")
    logs = folder / "dialogues"
    logs.mkdir(parents=True, exist_ok=True)
    dialogues = [LoggedDialogue(one, seeker, supporter, settings, logs, seed) for one in scenarios]
    models = [agent.model for agent in (seeker, supporter) if agent.model]
    semaphores = {id(model): asyncio.Semaphore(model.at_once) for model in models}
    lock_step = any(model.batch_size > 1 for model in models)
    groups = [dialogues] if lock_step else [[dialogue] for dialogue in dialogues]
    await gathered(_to_the_end(group, semaphores, advance) for group in groups)
    conversations = [dialogue.conversation for dialogue in dialogues]
    write_lines(folder / "conversations.jsonl", conversations)
    return conversations


async def _to_the_end(
    dialogues: Sequence[LoggedDialogue], semaphores: Semaphores, advance: Callable[[int], None]
) -> None:
    """Takes all dialogues to their end, a turn at a time, none before the others: the same side's turn in each."""
    going, reported = list(dialogues), 0
    while going:
        model = going[0].next_agent.model
        batches = in_blocks(going, model.batch_size if model else len(going))
        await gathered(_take(batch, model, semaphores) for batch in batches)
        done = sum(dialogue.rounds_over for dialogue in dialogues)
        advance(done - reported)
        going, reported = [dialogue for dialogue in going if not dialogue.outcome], done


async def _take(batch: Sequence[LoggedDialogue], model: TextModel | None, semaphores: Semaphores) -> None:
    """One turn of each dialogue of a batch: as it was saved, if all were; else asked for together."""
    takings = [] if all(dialogue.saved for dialogue in batch) else [dialogue.take() for dialogue in batch]
    if model and takings:
        async with semaphores[id(model)]:
            await ask_together(model, takings)
    for number, dialogue in enumerate(batch):
        if dialogue.saved:
            dialogue.replay()
        else:
            dialogue.add(takings[number])


async def ask_together(model: TextModel, takings: Sequence[Taking]) -> None:
    """Puts all questions of each, the next ones together, and hands back the answers; those sampled alike in a call."""
    while asking := [taking for taking in takings if taking.request]:
        by_sampling: dict[Sampling, list[Taking]] = {}
        for taking in asking:
            by_sampling.setdefault(taking.sampling, []).append(taking)
        for sampling, members in by_sampling.items():
            answers = await model.generate([taking.request for taking in members if taking.request], sampling)
            for taking, answer in zip(members, answers, strict=True):
                taking.give(answer)
