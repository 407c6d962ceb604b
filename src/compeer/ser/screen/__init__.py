"""Which dialogues are fit to learn from: rules that look for what is broken, personal data masked, a model's verdict.

The rules drop only what is plainly no good, and each says why: no dialogue at all, too much of it empty, broken text
encoding, both speakers in one message, the same line again and again, a supporter that calls itself a machine, another
language than declared. What is only slightly off is mended: an empty utterance goes, and so does a message that was
sent twice in a row. A model, where there is one, is then asked about each dialogue that is left
(`compeer.ser.screen.verdict`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from compeer.corpora import BadDialogues, corpus_path, read_corpus
from compeer.dialogue import Dialogue, Utterance, rounds_of
from compeer.errors import InputError
from compeer.pipeline import Done, Stage, in_blocks, work_through
from compeer.ser.screen.faults import is_machine_phrase, is_mojibake, is_other_language, speaks_for_both
from compeer.ser.screen.masking import mask_dialogue
from compeer.statistics import words

DROPPED = "dropped.jsonl"
DIALOGUES_A_UNIT = 200
_TEXTS = (".jsonl", ".json", ".csv", ".txt")
MONOLOGUE = 0.95
"""Share of the words; where one speaker has more, the other only nods."""


class ScreenSettings(BaseModel):
    """Which dialogues are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    languages: tuple[str, ...] = Field(default=(), description="languages to take; empty takes all")
    rounds: int = Field(default=2, ge=1, description="fewest rounds of a dialogue")
    empty: float = Field(
        default=0.2, ge=0, le=1, description="share of empty utterances that is mended; above it, dropped"
    )
    repeated: float = Field(default=0.25, ge=0, le=1, description="share of a speaker's lines that may be repeats")


@dataclass(frozen=True)
class Kept:
    """A dialogue as it goes on, what was masked in it by kind, and what was mended."""

    dialogue: Dialogue
    masked: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Dropped:
    """Why a dialogue does not go on, the plainest reason first."""

    reasons: tuple[str, ...]


def screen_dialogue(dialogue: Dialogue, settings: ScreenSettings) -> Kept | Dropped:
    """The dialogue mended and masked, or why it is dropped."""
    if settings.languages and dialogue.language not in settings.languages:
        return Dropped(("language not wanted",))
    said = [utterance for utterance in dialogue.utterances if not _is_empty(utterance)]
    empty = len(dialogue.utterances) - len(said)
    once = [*said[:1], *(after for before, after in pairwise(said) if not _sent_twice(before, after))]
    reasons = []
    if empty > settings.empty * len(dialogue.utterances):
        reasons.append("empty utterances")
    if once:
        mended = dialogue.model_copy(update={"utterances": tuple(once)})
        reasons += _structure(mended, settings.rounds)
        reasons += _wording(mended, settings.repeated)
    if reasons:
        return Dropped(tuple(reasons))
    masked, counts = mask_dialogue(mended)
    changes = Counter({"empty utterances": empty, "sent twice": len(said) - len(once)})
    return Kept(masked, counts, +changes)


# --- the rules --------------------------------------------------------------------------------------------------------


def _is_empty(utterance: Utterance) -> bool:
    """Nothing that can be seen or heard."""
    return not utterance.media and not re.sub(r"[\s\u200b-\u200f\u2060\ufeff\u00ad]+", "", utterance.text)


def _line(text: str) -> tuple[str, ...]:
    """A line as it counts for repeats, or nothing if it is too short to tell: people say "yes" often."""
    found = words(text)
    return tuple(found) if len(found) >= 4 else ()


def _sent_twice(before: Utterance, after: Utterance) -> bool:
    line = _line(after.text)
    return bool(line) and before.speaker == after.speaker and not after.media and line == _line(before.text)


def _structure(dialogue: Dialogue, rounds: int) -> list[str]:
    """What keeps it from being a dialogue."""
    length = Counter({"seeker": 0, "supporter": 0})
    for utterance in dialogue.utterances:
        length[utterance.speaker] += len(words(utterance.text))
    if len({utterance.speaker for utterance in dialogue.utterances}) < 2:
        return ["one speaker"]
    if len(rounds_of(dialogue)) < rounds:
        return ["too few rounds"]
    if length.total() and max(length.values()) > MONOLOGUE * length.total():
        return ["monologue"]
    return []


