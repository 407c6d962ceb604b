"""Rejection sampling: several outputs for a history, each scored by a judge, and the best of them to train on.

`candidate_stage` writes the outputs to a file, block by block, so that it goes on after a stop where it was; the file
can also be made elsewhere, an object a line (`Candidate`). `best_candidates` picks what is good enough to imitate: the
best-scored output of a history if it is whole, its total reaches a threshold, and the safety guard would let it pass.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compeer.errors import InputError, from_validation
from compeer.io import read_json_lines
from compeer.models import Failure, Sampling, TextModel
from compeer.pipeline import Done, Stage, in_blocks, work_through
from compeer.policy.control import Control, decisions, obedience
from compeer.policy.prompt import direct_prompt, supporter_prompt
from compeer.policy.rollout import Output, generate_turns
from compeer.reasoning import Part, parse_turn
from compeer.reward.conversation import Case
from compeer.reward.form import Judge
from compeer.reward.score import Judgment, Score, Unscored, score
from compeer.safety.output import check_reply
from compeer.ser.record import SerRecord
from compeer.statistics import generator, mean


class Candidate(BaseModel):
    """One output for a record's history: its text, what could be read of it, and its score if a judge was asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    record: str = Field(min_length=1, description="the record's id")
    number: int = Field(default=1, ge=1, description="which of the outputs for this history")
    output: str = Field(default="", description="what the supporter wrote, steps and response")
    cut_off: bool = Field(default=False, description="whether it was stopped before it had ended")
    control: Control | None = Field(default=None, description="what was asked for")
    decisions: dict[str, str | int] = Field(default={}, description="the decisions that could be read")
    missing: dict[Part, str] = Field(default={}, description="each part that is not there, and why")
    parts: dict[str, int | None] | None = Field(default=None, description="the score's five parts")
    total: float | None = Field(default=None, description="the score; none: not scored")
    unscored: str | None = Field(default=None, description="why the judge failed")
    failure: str | None = Field(default=None, description="why the supporter gave no output")


def read_candidates(path: Path) -> Iterator[Candidate]:
    """The outputs of a file, one at a time; an error names the file, line and field."""
    if not path.is_file():
        raise InputError("there is no such file of outputs.", file=path, do="Make it with: compeer policy generate")
    for number, value in read_json_lines(path):
        try:
            yield Candidate.model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None


# --- choosing ---------------------------------------------------------------------------------------------------------


def best_candidates(
    records: Sequence[SerRecord], candidates: Iterable[Candidate], threshold: float = 3
) -> list[SerRecord]:
    """The records with their candidate turn replaced by the best-scored output, where one is good enough.

    Good enough is an output that is whole, whose total is at least the threshold, and whose response the safety guard
    lets pass. Of equally good ones the first is taken: they were drawn alike. A record without any is left out.
    """
    known = {record.id: record for record in records}
    best: dict[str, tuple[float, SerRecord]] = {}
    for candidate in candidates:
        record = known.get(candidate.record)
        if record is None or candidate.total is None or candidate.total < threshold:
            continue
        if candidate.record in best and best[candidate.record][0] >= candidate.total:
            continue
        turn = parse_turn(candidate.output, cut_off=candidate.cut_off).turn
        said = [utterance.text for utterance in record.history if utterance.speaker == "seeker"]
        if turn is None or check_reply(turn.response, said):
            continue
        best[candidate.record] = (candidate.total, record.model_copy(update={"candidate": turn}))
    return [best[record.id][1] for record in records if record.id in best]


# --- scoring ----------------------------------------------------------------------------------------------------------


def score_outputs(judge: Judge, records: Mapping[str, SerRecord], outputs: Sequence[Output], seed: int) -> list[Score]:
    """The judge's score of each output in its record's history, against the record's reference.

    Which response is shown first is drawn by the seed. An output of which nothing can be read needs no judge.
    """
    readable = [number for number, output in enumerate(outputs) if output.parsed.parts]
    said: list[Judgment | Unscored] = [Unscored("nothing could be read")] * len(outputs)
    cases = [_case(records[outputs[number].record], outputs[number], seed) for number in readable]
    for number, judgment in zip(readable, judge.judge(cases), strict=True):
        said[number] = judgment
    return [score(output.parsed, judgment) for output, judgment in zip(outputs, said, strict=True)]


