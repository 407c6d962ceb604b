"""A supporter that people talk to: guarded turns, a session in the terminal, and the OpenAI-compatible API."""

from compeer.chat.conversation import GuardedSupporter as GuardedSupporter
from compeer.chat.turn import Busy as Busy
from compeer.chat.turn import Event as Event
from compeer.chat.turn import JudgedCandidate as JudgedCandidate
from compeer.chat.turn import ReplyPart as ReplyPart
from compeer.chat.turn import Retracted as Retracted
from compeer.chat.turn import StepDone as StepDone
from compeer.chat.turn import TurnDone as TurnDone
from compeer.chat.turn import TurnRequest as TurnRequest
