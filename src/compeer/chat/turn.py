"""One turn of a conversation as it is asked for and as it comes about: a wish goes in, events come out.

A `Supporter` answers a `Wish` with events, in this order: the steps, each when it is whole, then the reply in pieces
that may be shown, and at the very end one `Done`. In a crisis there is no step, only the fixed reply. Where several
outputs are written, and a judge chooses, the candidates come first. Joined, the pieces of the reply since the last
`Retracted` are exactly the reply of `Done`.

    async for event in supporter.converse(Wish(history=history)):
        match event:
            case Reply(text): print(text, end="")
            case Retracted(): ...        # take back what was printed
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from compeer.dialogue import Utterance
from compeer.models.base import Sampling
from compeer.policy.control import Control
from compeer.reasoning import Part, Step, SupportTurn
from compeer.reward.score import Score
from compeer.safety.guard import GuardedTurn, GuardState

SAMPLING = Sampling(temperature=0.7, min_p=0.1, max_tokens=320)
"""How turns are drawn unless a wish says otherwise. Improbable tokens are left out: a small model that draws one rarely
finds back to sense."""


LONGEST_UTTERANCE = 20_000
"""Characters of an utterance that a model is shown, its last ones: more than a long letter. The guard reads all."""


@dataclass(frozen=True)
class Wish:
    """What is asked for: an answer to a history that ends with the seeker, and how it is wanted."""

    history: tuple[Utterance, ...]
    control: Control = field(default_factory=Control)
    """Its strategy, stage and emotion are forced; its persona is asked for."""
    best_of: int = 1
    """So many outputs are written, and the judge chooses."""
    sampling: Sampling = SAMPLING
    seed: int = 0
    state: GuardState = field(default_factory=GuardState)
    """What the guard remembers of this conversation: `Done.guarded.state` of the turn before."""
    conversation: str | None = None
    """The service's own name for the conversation, told to the guard's hooks."""


@dataclass(frozen=True)
class StepDone:
    """A step is whole, and its decisions are known. A step that comes again replaces the earlier one."""

    part: Part
    step: Step


@dataclass(frozen=True)
class Reply:
    """A piece of the reply that may be shown."""

    text: str


@dataclass(frozen=True)
class Retracted:
    """What was shown of the reply is withdrawn; its pieces start anew."""


@dataclass(frozen=True)
class Candidate:
    """One of several outputs, with the judge's verdicts on it.

    `turn` is None where the output is broken or must not be shown, `score` where the judge had nothing to say on it;
    `problem` then says why. `place` is 1 for the one that is chosen.
    """

    number: int
    turn: SupportTurn | None
    score: Score | None
    place: int | None = None
    problem: str | None = None


NO_REPLY = "no reply"
"""Why a reply was replaced if the supporter wrote none that could be read."""


@dataclass(frozen=True)
class Done:
    """The turn has ended, one way or another: what the seeker is to read, and how it came about.

    `turn` is None where no whole turn was written, or where its response is not what the seeker reads.
    """

    turn: SupportTurn | None
    reply: str
    guarded: GuardedTurn
    problems: tuple[str, ...] = ()
    tokens: int = 0
    prompt_tokens: int = 0
    cut_off: bool = False
    """Whether the reply ends where the longest allowed output did."""


Event = StepDone | Reply | Retracted | Candidate | Done


class Busy(Exception):
    """Too many conversations are waiting already; come back after `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many conversations are waiting; try again in {retry_after:.0f} s")
        self.retry_after = retry_after


class Supporter(Protocol):
    """Anything that takes the supporter's part in a conversation."""

    @property
    def name(self) -> str:
        """What to call it."""

    @property
    def sees(self) -> bool:
        """Whether it is shown the pictures of a history."""

    @property
    def language(self) -> str:
        """The language it speaks, as "en"."""

    @property
    def guarded(self) -> bool:
        """Whether the guard stands around it."""

    @property
    def judges(self) -> bool:
        """Whether it has a judge, so that `best_of` can be more than one."""

    def converse(self, wish: Wish) -> AsyncIterator[Event]:
        """The events of one turn.

        `Busy` or `InputError` (a wish that cannot be met) are raised at once, at the latest in the place of the first
        event; after that nothing is: whatever fails ends in `Done`, with problems and a safe reply. Closing the
        iterator ends the work on it.
        """

    def close(self) -> None:
        """Ends its work; conversations that are still open end with problems."""
