"""What is kept of a file of SER records to check it: hashes and small numbers, never texts.

A million records take some hundred megabytes, and whatever is asked of them is a matter of sorting and counting.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from compeer.reasoning import STEPS, Part, render_step
from compeer.ser.record import SPLITS, SerRecord, Split, StepLabel
from compeer.ser.split import OPENINGS, TEXTS, opening
from compeer.ser.split.duplicates import Hashes, text_hash
from compeer.statistics import words

REPLY_WORDS = 8
"""Shorter replies ("I am sorry to hear that.") are common property."""
HISTORY_WORDS = 20
HISTORIES = replace(TEXTS, bound=TEXTS.bound + 0.1)
FIRST_MESSAGES = replace(OPENINGS, bound=OPENINGS.bound + 0.1)
"""Bounds a little above those of the split: an estimate that falls on the other side of a bound is no leak."""
ONLY_FALSE = ("reasoning contradicts the decision", "swapped fact", "wrong stage")
"""Mistakes made by changing one part of a step, which as a whole can be True nowhere; their share is reported."""
FALSE, TRUE, FALSE_BY_NATURE, NOT_ASKED = range(4)
"""What is kept of a step's label; only silver labels of records with a preference are asked to be matched."""

Numbers = npt.NDArray[np.int64]


class Seen:
    """Columns of hashes and small numbers: of records, of their steps (three a record) and replies (two a record)."""

    def __init__(self) -> None:
        self.ids, self.dialogues, self.splits = array("Q"), array("Q"), array("B")
        self.steps, self.wordings = array("Q"), array("Q")
        self.labels = array("B")
        self.replies = array("Q")
        self.decisions: Counter[tuple[Split, Part, bool, str]] = Counter()
        self.preferences: Counter[tuple[Split, str]] = Counter()
        self.lengths: dict[str, tuple[array[int], array[int]]] = {}
        self.unsaid: list[int] = []
        self.names: dict[int, tuple[str, int]] = {}  # a dialogue's hash: its id, and its place among the sketches
        self.histories, self.openings = bytearray(), bytearray()
        self._longest = array("L")
        self._waiting: tuple[int, SerRecord] | None = None

    @cached_property
    def there(self) -> list[Split]:
        """The splits that have records."""
        found = set(self.splits)
        return [split for number, split in enumerate(SPLITS) if number in found]

    def take(self, record: SerRecord) -> None:
        """Adds a record."""
        number, split = len(self.ids), record.split
        self.ids.append(id_hash(record.id))
        dialogue = id_hash(record.dialogue)
        self.dialogues.append(dialogue)
        self.splits.append(SPLITS.index(split))
        for part in STEPS:
            step = record.candidate.step(part)
            label: StepLabel | None = getattr(record.labels, part, None)
            self.steps.append(text_hash(render_step(part, step)))
            self.wordings.append(text_hash(step.text))
            if label and label.source == "silver" and record.preference:
                wrong = FALSE_BY_NATURE if label.kind in ONLY_FALSE else FALSE
                self.labels.append(TRUE if label.value else wrong)
                self.decisions[split, part, label.value, step.decision] += 1
            else:
                self.labels.append(NOT_ASKED)
            if label and not label.how.strip():
                self.unsaid.append(number)
        both = (record.candidate.response, record.reference)
        counts = [len(words(text)) for text in both]
        for text, count in zip(both, counts, strict=True):
            self.replies.append(text_hash(text) if count >= REPLY_WORDS else 0)
        if (preference := record.preference) and not preference.how.strip():
            self.unsaid.append(number)
        if preference and preference.source == "silver":
            self.preferences[split, preference.value] += 1
            if preference.value in ("candidate", "reference"):
                better, worse = self.lengths.setdefault(split, (array("L"), array("L")))
                better.append(counts[preference.value == "reference"])
                worse.append(counts[preference.value == "candidate"])
        self._remember(dialogue, record)

    def _remember(self, dialogue: int, record: SerRecord) -> None:
        """Keeps a sketch of each dialogue's longest history; records of one dialogue mostly come in a row."""
        if self._waiting and self._waiting[0] != dialogue:
            self.close()
        if dialogue not in self.names:
            self.names[dialogue] = record.dialogue, len(self.names)
            self._longest.append(0)
            self.histories += bytes(HISTORIES.width)
            self.openings += bytes(FIRST_MESSAGES.width)
        place = self.names[dialogue][1]
        if (length := sum(len(utterance.text) for utterance in record.history)) > self._longest[place]:
            self._longest[place] = length
            self._waiting = dialogue, record

    def close(self) -> None:
        """Writes the sketch that was waiting for a longer history."""
        if self._waiting is None:
            return
        (dialogue, record), self._waiting = self._waiting, None
        text = "\n".join(utterance.text for utterance in record.history)
        place = self.names[dialogue][1]
        if len(words(text)) >= HISTORY_WORDS:
            _put(self.histories, place, HISTORIES.of(text).tobytes())
        _put(self.openings, place, FIRST_MESSAGES.of(opening(record.history)).tobytes())


def id_hash(name: str) -> int:
    """Eight bytes that stand for an id."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _put(rows: bytearray, place: int, sketch: bytes) -> None:
    rows[place * len(sketch) : (place + 1) * len(sketch)] = sketch


def hashes_of(values: array[int]) -> Hashes:
    """A column of hashes as an array."""
    return np.frombuffer(values, dtype=np.uint64)


def small(values: array[int]) -> Numbers:
    """A column of small numbers as an array."""
    return np.frombuffer(values, dtype=np.uint8).astype(np.int64)


def in_two(hashes: Hashes, splits: Numbers) -> Hashes:
    """The hashes, 0 apart, that come with more than one split."""
    order = np.argsort(hashes, kind="stable")
    ranked, ranked_splits = hashes[order], splits[order]
    turns = (ranked[1:] == ranked[:-1]) & (ranked_splits[1:] != ranked_splits[:-1]) & (ranked[1:] != 0)
    return np.unique(ranked[1:][turns])


def shared_texts(texts: Iterable[tuple[str, Split]]) -> frozenset[int]:
    """The hashes (`text_hash`) of texts of at least 8 words that stand in two splits: such replies serve nobody."""
    hashes, splits = array("Q"), array("B")
    for text, split in texts:
        if len(words(text)) >= REPLY_WORDS:
            hashes.append(text_hash(text))
            splits.append(SPLITS.index(split))
    return frozenset(in_two(hashes_of(hashes), small(splits)).tolist())
