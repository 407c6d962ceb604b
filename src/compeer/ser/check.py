"""Whether a file of SER records keeps what it promises: `compeer ser check`.

*Nothing leaks*: no dialogue, group, near-duplicate history, opening, reply or wording stands in two splits. *Nothing
betrays the labels*: what is False in one history is True in another, decisions are as frequent on both sides, responses
are matched in length, all four preferences occur; this is asked of silver labels only. Only ids, hashes and small
numbers are kept, never a text: a million records take some hundred megabytes.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field, computed_field

from compeer.io import Frozen
from compeer.reasoning import STEPS, Part, render_step
from compeer.ser.record import PREFERENCES, SPLITS, SerRecord, Split, StepLabel, read_records
from compeer.ser.split import OPENINGS, TEXTS, Groups, WordSketch, first_message, iter_splits, join_alike, words_hash
from compeer.statistics import Indices, generator, mean, words

LEAST_MATCHED, MOST_DISTANCE, MOST_LENGTH, MOST_SHARED_WORDINGS = 0.99, 0.05, 0.05, 0.0
REPLY_WORDS, HISTORY_WORDS = 8, 20  # shorter replies ("I am sorry to hear that.") are common property
HISTORIES, FIRST_MESSAGES = replace(TEXTS, bound=TEXTS.bound + 0.1), replace(OPENINGS, bound=OPENINGS.bound + 0.1)
"""Bounds a little above those of the split: an estimate that falls on the other side of a bound is no leak."""
ONLY_FALSE = ("reasoning contradicts the decision", "swapped fact", "wrong stage")
"""Mistakes made by changing one part of a step, which as a whole can be True nowhere; their share is reported."""
FALSE, TRUE, FALSE_BY_NATURE, NOT_ASKED = range(4)
"""What is kept of a step's label; only silver labels of records with a preference are asked to be matched."""
_NAMED = 10

Hashes = npt.NDArray[np.uint64]


class CheckFinding(Frozen):
    """One promise: kept or not (None: nothing to judge it by), the numbers, and the records or dialogues at fault."""

    name: str
    passed: bool | None
    message: str
    metrics: dict[str, float] = Field(default_factory=dict)
    at_fault: tuple[str, ...] = Field(default=(), description="ids, at most ten; never text")


