"""Talking to a supporter: one guarded, steered, structured turn after another, streamed as it is made."""

from compeer.chat.turn import (
    Busy,
    Candidate,
    Done,
    Event,
    Reply,
    Retracted,
    StepDone,
    Supporter,
    Wish,
)

__all__ = [
    "Busy",
    "Candidate",
    "Done",
    "Event",
    "Reply",
    "Retracted",
    "StepDone",
    "Supporter",
    "Wish",
]
