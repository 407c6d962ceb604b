"""A sample of a stream whose length is not known."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


class Reservoir(Generic[T]):
    """Keeps at most `size` of the items that it is offered, each equally likely."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.items: list[T] = []
        self._size, self._rng, self._offered = size, rng, 0

    def offer(self, item: T) -> None:
        """Keeps the item, perhaps in the place of another."""
        self._offered += 1
        if len(self.items) < self._size:
            self.items.append(item)
        elif (index := int(self._rng.integers(self._offered))) < self._size:
            self.items[index] = item
