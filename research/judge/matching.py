"""A matched set of judged turns, for training and measuring a judge.

    python research/judge/matching.py llm.jsonl near.jsonl --seed 7
    python research/judge/matching.py llm.jsonl random.jsonl --pairs random --seed 7

Turns that were written to be wrong give themselves away by how they are worded. So a *matched set* is made of right
turns only (`match_turns`). The contexts are paired, near ones first or at random, within a split. The two turns of a
pair, and mixtures of their steps, are put into *both* histories: a step is True at home and False at the partner's.
Since every text, alone and in company, is True once and False once, nobody who does not read the history can do
better than chance. The responses are matched alike: the one to this moment is the better one here and the worse one
there, in the same order. Half of the labels are False, all of them by rule (`silver`); the True ones keep their own
source and reason. A pair differs in emotion and strategy, and is not so near that it could share an issue; that the
partner's step is wrong then is very likely, not certain.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import Records, Seed, Written, run_command

from compeer.cli.printing import print_counts
from compeer.dialogue import last_seeker
from compeer.errors import InputError
from compeer.io import json_line
from compeer.models.embedder import Embeds
from compeer.pipeline import Done, Stage
from compeer.reasoning import STEPS, Step, SupportTurn
from compeer.ser.asking import one_thread, run_stage
from compeer.ser.pairing import TOO_NEAR, closeness_of, differ, exchange
from compeer.ser.record import (
    ACCEPTABLE,
    PreferenceLabel,
    SerRecord,
    StepLabel,
    StepLabels,
    read_records,
    silver_label,
)
from compeer.statistics import generator

BLOCK = 1000
"""Right turns of a split among which pairs are sought."""
MIXTURES = ("abb", "bab", "bba", "aab", "aba", "baa")
"""Which of the pair's turns, a or b, each step is from."""
_KINDS = dict(
    zip(STEPS, ("another seeker's issue", "another seeker's emotion", "another moment's strategy"), strict=True)
)
Pairs = Literal["near", "random"]
"""Whose turns are exchanged: those of the closest other contexts, which are hard to tell, or of any."""


def match_turns(
    records: Path,
    out: Path,
    seed: int,
    mixtures: int = 2,
    mistakes: bool = False,
    embedder: Embeds | None = None,
    pairs: Pairs = "near",
) -> dict[str, Any]:
    """Writes the matched set of a file of judged records; returns the stage's manifest.

    A pair gives its two turns and `mixtures` of them, each in both histories. With `mistakes`, records that have a
    False label are added as they stand.
    """
    if not 0 <= mixtures <= len(MIXTURES):
        raise InputError(f"there are 0 to {len(MIXTURES)} mixtures of two turns.", field="mixtures")
    settings = {"seed": seed, "mixtures": mixtures, "mistakes": mistakes, "pairs": pairs}
    stage = Stage(out, settings, {"records": records})
    if found := stage.finished():
        return found
    if embedder is None:
        embedder = one_thread("embedded")
    return run_stage(stage, _blocks(records, mistakes), partial(_matched, embedder, mixtures, pairs, seed))


def _blocks(path: Path, mistakes: bool) -> Iterator[list[SerRecord]]:
    """Right turns that may be paired with each other, one a context; or, as blocks of their own, mistaken ones."""
    waiting: dict[tuple[str | None, ...], list[SerRecord]] = {}
    known: set[int] = set()
    for record in read_records(path):
        if record.labels is None:
            continue
        if not is_right(record):
            if mistakes:
                yield [record]
            continue
        context = hash((record.dialogue, record.round, record.rewritten))
        if context in known:
            continue
        known.add(context)
        alike = (record.split, record.language, record.rewritten)
        here = waiting.setdefault(alike, [])
        here.append(record)
        if len(here) == 2 * BLOCK:
            yield here[:BLOCK]
            waiting[alike] = here[BLOCK:]
    yield from waiting.values()


def is_right(record: SerRecord) -> bool:
    """Whether all steps of the record are True."""
    return record.labels is not None and all(getattr(record.labels, part).value for part in STEPS)


