"""Small dialogues and contexts for the tests of silver labels."""

from __future__ import annotations

from typing import Any

from compeer.corpora import read_corpus
from compeer.dialogue import Dialogue, Utterance
from compeer.ser.pairing import Moments
from compeer.ser.sampling import Context, contexts_of

SEED = 11
"""Of the records of the sample corpus."""


def dialogue(id: str, situation: str | None = None, **changes: Any) -> Dialogue:
    utterances = (
        Utterance(speaker="seeker", text=f"{id} hurts", emotion="hurt", intensity=4),
        Utterance(speaker="supporter", text=f"{id} is heard. Go on.", strategy="Question", feedback=4),
    )
    return Dialogue(
        **{"id": id, "language": "en", "source": "test", "situation": situation, "utterances": utterances, **changes}
    )


def context_of(one: Dialogue) -> Context:
    return contexts_of(one, "reward", 99, 0)[-1]


def with_reply(one: Dialogue, **labels: Any) -> Dialogue:
    return one.model_copy(update={"utterances": (*one.utterances[:-1], one.utterances[-1].model_copy(update=labels))})


def many_contexts() -> list[Context]:
    return [context for one in read_corpus("sample") for context in contexts_of(one, "reward", 99, 0)]


def moments_of(contexts: list[Context]) -> Moments:
    moments = Moments()
    for context in contexts:
        moments.add(context)
    return moments
