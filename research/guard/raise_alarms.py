"""False alarms on real conversations: every seeker utterance of a corpus alone, and a table for a person to read.

    python research/guard/raise_alarms.py esconv.json --show    # writes alarms.csv
    python research/guard/alarms.py alarms.csv                  # after its column `true` was filled in: yes or no

The table (CSV) has a row an alarm, by dialogue and utterance number, with the rules that raised it. Texts are in it
only if asked for, and it stays where it was written. Who has read an alarm fills in the column `true`: yes where the
words were a sign of danger, no where they were not.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from research.command import run_command

from compeer import safety
from compeer.cli.printing import note_written, print_table, with_bounds, write_metrics
from compeer.corpora import read_corpus
from compeer.dialogue import Dialogue
from compeer.errors import InputError
from compeer.evaluate.safety import rules_of
from compeer.io import Frozen, atomic, check_writable
from compeer.progress import progress
from compeer.safety.guard import Detects
from compeer.safety.risk import LEVELS, Risk
from compeer.statistics import Estimate

COLUMNS = ("dialogue", "utterance", "level", "by", "utterances", "true")


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
        do = "Give another name with --to, or move it away."
        raise InputError("it is there already, and somebody may have filled it in.", file=path, do=do)
    if not path.parent.is_dir():
        raise InputError("there is no such folder.", file=path.parent, do="Make it first, or give another name.")


def main(
    corpus: Annotated[str, typer.Argument(help="A corpus file or folder, or 'sample'.")],
    to: Annotated[Path, typer.Option(help="The table of alarms to write, for a person to read.")] = Path("alarms.csv"),
    show: Annotated[bool, typer.Option("--show", help="Write the utterances' texts too.")] = False,
    classifier: Annotated[
        bool, typer.Option("--classifier/--no-classifier", help="The best reader, or rules and weighted phrases alone.")
    ] = True,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all metrics as JSON.")] = None,
) -> None:
    """Let the guard read every seeker utterance of a corpus alone, and write a table of its alarms."""
    if out:
        check_writable(out)
    check_free(to)
    detector = safety.Detector() if classifier else safety.Detector(classifier=None)
    utterances = list(seeker_utterances(read_corpus(corpus)))
    with progress("Detecting", len(utterances)) as advance:
        metrics, found = raise_alarms(utterances, detector, advance)
    write_alarms(to, found, metrics.utterances, show)
    typer.echo(f"{metrics.utterances:,} seeker utterances, each alone")
    shares = {"all": metrics.alarms, **metrics.levels}
    print_table(["Alarms", ""], [[level, with_bounds(one)] for level, one in shares.items()])
    for rule, count in metrics.rules.items():
        typer.echo(f"{count:7,}  {rule}")
    for part, count in metrics.degraded.items():
        typer.echo(f"Degraded in {count:,} answers: {part}")
    note_written(to)
    write_metrics(out, {"classifier": classifier, "alarms": metrics.model_dump()})


if __name__ == "__main__":
    run_command(main)