class CheckReport(Frozen):
    """What was found in a file of records."""

    records: int
    findings: tuple[CheckFinding, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return all(finding.passed is not False for finding in self.findings)


def check_records(records: Path, splits: Path | None = None, seed: int = 0) -> CheckReport:
    """Checks a file of records, with the file of splits where there is one; `seed` samples what chance would give."""
    columns = Columns()
    for _, those in groupby(read_records(records), key=lambda record: record.dialogue):
        columns.add(list(those))
    there = [split for number, split in enumerate(SPLITS) if number in set(columns.splits)]
    by_split = (_matched, partial(_distance, seed=seed), _preferences, _lengths)
    findings = [
        _unique(columns),
        _dialogues(columns),
        *([_as_split(columns, splits), _groups(splits)] if splits else []),
        _apart(columns, columns.histories, HISTORIES, "histories", "near-duplicate histories in two splits"),
        _apart(columns, columns.openings, FIRST_MESSAGES, "openings", "seekers that open alike in two splits"),
        _replies(columns),
        _wordings(columns),
        *(check(columns, split) for check in by_split for split in there),
        _sources(columns),
    ]
    return CheckReport(records=len(columns.ids), findings=tuple(findings))


class Columns:
    """Columns of ids, hashes and small numbers: of records, their steps (three a record) and replies (two a record)."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.indices: dict[str, int] = {}  # of the dialogues, among the sketches
        self.dialogues, self.splits = array("Q"), array("B")
        self.steps, self.wordings, self.labels, self.replies = array("Q"), array("Q"), array("B"), array("Q")
        self.decisions: Counter[tuple[Split, Part, bool, str]] = Counter()
        self.preferences: Counter[tuple[Split, str]] = Counter()
        self.lengths: dict[str, tuple[array[int], array[int]]] = {}
        self.without_source: list[int] = []
        self.histories, self.openings, self._longest = list[bytes](), list[bytes](), array("L")

    def add(self, records: list[SerRecord]) -> None:
        """Adds records of one dialogue, and keeps the sketch of its longest history."""
        for record in records:
            self._add_steps(record)
            self._add_responses(record)
            self.ids.append(record.id)
            self.dialogues.append(self.indices.setdefault(record.dialogue, len(self.indices)))
            self.splits.append(SPLITS.index(record.split))
        lengths = [sum(len(utterance.text) for utterance in record.history) for record in records]
        self._sketch(records[int(np.argmax(lengths))], max(lengths))

    def _add_steps(self, record: SerRecord) -> None:
        for part in STEPS:
            step = record.candidate.step(part)
            label: StepLabel | None = getattr(record.labels, part, None)
            self.steps.append(words_hash(render_step(part, step)))
            self.wordings.append(words_hash(step.text))
            asked = NOT_ASKED
            if label and label.source == "silver" and record.preference:
                asked = TRUE if label.value else FALSE_BY_NATURE if label.kind in ONLY_FALSE else FALSE
                self.decisions[record.split, part, label.value, step.decision] += 1
            self.labels.append(asked)
            if label and not label.how.strip():
                self.without_source.append(len(self.ids))

    def _add_responses(self, record: SerRecord) -> None:
        texts, preference = (record.candidate.response, record.reference), record.preference
        counts = [len(words(text)) for text in texts]
        pairs = zip(texts, counts, strict=True)
        self.replies.extend(words_hash(text) if count >= REPLY_WORDS else 0 for text, count in pairs)
        if preference and not preference.how.strip():
            self.without_source.append(len(self.ids))
        if preference and preference.source == "silver":
            self.preferences[record.split, preference.value] += 1
            if preference.value in ("candidate", "reference"):
                better, worse = self.lengths.setdefault(record.split, (array("L"), array("L")))
                better.append(counts[preference.value == "reference"])
                worse.append(counts[preference.value == "candidate"])

    def _sketch(self, record: SerRecord, length: int) -> None:
        index = self.indices[record.dialogue]
        if index == len(self._longest):
            self._longest.append(0)
            self.histories.append(bytes(HISTORIES.width))
            self.openings.append(bytes(FIRST_MESSAGES.width))
        if length <= self._longest[index]:
            return
        self._longest[index] = length
        text = "\n".join(utterance.text for utterance in record.history)
        if len(words(text)) >= HISTORY_WORDS:
            self.histories[index] = HISTORIES.of(text).tobytes()
        self.openings[index] = FIRST_MESSAGES.of(first_message(record.history)).tobytes()


def _hashes(values: array[int]) -> Hashes:
    return np.frombuffer(values, dtype=np.uint64)


def _small(values: array[int]) -> Indices:
    return np.frombuffer(values, dtype=np.uint8).astype(np.int64)


def _in_two(hashes: Hashes, splits: Indices) -> Hashes:
    """The hashes, 0 apart, that come with more than one split."""
    order = np.argsort(hashes, kind="stable")
    ranked, ranked_splits = hashes[order], splits[order]
    turns = (ranked[1:] == ranked[:-1]) & (ranked_splits[1:] != ranked_splits[:-1]) & (ranked[1:] != 0)
    return np.unique(ranked[1:][turns])


def shared_texts(texts: Iterable[tuple[str, Split]]) -> frozenset[int]:
    """The hashes (`words_hash`) of texts of at least 8 words that stand in two splits: such replies serve nobody."""
    hashes, splits = array("Q"), array("B")
    for text, split in texts:
        if len(words(text)) >= REPLY_WORDS:
            hashes.append(words_hash(text))
            splits.append(SPLITS.index(split))
    return frozenset(_in_two(_hashes(hashes), _small(splits)).tolist())


# --- nothing leaks ----------------------------------------------------------------------------------------------------


def _none(name: str, count: int, message: str, at_fault: Iterable[str]) -> CheckFinding:
    """The finding that there should be none of something."""
    return CheckFinding(name=name, passed=not count, message=f"{count} {message}", at_fault=tuple(at_fault))


def _named(columns: Columns, rows: Iterable[int]) -> tuple[str, ...]:
    """The ids of the first few of these records, each once."""
    return tuple(dict.fromkeys(columns.ids[row] for row in islice(rows, 5 * _NAMED)))[:_NAMED]


def _unique(columns: Columns) -> CheckFinding:
    first = {name: row for row, name in reversed(list(enumerate(columns.ids)))}
    again = [row for row, name in enumerate(columns.ids) if first[name] != row]
    message = f"of {len(columns.ids)} records have an id that stood before"
    return _none("ids", len(again), message, _named(columns, again))


def _dialogues(columns: Columns) -> CheckFinding:
    shared = _in_two(_hashes(columns.dialogues) + np.uint64(1), _small(columns.splits)) - np.uint64(1)
    names = list(columns.indices)
    message = f"of {len(names)} dialogues have records in two splits"
    return _none("dialogues", len(shared), message, [names[index] for index in shared[:_NAMED].tolist()])


def _as_split(columns: Columns, splits: Path) -> CheckFinding:
    given = {line.dialogue: SPLITS.index(line.split) for line in iter_splits(splits)}
    names, pairs = list(columns.indices), zip(columns.dialogues, columns.splits, strict=True)
    wrong = [row for row, (dialogue, split) in enumerate(pairs) if given.get(names[dialogue]) != split]
    message = "records are in another split than their dialogue, or it has none"
    return _none("as split", len(wrong), message, _named(columns, wrong))


def _groups(splits: Path) -> CheckFinding:
    in_splits: dict[str, set[str]] = {}
    for line in iter_splits(splits):
        in_splits.setdefault(line.group or line.dialogue, set()).add(line.split)
    shared = [group for group, found in in_splits.items() if len(found) > 1]
    message = f"of {len(in_splits)} groups (the same situation, near-duplicates) stand in two splits"
    return _none("groups", len(shared), message, shared[:_NAMED])


def _apart(columns: Columns, rows: list[bytes], sketch: WordSketch, name: str, what: str) -> CheckFinding:
    """Whether dialogues whose sketches are alike are in one split; a dialogue that is in two is named elsewhere."""
    matrix = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, sketch.width)
    groups = Groups(len(matrix))
    joined = join_alike(groups, sketch, matrix.__getitem__)
    split_of = dict(zip(columns.dialogues, columns.splits, strict=True))
    splits = np.array([split_of[index] for index in range(len(matrix))], dtype=np.int64)
    shared = _in_two((groups.firsts + 1).astype(np.uint64), splits)
    names = list(columns.indices)
    at_fault = [names[index] for index in np.flatnonzero(np.isin(groups.firsts + 1, shared))[:_NAMED]]
    return _none(name, len(shared), f"groups of {what}; {joined} such pairs in all", at_fault)


def _replies(columns: Columns) -> CheckFinding:
    replies = _hashes(columns.replies)
    shared = _in_two(replies, np.repeat(_small(columns.splits), 2))
    rows = np.flatnonzero(np.isin(replies, shared)) // 2
    message = f"replies of at least {REPLY_WORDS} words stand in two splits"
    return _none("replies", len(shared), message, _named(columns, rows.tolist()))


def _wordings(columns: Columns) -> CheckFinding:
    """Whether steps of the test are worded as in training."""
    wordings = _hashes(columns.wordings).reshape(-1, len(STEPS))
    test = _small(columns.splits) == SPLITS.index("test")
    known = np.isin(wordings, np.unique(wordings[~test])) & test[:, None]
    shares = {str(part): float(known[test, n].mean()) if test.any() else 0.0 for n, part in enumerate(STEPS)}
    passed = max(shares.values()) <= MOST_SHARED_WORDINGS if test.any() else None
    message = "steps of the test whose words stand in training: " + _listed(shares)
    at_fault = _named(columns, np.flatnonzero(known.any(axis=1)).tolist())
    return CheckFinding(name="wordings", passed=passed, message=message, metrics=shares, at_fault=at_fault)


# --- nothing betrays the labels ---------------------------------------------------------------------------------------


def _matched(columns: Columns, split: Split) -> CheckFinding:
    """Whether every step that is False in one history is True in another, as often."""
    here = np.repeat(_small(columns.splits) == SPLITS.index(split), len(STEPS))
    steps, labels = _hashes(columns.steps), _small(columns.labels)
    judged = here & (labels != NOT_ASKED)
    different, of = np.unique(steps[judged], return_inverse=True)
    size, given = len(different), labels[judged]
    true, false = (np.bincount(of, weights=given == value, minlength=size) for value in (TRUE, FALSE))
    unmatched = np.maximum(false - true, 0)
    wrong = given != TRUE
    metrics = {
        "false": float(false.sum()),
        "matched": float(1 - unmatched.sum() / false.sum()) if false.any() else 1.0,
        "true for one false": float(true[false > 0].sum() / false.sum()) if false.any() else 0.0,
        "false share": mean(wrong) or 0.0,
        "can only be false": float((given == FALSE_BY_NATURE).sum() / max(1, wrong.sum())),
    }
    for column, part in enumerate(STEPS):
        own = labels[column :: len(STEPS)][judged[column :: len(STEPS)]]
        metrics[f"false share, {part}"] = mean(own != TRUE) or 0.0
    rows = np.flatnonzero(judged & (labels == FALSE) & np.isin(steps, different[unmatched > 0])) // len(STEPS)
    message = (
        f"{split}: {metrics['matched']:.1%} of {false.sum():.0f} False steps are True in another history as often; "
        f"{metrics['can only be false']:.1%} of the False can be True nowhere"
    )
    passed = metrics["matched"] >= LEAST_MATCHED if false.any() else None
    at_fault = _named(columns, rows.tolist())
    return CheckFinding(name=f"matched, {split}", passed=passed, message=message, metrics=metrics, at_fault=at_fault)


def _distance(columns: Columns, split: Split, seed: int) -> CheckFinding:
    """Whether decisions are as frequent among True as among False steps, beyond what chance does in 19 of 20 cases."""
    rng = generator(seed, "decisions", split)
    metrics: dict[str, float] = {}
    for part in STEPS:
        decisions = sorted({key[3] for key in columns.decisions if key[:2] == (split, part)})
        counts = np.array([[columns.decisions[split, part, value, d] for d in decisions] for value in (True, False)])
        if counts.size and counts.sum(axis=1).all():
            random = rng.multivariate_hypergeometric(counts.sum(axis=0), int(counts[1].sum()), size=100)
            distances = [_total_variation(counts.sum(axis=0) - false, false) for false in random]
            metrics[part] = _total_variation(counts[0], counts[1])
            metrics[f"{part} by chance"] = float(np.quantile(distances, 0.95))
    beyond = {str(part): max(0.0, metrics[part] - metrics[f"{part} by chance"]) for part in STEPS if part in metrics}
    message = f"{split}: distance between the decisions of True and False steps beyond chance: " + _listed(beyond)
    passed = max(beyond.values()) <= MOST_DISTANCE if beyond else None
    return CheckFinding(name=f"decisions, {split}", passed=passed, message=message, metrics=metrics)


def _total_variation(one: Indices, other: Indices) -> float:
    return float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)


def _preferences(columns: Columns, split: Split) -> CheckFinding:
    counts = {value: columns.preferences[split, value] for value in PREFERENCES}
    total = sum(counts.values())
    shares = {str(value): count / max(1, total) for value, count in counts.items()}
    message, passed = f"{split}: {total} preferences: " + _listed(shares), all(counts.values()) if total else None
    return CheckFinding(name=f"preferences, {split}", passed=passed, message=message, metrics=shares)


def _lengths(columns: Columns, split: Split) -> CheckFinding:
    """Whether the longer response is the better one as often as not, within two standard errors."""
    if split not in columns.lengths:
        return CheckFinding(name=f"lengths, {split}", passed=None, message=f"{split}: no pair with a better response")
    better, worse = (np.array(values, dtype=np.int64) for values in columns.lengths[split])
    longer = float(((better > worse) + 0.5 * (better == worse)).mean())
    metrics = {"better": float(better.mean()), "worse": float(worse.mean()), "longer is better": longer}
    passed = abs(longer - 0.5) <= MOST_LENGTH + 2 * 0.5 / len(better) ** 0.5
    message = (
        f"{split}: {metrics['better']:.1f} words in the better and {metrics['worse']:.1f} in the worse response; "
        f"the longer one is better in {longer:.1%} of {len(better)} pairs"
    )
    return CheckFinding(name=f"lengths, {split}", passed=passed, message=message, metrics=metrics)


def _sources(columns: Columns) -> CheckFinding:
    rows, message = sorted(set(columns.without_source)), "records have a label that does not say how it came about"
    return _none("sources", len(rows), message, _named(columns, rows))


def _listed(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items()) or "none"
