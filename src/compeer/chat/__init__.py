"""A supporter that people talk to: guarded turns, a session in the terminal, and the OpenAI-compatible API."""

from compeer.chat.turn import (
    Busy,
    Event,
    JudgedCandidate,
    ReplyPart,
    Retracted,
    StepDone,
    Supporter,
    TurnDone,
    TurnRequest,
)

__all__ = [
    "Busy",
    "Event",
    "JudgedCandidate",
    "ReplyPart",
    "Retracted",
    "StepDone",
    "Supporter",
    "TurnDone",
    "TurnRequest",
]
