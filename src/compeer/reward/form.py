"""What a judge is asked and how it answers, and what every judge can do.

UnifiReward is one conversation: the three steps and then the responses, each verdict seeing those before it. Its rivals
are asked the same questions apart: a process judge (PRM) about the steps, each without the others' verdicts, and an
outcome judge (ORM) about the responses without the reasoning. A judge is asked in the form that it was trained in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from compeer.reward.conversation import Case
    from compeer.reward.score import Judgment, Unscored


class Form(BaseModel):
    """The form of a judge's conversation; it stands in the model's card."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["unified", "process", "outcome"] = Field(
        default="unified", description="the judge: UnifiReward, steps alone (PRM) or responses alone (ORM)"
    )
    reasons: bool = Field(default=False, description="a short reason before each verdict, or the verdict alone")
    history: int | None = Field(default=None, ge=1, description="utterances of the history the judge sees; none: all")
    blind: bool = Field(default=False, description="the blind twin: the history is not shown at all")
    marked: bool = Field(
        default=True, description="UnifiReward: it is told which response was written after the steps, and as what"
    )
    alone: bool = Field(
        default=False,
        description="UnifiReward: a second chat compares the responses without the steps, and names one's strategy",
    )


class Judge(Protocol):
    """Anything that can judge outputs. It never raises on an output: where it fails, it says why."""

    @property
    def name(self) -> str:
        """What to call it in tables."""

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """A judgment for each case, in their order."""

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """The same for callers that are async."""
