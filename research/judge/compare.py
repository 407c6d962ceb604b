"""Judges side by side on one test set, each beside its blind twin and beside the published numbers.

    python research/judge/compare.py records.jsonl UnifiReward=a.jsonl,b.jsonl::blind_a.jsonl,blind_b.jsonl PRM=p.jsonl

The files are those of `compeer reward judge`. A judge may have been trained several times, with one seed each. A metric
is the mean over seeds; its interval samples dialogues and, independently, seeds. Sampling S seeds of S finds only
(S − 1)/S of the variance between them, so the seeds' deviations are stretched by √(S / (S − 1)); with three seeds the
interval is still on the narrow side, and the standard deviation over seeds (`spread`) stands beside it. The blind twin
is the same judge, trained and asked without histories. The margin, judge minus twin, is taken seed by seed on the
records that both judged and with the same samples for both; so is the difference between two judges.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markdown import Markdown

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import Records, run_command
from research.judge.comparison_table import as_markdown, comparison_tables

from compeer.cli.options import SPLITS, writable
from compeer.cli.training import labelled_indices, needs_of, read_split
from compeer.errors import InputError
from compeer.reasoning import PARTS, STEPS, Part
from compeer.reward.contradiction import is_whole, sampled_contradictions
from compeer.reward.judges import join
from compeer.reward.judgments import read_judgments
from compeer.reward.metrics import REPEATS, Judgments, part_verdicts, sampled_metrics, test_set_hash, with_intervals
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import PREFERENCES, SerRecord
from compeer.statistics import Estimate, Numbers, generator, group_weights, ratio

_Sampled = dict[Part, dict[str, Numbers]]


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
    means = Estimate.of_resamples(over_seeds(samples, seed), samples.shape[1] - 1, fewest=0)
    found: dict[str, Any] = {"value": means.value, "by_seed": [_number(value) for value in samples[:, 0]]}
    if len(samples) > 1:
        found["spread"] = _number(samples[:, 0].std(ddof=1))
    return {**found, "low": means.low, "high": means.high}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


# --- contradictions ---------------------------------------------------------------------------------------------------


def contradiction_metrics(
    dialogues: Sequence[str],
    follows: Sequence[bool | None],
    judges: Mapping[str, Mapping[int, Judgments]],
    rival: str | None = None,
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Any]:
    """The rate of contradictions of each judge (by training seed) on the same outputs, with intervals over dialogues.

    Outputs are given by their dialogue and by whether the response follows step 3 (None: not known). `rival` names a
    judge that the others are held against: `to_rival` is their rate divided by its, 0.5 half as many.
    """
    everyone = [judgments for seeds in judges.values() for judgments in seeds.values()]
    judged = [all(is_whole(judgments[number]) for judgments in everyone) for number in range(len(dialogues))]
    rows = [number for number, one in enumerate(judged) if one and follows[number] is not None]
    found: dict[str, Any] = {
        "outputs": len(dialogues),
        "judged": sum(judged),
        "decided": len(rows),
        "following": sum(follows[number] is True for number in rows),
    }
    if not rows:
        return {**found, "judges": {}}
    own_dialogues, own_follows = [dialogues[n] for n in rows], [follows[n] is True for n in rows]
    sampled: dict[str, dict[str, Numbers]] = {}
    for name, seeds in judges.items():
        by_seed = [
            sampled_contradictions(own_dialogues, own_follows, [judgments[n] for n in rows], repeats, seed)
            for judgments in seeds.values()
        ]
        sampled[name] = {key: over_seeds(np.stack([one[key] for one in by_seed]), seed) for key in by_seed[0]}
    if rival:
        for metrics in sampled.values():
            metrics["to_rival"] = ratio(metrics["contradictions"], sampled[rival]["contradictions"])
    return {**found, "judges": {name: with_intervals(metrics) for name, metrics in sampled.items()}}


# --- the command ------------------------------------------------------------------------------------------------------


def main(
    records: Records,
    rows: Annotated[
        list[str],
        typer.Argument(
            help="A judge's judgments, a file a seed, and after two colons those of its blind twin.",
            metavar="NAME=FILE[,FILE...][::TWIN[,TWIN...]]...",
        ),
    ],
    split: Annotated[str, typer.Option(help=SPLITS)] = "test",
    out: Annotated[Path | None, typer.Option(help="A Markdown file to write the tables to.", callback=writable)] = None,
) -> None:
    """Several judges in one table, beside the all-True baseline, their blind twins and the paper's numbers."""
    known = read_split(records, split)
    files: dict[str, tuple[list[Judgments], list[Judgments]]] = {}
    for row in rows:
        name, equals, paths = row.partition("=")
        if not equals:
            raise InputError(f"'{row}' is not of the form NAME=FILE.", do="Write, for instance, UnifiReward=a.jsonl")
        own, _, twin = paths.partition("::")
        files[name] = (
            [read_judgments(Path(path), known) for path in own.split(",")],
            [read_judgments(Path(path), known) for path in twin.split(",")] if twin else [],
        )
    indices = labelled_indices(known, needs_of([one for judge in files.values() for one in judge[0]]), records)
    chosen = [known[index] for index in indices]

    def seeds(every: Sequence[Judgments]) -> dict[int, Judgments]:
        return {seed: [found[index] for index in indices] for seed, found in enumerate(every)}

    sets = {name: JudgedSet(chosen, seeds(own), seeds(twin)) for name, (own, twin) in files.items()}
    if {"PRM", "ORM"} <= set(sets):
        sets["PRM + ORM"] = combined(sets["PRM"], sets["ORM"])
    pairs = [("UnifiReward", "PRM + ORM")] if {"UnifiReward", "PRM + ORM"} <= set(sets) else []
    text = as_markdown(comparison_tables(compare_judges(sets, pairs)))
    Console().print(Markdown(text))
    if out:
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
