"""What a dataset card counts: one pass over the records, keeping numbers and no texts.

The exception is a handful of records to look at: one is sampled from each sort (whose, labelled how, wrong in
what), and of these the ones that differ most are chosen.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from compeer.reasoning import STEPS, Part
from compeer.ser.record import SerRecord, StepLabel, read_records
from compeer.statistics import generator, words

NONE = "none"
MOST_SORTS = 1000  # of records, and wordings of how a label came about, that are kept apart; what comes later is not

_ID = re.compile(r"\S*\d\S*")


@dataclass
class RecordCounts:
    """All numbers of a card that come from the records themselves."""

    records: int = 0
    # for each aspect: how many records have a value, by value and split
    by_split: dict[str, Counter[tuple[str, str]]] = field(default_factory=lambda: defaultdict(Counter))
    dialogues: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # hashes of their ids, by split
    steps: Counter[tuple[str, str, bool]] = field(default_factory=Counter)  # verdicts by step, source and value
    kinds: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # False verdicts by step, source and kind
    false_steps: Counter[int] = field(default_factory=Counter)
    hows: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)  # by what is labelled, source, way, value
    preferences: Counter[tuple[str, str]] = field(default_factory=Counter)  # by source and class
    better_first: Counter[bool] = field(default_factory=Counter)
    derived: Counter[str] = field(default_factory=Counter)
    lengths: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))  # by what is measured
    strategies: Counter[tuple[str, str]] = field(default_factory=Counter)  # by stage, of turns where both are not False
    emotions: Counter[tuple[str, int]] = field(default_factory=Counter)  # by intensity, of steps that are not False
    examples: list[SerRecord] = field(default_factory=list)

    @property
    def all_dialogues(self) -> set[int]:
        return set().union(*self.dialogues.values())

    def in_split(self, split: str) -> int:
        return sum(times for (_, of), times in self.by_split["source"].items() if of == split)

    @property
    def ways(self) -> list[tuple[tuple[str, str, str, str], int]]:
        """How labels came about and how often, the most frequent way of each kind first."""
        return sorted(self.hows.items(), key=lambda item: (item[0][:2], -item[1], item[0]))

    def kinds_of(self, step: str, *sources: str) -> dict[str, int]:
        """False verdicts on a step by kind, the most frequent first."""
        found = Counter[str]()
        for (part, source, kind), times in self.kinds.items():
            found[kind] += times if part == step and source in sources else 0
        return dict(sorted((+found).items(), key=lambda item: (-item[1], item[0])))

    def preferred_by(self, source: str) -> int:
        return sum(times for (by, _), times in self.preferences.items() if by == source)

    def strategies_of(self, stage: str) -> Counter[str]:
        return Counter({strategy: times for (at, strategy), times in self.strategies.items() if at == stage})

    def intensities(self, emotions: Iterable[str]) -> list[tuple[str, list[int]]]:
        """How often each emotion has each intensity from 1 to 5, the most frequent emotion first."""
        found = [(name, [self.emotions[name, level] for level in range(1, 6)]) for name in emotions]
        return sorted((item for item in found if sum(item[1])), key=lambda item: -sum(item[1]))

    def of(self, aspect: str) -> list[str]:
        """The values of an aspect, the most frequent first."""
        total: Counter[str] = Counter()
        for (value, _), number in self.by_split[aspect].items():
            total[value] += number
        return [value for value, _ in sorted(total.items(), key=lambda item: (-item[1], item[0]))]


def count_records(path: Path, examples: int, seed: int) -> RecordCounts:
    """Reads a file of records once; the counts, and up to `examples` records to look at."""
    counts = RecordCounts()
    rng = generator(seed, "card")
    met: Counter[tuple[str, ...]] = Counter()
    sampled: dict[tuple[str, ...], SerRecord] = {}
    for record in read_records(path):
        _count(counts, record)
        sort = _sort(record)
        met[sort] += 1
        if (sort in sampled or len(sampled) < MOST_SORTS) and rng.random() * met[sort] < 1:
            sampled[sort] = record
    counts.examples = most_different(sampled.values(), examples)
    return counts


def _count(counts: RecordCounts, record: SerRecord) -> None:
    split, labels, preference, turn = record.split, record.labels, record.preference, record.candidate
    counts.records += 1
    counts.dialogues[split].add(hash(record.dialogue))
    values = {
        "source": record.source,
        "language": record.language,
        "author": record.author,
        "labels of steps": labels.history.source if labels else NONE,
        "preferences": preference.source if preference else NONE,
        "rewritten": record.rewritten or NONE,
    }
    for aspect, value in values.items():
        counts.by_split[aspect][value, split] += 1
    for part, label in verdicts(record):
        counts.steps[part, label.source, label.value] += 1
        _count_how(counts, f"{part} step", label.source, label.how, str(label.value))
        counts.lengths[f"{part} step, {label.value}"][len(words(turn.step(part).text))] += 1
        if not label.value:
            counts.kinds[part, label.source, label.kind or "kind not named"] += 1
    if labels:
        counts.false_steps[sum(not label.value for _, label in verdicts(record))] += 1
    response, reference = len(words(turn.response)), len(words(record.reference))
    if preference:
        counts.preferences[preference.source, preference.value] += 1
        _count_how(counts, "preference", preference.source, preference.how, preference.value)
        if preference.value in ("candidate", "reference"):
            candidate_better = preference.value == "candidate"
            counts.better_first[candidate_better == record.candidate_first] += 1
            counts.lengths["better response"][response if candidate_better else reference] += 1
            counts.lengths["worse response"][reference if candidate_better else response] += 1
    counts.derived.update(record.derived)
    counts.lengths["history, in utterances"][len(record.history)] += 1
    counts.lengths["response"][response] += 1
    if not labels or (labels.history.value and labels.strategy.value):
        counts.strategies[turn.history.stage, turn.strategy.strategy] += 1
    if not labels or labels.emotion.value:
        counts.emotions[turn.emotion.emotion, turn.emotion.intensity] += 1


def _count_how(counts: RecordCounts, what: str, source: str, how: str, value: str) -> None:
    # What follows a semicolon, and the ids of other dialogues, would make every one different.
    key = (what, source, _ID.sub("…", how.split(";")[0]), value)
    if key not in counts.hows and len(counts.hows) >= MOST_SORTS:
        key = (what, source, "in other ways", value)
    counts.hows[key] += 1


def verdicts(record: SerRecord) -> Iterator[tuple[Part, StepLabel]]:
    """The record's verdicts by step; none where it has no labels."""
    for part in STEPS if record.labels else ():
        yield part, getattr(record.labels, part)


