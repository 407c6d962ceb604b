"""Exchanging things between contexts so that each is wrong in one place as often as it is right in another.

Two contexts *exchange* a step: each shows the other's. Both texts then stand as False once, and as True once at home.
Whoever does not read the history cannot tell the two apart, provided that nothing else on the page gives it away. So
exchanges stay within a *cell*, the contexts that agree in everything shown beside the step; and every value (of a
decision) is exchanged in equal shares, so that no value is more often wrong than another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

Allowed = npt.NDArray[np.bool_]
_NOISE = 0.15
"""How much chance there is in who is near: without it the same few pairs would always meet."""


def exchange(
    cells: Sequence[Hashable],
    values: Sequence[Sequence[Hashable]],
    allowed: Allowed,
    closeness: npt.NDArray[np.float32],
    share: float,
    free: npt.NDArray[np.bool_],
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Disjoint pairs that exchange: at most `share` of the contexts that have each value.

    `values` are those of each context, of one decision or several. `allowed[i, j]` says that what is j's is wrong in i;
    a pair needs both directions. Only `free` contexts take part. Contexts choose a near partner in random order, those
    whose values have few possible partners first: if the nearest pairs went first, common topics would be False more
    often than rare ones.
    """
    _, numbers = np.unique(np.array([str(cell) for cell in cells]), return_inverse=True)
    possible = allowed & allowed.T & (numbers[:, None] == numbers[None, :]) & free[:, None] & free[None, :]
    np.fill_diagonal(possible, False)
    room = {value: share * count for value, count in Counter(v for own in values for v in own).items()}
    for value in room:  # a share of few is one or none, by chance
        room[value] = int(room[value]) + float(rng.random() < room[value] % 1)
    chances: Counter[Hashable] = Counter()
    for own, count in zip(values, possible.sum(axis=1).tolist(), strict=True):
        chances.update(dict.fromkeys(own, count))
    scarce = {value: room[value] / chances[value] if chances[value] else 0.0 for value in room}
    ranks = [max((scarce[value] for value in own), default=0.0) for own in values]
    order = np.lexsort((rng.random(len(values)), -np.array(ranks, dtype=float)))
    near = closeness + rng.normal(0, _NOISE, closeness.shape).astype(np.float32)
    pairs = []
    for one in order.tolist():
        if any(room[value] < 1 for value in values[one]):
            continue
        candidates = np.flatnonzero(possible[one])
        for other in candidates[np.argsort(-near[one, candidates], kind="stable")].tolist():
            need = Counter((*values[one], *values[other]))
            if all(room[value] >= count for value, count in need.items()):
                room.update({value: room[value] - count for value, count in need.items()})
                possible[[one, other], :] = possible[:, [one, other]] = False
                pairs.append((one, other))
                break
    return pairs
