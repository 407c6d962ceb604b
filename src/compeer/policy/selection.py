"""Outputs of a supporter for given histories, and rejection sampling: the best-scored of several to train on.

`candidate_stage` writes the outputs to a file, block by block, so that it goes on after a stop where it was; the file
can also be made elsewhere, an object a line (`Candidate`). `best_candidates` picks what is good enough to imitate.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from compeer.errors import InputError
from compeer.io import Frozen, json_line, read_lines, text_hash
from compeer.models import Failure, Request, Sampling, TextModel, ask
from compeer.pipeline import Done, Stage, in_blocks, work_through
from compeer.policy.control import Control, decisions, forced_grammar, obedience
from compeer.policy.prompt import direct_prompt, supporter_prompt
from compeer.policy.repeats import RepetitionFilter
from compeer.policy.rewards import JudgeSource
from compeer.reasoning import LABELS, ParsedTurn, Part, parse_turn
from compeer.reward import Judge, Score
from compeer.safety.output import check_reply
from compeer.ser.record import SerRecord
from compeer.statistics import generator, mean


@dataclass(frozen=True)
class Output:
    """What a supporter wrote for a record's history, and what could be read of it."""

    record: str
    text: str
    cut_off: bool
    parsed: ParsedTurn


def generate_turns(
    model: TextModel,
    records: Sequence[SerRecord],
    sampling: Sampling,
    seed: int,
    last: int | None = None,
    constrained: bool = False,
    *,
    control: Control | None = None,
    candidates: int = 1,
    direct: bool = False,
) -> list[Output | Failure]:
    """`candidates` outputs for each record, one after the other, sampled by the seed, the record's id and their number.

    A `control` is asked for in the prompt; `constrained` holds an output to the turn's form and to what is asked for,
    and ends it before it repeats itself. All that a `direct` model writes is the response, and steps are missing.
    """
    if direct and (constrained or control):
        what = "this supporter replies at once: it writes no decisions, so none can be asked for."
        raise InputError(what, do="Leave out --control and --constrained, or give a supporter that writes steps.")
    images = bool(getattr(model, "multimodal", False))
    grammar = forced_grammar(control) if constrained else None
    ask_for = direct_prompt if direct else partial(supporter_prompt, control=control)
    requests = []
    for record in records:
        prompt = tuple(ask_for(record.history, last, images=images))
        for number in range(1, candidates + 1):
            names = [record.id] if number == 1 else [record.id, str(number)]
            own = int(generator(seed, "rollout", *names).integers(2**31))
            requests.append(Request(messages=prompt, seed=own, grammar=grammar))
    asked = [record.id for record in records for _ in range(candidates)]
    found: list[Output | Failure] = []
    for name, answer in zip(asked, ask(model, requests, sampling), strict=True):
        if isinstance(answer, Failure):
            found.append(answer)
            continue
        written, over = answer.text, False
        if direct:  # behind a backslash no line is taken for a label
            written = f"{LABELS['response']}: " + "\n".join("\\" + line for line in written.splitlines())
        elif constrained:
            output = RepetitionFilter()
            written, over = output.feed(written, last=True), output.over
        cut_off = answer.cut_off and not over
        found.append(Output(name, written if over else answer.text, cut_off, parse_turn(written, cut_off)))
    return found


class Candidate(Frozen):
    """One output for a record's history: its text, what could be read of it, and its score if a judge was asked."""

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
    return read_lines(path, Candidate, "file of outputs", "Make it with: compeer policy generate")


def best_candidates(
    records: Sequence[SerRecord], candidates: Iterable[Candidate], threshold: float = 3
) -> list[SerRecord]:
    """The records with their best output as candidate: whole, worth the threshold, and let pass by the safety guard."""
    known = {record.id: record for record in records}
    best: dict[str, tuple[float, SerRecord]] = {}
    for candidate in candidates:
        record = known.get(candidate.record)
        if record is None or candidate.total is None or candidate.total < threshold:
            continue
        if record.id in best and best[record.id][0] >= candidate.total:
            continue
        turn = parse_turn(candidate.output, cut_off=candidate.cut_off).turn
        seeker = [utterance.text for utterance in record.history if utterance.speaker == "seeker"]
        if turn is None or check_reply(turn.response, seeker):
            continue
        best[record.id] = (candidate.total, record.model_copy(update={"candidate": turn}))
    return [best[record.id][1] for record in records if record.id in best]


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
    """Writes `count` outputs a chosen record, scored if there is a judge; `marks` tell models of one name apart."""
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
        "control": control.requested() if control else {},
        "constrained": constrained,
        "asked": text_hash(json.dumps(wanted, ensure_ascii=False)),
    }
    stage = Stage(out, settings, {"records": records})
    if stage.finished() is None:

        def work(block: list[SerRecord]) -> Done:
            answers = generate_turns(
                model, block, sampling, seed, last, constrained, control=control, candidates=count, direct=direct
            )
            asked = [record for record in block for _ in range(count)]
            scores: dict[int, Score] = {}
            if judge:
                written = {index: answer.parsed for index, answer in enumerate(answers) if isinstance(answer, Output)}
                given = JudgeSource(judge, seed).score([asked[index] for index in written], list(written.values()))
                scores = dict(zip(written, given, strict=True))
            found = [
                _candidate(answer, scores.get(index), record=asked[index].id, number=index % count + 1, control=control)
                for index, answer in enumerate(answers)
            ]
            failed = Counter(str(answer.kind) for answer in answers if isinstance(answer, Failure))
            dropped = failed.pop("refused", 0)
            advance(len(block))
            return Done(
                [json_line(one) for one in found],
                counts={"failed": failed, "outputs": {"refused": dropped, "written": len(answers) - failed.total()}},
            )

        with stage:
            size = max(1, model.batch_size * model.at_once // count)
            advance(min(len(chosen), stage.units * size))
            work_through(stage, in_blocks(chosen, size), work)
            stage.finish(failed=sum(stage.counts.get("failed", Counter()).values()))
    return candidate_metrics(list(read_candidates(out)))


def _candidate(answer: Output | Failure, score: Score | None, **common: Any) -> Candidate:
    if isinstance(answer, Failure):
        return Candidate(failure=answer.reason, **common)
    read = {"decisions": decisions(answer.parsed), "missing": answer.parsed.missing}
    scored = {"parts": score.parts(), "total": score.total, "unscored": score.unscored} if score else {}
    return Candidate(output=answer.text, cut_off=answer.cut_off, **read, **scored, **common)


def candidate_metrics(candidates: Sequence[Candidate]) -> dict[str, Any]:
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
