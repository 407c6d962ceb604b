"""Passwords and invitations, which are kept only as argon2 hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compeer.annotate.store import Refused

if TYPE_CHECKING:
    from argon2 import PasswordHasher

SHORTEST_PASSWORD = 10
LONGEST_PASSWORD = 200
DECOY = "$argon2id$v=19$m=65536,t=3,p=4$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
"""A hash that no password has."""


def checked_password(password: str) -> str:
    """A password that may be used."""
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise Refused("invalid", f"a password has {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.")
    return password


def hashed_secret(secret: str) -> str:
    """The hash that is kept."""
    return hasher().hash(secret.encode("utf-8", "replace"))


def is_secret(kept: str | None, secret: str) -> bool:
    """Whether this is what was hashed; takes as long when nothing was."""
    from argon2.exceptions import Argon2Error, InvalidHashError

    try:
        matches = hasher().verify(kept or DECOY, secret[:LONGEST_PASSWORD].encode("utf-8", "replace"))
    except (Argon2Error, InvalidHashError):
        return False
    return matches and kept is not None


def hasher() -> PasswordHasher:
    """argon2 with the cost that its makers advise."""
    from argon2 import PasswordHasher

    return PasswordHasher()
