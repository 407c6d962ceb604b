"""What the guard has read before, so that a turn costs what its new message costs, however long the conversation is.

Texts are known by a digest, and none is kept here in clear. What was not asked for longest is forgotten first.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Found = TypeVar("Found")


class Memory(Generic[Found]):
    """Findings by the texts they were made of; room for `most` in all, each takes the room that `size` says."""

    def __init__(self, most: int, size: Callable[[Found], int] = lambda _: 1) -> None:
        self._most, self._size, self._used = most, size, 0
        self._found: OrderedDict[bytes, Found] = OrderedDict()
        self._lock = threading.Lock()

    def all(
        self, asked: Sequence[tuple[str, ...]], find: Callable[[Sequence[tuple[str, ...]]], Sequence[Found]]
    ) -> list[Found]:
        """The findings of all texts; those of new ones are made now, each once."""
        keys = [_digest(texts) for texts in asked]
        known: dict[bytes, Found] = {}
        with self._lock:
            for key in keys:
                if key in self._found:
                    self._found.move_to_end(key)
                    known[key] = self._found[key]
        new = {key: texts for key, texts in zip(keys, asked, strict=True) if key not in known}
        if new:
            known.update(zip(new, find(list(new.values())), strict=True))
            with self._lock:
                for key in new:
                    if key not in self._found:
                        self._found[key] = known[key]
                        self._used += self._size(known[key])
                while self._used > self._most and len(self._found) > 1:
                    self._used -= self._size(self._found.popitem(last=False)[1])
        return [known[key] for key in keys]


def _digest(texts: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8) + data)
    return digest.digest()
