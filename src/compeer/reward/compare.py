"""Judges side by side on one test set, each beside its blind twin and beside the figures of the paper.

Judging may need a GPU; comparing does not. So judgments are kept in a file of their own, a line a record:

    {"id": "r1", "shown": "5f1c…", "judgment": {"steps": {"history": 0.93, …}, "response": {"candidate": 0.61, …}, …}}
    {"id": "r2", "shown": "08ab…", "unscored": "the history is too long"}

where `shown` is a digest of what was judged: a line is refused if its record has another text by now. Everything here
is a pure function of records and judgments. A judge may have been trained several times, with one seed each. Its figure
is the mean over seeds; the interval draws dialogues and, independently, seeds, both with replacement. Drawing S seeds
of S finds only (S − 1)/S of the variance between them, so the seeds' deviations are stretched by √(S / (S − 1)); with
three seeds the interval is still on the narrow side, and the spread (the standard deviation over seeds) stands beside
it. What is said of one seed holds for that model only.

The blind twin is the same judge, trained and asked without histories. The margin, judge minus twin, is taken seed by
seed on the records that both judged and with the same draws for both; so is the difference between two judges.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from compeer.errors import InputError, from_validation
from compeer.io import read_json_lines
from compeer.reasoning import STEPS, Part
from compeer.reward.metrics import REPEATS, drawn_figures, part_verdicts, shown_digest, test_set_hash
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import PREFERENCES, SerRecord
from compeer.statistics import Numbers, drawn_interval, generator, group_weights

Said = Sequence[Judgment | Unscored]
_PARTS: tuple[Part, ...] = (*STEPS, "response")
_Drawn = dict[Part, dict[str, Numbers]]
_ROUNDING = 1e-6
"""By how much a sum of probabilities may miss 1."""


# --- judgments in a file ----------------------------------------------------------------------------------------------


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    shown: str | None = None
    """A digest of the record as the judge was shown it; older files have none."""
    judgment: Judgment | None = None
    unscored: str | None = None


def write_judgments(path: Path, records: Iterable[SerRecord], judgments: Iterable[Judgment | Unscored]) -> int:
    """Writes what a judge said to each record, whole or not at all, and says how many."""
    unfinished = path.with_name(path.name + ".unfinished")
    count = 0
    with unfinished.open("w", encoding="utf-8") as file:
        for record, said in zip(records, judgments, strict=True):
            line = _Line(id=record.id, shown=shown_digest(record))
            if isinstance(said, Unscored):
                line.unscored = said.reason
            else:
                line.judgment = said
            file.write(line.model_dump_json(exclude_none=True) + "\n")
            count += 1
    os.replace(unfinished, path)
    return count


def read_judgments(path: Path, records: Iterable[SerRecord]) -> list[Judgment | Unscored]:
    """What was said to each of the records, in their order; one that the file does not have is `Unscored`.

    A line about a record that was judged with another text is an error, and so is a probability that is none.
    """
    if not path.is_file():
        raise InputError("there is no such file of judgments.", file=path)
    records = list(records)
    shown = {record.id: shown_digest(record) for record in records}
    found: dict[str, Judgment | Unscored] = {}
    for number, value in read_json_lines(path):
        try:
            line = _Line.model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None
        if line.id in found:
            raise InputError(f"record '{line.id}' is judged twice.", file=path, line=number, field="id")
        if (line.judgment is None) == (line.unscored is None):
            raise InputError("a line holds either a judgment or why there is none.", file=path, line=number)
        if line.shown is not None and line.shown != shown.get(line.id, line.shown):
            what = f"record '{line.id}' has another text, or its responses another order, than when it was judged."
            do = "Give the records that were judged, or judge these with `compeer reward judge`."
            raise InputError(what, file=path, line=number, field="shown", do=do)
        for name, chance in _chances(asdict(line.judgment) if line.judgment else {}, "judgment"):
            if not 0 <= chance <= 1 + _ROUNDING:
                raise InputError(f"{chance} is not a probability.", file=path, line=number, field=name)
        found[line.id] = line.judgment or Unscored(line.unscored or "")
    return [found.get(record.id, Unscored("not in the file of judgments")) for record in records]


def _chances(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Every number in a judgment, with the name of its field; all are probabilities."""
    if isinstance(value, float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _chances(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _chances(inner, f"{name}.{place}")


# --- what is compared -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedSet:
    """What one judge said to the records of a test set, by training seed, and what its blind twin said."""

    records: Sequence[SerRecord]
    seeds: Mapping[int, Said]
    twin: Mapping[int, Said] = field(default_factory=dict)


def always_true(records: Sequence[SerRecord]) -> JudgedSet:
    """The baseline that accepts every step, and gives the most frequent preference to every pair."""
    values = [record.preference.value for record in records if record.preference]
    usual = max(PREFERENCES, key=values.count)
    said = Judgment(steps=dict.fromkeys(STEPS, 1.0), response={usual: 1.0})
    return JudgedSet(records, {0: [said] * len(records)})


def combined(process: JudgedSet, outcome: JudgedSet) -> JudgedSet:
    """PRM + ORM as one judge, seed by seed: the steps by the one, the response by the other."""

    def both(steps: Mapping[int, Said], responses: Mapping[int, Said]) -> dict[int, Said]:
        shared = sorted(set(steps) & set(responses))
        return {seed: [_joined(*pair) for pair in zip(steps[seed], responses[seed], strict=True)] for seed in shared}

    return JudgedSet(process.records, both(process.seeds, outcome.seeds), both(process.twin, outcome.twin))


def _joined(process: Judgment | Unscored, outcome: Judgment | Unscored) -> Judgment | Unscored:
    if isinstance(process, Unscored):
        return process
    if isinstance(outcome, Unscored):
        return outcome
    return replace(outcome, steps=process.steps, threshold=process.threshold)


def compare_judges(
    rows: Mapping[str, JudgedSet],
    pairs: Sequence[tuple[str, str]] = (),
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Any]:
    """All figures of all judges as plain data, the always-True baseline first; all must have judged one test set.

    `pairs` names judges whose difference (first minus second) is wanted as well. Every figure is a mapping of `value`,
    `low`, `high`, `by_seed` and, of several seeds, `spread`.
    """
    if not rows:
        raise InputError("there is no judge to compare.")
    hashes = {name: test_set_hash(row.records) for name, row in rows.items()}
    if len(set(hashes.values())) > 1:
        sets = ", ".join(f"{name} {value[:12]}" for name, value in hashes.items())
        raise InputError(f"the judges were asked about different test sets: {sets}.", do="Judge the same records.")
    records = next(iter(rows.values())).records
    weights = group_weights(len({record.dialogue for record in records}), repeats, seed)
    chosen = {"always True": always_true(records), **rows}
    return {
        "test_set": next(iter(hashes.values())),
        "records": len(records),
        "dialogues": weights.shape[1],
        "rows": [_row(name, row, weights, seed) for name, row in chosen.items()],
        "differences": [
            {"judge": ours, "rival": theirs, "parts": difference(chosen[ours], chosen[theirs], weights, seed)}
            for ours, theirs in pairs
        ],
    }


def _row(name: str, judged: JudgedSet, weights: Numbers, seed: int) -> dict[str, Any]:
    scored = [sum(isinstance(one, Judgment) for one in said) for said in judged.seeds.values()]
    return {
        "judge": name,
        "seeds": sorted(judged.seeds),
        "scored": scored,
        "parts": _estimates(_drawn(judged.records, judged.seeds, weights), seed),
        "twin": _estimates(_drawn(judged.records, judged.twin, weights), seed),
        "margin": difference(judged, JudgedSet(judged.records, judged.twin), weights, seed),
    }


def difference(ours: JudgedSet, theirs: JudgedSet, weights: Numbers, seed: int = 0) -> dict[str, Any]:
    """Every figure of one judge minus the other's: the same seeds, the same records, the same draws.

    The two may hold the records in different orders. A judge with a single seed is held against every seed of the
    other.
    """
    places = {record.id: place for place, record in enumerate(theirs.records)}
    order = [places[record.id] for record in ours.records]
    left: dict[int, Said] = {}
    right: dict[int, Said] = {}
    for one, other in _paired_seeds(ours.seeds, theirs.seeds):
        said = [(a, theirs.seeds[other][b]) for a, b in zip(ours.seeds[one], order, strict=True)]
        shared = [pair if not any(isinstance(j, Unscored) for j in pair) else (_LEFT_OUT, _LEFT_OUT) for pair in said]
        number = len(left)
        left[number], right[number] = [a for a, _ in shared], [b for _, b in shared]
    drawn = [
        {part: {name: one[part][name] - other[part][name] for name in one[part]} for part in one if part in other}
        for one, other in zip(_drawn(ours.records, left, weights), _drawn(ours.records, right, weights), strict=True)
    ]
    return _estimates(drawn, seed)


_LEFT_OUT = Unscored("not judged by both")


def _paired_seeds(ours: Mapping[int, Said], theirs: Mapping[int, Said]) -> list[tuple[int, int]]:
    if len(ours) == 1 or len(theirs) == 1:
        return [(one, other) for one in sorted(ours) for other in sorted(theirs)]
    return [(one, one) for one in sorted(set(ours) & set(theirs))]


def _drawn(records: Sequence[SerRecord], seeds: Mapping[int, Said], weights: Numbers) -> list[_Drawn]:
    """For each seed the draws of all figures of the parts that were judged."""
    found: list[_Drawn] = []
    for seed in sorted(seeds):
        verdicts = [part_verdicts(records, seeds[seed], part) for part in _PARTS]
        found.append({one.part: drawn_figures(one, weights) for one in verdicts if len(one)})
    return found


def _estimates(seeds: Sequence[_Drawn], seed: int) -> dict[str, Any]:
    parts = [part for part in _PARTS if seeds and all(part in one for one in seeds)]
    return {
        part: {name: _estimate(np.stack([one[part][name] for one in seeds]), seed) for name in seeds[0][part]}
        for part in parts
    }


def over_seeds(draws: Numbers, seed: int) -> Numbers:
    """The mean over training seeds (rows) for each column; from the second column on the seeds are drawn as well.

    The same seed draws the same rows, so that two judges with equally many can be held against each other.
    """
    means: Numbers = draws.mean(0)
    count = len(draws)
    if count > 1:
        shares = generator(seed, "seeds").multinomial(count, np.full(count, 1 / count), draws.shape[1] - 1).T / count
        means[1:] += np.sqrt(count / (count - 1)) * ((shares - 1 / count) * draws[:, 1:]).sum(0)
    return means


def _estimate(draws: Numbers, seed: int) -> dict[str, Any]:
    means = over_seeds(draws, seed)
    found: dict[str, Any] = {"value": _number(means[0]), "by_seed": [_number(value) for value in draws[:, 0]]}
    if len(draws) > 1:
        found["spread"] = _number(draws[:, 0].std(ddof=1))
    interval = drawn_interval(means[1:]) if found["value"] is not None else None
    found["low"], found["high"] = interval or (None, None)
    return found


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
