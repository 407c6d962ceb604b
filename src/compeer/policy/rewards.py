"""Where rewards come from: one or several sources, each a number for an output, added up with weights.

A source is anything that scores outputs for their histories: UnifiReward, a process and an outcome judge together, a
model behind a server that is asked in words, and later others, a simulated seeker say. A source that fails to score an
output says why; an output that any source with a weight above 0 left unscored has no total at all, and so no advantage
and no part in its group's baseline. A source of weight 0 is logged and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from compeer.errors import InputError
from compeer.models.opening import ModelSettings, open_model
from compeer.policy.patience import JudgeAway, Patient
from compeer.reasoning import PARTS, ParsedTurn
from compeer.reward import Case, Form, Judge, Judgment, LocalJudge, PairJudge, Unscored, score
from compeer.reward.endpoint import ModelJudge
from compeer.ser.record import SerRecord
from compeer.statistics import generator

JUDGED = (*PARTS, "format")
"""The five parts of a judge's score."""


@dataclass(frozen=True)
class SourceScore:
    """What one source gave an output: a number, and the parts that it is made of."""

    total: float
    parts: Mapping[str, float | None] = field(default_factory=dict)


class RewardSource(Protocol):
    """Anything that scores outputs. It never raises on an output: where it fails, it says why.

    One that cannot work at all for the time being waits, and raises `JudgeAway` when it has waited long enough.
    """

    @property
    def name(self) -> str:
        """What to call it in figures and tables."""

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[SourceScore | Unscored]:
        """A score for each output, given the record whose history it answers, in their order."""


@dataclass(frozen=True)
class Weighted:
    """A source and what it counts."""

    source: RewardSource
    weight: float = 1.0


@dataclass(frozen=True)
class RawScore:
    """An output's score before reweighting: the weighted sum of its sources, or why there is none."""

    total: float | None = None
    unscored: str | None = None
    sources: Mapping[str, float | None] = field(default_factory=dict)
    """What each source gave, unweighted."""
    by_part: Mapping[str, float | None] = field(default_factory=dict)

    def parts(self) -> dict[str, float | None]:
        """The parts by name, unweighted: the five of a judge, and whatever the sources give."""
        return {**dict.fromkeys(JUDGED), **self.by_part}


def combine(sources: Sequence[Weighted], scores: Sequence[Sequence[SourceScore | Unscored]]) -> list[RawScore]:
    """The outputs' raw scores, of each source's scores; parts of all but the first source carry the source's name."""
    return [_combined(sources, row) for row in zip(*scores, strict=True)]


def _combined(sources: Sequence[Weighted], row: Sequence[SourceScore | Unscored]) -> RawScore:
    total: float | None = 0
    unscored: str | None = None
    given: dict[str, float | None] = {}
    parts: dict[str, float | None] = {}
    for number, (weighted, found) in enumerate(zip(sources, row, strict=True)):
        name = weighted.source.name
        given[name] = found.total if isinstance(found, SourceScore) else None
        if isinstance(found, SourceScore):
            parts |= {f"{name}/{part}" if number else part: value for part, value in found.parts.items()}
            if weighted.weight and total is not None:
                total += found.total if weighted.weight == 1 else weighted.weight * found.total
        elif weighted.weight and unscored is None:
            total, unscored = None, found.reason if len(sources) == 1 else f"{name}: {found.reason}"
    return RawScore(total, unscored, given, parts)


