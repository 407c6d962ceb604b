"""Which ids were read already, for corpora of any size: sixteen bytes an id instead of a few hundred."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_RECENT = 4096
_MOST_RUNS = 8


class SeenIds:
    """Hashes of ids with a number each: recent ones in a dictionary, older ones in sorted arrays."""

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}
        self._runs: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []

    def before(self, id: str, number: int) -> int | None:
        """The number that the id was seen with; None, and remembered, if it was not."""
        mark = int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        if mark in self._recent:
            return self._recent[mark]
        for marks, numbers in self._runs:
            place = int(np.searchsorted(marks, np.uint64(mark)))
            if place < len(marks) and int(marks[place]) == mark:
                return int(numbers[place])
        self._recent[mark] = number
        if len(self._recent) >= _RECENT:
            self._put_away()
        return None

    def _put_away(self) -> None:
        marks = np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent))
        numbers = np.fromiter(self._recent.values(), dtype=np.int64, count=len(self._recent))
        self._recent.clear()
        self._runs.append((marks, numbers))
        if len(self._runs) > _MOST_RUNS:
            marks = np.concatenate([run[0] for run in self._runs])
            numbers = np.concatenate([run[1] for run in self._runs])
            self._runs = [(marks, numbers)]
        order = np.argsort(marks)
        self._runs[-1] = (marks[order], numbers[order])
