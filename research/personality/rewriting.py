"""Rewording the records that train a judge: plainly, or toward the manner of another person of the same cluster.

    python research/personality/rewriting.py records.jsonl plain.jsonl --model NAME@http://host:8000/v1
    python research/personality/rewriting.py records.jsonl personality.jsonl --model NAME@http://host:8000/v1 \\
        --profiles profiles.jsonl --clusters clusters.jsonl

All records of one round share their history, so they are reworded by one call: the lines of the history and each
different response, numbered. The answer must hold the same lines, with the same speakers in the same order; else the
model is asked again. A filter (`drift.py`) drops what lost its meaning. Steps and labels carry over
unchanged. Only records of the reward split are reworded: the others measure, or train the supporter.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field, ValidationError

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import Cache, Call, Records, Seed, Written, run_command
from research.personality.clusters import CLUSTERS, PARTICIPANTS, read_members
from research.personality.drift import Line, likeness, why_not
from research.reservoir import Reservoir

from compeer.cli.options import CACHE
from compeer.cli.ser import ask_models
from compeer.dialogue import Speaker
from compeer.errors import InputError
from compeer.io import Frozen, json_line, text_hash
from compeer.models.base import Failure, Generation, Request, Sampling, TextModel
from compeer.models.embedder import Embedder, Embeds
from compeer.pipeline import Done, Stage, in_blocks
from compeer.policy.persona import read_profiles
from compeer.reasoning import one_line
from compeer.ser.asking import (
    AnswerFault,
    Read,
    ask_stage,
    ask_until_read,
    ask_user,
    refuse_packaged,
)
from compeer.ser.record import SerRecord, read_records
from compeer.statistics import generator

Kind = Literal["plain", "personality"]
PROMPTS = Path(__file__).parent / "prompts"
PROFILES_A_CLUSTER = 1_000
"""Profiles of a cluster that are kept to choose from; the seed chooses them where there are more."""


class RewriteSettings(Frozen):
    """How records are reworded."""

    retries: int = Field(default=2, ge=0, description="times to ask again when an answer does not hold the same lines")
    temperature: float = Field(default=0.8, ge=0, description="0 takes the most probable token")
    max_tokens: int = Field(default=4096, ge=64, description="longest answer, in tokens; it holds the whole history")


async def rewrite_stage(
    records: Path,
    out: Path,
    model: TextModel,
    seed: int,
    settings: RewriteSettings,
    profiles: Path | None = None,
    clusters: Path | None = None,
    embedder: Embeds | None = None,
) -> dict[str, Any]:
    """Writes the reworded records of the reward split; returns the stage's manifest.

    With `profiles` and their `clusters`, as `cluster_profiles` wrote them, they are reworded toward personalities,
    plainly otherwise. What is left out is counted by reason.
    """
    refuse_packaged(model, "reword a conversation: it repeats lines or loses what they mean")
    inputs: dict[str, Path | str] = {"records": records}
    kind: Kind = "personality" if profiles or clusters else "plain"
    if kind == "personality":
        if profiles is None or clusters is None:
            what = "rewording by personality needs profiles and clusters."
            raise InputError(what, do="Make them first, or reword plainly.")
        inputs |= {"profiles": profiles, "clusters": clusters.with_name(CLUSTERS)}
    text = (PROMPTS / f"rewrite_{kind}.txt").read_text(encoding="utf-8").strip()
    known = {"kind": kind, "model": model.name, **settings.model_dump(), "seed": seed, "prompt": text_hash(text)}
    stage = Stage(out, known, inputs)
    if found := stage.finished():
        return found
    manners = None
    if profiles and clusters:
        manners = _Manners(records, profiles, clusters.with_name(CLUSTERS), seed)
    rewriting = _Rewriting(kind, text, model, settings, seed, manners, embedder or Embedder(), asyncio.Lock())
    return await ask_stage(stage, in_blocks(_groups(records), model.batch_size), rewriting.reword, model.at_once)


def _groups(records: Path) -> Iterator[list[SerRecord]]:
    """The records of the reward split that are not reworded yet, round by round as they stand in the file."""
    chosen = (record for record in read_records(records) if record.split == "reward" and record.rewritten is None)
    for _, group in groupby(chosen, key=lambda record: (record.dialogue, record.round, record.history)):
        yield list(group)


# --- whose manner -----------------------------------------------------------------------------------------------------


class _Manners:
    """Descriptions to reword toward: another person's of the same cluster, from dialogues of the same split only."""

    def __init__(self, records: Path, profiles: Path, clusters: Path, seed: int) -> None:
        self._seed = seed
        wanted = {record.dialogue for record in read_records(records) if record.split == "reward"}
        self._own: dict[tuple[str, Speaker], tuple[int, str]] = {}
        self._others: dict[tuple[Speaker, int], Reservoir[tuple[str, str]]] = {}
        rng = generator(seed, "manners")
        for profile, member in zip_longest(read_profiles(profiles), read_members(clusters)):
            whose = profile and (profile.dialogue, profile.participant)
            if not profile or not member or whose != (member.dialogue, member.participant):
                what = "these are not the clusters of the profiles given."
                raise InputError(what, file=clusters, do="Cluster the profiles again.")
            if profile.dialogue not in wanted:
                continue
            self._own[profile.dialogue, profile.participant] = (member.cluster, text_hash(profile.description)[:16])
            others = self._others.setdefault((member.participant, member.cluster), Reservoir(PROFILES_A_CLUSTER, rng))
            others.offer((profile.dialogue, profile.description))

    def sample(self, dialogue: str, participant: Speaker) -> str | None:
        """A description for this participant, never the own one where there is another; None without a profile."""
        if (own := self._own.get((dialogue, participant))) is None:
            return None
        cluster, mark = own
        kept = self._others[participant, cluster].items
        others = [text for name, text in kept if name != dialogue and text_hash(text)[:16] != mark]
        others = others or [text for name, text in kept if name != dialogue] or [text for _, text in kept]
        return others[int(generator(self._seed, "manner", dialogue, participant).integers(len(others)))]


