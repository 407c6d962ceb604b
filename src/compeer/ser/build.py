"""The whole builder: corpora in, step-labelled preference records out, stage after stage in one folder.

    screened.jsonl   dialogues that passed the rules, personal data masked (dropped.jsonl: what did not, and why)
    judged.jsonl     those that a model found fit too, where one was given (verdicts.jsonl: its answers)
    splits.jsonl     which dialogue serves the judge, the supporter, or measuring
    contexts.jsonl   sampled rounds
    turns.jsonl      candidate turns written by models, where there are any
    records.jsonl    SER records with silver labels

Every file has its manifest beside it. A stage that is done is not done again; one that was stopped goes on.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat

from compeer.errors import InputError
from compeer.models.base import TextModel
from compeer.pipeline import read_manifest
from compeer.progress import console
from compeer.reasoning import STEPS
from compeer.ser.reason import ReasonSettings, reason_stage
from compeer.ser.record import SPLITS, read_records
from compeer.ser.sampling import sample_stage
from compeer.ser.screen import ScreenSettings, screen_stage, verdict_stage
from compeer.ser.silver import SilverSettings, silver_stage
from compeer.ser.split import split_stage


class BuildSettings(SilverSettings):
    """How records are made from dialogues."""

    languages: tuple[str, ...] = Field(default=("en",), description="languages to take; empty takes all")
    rounds: int = Field(default=5, ge=1, description="rounds sampled from a dialogue (equation 1)")
    shares: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = Field(
        default=(0.45, 0.35, 0.2), description="shares of dialogues for judge, supporter and test"
    )


class SerSettings(BuildSettings):
    """How SER records are made from a corpus."""

    corpus: str = Field(default="sample", description="a corpus file or folder, or 'sample' for the packaged one")


def build_ser(settings: SerSettings, folder: Path, seed: int) -> dict[str, Any]:
    """Builds the records of a recipe's corpus in the folder and returns what was made and what was dropped."""
    build_records([settings.corpus], folder, settings, seed)
    return summary(folder)


def build_records(
    corpora: Sequence[str],
    folder: Path,
    settings: BuildSettings,
    seed: int,
    *,
    workers: int = 1,
    skip_bad: bool = False,
    screener: TextModel | None = None,
    models: Sequence[TextModel] = (),
) -> Path:
    """Does what is still to be done of all stages; returns the file of records."""
    dialogues = folder / "screened.jsonl"
    screening = ScreenSettings(languages=settings.languages)
    _report("Screening", lambda: screen_stage(corpora, dialogues, screening, workers, skip_bad))
    if screener is not None:
        judged = folder / "judged.jsonl"
        fit = verdict_stage(dialogues, judged, screener, seed=seed)
        _report("Asking which dialogues are fit", lambda: asyncio.run(fit))
        dialogues = judged
    splits, contexts, turns = folder / "splits.jsonl", folder / "contexts.jsonl", folder / "turns.jsonl"
    _report("Splitting", lambda: split_stage(dialogues, splits, settings.shares, seed, workers=workers))
    _report("Sampling rounds", lambda: sample_stage(dialogues, splits, contexts, settings.rounds, seed, workers))
    if models:
        _report("Asking for turns", lambda: asyncio.run(reason_stage(contexts, turns, models, ReasonSettings(), seed)))
    records = folder / "records.jsonl"
    chosen = SilverSettings.model_validate(settings.model_dump(include=set(SilverSettings.model_fields)))
    written = turns if models else None
    made = _report("Labelling", lambda: silver_stage(contexts, records, chosen, seed, workers, written))
    missing = [split for split in SPLITS if not made["counts"].get("splits", {}).get(split)]
    if missing and not models:
        why = ", ".join(f"{reason} {count:,}" for reason, count in made["counts"].get("no record", {}).items())
        what = f"no record for the {missing[0]} split" + (f" (contexts without one: {why})." if why else ".")
        do = "Give a larger corpus, one with strategy and emotion labels, or models to write turns (--model)."
        raise InputError(what, file=records, do=do)
    return records


def _report(title: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    start = time.monotonic()
    manifest = work()
    counts = {name: number for names in manifest["counts"].values() for name, number in names.items() if number}
    listed = ", ".join(f"{name} {number:,}" for name, number in list(counts.items())[:8])
    console.print(f"[green]✓[/] {title} ({time.monotonic() - start:.0f} s): {listed}", highlight=False, soft_wrap=True)
    if failed := manifest.get("failed"):
        do = "Call the same command again to ask those again."
        raise InputError(f"{failed:,} questions got no answer; what came is kept.", do=do)
    return manifest


def summary(folder: Path) -> dict[str, Any]:
    """What a build folder holds, in numbers."""
    false, preferences, splits, strategies = (Counter[str]() for _ in range(4))
    for record in read_records(folder / "records.jsonl"):
        splits[record.split] += 1
        if record.author == "corpus":
            strategies[record.candidate.strategy.strategy] += 1
        if record.preference and record.labels:
            preferences[record.preference.value] += 1
            false.update(part for part in STEPS if not getattr(record.labels, part).value)
    screened = (read_manifest(folder / "screened.jsonl") or {"counts": {}})["counts"]
    silver = (read_manifest(folder / "records.jsonl") or {"counts": {}})["counts"]
    return {
        "dialogues": screened.get("screen", {}).get("kept", 0),
        "histories": strategies.total(),
        "records": splits.total(),
        "records_by_split": {split: splits[split] for split in SPLITS},
        "false_share": {part: false[part] / max(1, preferences.total()) for part in STEPS},
        "preferences": dict(preferences),
        "strategies": dict(strategies.most_common()),
        "dropped": {**screened.get("dropped", {}), **silver.get("no record", {})},
        "label_source": "silver",
    }
