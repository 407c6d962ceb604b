"""Judges side by side on one test set, each beside its blind twin and beside the published numbers.

Judging may need a GPU; comparing does not. So judgments are kept in a file of their own, a line a record:

    {"id": "r1", "shown": "5f1c…", "judgment": {"steps": {"history": 0.93, …}, "response": {"candidate": 0.61, …}, …}}
    {"id": "r2", "shown": "08ab…", "unscored": "the history is too long"}

where `shown` is a digest of the text: a line is refused if its record has another text by now.

A judge may have been trained several times, with one seed each. A metric is the mean over seeds; its interval samples
dialogues and, independently, seeds. Sampling S seeds of S finds only (S − 1)/S of the variance between them, so the
seeds' deviations are stretched by √(S / (S − 1)); with three seeds the interval is still on the narrow side, and the
standard deviation over seeds (`spread`) stands beside it. The blind twin is the same judge, trained and asked without
histories. The margin, judge minus twin, is taken seed by seed on the records that both judged and with the same samples
for both; so is the difference between two judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from compeer.errors import InputError, from_validation
from compeer.io import Frozen, read_json_lines, write_text
from compeer.reasoning import PARTS, STEPS, Part
from compeer.reward.judges import join
from compeer.reward.metrics import REPEATS, Judgments, part_verdicts, sampled_metrics, test_set_hash, text_digest
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import PREFERENCES, SerRecord
from compeer.statistics import Estimate, Numbers, generator, group_weights

_Sampled = dict[Part, dict[str, Numbers]]


# --- judgments in a file ----------------------------------------------------------------------------------------------


class _JudgmentLine(Frozen):
    id: str
    shown: str | None = None
    """A digest of the record's text; older files have none."""
    judgment: Judgment | None = None
    unscored: str | None = None


def write_judgments(path: Path, records: Iterable[SerRecord], judgments: Iterable[Judgment | Unscored]) -> int:
    """Writes the judgment of each record, whole or not at all, and returns how many."""
    lines = []
    for record, found in zip(records, judgments, strict=True):
        outcome = {"unscored": found.reason} if isinstance(found, Unscored) else {"judgment": found}
        line = _JudgmentLine.model_validate({"id": record.id, "shown": text_digest(record), **outcome})
        lines.append(line.model_dump_json(exclude_none=True) + "\n")
    write_text(path, "".join(lines))
    return len(lines)


def read_judgments(path: Path, records: Iterable[SerRecord]) -> list[Judgment | Unscored]:
    """The judgment of each of the records, in their order; one that the file does not have is `Unscored`.

    A line about a record that was judged with another text is an error, and so is a probability that is none.
    """
    if not path.is_file():
        raise InputError("there is no such file of judgments.", file=path)
    records = list(records)
    digests = {record.id: text_digest(record) for record in records}
    found: dict[str, Judgment | Unscored] = {}
    for number, value in read_json_lines(path):
        try:
            line = _JudgmentLine.model_validate(value)
        except ValidationError as error:
            raise from_validation(error, file=path, line=number) from None
        if line.id in found:
            raise InputError(f"record '{line.id}' is judged twice.", file=path, line=number, field="id")
        if (line.judgment is None) == (line.unscored is None):
            raise InputError("a line holds either a judgment or why there is none.", file=path, line=number)
        if line.shown is not None and line.shown != digests.get(line.id, line.shown):
            what = f"record '{line.id}' has another text, or its responses another order, than when it was judged."
            do = "Give the records that were judged, or judge these with `compeer reward judge`."
            raise InputError(what, file=path, line=number, field="shown", do=do)
        found[line.id] = line.judgment or Unscored(line.unscored or "")
    return [found.get(record.id, Unscored("not in the file of judgments")) for record in records]


# --- what is compared -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedSet:
    """One judge's judgments of the records of a test set, by training seed, and those of its blind twin."""

    records: Sequence[SerRecord]
    seeds: Mapping[int, Judgments]
    twin: Mapping[int, Judgments] = field(default_factory=dict)


def always_true(records: Sequence[SerRecord]) -> JudgedSet:
    """The baseline that accepts every step, and gives the most frequent preference to every pair."""
    values = [record.preference.value for record in records if record.preference]
    lazy = Judgment(steps=dict.fromkeys(STEPS, 1.0), response={max(PREFERENCES, key=values.count): 1.0})
    return JudgedSet(records, {0: [lazy] * len(records)})


