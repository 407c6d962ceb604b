"""False alarms on real conversations: every seeker utterance of a corpus alone, and a table for a person to read.

The table (CSV) has a row an alarm, by dialogue and utterance number, with the rules that raised it. Texts are in it
only if asked for, and it stays where it was written. Who has read an alarm fills in the column `true`: yes where the
words were a sign of danger, no where they were not. Read back, the table gives the share of false alarms.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from compeer.dialogue import Dialogue
from compeer.errors import InputError
from compeer.evaluate.safety import rules_of
from compeer.io import Frozen, atomic
from compeer.safety.guard import Detects
from compeer.safety.risk import LEVELS, Risk
from compeer.statistics import Estimate

COLUMNS = ("dialogue", "utterance", "level", "by", "utterances", "true")
_YES = frozenset({"yes", "y", "true", "t", "1", "是"})
_NO = frozenset({"no", "n", "false", "f", "0", "否"})


@dataclass(frozen=True)
class Alarm:
    """An utterance that raised an alarm; `utterance` counts all utterances of the dialogue from 1."""

    dialogue: str
    utterance: int
    risk: Risk
    text: str


class AlarmMetrics(Frozen):
    """How many of a corpus' seeker utterances raise an alarm."""

    utterances: int
    alarms: Estimate
    levels: dict[str, Estimate]
    rules: dict[str, int] = Field(description="alarms that a rule had a part in, the most frequent first")
    degraded: dict[str, int]


class ReadMetrics(Frozen):
    """What a person found who read the alarms."""

    utterances: int
    alarms: int
    unread: int = Field(description="alarms that nobody has judged yet; they count as false until somebody does")
    true_alarms: int
    false_alarms: Estimate = Field(description="of all utterances: alarms that were read as false, or not read yet")
    levels: dict[str, Estimate] = Field(description="the same for each level")
    false_by_rule: dict[str, int] = Field(description="alarms read as false, by the rules that had a part in them")


def seeker_utterances(dialogues: Iterable[Dialogue]) -> Iterator[tuple[str, int, str]]:
    """The dialogue, number and text of everything that seekers say."""
    for dialogue in dialogues:
        for number, utterance in enumerate(dialogue.utterances, start=1):
            if utterance.speaker == "seeker" and utterance.text.strip():
                yield dialogue.id, number, utterance.text


def raise_alarms(
    utterances: Iterable[tuple[str, int, str]], detector: Detects, advance: Callable[[int], None] = lambda _: None
) -> tuple[AlarmMetrics, list[Alarm]]:
    """Each utterance alone before the detector: the metrics, and the alarms."""
    count, alarms, degraded = 0, [], Counter[str]()
    for dialogue, number, text in utterances:
        risk = detector.detect([text])
        count += 1
        degraded.update(risk.degraded)
        if risk.level != "none":
            alarms.append(Alarm(dialogue, number, risk, text))
        advance(1)
    levels = Counter(alarm.risk.level for alarm in alarms)
    metrics = AlarmMetrics(
        utterances=count,
        alarms=Estimate.of_share(len(alarms), count),
        levels={level: Estimate.of_share(levels[level], count) for level in LEVELS if level != "none"},
        rules=dict(Counter(rule for alarm in alarms for rule in rules_of(alarm.risk)).most_common()),
        degraded=dict(degraded),
    )
    return metrics, alarms


# --- the table that a person reads ------------------------------------------------------------------------------------


def write_alarms(path: Path, alarms: Iterable[Alarm], utterances: int, texts: bool) -> None:
    """Writes the table, whole or not at all; one that is there is never overwritten, somebody may have read it."""
    check_free(path)
    # the mark at the beginning lets spreadsheets read Chinese
    with atomic(path) as unfinished, unfinished.open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, *(["text"] if texts else [])])
        for alarm in alarms:
            row = [alarm.dialogue, alarm.utterance, alarm.risk.level, "; ".join(rules_of(alarm.risk)), utterances]
            table.writerow([*row, "", *([alarm.text] if texts else [])])


def check_free(path: Path) -> None:
    """An error if the table cannot be written there; better known before an hour's work than after."""
    if path.exists():
        do = "Give another name with --to, or move it away; --read reads what was filled in."
        raise InputError("it is there already, and somebody may have filled it in.", file=path, do=do)
    if not path.parent.is_dir():
        raise InputError("there is no such folder.", file=path.parent, do="Make it first, or give another name.")


def read_alarms(path: Path) -> ReadMetrics:
    """The metrics of a table that a person filled in; an error names the line and column."""
    if not path.is_file():
        raise InputError("there is no such table of alarms.", file=path)
    judged: list[tuple[str, list[str], bool | None]] = []
    counts: set[int] = set()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            if lacking := [name for name in COLUMNS if name not in (table.fieldnames or ())]:
                do = "Give a table that --alarms wrote, saved as CSV with commas."
                raise InputError(f"it has no column {', '.join(lacking)}.", file=path, do=do)
            for row in table:
                level = row["level"]
                counts.add(_count(row["utterances"], path, table.line_num))
                if level not in LEVELS:
                    known = f"Known: {', '.join(LEVELS)}"
                    raise InputError("unknown level.", file=path, line=table.line_num, field="level", do=known)
                rules = [rule for rule in (row["by"] or "").split("; ") if rule]
                judged.append((level, rules, _judgment(row["true"], path, table.line_num)))
    except (UnicodeDecodeError, csv.Error) as error:
        what = f"it cannot be read as CSV in UTF-8: {error}"
        raise InputError(what, file=path, do="Save it as CSV, UTF-8, with commas.") from None
    if not judged:
        raise InputError("there is no alarm in it.", file=path)
    if len(counts) > 1 or min(counts) < len(judged):
        what = "the rows do not agree on how many utterances there were."
        raise InputError(
            what, file=path, field="utterances", do="Read the table of each corpus alone, as it was written."
        )
    utterances = min(counts)
    false = [(level, rules) for level, rules, true in judged if true is False]
    unread = [level for level, _, true in judged if true is None]
    at = Counter([level for level, _ in false] + unread)
    return ReadMetrics(
        utterances=utterances,
        alarms=len(judged),
        unread=len(unread),
        true_alarms=sum(true is True for _, _, true in judged),
        false_alarms=Estimate.of_share(sum(at.values()), utterances),
        levels={level: Estimate.of_share(at[level], utterances) for level in LEVELS if level != "none"},
        false_by_rule=dict(Counter(rule for _, rules in false for rule in rules).most_common()),
    )


def _count(value: str | None, path: Path, line: int) -> int:
    if not (value or "").strip().isdecimal():
        do = "Leave this column as it was written."
        raise InputError("it is not a number.", file=path, line=line, field="utterances", do=do)
    return int(value or 0)


def _judgment(value: str | None, path: Path, line: int) -> bool | None:
    word = (value or "").strip().lower()
    if word and word not in _YES | _NO:
        raise InputError("it is neither yes nor no.", file=path, line=line, field="true", do="Write yes or no.")
    return word in _YES if word else None
