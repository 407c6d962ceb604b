"""Deleting a dialogue everywhere: its text, its labels, the remarks made on it; what stays is that it was deleted.

Events name texts by id and salted hash only, so the chain still holds. Backups that were made before still have the
dialogue: make a new one and delete those. PostgreSQL keeps deleted rows in its files until it has vacuumed.
"""

from __future__ import annotations

from sqlalchemy import select

from compeer.annotate.people import Person, require
from compeer.annotate.schema import ITEMS, TEXTS
from compeer.annotate.store import Refused, Store


def delete_dialogue(store: Store, dialogue: str, actor: Person | None = None) -> int:
    """Deletes all items of a dialogue, in all projects, and says how many they were."""
    require(actor, "admin")
    with store.write(actor.id if actor else None) as writing:
        connection = writing.connection
        items = list(connection.execute(select(ITEMS.c.id).where(ITEMS.c.dialogue == dialogue)).scalars())
        if not items:
            raise Refused("missing", "there is no such dialogue in this store.", do="Give the id its records have.")
        erased = connection.execute(select(TEXTS.c.id).where(TEXTS.c.item.in_(items))).scalars().all()
        writing.record("deleted", {"items": sorted(items)}, erased=erased)
    store.after_erasing()
    return len(items)
