"""Judgments in a file, so that metrics are computed later and elsewhere: judging may need a GPU. A line a record:

    {"id": "r1", "shown": "5f1c…", "judgment": {"steps": {"history": 0.93, …}, "response": {"candidate": 0.61, …}, …}}
    {"id": "r2", "shown": "08ab…", "unscored": "the history is too long"}

where `shown` is a digest of the text: a line is refused if its record has another text by now.
"""

from collections.abc import Iterable
from pathlib import Path

from compeer.errors import InputError
from compeer.io import Frozen, read_numbered, write_text
from compeer.reward.metrics import text_digest
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import SerRecord


class _JudgmentLine(Frozen):
    id: str
    shown: str | None = None  # a digest of the record's text; older files have none
    judgment: Judgment | None = None
    unscored: str | None = None


def write_judgments(path: Path, records: Iterable[SerRecord], judgments: Iterable[Judgment | Unscored]) -> int:
    """Writes the judgment of each record, whole or not at all, and returns how many."""
    lines = []
    for record, found in zip(records, judgments, strict=True):
        outcome = {"unscored": found.reason} if isinstance(found, Unscored) else {"judgment": found}
        line = _JudgmentLine.model_validate({"id": record.id, "shown": text_digest(record), **outcome})
        lines.append(line.model_dump_json(exclude_none=True) + "\n")
    write_text(path, "".join(lines))
    return len(lines)


def read_judgments(path: Path, records: Iterable[SerRecord]) -> list[Judgment | Unscored]:
    """The judgment of each record, `Unscored` where there is none; an error where another text was judged."""
    records = list(records)
    digests = {record.id: text_digest(record) for record in records}
    found: dict[str, Judgment | Unscored] = {}
    for number, line in read_numbered(path, _JudgmentLine, "file of judgments"):
        if line.id in found:
            raise InputError(f"record '{line.id}' is judged twice.", file=path, line=number, field="id")
        if (line.judgment is None) == (line.unscored is None):
            raise InputError("a line holds either a judgment or why there is none.", file=path, line=number)
        if line.shown is not None and line.shown != digests.get(line.id, line.shown):
            what = f"record '{line.id}' has another text, or its responses another order, than when it was judged."
            do = "Give the records that were judged, or judge these with `compeer reward judge`."
            raise InputError(what, file=path, line=number, field="shown", do=do)
        found[line.id] = line.judgment or Unscored(line.unscored or "")
    return [found.get(record.id, Unscored("not in the file of judgments")) for record in records]
