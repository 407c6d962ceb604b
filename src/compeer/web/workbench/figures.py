"""The figures of projects, worked out once for each state of the store, however many ask for them."""

from __future__ import annotations

import threading
from typing import Any

from compeer.annotate.dashboard import dashboard
from compeer.annotate.people import Person
from compeer.annotate.store import Store

LONGEST = 60.0
"""Seconds for which figures hold: what is said of the last week changes without an event."""


class Figures:
    """Gives a project's figures; they can take a second, so that one thread works them out and the others wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[int, tuple[int, float, dict[str, Any]]] = {}

    def of(self, project: int, actor: Person) -> dict[str, Any]:
        """The figures as they are now."""
        with self._lock:
            length, now = self._store.length(), self._store.clock()
            known = self._known.get(project)
            if known and known[0] == length and now - known[1] < LONGEST:
                return known[2]
            found = dashboard(self._store, project, actor)
            self._known[project] = (length, now, found)
            return found