class JudgeSource:
    """A judge as a source: five parts of +1 or −1, the total in −5 … +5.

    The order in which a response and the reference are shown is drawn by the seed, the record and the response.
    """

    def __init__(self, judge: Judge, seed: int, name: str = "judge") -> None:
        self._judge, self._seed, self._name = judge, seed, name

    @property
    def name(self) -> str:
        return self._name

    def score(self, records: Sequence[SerRecord], outputs: Sequence[ParsedTurn]) -> list[SourceScore | Unscored]:
        """A score for each output; one in which nothing can be read needs no judge."""
        readable = [index for index, turn in enumerate(outputs) if turn.parts]
        cases = [self._case(records[index], outputs[index]) for index in readable]
        judgments: list[Judgment | Unscored] = [Unscored("nothing could be read")] * len(outputs)
        for index, judgment in zip(readable, self._judged(cases), strict=True):
            judgments[index] = judgment
        return [_score(turn, judgment) for turn, judgment in zip(outputs, judgments, strict=True)]

    def _judged(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        try:
            return self._judge.judge(cases)
        except BaseExceptionGroup as group:  # what was asked at the same time fails as a group
            away, _ = group.split(JudgeAway)
            while isinstance(away, BaseExceptionGroup):
                away = away.exceptions[0]  # type: ignore[assignment]
            raise away or group from None

    def _case(self, record: SerRecord, turn: ParsedTurn) -> Case:
        first = bool(generator(self._seed, "order", record.id, str(turn.parts.get("response"))).random() < 0.5)
        return Case(record.history, turn, record.reference, candidate_first=first)


def _score(turn: ParsedTurn, judgment: Judgment | Unscored) -> SourceScore | Unscored:
    found = score(turn, judgment)
    if found.total is None:
        return Unscored(found.unscored or "no reason was given")
    return SourceScore(found.total, found.parts())


# --- in a recipe ------------------------------------------------------------------------------------------------------


class SourceSettings(BaseModel):
    """One source of rewards: a judge, or a process and an outcome judge together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: str = Field(
        default="run", description="'run': the judge that the run trains; or a judge's folder, or NAME@URL of a server"
    )
    outcome: str | None = Field(
        default=None, description="another judge for the responses (ORM); `judge` then judges the steps (PRM)"
    )
    weight: float = Field(default=1.0, ge=0, description="what its score counts; 0: it is only logged")
    trained: bool = Field(
        default=False, description="whether the model behind a URL was trained as a judge, in the `form` given"
    )
    form: Form = Field(default=Form(), description="how a judge behind a URL is asked; a folder's card says it itself")


def open_sources(
    settings: Mapping[str, SourceSettings], run_judge: Path | None, batch: int, outage: float, seed: int
) -> list[Weighted]:
    """The sources that a recipe names, ready to score; `run_judge` is the folder of the run's own judge.

    A judge behind a server may stay away for `outage` seconds.
    """
    if not any(source.weight for source in settings.values()):
        raise InputError("no source of rewards has a weight above 0.", field="grpo.rewards", do="Give one a weight.")

    def opened(field: str, name: str, form: Form, trained: bool) -> Judge:
        if "@http" in name:
            quick = ModelSettings(retries=2)  # longer outages are waited for by `Patient`
            return ModelJudge(Patient(open_model(name, settings=quick), outage), form, trained=trained)
        if name == "run" and run_judge is None:
            raise InputError("there is no run whose judge it could be.", field=field, do="Name a judge's folder.")
        judge = LocalJudge(run_judge if name == "run" and run_judge else name, batch_size=batch)
        if form.kind in ("process", "outcome") and judge.form.kind != form.kind:
            raise InputError(f"this is no judge of the kind '{form.kind}' but '{judge.form.kind}'.", field=field)
        return judge

    found = []
    for name, source in settings.items():
        field = f"grpo.rewards.{name}.judge"
        if source.outcome is None:
            judge = opened(field, source.judge, source.form, source.trained)
            if getattr(judge, "form", Form()).kind == "outcome":
                raise InputError(
                    "this judge looks at responses alone.",
                    field=field,
                    do="Name it as `outcome`, beside a judge of the steps.",
                )
        else:
            process, outcome = (source.form.model_copy(update={"kind": kind}) for kind in ("process", "outcome"))
            judge = PairJudge(
                opened(field, source.judge, process, source.trained),
                opened(f"grpo.rewards.{name}.outcome", source.outcome, outcome, source.trained),
            )
        found.append(Weighted(JudgeSource(judge, seed, name), source.weight))
    return found