def _wording(dialogue: Dialogue, repeated: float) -> Iterator[str]:
    """What is wrong with the words."""
    texts = [utterance.text for utterance in dialogue.utterances]
    if any(is_mojibake(text) for text in texts):
        yield "broken encoding"
    if any(speaks_for_both(utterance) for utterance in dialogue.utterances):
        yield "both speakers in one message"
    if any(_repeats(dialogue, speaker, repeated) for speaker in ("seeker", "supporter")):
        yield "repeated lines"
    if any(is_machine_phrase(u.text) for u in dialogue.utterances if u.speaker == "supporter"):
        yield "machine phrases"
    if is_other_language(texts, dialogue.language):
        yield "not the declared language"


def _repeats(dialogue: Dialogue, speaker: str, allowed: float) -> bool:
    said = [utterance.text for utterance in dialogue.utterances if utterance.speaker == speaker]
    lines = Counter(line for line in map(_line, said) if line)
    repeats = lines.total() - len(lines)
    return repeats >= 2 and repeats > allowed * len(said)


# --- the stage --------------------------------------------------------------------------------------------------------


def screen_stage(
    corpora: Sequence[str], out: Path, settings: ScreenSettings, workers: int = 1, skip_bad: bool = False
) -> dict[str, Any]:
    """Writes the dialogues that are kept, masked, and `dropped.jsonl` beside them; returns the stage's manifest."""
    told = {**settings.model_dump(), "skip_bad": skip_bad}
    stage = Stage(out, told, _inputs(corpora, out), beside=[DROPPED])
    if found := stage.finished():
        return found
    with stage:
        units = in_blocks(_dialogues(corpora, skip_bad), DIALOGUES_A_UNIT)
        work_through(stage, units, partial(_screen, settings), workers)
        return stage.finish()


def _inputs(corpora: Sequence[str], out: Path) -> dict[str, Path]:
    """The files of the corpora by a name that says which; those of a folder all count."""
    found: dict[str, Path] = {}
    for number, corpus in enumerate(corpora, 1):
        folder = Path(corpus)
        inside = corpus != "sample" and folder.is_dir()
        files = (
            sorted(file for file in folder.iterdir() if file.suffix.casefold() in _TEXTS)
            if inside
            else [corpus_path(corpus)]
        )
        if (inside and folder.resolve() == out.parent.resolve()) or out.resolve() in [file.resolve() for file in files]:
            raise InputError("this would be written over or into a corpus.", file=out, do="Write it to another folder.")
        found.update({f"corpus {number}: {file.name}": file for file in files})
    return found


def _dialogues(corpora: Sequence[str], skip_bad: bool) -> Iterator[Dialogue | Counter[str]]:
    """The dialogues of all corpora, each with an id of its own; after each corpus what could not be read, by reason."""
    seen: set[str] = set()
    for number, corpus in enumerate(corpora, 1):
        bad = BadDialogues()
        for dialogue in read_corpus(corpus, skip_bad=bad if skip_bad else None):
            if len(corpora) > 1:  # within one, ids are unique already
                if dialogue.id in seen:
                    dialogue = dialogue.model_copy(update={"id": _free_id(dialogue.id, number, seen)})
                seen.add(dialogue.id)
            yield dialogue
        yield bad.reasons


def _free_id(own: str, corpus: int, seen: set[str]) -> str:
    prefix = f"{corpus}"
    while f"{prefix}-{own}" in seen:
        prefix += "x"
    return f"{prefix}-{own}"


def _screen(settings: ScreenSettings, block: list[Dialogue | Counter[str]]) -> Done:
    lines, dropped = [], []
    screen: Counter[str] = Counter({"read": 0, "kept": 0, "dropped": 0})
    counts: dict[str, Counter[str]] = {"screen": screen}
    for name in ("dropped", "masked", "mended", "unreadable"):
        counts[name] = Counter()
    for item in block:
        if isinstance(item, Counter):
            counts["unreadable"] += item
            continue
        screen["read"] += 1
        found = screen_dialogue(item, settings)
        if isinstance(found, Dropped):
            screen["dropped"] += 1
            counts["dropped"][found.reasons[0]] += 1
            told = {"dialogue": item.id, "source": item.source, "reasons": found.reasons}
            dropped.append(json.dumps(told, ensure_ascii=False))
        else:
            screen["kept"] += 1
            counts["masked"] += found.masked
            counts["mended"] += found.mended
            lines.append(found.dialogue.model_dump_json(exclude_defaults=True))
    return Done(lines, {DROPPED: dropped}, counts)