def _sort(record: SerRecord) -> tuple[str, ...]:
    """Whose it is, how it is labelled, and what is wrong in it."""
    preferred, wrong = record.preference.value if record.preference else NONE, _wrong(record)
    about = (record.author, record.source, record.language, f"rewritten {record.rewritten}", f"prefers {preferred}")
    return (*about, wrong[0] if len(wrong) == 1 else f"{len(wrong)} wrong")


def _wrong(record: SerRecord) -> list[str]:
    return [f"{part} {label.kind}" for part, label in verdicts(record) if not label.value]


def most_different(records: Iterable[SerRecord], number: int) -> list[SerRecord]:
    """Of the records, those with most that none chosen before them has, one after the other."""
    left = {record.id: (record, _features(record)) for record in records}
    covered: Counter[str] = Counter()
    chosen: list[SerRecord] = []
    while left and len(chosen) < number:
        best = max(left, key=lambda key: (sum(0.5 ** covered[name] for name in left[key][1]), key))
        record, names = left.pop(best)
        covered.update(names)
        chosen.append(record)
    return chosen


def _features(record: SerRecord) -> set[str]:
    wrong, turn = _wrong(record), record.candidate
    sources = {label.source for _, label in verdicts(record)}
    decided = {turn.strategy.strategy, turn.history.stage, record.split}
    return {*_sort(record), *wrong, f"{len(wrong)} wrong", *sources, *decided}


def quantile(lengths: Counter[int], share: float) -> int | None:
    """The smallest length that at least this share of all do not exceed; None of nothing."""
    found = sorted(lengths.elements())
    return found[max(0, math.ceil(share * len(found)) - 1)] if found else None
