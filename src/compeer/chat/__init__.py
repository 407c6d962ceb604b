"""A supporter that people talk to: guarded turns, a session in the terminal, and the OpenAI-compatible API."""

from compeer.chat.conversation import GuardedSupporter
from compeer.chat.turn import Busy, Event, JudgedCandidate, ReplyPart, Retracted, StepDone, TurnDone, TurnRequest

__all__ = ["Busy", "Event", "GuardedSupporter", "JudgedCandidate", "ReplyPart"]
__all__ += ["Retracted", "StepDone", "TurnDone", "TurnRequest"]