def _matched(embedder: Embeds, mixtures: int, how: Pairs, seed: int, block: list[SerRecord]) -> Done:
    if not is_right(block[0]):
        found = block
        counts = {"matched": Counter({"mistaken turns as they stood": len(block)})}
    else:
        pairs = pair_records(block, embedder, seed, how)
        found = [record for one, other in pairs for record in matched_records(block[one], block[other], mixtures, seed)]
        numbers = {"right turns": len(block), "pairs": len(pairs), "without a partner": len(block) - 2 * len(pairs)}
        counts = {"matched": Counter({**numbers, "records": len(found)})}
    counts["split"] = Counter(record.split for record in found)
    return Done([json_line(record) for record in found], counts=counts)


def pair_records(
    records: Sequence[SerRecord], embedder: Embeds, seed: int, how: Pairs = "near"
) -> list[tuple[int, int]]:
    """Pairs of records by index, near ones first or at random, that differ in dialogue, emotion and strategy."""
    closeness = closeness_of([_about(record) for record in records], embedder)
    turns = [record.candidate for record in records]
    allowed = closeness < TOO_NEAR
    for values in (
        [record.dialogue for record in records],
        [turn.response for turn in turns],
        [turn.emotion.emotion for turn in turns],
        [turn.strategy.strategy for turn in turns],
    ):
        allowed &= differ(values)
    count, rng = len(records), generator(seed, "matched", records[0].id)
    if how == "random":
        closeness = rng.random((count, count), dtype=np.float32)
    return exchange([0] * count, [()] * count, allowed, closeness, 1.0, np.ones(count, dtype=bool), rng)


def _about(record: SerRecord) -> str:
    seeker = last_seeker(record.history)
    return f"{record.candidate.history.text} {seeker.text if seeker else ''}"


def matched_records(a: SerRecord, b: SerRecord, mixtures: int, seed: int) -> Iterator[SerRecord]:
    """The two turns and some mixtures of them, each in both histories."""
    rng = generator(seed, "mixtures", a.id, b.id)
    mixed = [MIXTURES[index] for index in sorted(rng.permutation(len(MIXTURES))[:mixtures].tolist())]
    for letters in ("aaa", "bbb", *mixed):
        owners = [a if letter == "a" else b for letter in letters]
        steps: dict[str, Step] = {part: owner.candidate.step(part) for part, owner in zip(STEPS, owners, strict=True)}
        speaker = owners[-1]  # the response goes with the strategy
        turn = SupportTurn.model_validate({**steps, "response": speaker.candidate.response})
        candidate_first = bool(rng.random() < 0.5)
        for home, partner in ((a, b), (b, a)):
            yield home.model_copy(
                update={
                    "id": f"{home.id}~{partner.id}~{letters}",
                    "candidate": turn,
                    "author": home.author if home.author == partner.author else f"{a.author} and {b.author}",
                    "reference": (b if speaker is a else a).candidate.response,
                    "labels": _matched_labels(home, partner, owners),
                    "preference": _matched_preference(home, partner, speaker),
                    "candidate_first": candidate_first,
                    "derived": tuple(dict.fromkeys((*a.derived, *b.derived))),
                }
            )


def _matched_labels(home: SerRecord, partner: SerRecord, owners: Sequence[SerRecord]) -> StepLabels:
    how = f"a right step of {partner.id}, put where it is wrong"
    found: dict[str, StepLabel] = {
        part: getattr(home.labels, part) if owner is home else silver_label(False, how, _KINDS[part])
        for part, owner in zip(STEPS, owners, strict=True)
    }
    return StepLabels(**found)


def _matched_preference(home: SerRecord, partner: SerRecord, speaker: SerRecord) -> PreferenceLabel | None:
    """The response to this moment is the better one; unknown where either was judged worse than its own reference."""
    if any(one.preference is None or one.preference.value not in ACCEPTABLE for one in (home, partner)):
        return None
    how = f"the response to this moment against that of {partner.id}"
    return PreferenceLabel(value="candidate" if speaker is home else "reference", source="silver", how=how)


def main(
    records: Records,
    out: Written,
    pairs: Annotated[Pairs, typer.Option(help="Contexts are paired with the nearest other, or with any.")] = "near",
    mixtures: Annotated[int, typer.Option(help="Turns mixed of a pair's steps, beside its own two.")] = 2,
    mistakes: Annotated[bool, typer.Option("--mistakes", help="Keep turns that were judged wrong as extra.")] = False,
    seed: Seed = 0,
) -> None:
    """Make of judged records a matched set: every turn right in one history stands in another, where it is wrong."""
    print_counts(match_turns(records, out, seed, mixtures, mistakes, pairs=pairs), out)


if __name__ == "__main__":
    run_command(main)
