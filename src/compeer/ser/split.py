"""Which dialogues train the judge, which train the supporter, and which only measure: no dialogue serves two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from compeer.dialogue import Dialogue
from compeer.ser.record import Split
from compeer.statistics import generator

SPLITS: tuple[Split, ...] = get_args(Split)


def assign_splits(dialogues: Sequence[Dialogue], shares: Sequence[float], seed: int) -> dict[str, Split]:
    """The split of each dialogue, by its id. Dialogues about the same situation stay together."""
    groups: dict[str, list[str]] = {}
    for dialogue in dialogues:
        groups.setdefault(dialogue.situation or dialogue.id, []).append(dialogue.id)
    keys = sorted(groups, key=lambda key: generator(seed, "split", key).random())
    bounds = [sum(shares[: index + 1]) / sum(shares) * len(keys) for index in range(len(shares))]
    found: dict[str, Split] = {}
    for position, key in enumerate(keys):
        index = next(index for index, bound in enumerate(bounds) if position < bound or index == len(bounds) - 1)
        found.update(dict.fromkeys(groups[key], SPLITS[index]))
    return found
