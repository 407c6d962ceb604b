"""People: how they join, what they may do, and how they leave.

An admin runs projects, an annotator gives first labels, an adjudicator settles what two annotators disagree on. People
and programs join by an invitation that works once. Others never see a name, only a pseudonym; whoever leaves takes name
and password along, and the labels stay. The audit log is the chain of events itself.
"""

import json
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from pydantic import Field
from sqlalchemy import Connection, select

from compeer.annotate.schema import EVENTS, INVITATIONS, LEASES, PEOPLE, SESSIONS, TEXTS, all_rows, one_row, remove_rows
from compeer.annotate.store import Refused, Store, Writing, needed_row, text_of
from compeer.io import Frozen

Role = Literal["admin", "annotator", "adjudicator"]
ROLES: tuple[Role, ...] = get_args(Role)
DAY = 86_400_000
SHORTEST_PASSWORD, LONGEST_PASSWORD = 10, 200
# a hash that no password has
DECOY = "$argon2id$v=19$m=65536,t=3,p=4$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


class Person(Frozen):
    """Someone who works in the store; the name is gone once they have left."""

    id: int
    pseudonym: str
    name: str | None
    roles: tuple[str, ...]
    languages: tuple[str, ...]
    program: bool = Field(default=False, description="labels of a program have the source llm")
    daily_cap: int | None = None
    declines_crisis: bool = False
    active: bool = True

    @property
    def works(self) -> bool:
        return bool({"annotator", "adjudicator"} & set(self.roles))


Actor = Person | None  # who asks for something; None is whoever runs the command line


class Invitation(Frozen):
    """An invitation that can still be taken up; its link is not kept."""

    id: int
    roles: tuple[str, ...]
    languages: tuple[str, ...]
    program: bool
    expires: int = Field(description="milliseconds since 1970")


def require(person: Actor, *roles: Role) -> None:
    """Refuses unless the person is active and has one of the roles."""
    if person is not None and not (person.active and set(roles) & set(person.roles)):
        raise Refused("forbidden", f"this needs the role {' or '.join(roles)}.", do="Ask an admin of this store.")


@contextmanager
def admin_writes(store: Store, actor: Actor) -> Iterator[Writing]:
    """A change that only admins may make."""
    require(actor, "admin")
    with store.write(actor.id if actor else None) as writing:
        yield writing


def add_person(
    store: Store, name: str, password: str, roles: Iterable[str], languages: Iterable[str], program: bool = False
) -> Person:
    """Adds a person without an invitation; for the first admin, and for programs."""
    what = {"roles": _checked_roles(roles), "languages": _checked_languages(languages), "program": program}
    hashed = hashed_secret(password)
    with store.write() as writing:
        return _join(writing, name, hashed, what | {"invitation": None})


def invite(
    store: Store,
    roles: Iterable[str],
    languages: Iterable[str],
    *,
    program: bool = False,
    days: int = 14,
    actor: Actor = None,
) -> str:
    """A token that lets one person join, once; only its hash is kept."""
    secret = secrets.token_urlsafe(24)
    hashed = hashed_secret(secret)
    body = {"roles": _checked_roles(roles), "languages": _checked_languages(languages), "program": program}
    with admin_writes(store, actor) as writing:
        number = writing.next_id(INVITATIONS)
        body |= {"invitation": number, "secret": writing.keep(hashed), "expires": writing.at + days * DAY}
        writing.record("invited", body)
    return f"{number}.{secret}"


def invitations(store: Store, actor: Actor = None) -> list[Invitation]:
    require(actor, "admin")
    chosen = (INVITATIONS.c.secret.is_not(None), INVITATIONS.c.expires >= store.now())
    with store.read() as connection:
        rows = connection.execute(select(INVITATIONS).where(*chosen).order_by(INVITATIONS.c.id))
        return [Invitation.model_validate(row, from_attributes=True) for row in rows]


def withdraw(store: Store, number: int, actor: Actor = None) -> None:
    with admin_writes(store, actor) as writing:
        row = one_row(writing.connection, INVITATIONS, id=number)
        if row is None or row.secret is None or row.expires < writing.at:
            raise Refused("missing", "there is no such open invitation.")
        writing.record("withdrawn", {"invitation": number}, erased=[row.secret])


def join(store: Store, token: str, name: str, password: str) -> Person:
    number, _, secret = token.partition(".")
    hashed = hashed_secret(password)
    with store.read() as connection:
        possible = number.isdecimal() and len(number) < 10
        row = one_row(connection, INVITATIONS, id=int(number)) if possible else None
        kept = text_of(connection, row.secret) if row else None
    right = is_secret(kept, secret)
    with store.write() as writing:
        still = kept and row and text_of(writing.connection, row.secret)  # somebody may have used it just now
        if row is None or not still or row.expires < writing.at or not right:
            raise Refused("forbidden", "this invitation is not valid, or was used.", do="Ask for a new one.")
        what = {"roles": row.roles, "languages": row.languages, "program": row.program, "invitation": row.id}
        return _join(writing, name, hashed, what, erased=[row.secret])