# --- asking -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Round:
    """One round: its records, and the lines to reword, those of the history first."""

    records: list[SerRecord]
    history: list[Line]
    responses: list[Line]

    @staticmethod
    def of(records: list[SerRecord]) -> _Round:
        asked = {one_line(r.candidate.response) for r in records if r.candidate.strategy.strategy == "Question"}
        texts = [one_line(text) for record in records for text in (record.candidate.response, record.reference)]
        history = [Line(one.speaker, one_line(one.text)) for one in records[0].history]
        return _Round(records, history, [Line("supporter", text, text in asked) for text in dict.fromkeys(texts)])

    @property
    def lines(self) -> list[Line]:
        return self.history + self.responses


@dataclass(frozen=True)
class _Rewriting:
    """Rewords rounds; holds what all of them need."""

    kind: Kind
    prompt: str
    model: TextModel
    settings: RewriteSettings
    seed: int
    manners: _Manners | None
    embedder: Embeds
    one_at_a_time: asyncio.Lock
    """Comparing lines keeps all cores busy by itself; answers go on coming in meanwhile."""

    async def reword(self, groups: list[list[SerRecord]]) -> Done:
        """The reworded records of a few rounds, and what was left out."""
        counts: dict[str, Counter[str]] = {"rewrite": Counter(), "dropped": Counter(), "failed": Counter()}
        tasks, requests = [], []
        for records in groups:
            counts["rewrite"]["records read"] += len(records)
            task = _Round.of(records)
            request = self._request(task)
            if isinstance(request, str):
                counts["dropped"][request] += len(records)
            else:
                tasks.append(task)
                requests.append(request)
        sampling = Sampling(temperature=self.settings.temperature, max_tokens=self.settings.max_tokens)
        read = partial(_read, tasks)
        answers = await ask_until_read(self.model, requests, read, sampling, self.settings.retries) if tasks else []
        lines: list[str] = []
        for task, answer in zip(tasks, answers, strict=True):
            if isinstance(answer, Read):
                async with self.one_at_a_time:
                    kept, dropped = await asyncio.to_thread(self._sifted, task, answer.value)
                counts["dropped"].update(dropped)
                counts["rewrite"]["records written"] += len(kept)
                lines += [json_line(record) for record in kept]
            elif isinstance(answer, Failure) and answer.kind != "refused":
                counts["failed"][answer.kind] += 1
            else:
                counts["dropped"]["refused" if isinstance(answer, Failure) else "unread"] += len(task.records)
        return Done(lines, counts=counts)

    def _request(self, task: _Round) -> Request | str:
        """The question for a round, or why there is none."""
        first = task.records[0]
        manners: dict[str, str] = {}
        if self.manners is not None:
            for who in PARTICIPANTS:
                if (manner := self.manners.sample(first.dialogue, who)) is None:
                    return "no profile"
                manners[who] = manner
        numbered = [f"{number}. {line.speaker.capitalize()}: {line.text}" for number, line in enumerate(task.lines, 1)]
        text = self.prompt.format(
            count=len(numbered),
            history="\n".join(numbered[: len(task.history)]),
            responses="\n".join(numbered[len(task.history) :]),
            **manners,
        )
        return ask_user(text, self.seed, "rewrite", self.kind, first.dialogue, str(first.round))

    def _sifted(self, task: _Round, new: list[Line]) -> tuple[list[SerRecord], Counter[str]]:
        """The records whose history and responses kept their meaning, reworded; and why the others are dropped."""
        alike = likeness(task.lines, new, self.embedder)
        start = len(task.history)
        dropped: Counter[str] = Counter()
        if reason := why_not(task.history, new[:start], alike[:start]):
            return [], Counter({reason: len(task.records)})
        reworded, refused = {}, {}
        for index, line in enumerate(task.responses, start):
            if reason := why_not([line], [new[index]], [alike[index]]):
                refused[line.text] = reason
            else:
                reworded[line.text] = new[index].text
        kept = []
        for record in task.records:
            texts = (one_line(record.candidate.response), one_line(record.reference))
            if reasons := [refused[text] for text in texts if text in refused]:
                dropped[reasons[0]] += 1
                continue
            history = tuple(
                one.model_copy(update={"text": line.text}) for one, line in zip(record.history, new, strict=False)
            )
            changed = {
                "id": f"{record.id}~{self.kind}",
                "history": history,
                "candidate": record.candidate.model_copy(update={"response": reworded[texts[0]]}),
                "reference": reworded[texts[1]],
                "rewritten": self.kind,
            }
            try:
                kept.append(SerRecord.model_validate(record.model_copy(update=changed).model_dump()))
            except ValidationError:  # a response that is over-long now, say
                dropped["no valid record"] += 1
        return kept, dropped


