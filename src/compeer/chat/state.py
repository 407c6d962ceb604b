"""The guard's memory of a conversation as a string that the client keeps: the server remembers nothing itself.

It is encoded, not signed: whoever changes it changes only what the guard remembers of their own conversation, and
danger is found in the messages, never in the state. Clients that know nothing of it send none, and one that cannot be
read counts as none, since somebody may be waiting for an answer: what the guard has said stands in the conversation.
"""

from __future__ import annotations

import base64
from dataclasses import asdict

from pydantic import TypeAdapter, ValidationError

from compeer.safety.guard import GuardState

_MOST_ANSWERED = 200
_STATE = TypeAdapter(GuardState)


def state_text(state: GuardState) -> str:
    """The state as a client keeps it; of very many crisis replies only the latest are remembered."""
    kept = asdict(state) | {"answered": state.answered[-_MOST_ANSWERED:]}
    return base64.urlsafe_b64encode(_STATE.dump_json(GuardState(**kept))).decode()


def read_state(text: str) -> GuardState | None:
    """The state that a client sent; None where it cannot be read."""
    try:
        told = base64.b64decode(text.encode("ascii", "replace"), altchars=b"-_", validate=True)
        return _STATE.validate_json(told, extra="forbid")
    except (ValueError, ValidationError):
        return None