def _case(record: SerRecord, output: Output, seed: int) -> Case:
    response = str(output.parsed.parts.get("response"))
    first = bool(generator(seed, "order", record.id, response).random() < 0.5)
    return Case(record.history, output.parsed, record.reference, candidate_first=first)


# --- the stage --------------------------------------------------------------------------------------------------------


def candidate_stage(
    records: Path,
    chosen: Sequence[SerRecord],
    out: Path,
    model: TextModel,
    sampling: Sampling,
    seed: int,
    *,
    count: int = 1,
    last: int | None = None,
    control: Control | None = None,
    constrained: bool = False,
    direct: bool = False,
    judge: Judge | None = None,
    marks: Mapping[str, str] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Writes `count` outputs for each chosen record of a file, scored if there is a judge; returns the figures.

    Stopped anywhere, it goes on when called again; what is done already, with the same settings, is not done again.
    `marks` tells apart models that share a name, as a folder whose weights have changed. `direct` as the model's card
    says.
    """
    prompt = direct_prompt(()) if direct else supporter_prompt((), None, control)
    wanted = {"ids": [record.id for record in chosen], "prompt": prompt}
    settings = {
        "model": model.name,
        "judge": judge.name if judge else None,
        "marks": dict(marks or {}),
        "sampling": sampling.model_dump(),
        "seed": seed,
        "count": count,
        "last": last,
        "control": control.wishes() if control else {},
        "constrained": constrained,
        "asked": hashlib.sha256(json.dumps(wanted, ensure_ascii=False).encode()).hexdigest(),
    }
    stage = Stage(out, settings, {"records": records})
    if stage.finished() is None:

        def work(block: list[SerRecord]) -> Done:
            answers = generate_turns(
                model, block, sampling, seed, last, constrained, control=control, candidates=count, direct=direct
            )
            found = _candidates(block, answers, count, control, judge, seed)
            failed = Counter(str(answer.kind) for answer in answers if isinstance(answer, Failure))
            dropped = failed.pop("refused", 0)
            advance(len(block))
            return Done(
                [one.model_dump_json(exclude_defaults=True) for one in found],
                counts={"failed": failed, "outputs": {"refused": dropped, "written": len(answers) - failed.total()}},
            )

        with stage:
            size = max(1, model.batch_size * model.at_once // count)
            advance(min(len(chosen), stage.units * size))
            work_through(stage, in_blocks(chosen, size), work)
            stage.finish(failed=sum(stage.counts.get("failed", Counter()).values()))
    return candidate_figures(list(read_candidates(out)))


def _candidates(
    block: Sequence[SerRecord],
    answers: Sequence[Output | Failure],
    count: int,
    control: Control | None,
    judge: Judge | None,
    seed: int,
) -> list[Candidate]:
    outputs = [answer for answer in answers if isinstance(answer, Output)]
    known = {record.id: record for record in block}
    scores = iter(score_outputs(judge, known, outputs, seed) if judge else [None] * len(outputs))
    found = []
    for place, answer in enumerate(answers):
        name, number = block[place // count].id, place % count + 1
        if isinstance(answer, Failure):
            found.append(Candidate(record=name, number=number, control=control, failure=answer.reason))
            continue
        given = next(scores)
        found.append(
            Candidate(
                record=name,
                number=number,
                output=answer.text,
                cut_off=answer.cut_off,
                control=control,
                decisions=decisions(answer.parsed),
                missing=answer.parsed.missing,
                parts=given.parts() if given else None,
                total=given.total if given else None,
                unscored=given.unscored if given else None,
            )
        )
    return found


def candidate_figures(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """What a file of outputs holds: how many are whole, how they scored, how often they did what was asked."""
    written = [one for one in candidates if one.failure is None]
    parsed = [parse_turn(one.output, cut_off=one.cut_off) for one in written]
    totals: dict[str, list[float]] = {}
    for one in written:
        if one.total is not None:
            totals.setdefault(one.record, []).append(one.total)
    return {
        "histories": len({one.record for one in candidates}),
        "outputs": len(written),
        "failed": len(candidates) - len(written),
        "whole": mean([float(turn.complete) for turn in parsed]),
        "scored": sum(len(own) for own in totals.values()),
        "total": mean([total for own in totals.values() for total in own]),
        "best_of_each": mean([max(own) for own in totals.values()]),
        "obedience": obedience(parsed, [one.control for one in written]),
    }
