"""The sources of rewards that a recipe names, opened: judges here or behind servers, seekers, the corpus' decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from compeer.errors import InputError
from compeer.models import TextModel
from compeer.models.resolve import ModelSettings, open_model
from compeer.policy.patience import Patient
from compeer.policy.rewards import DecisionSource, JudgeSource, PlanSource, RewardSource, Weighted, shares_of
from compeer.policy.seeker_reward import SeekerSource
from compeer.reward import Form, Judge, LocalJudge, PairJudge
from compeer.reward.contradiction import StrategyClassifier
from compeer.reward.endpoint import ModelJudge
from compeer.ser.record import SerRecord
from compeer.simulate import SupporterAgent
from compeer.simulate.sentient import SentientSeeker

_QUICK = ModelSettings(retries=2)
"""For servers: longer outages are waited for by `Patient`."""


class SourceSettings(BaseModel):
    """One source of rewards: a judge, a process and an outcome judge, a simulated seeker, decisions, or the plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: str = Field(
        default="run", description="'run': the judge that the run trains; or a judge's folder, or NAME@URL of a server"
    )
    outcome: str | None = Field(
        default=None, description="another judge for the responses (ORM); `judge` then judges the steps (PRM)"
    )
    seeker: str | None = Field(
        default=None,
        description="who plays a seeker with an emotion, named as `judge`, or 'embedded': the change of that emotion "
        "(-10 to 10 points a turn) is the score, and no judge is asked",
    )
    turns: int = Field(default=1, ge=1, description="with a `seeker`: over so many of its turns")
    supporter: str = Field(
        default="embedded", description="with a `seeker`: who goes on with the conversation after the output"
    )
    decisions: bool = Field(
        default=False,
        description="whether stage, emotion and strategy are those of the corpus (-3 to 3); no judge is asked",
    )
    beyond_chance: bool = Field(
        default=False,
        description="with `decisions`: less how common a decision is in the corpus, so that one answer for every "
        "history earns nothing",
    )
    plan: bool = Field(
        default=False,
        description="whether the response does what step 3 says, by its words (-1 to 1), learnt from the reference "
        "turns at hand; no judge is asked",
    )
    weight: float = Field(default=1.0, ge=0, description="what its score counts; 0: it is only logged")
    trained: bool = Field(
        default=False, description="whether the model behind a URL was trained as a judge, in the `form` given"
    )
    form: Form = Field(default=Form(), description="how a judge behind a URL is asked; a folder's card says it itself")

    @model_validator(mode="after")
    def _is_one_thing(self) -> SourceSettings:
        if sum((self.seeker is not None, self.decisions, self.plan)) > 1:
            raise ValueError("seeker, decisions and plan are sources of their own: give each a name and a table")
        if self.beyond_chance and not self.decisions:
            raise ValueError("beyond_chance says how decisions are counted: set decisions as well")
        return self


def open_sources(
    settings: Mapping[str, SourceSettings],
    run_judge: Path | None,
    batch: int,
    outage: float,
    seed: int,
    records: Sequence[SerRecord] = (),
) -> list[Weighted]:
    """The sources that a recipe names, ready to score; `run_judge` is the folder of the run's own judge.

    A judge behind a server may stay away for `outage` seconds. What a plan's words are is learnt from `records`.
    """
    if not any(source.weight for source in settings.values()):
        raise InputError("no source of rewards has a weight above 0.", field="grpo.rewards", do="Give one a weight.")

    found = []
    own = [record for record in records if record.author == "corpus"]
    for name, source in settings.items():
        opened: RewardSource
        if source.decisions:
            opened = DecisionSource(name, shares_of(own) if source.beyond_chance else None)
        elif source.plan:
            turns = [(one.candidate.response, one.candidate.strategy.strategy, one.dialogue) for one in own]
            opened = PlanSource(StrategyClassifier.taught(turns, seed), name)
        elif source.seeker is None:
            judge = _judge(f"grpo.rewards.{name}", source, run_judge, batch, outage)
            opened = JudgeSource(judge, seed, name)
        else:
            seeker = SentientSeeker(_talker(source.seeker, batch, outage))
            supporter = SupporterAgent(_talker(source.supporter, batch, outage), "plain") if source.turns > 1 else None
            opened = SeekerSource(seeker, seed, turns=source.turns, supporter=supporter, name=name)
        found.append(Weighted(opened, source.weight))
    return found


def _talker(name: str, batch: int, outage: float) -> TextModel:
    """A model that plays a side of a conversation; one behind a server is waited for."""
    if "@http" in name:
        return Patient(open_model(name, settings=_QUICK), outage)
    return open_model(name, settings=ModelSettings(batch=batch))


def _judge(field: str, source: SourceSettings, run_judge: Path | None, batch: int, outage: float) -> Judge:
    """The judge, or the pair of judges, that a source names."""

    def opened(field: str, name: str, form: Form) -> Judge:
        if "@http" in name:
            return ModelJudge(Patient(open_model(name, settings=_QUICK), outage), form, trained=source.trained)
        if name == "run" and run_judge is None:
            raise InputError("there is no run whose judge it could be.", field=field, do="Name a judge's folder.")
        judge = LocalJudge(run_judge if name == "run" and run_judge else name, batch_size=batch)
        if form.kind in ("process", "outcome") and judge.form.kind != form.kind:
            raise InputError(f"this is no judge of the kind '{form.kind}' but '{judge.form.kind}'.", field=field)
        return judge

    if source.outcome is None:
        judge = opened(f"{field}.judge", source.judge, source.form)
        if getattr(judge, "form", Form()).kind == "outcome":
            raise InputError(
                "this judge looks at responses alone.",
                field=f"{field}.judge",
                do="Name it as `outcome`, beside a judge of the steps.",
            )
        return judge
    process, outcome = (source.form.model_copy(update={"kind": kind}) for kind in ("process", "outcome"))
    return PairJudge(
        opened(f"{field}.judge", source.judge, process), opened(f"{field}.outcome", source.outcome, outcome)
    )
