"""Logging in and out, and changing a password. A session is known by the hash of its random token.

A device (a browser) in which somebody has logged in is known by a token, too, which is good for nothing but to tell it
from strangers who guess: it is bound to the password, and nothing of it is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from sqlalchemy import delete, insert, select

from compeer.annotate.hashing import checked_password, hashed_secret, is_secret
from compeer.annotate.people import Person, person_from
from compeer.annotate.schema import PEOPLE, SESSIONS
from compeer.annotate.store import Refused, Store, text_of

SESSION_DAYS = 7
_DAY = 86_400_000


def log_in(store: Store, name: str, password: str) -> str:
    """A token for the session that begins; the same refusal whether the name or the password is wrong."""
    with store.read() as connection:
        row = connection.execute(select(PEOPLE).where(PEOPLE.c.name == name, PEOPLE.c.active)).first()
        kept = text_of(connection, row.secret) if row else None
    right = is_secret(kept, password)  # as slow for a name that nobody has
    if row is None or kept is None or not right:
        with store.write() as writing:
            writing.record("login_failed", {"person": row.id if row else None})
        raise Refused("forbidden", "the name or the password is wrong.")
    return begin_session(store, row.id)


def begin_session(store: Store, person: int) -> str:
    """A token for a session of somebody who has shown who they are."""
    token = secrets.token_urlsafe(32)
    with store.write(person) as writing:
        writing.record("logged_in", {})
        writing.connection.execute(delete(SESSIONS).where(SESSIONS.c.expires < writing.at))
        session = {"token": _digest(token), "person": person, "expires": writing.at + SESSION_DAYS * _DAY}
        writing.connection.execute(insert(SESSIONS), session)
    return token


def log_out(store: Store, token: str) -> None:
    """Ends a session."""
    with store.write() as writing:
        writing.connection.execute(delete(SESSIONS).where(SESSIONS.c.token == _digest(token)))


def person_of(store: Store, token: str) -> Person | None:
    """Whose session this is; None where there is none, or it has ended."""
    with store.read() as connection:
        joined = PEOPLE.join(SESSIONS, SESSIONS.c.person == PEOPLE.c.id)
        chosen = (SESSIONS.c.token == _digest(token), SESSIONS.c.expires > store.now(), PEOPLE.c.active)
        row = connection.execute(select(PEOPLE).select_from(joined).where(*chosen)).first()
    return person_from(row) if row else None


def device_token(store: Store, person: Person) -> str:
    """A token by which a device of this person can be known, until the password is changed."""
    with store.read() as connection:
        secret = connection.execute(select(PEOPLE.c.secret).where(PEOPLE.c.id == person.id)).scalar()
        kept = text_of(connection, secret)
    nonce = secrets.token_hex(16)
    return f"{nonce}.{_device_digest(kept or secrets.token_hex(16), nonce)}"


def is_device(store: Store, name: str, token: str) -> bool:
    """Whether somebody has logged in under this name on the device that has this token."""
    nonce, _, digest = token.partition(".")
    with store.read() as connection:
        secret = connection.execute(select(PEOPLE.c.secret).where(PEOPLE.c.name == name, PEOPLE.c.active)).scalar()
        kept = text_of(connection, secret)
    return kept is not None and hmac.compare_digest(_device_digest(kept, nonce).encode(), digest.encode())


def _device_digest(secret: str, nonce: str) -> str:
    return hmac.digest(secret.encode(), f"compeer device {nonce}".encode(), hashlib.sha256).hex()


def change_password(store: Store, person: Person, old: str, new: str) -> None:
    """Sets another password and ends all sessions."""
    hashed = hashed_secret(checked_password(new))
    with store.write(person.id) as writing:
        secret = writing.connection.execute(select(PEOPLE.c.secret).where(PEOPLE.c.id == person.id)).scalar()
        if not is_secret(text_of(writing.connection, secret), old):
            raise Refused("forbidden", "the old password is wrong.")
        body = {"person": person.id, "secret": writing.keep(hashed, person=person.id)}
        writing.record("secret_changed", body, erased=[secret] if secret else [])
        writing.connection.execute(delete(SESSIONS).where(SESSIONS.c.person == person.id))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
