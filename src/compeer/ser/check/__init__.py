"""Whether a file of SER records keeps what it promises: `compeer ser check`.

Two kinds of promises. *Nothing leaks*: no dialogue, group, near-duplicate history, opening, reply or wording stands in
two splits. *Nothing betrays the labels*: what is False in one history is True in another, decisions are as frequent on
both sides, responses are matched in length, all four preferences occur. The second kind is asked of silver labels only:
people and models judge what they find.

The records are read once, one at a time; hashes and small numbers of each are kept, never its text.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, computed_field

from compeer.io import read_json_lines
from compeer.reasoning import STEPS
from compeer.ser.check.seen import (
    FALSE,
    FALSE_BY_NATURE,
    FIRST_MESSAGES,
    HISTORIES,
    NOT_ASKED,
    REPLY_WORDS,
    TRUE,
    Numbers,
    Seen,
    hashes_of,
    id_hash,
    in_two,
    small,
)
from compeer.ser.record import PREFERENCES, SPLITS, Split, read_records
from compeer.ser.split import read_groups, read_splits
from compeer.ser.split.duplicates import Groups, Sketch, join_alike
from compeer.statistics import generator

LEAST_MATCHED, MOST_DISTANCE, MOST_LENGTH, MOST_SHARED_WORDINGS = 0.99, 0.05, 0.05, 0.0
_NAMED = 10


class Finding(BaseModel):
    """One promise: kept or not (None: nothing to judge it by), the numbers, and the records or dialogues at fault."""

    model_config = ConfigDict(frozen=True)

    name: str
    passed: bool | None
    says: str
    figures: dict[str, float] = Field(default_factory=dict)
    at_fault: tuple[str, ...] = Field(default=(), description="ids, at most ten; never text")


class Report(BaseModel):
    """What was found in a file of records."""

    model_config = ConfigDict(frozen=True)

    records: int
    findings: tuple[Finding, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return all(finding.passed is not False for finding in self.findings)


def check_records(records: Path, splits: Path | None = None, seed: int = 0) -> Report:
    """Checks a file of records, with the file of splits where there is one; `seed` draws what chance would give."""
    seen = Seen()
    for record in read_records(records):
        seen.take(record)
    seen.close()
    findings = [
        _unique(seen, records),
        _dialogues(seen, records),
        *([_as_split(seen, records, splits), _groups(splits)] if splits else []),
        _apart(seen, seen.histories, HISTORIES, "histories", "near-duplicate histories in two splits"),
        _apart(seen, seen.openings, FIRST_MESSAGES, "openings", "seekers that open alike in two splits"),
        _replies(seen, records),
        _wordings(seen, records),
        *(_matched(seen, records, split) for split in seen.there),
        *(_distance(seen, split, seed) for split in seen.there),
        *(_preferences(seen, split) for split in seen.there),
        *(_lengths(seen, split) for split in seen.there),
        _sources(seen, records),
    ]
    return Report(records=len(seen.ids), findings=tuple(findings))


def _named(path: Path, rows: Numbers, field: str = "id") -> tuple[str, ...]:
    """The ids of the first few of these records, read again from the file; each once."""
    wanted = set(rows[: 5 * _NAMED].tolist())
    found: dict[str, None] = {}
    for number, (_, value) in enumerate(read_json_lines(path)):
        if number in wanted:
            found[value[field]] = None
        if len(found) == _NAMED or not wanted or number >= max(wanted):
            break
    return tuple(found)


# --- nothing leaks ----------------------------------------------------------------------------------------------------


def _unique(seen: Seen, path: Path) -> Finding:
    ids = hashes_of(seen.ids)
    _, first = np.unique(ids, return_index=True)
    again = np.setdiff1d(np.arange(len(ids)), first)
    says = f"{len(again)} of {len(ids)} records have an id that stood before"
    return Finding(name="ids", passed=not len(again), says=says, at_fault=_named(path, again))


def _dialogues(seen: Seen, path: Path) -> Finding:
    dialogues = hashes_of(seen.dialogues)
    shared = in_two(dialogues, small(seen.splits))
    says = f"{len(shared)} of {len(seen.names)} dialogues have records in two splits"
    rows = np.flatnonzero(np.isin(dialogues, shared))
    return Finding(name="dialogues", passed=not len(shared), says=says, at_fault=_named(path, rows, "dialogue"))


def _as_split(seen: Seen, path: Path, splits: Path) -> Finding:
    given = {id_hash(dialogue): SPLITS.index(split) for dialogue, split in read_splits(splits).items()}
    pairs = zip(seen.dialogues, seen.splits, strict=True)
    wrong = np.array(
        [row for row, (dialogue, split) in enumerate(pairs) if given.get(dialogue) != split], dtype=np.int64
    )
    says = f"{len(wrong)} records are in another split than their dialogue, or it has none"
    return Finding(name="as split", passed=not len(wrong), says=says, at_fault=_named(path, wrong))


def _groups(splits: Path) -> Finding:
    given, groups = read_splits(splits), read_groups(splits)
    in_splits: dict[str, set[str]] = {}
    for dialogue, group in groups.items():
        in_splits.setdefault(group, set()).add(given[dialogue])
    shared = [group for group, found in in_splits.items() if len(found) > 1]
    says = f"{len(shared)} of {len(in_splits)} groups (the same situation, near-duplicates) stand in two splits"
    return Finding(name="groups", passed=not shared, says=says, at_fault=tuple(shared[:_NAMED]))


def _apart(seen: Seen, rows: bytearray, sketch: Sketch, name: str, what: str) -> Finding:
    """Whether dialogues whose sketches are alike are in one split; a dialogue that is in two is named elsewhere."""
    matrix = np.frombuffer(rows, dtype=np.uint8).reshape(-1, sketch.width)
    groups = Groups(len(matrix))
    joined = join_alike(groups, sketch, lambda start, stop: matrix[start:stop], len(matrix))
    split_of = dict(zip(seen.dialogues, seen.splits, strict=True))
    splits = np.array([split_of[dialogue] for dialogue in seen.names], dtype=np.int64)
    firsts = groups.firsts()
    shared = in_two((firsts + 1).astype(np.uint64), splits)
    ids = [dialogue for dialogue, _ in seen.names.values()]
    at_fault = [ids[place] for place in np.flatnonzero(np.isin(firsts + 1, shared))[:_NAMED]]
    says = f"{len(shared)} groups of {what}; {joined} such pairs in all"
    return Finding(name=name, passed=not len(shared), says=says, at_fault=tuple(at_fault))


def _replies(seen: Seen, path: Path) -> Finding:
    replies, splits = hashes_of(seen.replies), np.repeat(small(seen.splits), 2)
    shared = in_two(replies, splits)
    rows = np.flatnonzero(np.isin(replies, shared)) // 2
    says = f"{len(shared)} replies of at least {REPLY_WORDS} words stand in two splits"
    return Finding(name="replies", passed=not len(shared), says=says, at_fault=_named(path, rows))


def _wordings(seen: Seen, path: Path) -> Finding:
    """Whether steps of the test are worded as in training."""
    wordings, splits = hashes_of(seen.wordings).reshape(-1, len(STEPS)), small(seen.splits)
    test = splits == SPLITS.index("test")
    known = np.isin(wordings, np.unique(wordings[~test])) & test[:, None]
    shares: dict[str, float] = {
        part: float(known[test, column].mean()) if test.any() else 0.0 for column, part in enumerate(STEPS)
    }
    passed = max(shares.values()) <= MOST_SHARED_WORDINGS if test.any() else None
    says = "steps of the test whose words stand in training: " + _listed(shares)
    rows = np.flatnonzero(known.any(axis=1))
    return Finding(name="wordings", passed=passed, says=says, figures=shares, at_fault=_named(path, rows))


# --- nothing betrays the labels ---------------------------------------------------------------------------------------


def _matched(seen: Seen, path: Path, split: Split) -> Finding:
    """Whether every step that is False in one history is True in another, as often."""
    here = np.repeat(small(seen.splits) == SPLITS.index(split), len(STEPS))
    steps, labels = hashes_of(seen.steps), small(seen.labels)
    judged = here & (labels != NOT_ASKED)
    different, of = np.unique(steps[judged], return_inverse=True)
    true = np.bincount(of, weights=labels[judged] == TRUE, minlength=len(different))
    false = np.bincount(of, weights=labels[judged] == FALSE, minlength=len(different))
    unmatched = np.maximum(false - true, 0)
    figures = {
        "false": float(false.sum()),
        "matched": float(1 - unmatched.sum() / false.sum()) if false.any() else 1.0,
        "true for one false": float(true[false > 0].sum() / false.sum()) if false.any() else 0.0,
        "false share": float((labels[judged] != TRUE).mean()) if judged.any() else 0.0,
        "can only be false": float((labels[judged] == FALSE_BY_NATURE).sum() / max(1, (labels[judged] != TRUE).sum())),
    }
    for column, part in enumerate(STEPS):
        of_part = labels[column :: len(STEPS)][judged[column :: len(STEPS)]]
        figures[f"false share, {part}"] = float((of_part != TRUE).mean()) if len(of_part) else 0.0
    worst = different[unmatched > 0]
    rows = np.flatnonzero(judged & (labels == FALSE) & np.isin(steps, worst)) // len(STEPS)
    says = (
        f"{split}: {figures['matched']:.1%} of {false.sum():.0f} False steps are True in another history as often; "
        f"{figures['can only be false']:.1%} of the False can be True nowhere"
    )
    passed = figures["matched"] >= LEAST_MATCHED if false.any() else None
    return Finding(name=f"matched, {split}", passed=passed, says=says, figures=figures, at_fault=_named(path, rows))


def _distance(seen: Seen, split: Split, seed: int) -> Finding:
    """Whether decisions are as frequent among True as among False steps.

    The total variation distance of small samples is above 0 by chance alone: what labels drawn by chance stay below
    in 19 of 20 draws is taken off.
    """
    rng = generator(seed, "decisions", split)
    figures: dict[str, float] = {}
    for part in STEPS:
        decisions = sorted({key[3] for key in seen.decisions if key[:2] == (split, part)})
        counts = np.array([[seen.decisions[split, part, value, d] for d in decisions] for value in (True, False)])
        if counts.size and counts.sum(axis=1).all():
            drawn = rng.multivariate_hypergeometric(counts.sum(axis=0), int(counts[1].sum()), size=100)
            distances = [_total_variation(counts.sum(axis=0) - false, false) for false in drawn]
            figures[part] = _total_variation(counts[0], counts[1])
            figures[f"{part} by chance"] = float(np.quantile(distances, 0.95))
    beyond = {str(part): max(0.0, figures[part] - figures[f"{part} by chance"]) for part in STEPS if part in figures}
    says = f"{split}: distance between the decisions of True and False steps beyond chance: " + _listed(beyond)
    passed = max(beyond.values()) <= MOST_DISTANCE if beyond else None
    return Finding(name=f"decisions, {split}", passed=passed, says=says, figures=figures)


def _total_variation(one: Numbers, other: Numbers) -> float:
    return float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)


def _preferences(seen: Seen, split: Split) -> Finding:
    counts = {value: seen.preferences[split, value] for value in PREFERENCES}
    total = sum(counts.values())
    shares: dict[str, float] = {value: count / max(1, total) for value, count in counts.items()}
    says = f"{split}: {total} preferences: " + _listed(shares)
    passed = all(counts.values()) if total else None
    return Finding(name=f"preferences, {split}", passed=passed, says=says, figures=shares)


def _lengths(seen: Seen, split: Split) -> Finding:
    """Whether the longer response is the better one as often as not, within two standard errors."""
    better, worse = (np.array(values, dtype=np.int64) for values in seen.lengths.get(split, (array("L"), array("L"))))
    if not len(better):
        return Finding(name=f"lengths, {split}", passed=None, says=f"{split}: no pair with a better response")
    longer = float(((better > worse) + 0.5 * (better == worse)).mean())
    figures = {"better": float(better.mean()), "worse": float(worse.mean()), "longer is better": longer}
    passed = abs(longer - 0.5) <= MOST_LENGTH + 2 * 0.5 / len(better) ** 0.5
    says = (
        f"{split}: {figures['better']:.1f} words in the better and {figures['worse']:.1f} in the worse response; "
        f"the longer one is better in {longer:.1%} of {len(better)} pairs"
    )
    return Finding(name=f"lengths, {split}", passed=passed, says=says, figures=figures)


def _sources(seen: Seen, path: Path) -> Finding:
    rows = np.unique(np.array(seen.unsaid, dtype=np.int64))
    says = f"{len(rows)} records have a label that does not say how it came about"
    return Finding(name="sources", passed=not len(rows), says=says, at_fault=_named(path, rows))


def _listed(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items()) or "none"