def combined(process: JudgedSet, outcome: JudgedSet) -> JudgedSet:
    """PRM + ORM as one judge, seed by seed: the steps by the one, the response by the other."""

    def both(steps: Mapping[int, Judgments], responses: Mapping[int, Judgments]) -> dict[int, Judgments]:
        shared = sorted(set(steps) & set(responses))
        return {seed: [join(*pair) for pair in zip(steps[seed], responses[seed], strict=True)] for seed in shared}

    return JudgedSet(process.records, both(process.seeds, outcome.seeds), both(process.twin, outcome.twin))


def compare_judges(
    rows: Mapping[str, JudgedSet],
    pairs: Sequence[tuple[str, str]] = (),
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Any]:
    """All metrics of all judges as plain data, the always-True baseline first; all must have judged one test set.

    `pairs` names judges whose difference (first minus second) is wanted as well. Every metric is a mapping of `value`,
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
    return {
        "judge": name,
        "seeds": sorted(judged.seeds),
        "scored": [sum(isinstance(one, Judgment) for one in found) for found in judged.seeds.values()],
        "parts": _estimates(_sampled(judged.records, judged.seeds, weights), seed),
        "twin": _estimates(_sampled(judged.records, judged.twin, weights), seed),
        "margin": difference(judged, JudgedSet(judged.records, judged.twin), weights, seed),
    }


def difference(ours: JudgedSet, theirs: JudgedSet, weights: Numbers, seed: int = 0) -> dict[str, Any]:
    """Every metric of one judge minus the other's: the same seeds, the same records, the same samples.

    The two may hold the records in different orders. A judge with a single seed is held against every seed of the
    other.
    """
    indices = {record.id: index for index, record in enumerate(theirs.records)}
    order = [indices[record.id] for record in ours.records]
    left: dict[int, Judgments] = {}
    right: dict[int, Judgments] = {}
    for number, (one, other) in enumerate(_paired_seeds(ours.seeds, theirs.seeds)):
        both = [(a, theirs.seeds[other][b]) for a, b in zip(ours.seeds[one], order, strict=True)]
        shared = [pair if not any(isinstance(j, Unscored) for j in pair) else (_LEFT_OUT, _LEFT_OUT) for pair in both]
        left[number], right[number] = [a for a, _ in shared], [b for _, b in shared]
    samples = [
        {part: {name: one[part][name] - other[part][name] for name in one[part]} for part in one if part in other}
        for one, other in zip(
            _sampled(ours.records, left, weights), _sampled(ours.records, right, weights), strict=True
        )
    ]
    return _estimates(samples, seed)


_LEFT_OUT = Unscored("not judged by both")


def _paired_seeds(ours: Mapping[int, Judgments], theirs: Mapping[int, Judgments]) -> list[tuple[int, int]]:
    if len(ours) == 1 or len(theirs) == 1:
        return [(one, other) for one in sorted(ours) for other in sorted(theirs)]
    return [(one, one) for one in sorted(set(ours) & set(theirs))]


def _sampled(records: Sequence[SerRecord], seeds: Mapping[int, Judgments], weights: Numbers) -> list[_Sampled]:
    """For each seed the samples of all metrics of the parts that were judged."""
    found: list[_Sampled] = []
    for seed in sorted(seeds):
        verdicts = [part_verdicts(records, seeds[seed], part) for part in PARTS]
        found.append({one.part: sampled_metrics(one, weights) for one in verdicts if len(one)})
    return found


def _estimates(seeds: Sequence[_Sampled], seed: int) -> dict[str, Any]:
    parts = [part for part in PARTS if seeds and all(part in one for one in seeds)]
    return {
        part: {name: _estimate(np.stack([one[part][name] for one in seeds]), seed) for name in seeds[0][part]}
        for part in parts
    }


def over_seeds(samples: Numbers, seed: int) -> Numbers:
    """The mean over training seeds (rows) for each column; from the second column on seeds are sampled as well.

    The same seed samples the same rows, so that two judges with equally many can be held against each other.
    """
    means: Numbers = samples.mean(0)
    count = len(samples)
    if count > 1:
        shares = generator(seed, "seeds").multinomial(count, np.full(count, 1 / count), samples.shape[1] - 1).T / count
        means[1:] += np.sqrt(count / (count - 1)) * ((shares - 1 / count) * samples[:, 1:]).sum(0)
    return means


def _estimate(samples: Numbers, seed: int) -> dict[str, Any]:
    means = Estimate.of_draws(over_seeds(samples, seed), samples.shape[1] - 1, fewest=0)
    found: dict[str, Any] = {"value": means.value, "by_seed": [_number(value) for value in samples[:, 0]]}
    if len(samples) > 1:
        found["spread"] = _number(samples[:, 0].std(ddof=1))
    return {**found, "low": means.low, "high": means.high}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
