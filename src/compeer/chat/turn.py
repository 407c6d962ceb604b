"""One turn of a conversation: a request goes in, events come out.

A supporter answers a `TurnRequest` with events, in this order: the steps, each when it is complete, then the reply in
parts that may be displayed, and at the very end one `TurnDone`. In a crisis there is no step, only the fixed reply.
Where a judge chooses among several outputs, the candidates come first. The parts of the reply since the last
`Retracted`, joined, are exactly the reply of `TurnDone`.

    async for event in supporter.converse(TurnRequest(history=history)):
        match event:
            case ReplyPart(text): print(text, end="")
            case Retracted(): ...        # take back what was printed
"""

from dataclasses import dataclass, field

from compeer.dialogue import Utterance
from compeer.models.base import Sampling
from compeer.policy.control import Control
from compeer.reasoning import Part, Step, SupportTurn
from compeer.reward.score import Score
from compeer.safety.guard import GuardedTurn, GuardState

SAMPLING = Sampling(temperature=0.4, min_p=0.1, max_tokens=320)  # a small model rarely recovers from improbable tokens


@dataclass(frozen=True)
class TurnRequest:
    """A history that ends with the seeker, and how it is to be answered."""

    history: tuple[Utterance, ...]
    control: Control = field(default_factory=Control)  # strategy, stage, emotion are forced; the persona is asked for
    best_of: int = 1  # so many outputs are written, and the judge chooses
    sampling: Sampling = SAMPLING
    seed: int = 0
    state: GuardState = field(default_factory=GuardState)  # the guard's memory: `guarded.state` of the turn before
    conversation: str | None = None  # the service's own name for the conversation, passed to the guard's hooks
    refusal: Exception | None = None  # why only the guard may answer it: nobody in danger is sent away for a setting


@dataclass(frozen=True)
class StepDone:
    """A step is complete. A step that comes again replaces the earlier one."""

    part: Part
    step: Step


@dataclass(frozen=True)
class ReplyPart:
    """A part of the reply that may be displayed."""

    text: str


@dataclass(frozen=True)
class Retracted:
    """The parts of the reply so far are withdrawn; it starts again."""


@dataclass(frozen=True)
class JudgedCandidate:
    """One of several outputs and the judge's verdicts; `problem` says why it is left out or has no score."""

    number: int
    turn: SupportTurn | None
    score: Score | None
    place: int | None = None  # 1: the one that is chosen
    problem: str | None = None


@dataclass(frozen=True)
class TurnDone:
    """The turn has ended: what the seeker reads, and how it came about."""

    turn: SupportTurn | None  # none: no whole one was written, or its response is not what the seeker reads
    reply: str
    guarded: GuardedTurn
    problems: tuple[str, ...] = ()
    tokens: int = 0
    prompt_tokens: int = 0
    cut_off: bool = False  # the reply ends where the longest allowed output did


Event = StepDone | ReplyPart | Retracted | JudgedCandidate | TurnDone


@dataclass(eq=False)
class Busy(Exception):
    """Too many conversations are waiting already; try again after `retry_after` seconds."""

    retry_after: float
