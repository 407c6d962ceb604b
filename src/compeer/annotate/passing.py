"""Giving an item back: for a pause, to somebody else, or to an admin who looks at it.

To give back what was given back already does nothing, so that a page may send again what it is not sure has arrived.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from compeer.annotate.people import Person, require
from compeer.annotate.queue import LEASE, given_as
from compeer.annotate.schema import ITEMS, PASSES, PEOPLE
from compeer.annotate.store import Refused, Store, row_of, text_of

LONGEST_REMARK = 4000


def release(store: Store, person: Person, item: int) -> None:
    """Gives an item back, for a pause; it may come again."""
    _give_back(store, person, item, "released", "")


def skip(store: Store, person: Person, item: int, reason: str) -> None:
    """Passes an item on to somebody else, with a reason."""
    _give_back(store, person, item, "skipped", reason)


def decline(store: Store, person: Person, item: int) -> None:
    """Passes on an item whose content is too much; no reason is asked."""
    _give_back(store, person, item, "declined", "")


def flag(store: Store, person: Person, item: int, reason: str) -> None:
    """Takes an item out of the queue until an admin has looked at it."""
    _give_back(store, person, item, "flagged", reason)


def _give_back(store: Store, person: Person, item: int, why: str, reason: str) -> None:
    if why in ("skipped", "flagged") and not reason.strip():
        raise Refused("invalid", "a reason is missing.", do="Say in a few words what is wrong with the item.")
    if len(reason) > LONGEST_REMARK:
        raise Refused("invalid", f"a reason has at most {LONGEST_REMARK:,} characters.")
    with store.write(person.id) as writing:
        held = writing.connection.execute(LEASE, {"i": item, "p": person.id}).first()
        if held is None and _gave_back(writing.connection, person, item, why):
            return
        held = row_of(held, "item in your hands")
        kind = writing.connection.execute(select(ITEMS.c.kind).where(ITEMS.c.id == item)).scalar()
        body: dict[str, Any] = {"why": "skipped" if why == "flagged" and kind != "real" else why}
        if reason.strip():
            body["remark"] = writing.keep(reason.strip(), item=item, person=person.id)
        writing.record("lease_ended", body, item=held.item)


def _gave_back(connection: Connection, person: Person, item: int, why: str) -> bool:
    if why == "released":
        return given_as(connection, item, person) is not None
    chosen = (PASSES.c.item == item, PASSES.c.person == person.id)
    return connection.execute(select(PASSES.c.item).where(*chosen)).first() is not None


def settle_flag(store: Store, item: int, keep: bool, actor: Person | None = None) -> None:
    """An admin's answer to a flag: the item goes back into the queue, or is dropped."""
    require(actor, "admin")
    with store.write(actor.id if actor else None) as writing:
        row = row_of(writing.connection.execute(select(ITEMS.c.held).where(ITEMS.c.id == item)).first(), "item")
        if row.held != "flagged":
            raise Refused("conflict", "this item is not flagged.")
        writing.record("held", {"how": None if keep else "dropped"}, item=item)


def passed_items(store: Store, project: int, actor: Person | None = None) -> list[dict[str, Any]]:
    """What was skipped, declined or flagged, with the reasons given; for admins."""
    require(actor, "admin")
    joined = PASSES.join(ITEMS, ITEMS.c.id == PASSES.c.item).join(PEOPLE, PEOPLE.c.id == PASSES.c.person)
    wanted = select(PASSES, ITEMS.c.stage, PEOPLE.c.pseudonym).select_from(joined).where(ITEMS.c.project == project)
    with store.read() as connection:
        return [
            {"item": row.item, "annotator": row.pseudonym, "why": row.why, "stage": row.stage, "at": row.at}
            | {"reason": text_of(connection, row.remark)}
            for row in connection.execute(wanted.order_by(PASSES.c.at)).all()
        ]