def _join(writing: Writing, name: str, hashed: str, what: Mapping[str, Any], erased: Sequence[str] = ()) -> Person:
    """Adds a person; `what` are their roles and languages, whether it is a program, and the invitation."""
    name = unicodedata.normalize("NFC", name).strip()
    if not 1 <= len(name) <= 100 or any(unicodedata.category(sign) in ("Cc", "Cs", "Cn", "Co") for sign in name):
        raise Refused("invalid", "a name has 1 to 100 characters, and no control characters.")
    if one_row(writing.connection, PEOPLE, name=name):
        raise Refused("conflict", "this name is taken.", do="Choose another.")
    number = writing.next_id(PEOPLE)
    body = {"person": number, "pseudonym": f"{'P' if what['program'] else 'A'}{number}", **what}
    body |= {"name": writing.keep(name, person=number), "secret": writing.keep(hashed, person=number)}
    writing.record("joined", body, erased=erased)
    return person_by_id(writing.connection, number)


def change_person(store: Store, person: int, actor: Actor, **values: Any) -> Person:
    """Changes daily_cap, declines_crisis or languages, which everyone sets for themselves, or roles, as an admin."""
    if actor is None or actor.id != person or "roles" in values:
        require(actor, "admin")
    if unknown := values.keys() - {"daily_cap", "declines_crisis", "languages", "roles"}:
        raise Refused("invalid", f"'{min(unknown)}' cannot be changed.")
    checks = {"languages": _checked_languages, "roles": _checked_roles}
    values |= {name: check(values[name]) for name, check in checks.items() if name in values}
    with store.write(actor.id if actor else None) as writing:
        if "admin" not in values.get("roles", ["admin"]):
            _require_another_admin(writing.connection, person)
        person_by_id(writing.connection, person)
        if values:
            writing.record("person_changed", {"person": person, "values": values})
        return person_by_id(writing.connection, person)


def leave(store: Store, person: int, actor: Actor = None) -> None:
    """Removes a person's name and password and ends their leases; their labels stay."""
    if actor is None or actor.id != person:
        require(actor, "admin")
    with store.write(actor.id if actor else None) as writing:
        connection = writing.connection
        person_by_id(connection, person)
        _require_another_admin(connection, person)
        for lease in all_rows(connection, LEASES, person=person):
            writing.record("lease_ended", {"person": person, "why": "released"}, item=lease.item)
        # remarks belong to the items they were made on, and stay with them
        erased = [text.id for text in all_rows(connection, TEXTS, person=person) if text.item is None]
        writing.record("left", {"person": person}, erased=erased)
        remove_rows(connection, SESSIONS, person=person)
    store.after_erasing()


def people(store: Store, actor: Actor = None) -> list[Person]:
    require(actor, "admin")
    with store.read() as connection:
        rows = connection.execute(select(PEOPLE).order_by(PEOPLE.c.id))
        return [Person.model_validate(row, from_attributes=True) for row in rows]


def audit_log(store: Store, actor: Actor, before: int | None = None, limit: int = 100) -> list[dict[str, Any]]:
    """What was done, newest first: when, by whom, what, on which item; no text, and no answers."""
    require(actor, "admin")
    wanted = select(EVENTS).order_by(EVENTS.c.seq.desc()).limit(limit)
    with store.read() as connection:
        names = {row.id: row.pseudonym for row in all_rows(connection, PEOPLE)}
        rows = connection.execute(wanted.where(EVENTS.c.seq < before) if before is not None else wanted).all()
    log = []
    for row in rows:  # an admin may annotate too: labels and known answers are left out
        body = {name: value for name, value in json.loads(row.body).items() if name not in ("answers", "items")}
        entry = {"seq": row.seq, "at": row.at, "kind": row.kind, "item": row.item}
        log.append(entry | {"actor": names.get(row.actor), "body": body})
    return log


def person_by_id(connection: Connection, number: int) -> Person:
    row = needed_row(connection, PEOPLE, "person", id=number)
    return Person.model_validate(row, from_attributes=True)


def _require_another_admin(connection: Connection, person: int) -> None:
    """Refuses where this person is the only admin."""
    if {row.id for row in all_rows(connection, PEOPLE, active=True) if "admin" in row.roles} == {person}:
        raise Refused("conflict", "this is the last admin.", do="Make somebody else an admin first.")


def _checked_roles(roles: Iterable[str]) -> list[str]:
    chosen = set(roles)
    if not chosen or chosen - set(ROLES):
        raise Refused("invalid", "this is no role.", do=f"Known: {', '.join(ROLES)}")
    return [role for role in ROLES if role in chosen]


def _checked_languages(languages: Iterable[str]) -> list[str]:
    chosen = sorted({language.strip().lower() for language in languages})
    if not chosen or not all(code.isascii() and code.isalpha() and 2 <= len(code) <= 3 for code in chosen):
        raise Refused("invalid", "a language is given by its ISO 639 code.", do="For instance: en, zh")
    return chosen


def hashed_secret(secret: str) -> str:
    """The hash that is kept of a password or an invitation; refuses a password that may not be used."""
    if not SHORTEST_PASSWORD <= len(secret) <= LONGEST_PASSWORD:
        raise Refused("invalid", f"a password has {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.")
    return hasher().hash(secret.encode("utf-8", "replace"))


def is_secret(kept: str | None, secret: str) -> bool:
    """Whether this is what was hashed; takes as long when nothing was."""
    try:
        matches = hasher().verify(kept or DECOY, secret[:LONGEST_PASSWORD].encode("utf-8", "replace"))
    except (Argon2Error, InvalidHashError):
        return False
    return matches and kept is not None


def hasher() -> PasswordHasher:
    return PasswordHasher()