_NUMBERED = re.compile(r"\s*(\d+)\s*[.)]\s*(seeker|supporter)\s*[:：]\s*(\S.*?)\s*", re.IGNORECASE)


def _read(tasks: Sequence[_Round], index: int, generation: Generation) -> list[Line] | AnswerFault:
    """The answer's lines, if they are those that were asked for; else what is wrong with them."""
    asked = tasks[index].lines
    if generation.cut_off:
        return AnswerFault("it was cut off before it ended")
    found: list[Line] = []
    for text in generation.text.strip().splitlines():
        if not text.strip():
            continue
        match = _NUMBERED.fullmatch(text)
        number = len(found) + 1
        if match is None:
            return AnswerFault(
                f"something other than a numbered line with its speaker stands where line {number} should be"
            )
        if int(match[1]) != number or number > len(asked):
            return AnswerFault(f"there is a line {match[1]} where {_expected(number, len(asked))}")
        if match[2].lower() != asked[number - 1].speaker:
            return AnswerFault(f"line {number} is the {asked[number - 1].speaker}'s")
        found.append(Line(asked[number - 1].speaker, match[3]))
    if len(found) < len(asked):
        return AnswerFault(f"it has {len(found)} lines and not {len(asked)}")
    return found


def _expected(number: int, count: int) -> str:
    return f"line {number} should be" if number <= count else f"there should be no more than {count}"


def main(
    records: Records,
    out: Written,
    model: Annotated[str, typer.Option(help="A model folder, or NAME@http://host:8000/v1.")],
    profiles: Annotated[Path | None, typer.Option(help="Profiles; with them the rewriting is by personality.")] = None,
    clusters: Annotated[Path | None, typer.Option(help="Their clusters (clusters.jsonl).")] = None,
    call: Call = [],  # noqa: B006
    cache: Cache = CACHE,
    seed: Seed = 0,
) -> None:
    """Reword the records that train the judge, plainly or toward a profile of the same cluster."""
    settings = RewriteSettings()
    stage = partial(rewrite_stage, records, seed=seed, settings=settings, profiles=profiles, clusters=clusters)
    ask_models(stage, out=out, model=model, call=call, cache=cache)


if __name__ == "__main__":
    run_command(main)
