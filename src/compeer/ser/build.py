"""From dialogues to SER records: sample rounds, make reference turns, spoil some, split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from compeer.corpora import read_corpus
from compeer.dialogue import Dialogue, rounds_of
from compeer.errors import InputError
from compeer.reasoning import STEPS
from compeer.ser.record import SerRecord, write_records
from compeer.ser.sampling import sample_rounds
from compeer.ser.silver import Context, reference_context, silver_records
from compeer.ser.split import SPLITS, assign_splits
from compeer.statistics import generator


class SerSettings(BaseModel):
    """How SER records are made from a corpus."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: str = Field(default="sample", description="a corpus file, or 'sample' for the packaged one")
    languages: tuple[str, ...] = Field(default=("en",), description="languages to take; empty takes all")
    rounds: int = Field(default=5, ge=1, description="rounds sampled from a dialogue (equation 1)")
    false_share: float = Field(default=0.23, gt=0, lt=0.5, description="share of False among candidates' step labels")
    shares: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = Field(
        default=(0.45, 0.35, 0.2), description="shares of dialogues for judge, supporter and test"
    )


def build_ser(settings: SerSettings, folder: Path, seed: int) -> dict[str, Any]:
    """Writes `records.jsonl` into the folder and returns what was made and what was dropped, by reason."""
    dialogues = [
        dialogue
        for dialogue in read_corpus(settings.corpus)
        if not settings.languages or dialogue.language in settings.languages
    ]
    if len(dialogues) < 6:
        raise InputError(
            f"{len(dialogues)} dialogues in {', '.join(settings.languages) or 'any language'}; at least 6 are needed.",
            file=settings.corpus,
            field="ser.languages",
        )
    dropped: Counter[str] = Counter()
    contexts = _contexts(dialogues, settings.rounds, seed, dropped)
    splits = assign_splits(dialogues, settings.shares, seed)
    records: list[SerRecord] = []
    for split in SPLITS:
        here = [context for context in contexts if splits[context.dialogue.id] == split]
        if len({context.dialogue.id for context in here}) < 2:
            raise InputError(
                f"the {split} split has usable rounds of fewer than 2 dialogues.",
                field="ser.shares",
                do="Give a larger corpus or other shares.",
            )
        records.extend(silver_records(here, split, settings.false_share, seed))
    write_records(folder / "records.jsonl", records)
    return _summary(dialogues, contexts, records, dropped)


def _contexts(dialogues: Sequence[Dialogue], count: int, seed: int, dropped: Counter[str]) -> list[Context]:
    found: list[Context] = []
    for dialogue in dialogues:
        rounds = rounds_of(dialogue)
        for number in sample_rounds(len(rounds), count, generator(seed, "rounds", dialogue.id)):
            context = reference_context(dialogue, rounds[number - 1])
            if isinstance(context, str):
                dropped[context] += 1
            else:
                found.append(context)
    return found


def _summary(
    dialogues: Sequence[Dialogue], contexts: Sequence[Context], records: Sequence[SerRecord], dropped: Counter[str]
) -> dict[str, Any]:
    candidates = [record for record in records if record.preference]
    false = {
        part: sum(not getattr(record.labels, part).value for record in candidates) / len(candidates) for part in STEPS
    }
    return {
        "dialogues": len(dialogues),
        "histories": len(contexts),
        "records": len(records),
        "records_by_split": {split: sum(record.split == split for record in records) for split in SPLITS},
        "false_share": false,
        "preferences": dict(Counter(record.preference.value for record in candidates if record.preference)),
        "strategies": dict(Counter(context.turn.strategy.strategy for context in contexts).most_common()),
        "dropped": dict(dropped.most_common()),
        "label_source": "silver",
    }
