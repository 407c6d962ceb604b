"""SER records as Parquet files, a file a split, and back again.

The columns are flat, so that any tool for tables can read them; `COLUMNS` says what each holds, and the same words
stand in the files' schema and in the README beside them. Records are read and written a few thousand at a time, so
memory does not grow with their number. The folder takes its name when it is whole.

    parquet     reward.parquet, policy.parquet, test.parquet
    datasets    data/reward-00000-of-00001.parquet …, as `datasets.load_dataset(folder)` expects them, also offline
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from compeer.dialogue import Media, Utterance
from compeer.errors import InputError
from compeer.io import file_hash
from compeer.reasoning import STEPS, EmotionStep, HistoryStep, StrategyStep, SupportTurn
from compeer.ser.forms import split_file, with_configs
from compeer.ser.record import SPLITS, PreferenceLabel, SerRecord, StepLabel, StepLabels, read_records

RECORDS_A_GROUP = 4096
"""Records of a split that are held in memory, and that one row group of a file holds."""

COLUMNS: dict[str, str] = {
    "id": "the record's own id",
    "dialogue": "the dialogue it comes from; no dialogue is in two splits",
    "round": "which of the dialogue's rounds it answers, counted from 1",
    "language": "ISO 639-1 code",
    "source": "the corpus",
    "split": "reward, policy or test",
    "history": "what was said before: speaker, text and media of each utterance",
    "author": "who wrote the candidate turn: corpus, silver, or a model's name",
    "history_text": "step 1, what the seeker's issue is",
    "stage": "step 1's decision: the stage of support",
    "emotion_text": "step 2, what the seeker feels",
    "sentiment": "step 2's decision: positive, negative or neutral",
    "emotion": "step 2's decision: the emotion",
    "intensity": "step 2's decision: 1 to 5",
    "strategy_text": "step 3, which kind of help fits now",
    "strategy": "step 3's decision: one of eight strategies",
    "response": "the candidate's response, which the seeker reads",
    "response_strategy": "the strategy that the corpus gives to the candidate's response; null: not known",
    "reference": "the other response, which the candidate's is compared with",
    "candidate_first": "whether the candidate's response is shown before the reference",
    **{
        f"{step}_label{suffix}": f"the verdict on the {step} step: {what}"
        for step in STEPS
        for suffix, what in {
            "": "true or false; null: not judged yet",
            "_source": "who gave it (human, llm or silver)",
            "_how": "how it came about",
            "_kind": "what is wrong with the step",
            "_reason": "the annotator's own words",
        }.items()
    },
    "preference": "the better response: candidate, reference, both (good) or neither (acceptable); null: not compared",
    "preference_source": "who gave the preference",
    "preference_how": "how the preference came about",
    "preference_reason": "the annotator's own words",
    "derived": "decisions that a rule gave, not the corpus",
    "rewritten": "how the dialogue was reworded: plain, personality, or null",
}
_NOT_TEXT = {"round": "int32", "intensity": "int8", "candidate_first": "bool"}


def export_records(records: Path, out: Path, format: Literal["parquet", "datasets"]) -> dict[str, Any]:
    """Writes a file of records as a folder of Parquet files; returns the records by split and the files' hashes.

    The card of the records, if it lies beside them, becomes the folder's README.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("this is there already.", file=out, do="Remove it, or give another name.")
    if not out.parent.is_dir():
        raise InputError("there is no such folder.", file=out.parent, do="Make it first, or give another name.")
    unfinished = out.with_name(out.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    names = {split: split_file(split) if format == "datasets" else f"{split}.parquet" for split in SPLITS}
    try:
        counts = _write_splits(records, {split: unfinished / name for split, name in names.items()})
        readme = _readme(records.with_name("card.md"))
        known = {split: name for split, name in names.items() if counts[split]}
        (unfinished / "README.md").write_text(with_configs(readme, known), encoding="utf-8")
        files = {name: file_hash(unfinished / name) for split, name in names.items() if counts[split]}
        if out.is_dir():
            out.rmdir()
        os.replace(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return {"records": counts, "files": files}


def records_from_parquet(path: Path) -> Iterator[SerRecord]:
    """The records of an exported file, or of all files of an exported folder, one at a time."""
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    for file in sorted(path.rglob("*.parquet")) if path.is_dir() else [path]:
        with parquet.ParquetFile(file) as opened:
            if missing := [name for name in COLUMNS if name not in opened.schema_arrow.names]:
                raise InputError(
                    f"the column '{missing[0]}' is missing.", file=file, do="Give a folder that we exported."
                )
            for batch in opened.iter_batches(RECORDS_A_GROUP):
                yield from map(_record, batch.to_pylist())


# --- writing ----------------------------------------------------------------------------------------------------------


def _write_splits(records: Path, files: dict[str, Path]) -> dict[str, int]:
    """Writes each split's records to its file as they come; a split without any gets no file."""
    import pyarrow
    import pyarrow.parquet as parquet

    schema = _schema()
    writers: dict[str, Any] = {}
    waiting: dict[str, list[dict[str, Any]]] = {split: [] for split in files}
    counts = dict.fromkeys(files, 0)

    def write(split: str) -> None:
        if split not in writers:
            files[split].parent.mkdir(exist_ok=True)
            writers[split] = parquet.ParquetWriter(files[split], schema, compression="zstd")
        writers[split].write_table(pyarrow.Table.from_pylist(waiting[split], schema=schema))
        waiting[split].clear()

    try:
        for record in read_records(records):
            waiting[record.split].append(_row(record, records))
            counts[record.split] += 1
            if len(waiting[record.split]) == RECORDS_A_GROUP:
                write(record.split)
        for split, rows in waiting.items():
            if rows:
                write(split)
    finally:
        for writer in writers.values():
            writer.close()
    if not any(counts.values()):
        raise InputError("there is no record in this file.", file=records)
    return counts


def _schema() -> Any:
    import pyarrow

    media = pyarrow.struct(
        {"kind": pyarrow.string(), "path": pyarrow.string(), "start": pyarrow.float64(), "end": pyarrow.float64()}
    )
    said = {"speaker": pyarrow.string(), "text": pyarrow.string(), "media": pyarrow.list_(media)}
    types = {name: pyarrow.type_for_alias(alias) for name, alias in _NOT_TEXT.items()}
    types |= {f"{step}_label": pyarrow.bool_() for step in STEPS}
    types |= {"history": pyarrow.list_(pyarrow.struct(said)), "derived": pyarrow.list_(pyarrow.string())}
    return pyarrow.schema(
        [
            pyarrow.field(name, types.get(name, pyarrow.string()), metadata={"description": what})
            for name, what in COLUMNS.items()
        ]
    )


def _row(record: SerRecord, file: Path) -> dict[str, Any]:
    turn = record.candidate
    return {
        **record.model_dump(include=_PLAIN),
        "derived": list(record.derived),
        "history": [_said(utterance, record, file) for utterance in record.history],
        **_step_columns(turn),
        "response": turn.response,
        **{
            column: value
            for step in STEPS
            for column, value in _label_columns(f"{step}_label", getattr(record.labels, step, None)).items()
        },
        **_label_columns("preference", record.preference),
    }


_PLAIN = {
    *("id", "dialogue", "round", "language", "source", "split", "author"),
    *("response_strategy", "reference", "candidate_first", "rewritten"),
}


def _said(utterance: Utterance, record: SerRecord, file: Path) -> dict[str, Any]:
    said = utterance.model_dump(exclude_defaults=True)
    if said.keys() - {"speaker", "text", "media"}:
        what = f"record '{record.id}' has labels in its history, which no column holds."
        raise InputError(what, file=file, field="history", do="A history holds words and media only; take them out.")
    return {
        "speaker": utterance.speaker,
        "text": utterance.text,
        "media": [one.model_dump() for one in utterance.media],
    }


def _step_columns(turn: SupportTurn) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for step in STEPS:
        values = turn.step(step).model_dump()
        found |= {f"{step}_text": values.pop("text"), **values}
    return found


def _label_columns(name: str, label: StepLabel | PreferenceLabel | None) -> dict[str, Any]:
    values = label.model_dump() if label else {}
    return {name: values.pop("value", None), **{f"{name}_{key}": value for key, value in values.items()}}


def _readme(card: Path) -> str:
    """The card, if there is one, and what the columns hold."""
    if card.is_file():
        top = card.read_text(encoding="utf-8").rstrip() + "\n"
    else:
        top = "---\nlicense: other\n---\n\n# SER records\n\nThe licences of the corpora they come from hold.\n"
    rows = "".join(f"| `{name}` | {what} |\n" for name, what in COLUMNS.items())
    return f"{top}\n## Columns\n\n| column | what it holds |\n|---|---|\n{rows}"


# --- reading ----------------------------------------------------------------------------------------------------------


def _record(row: dict[str, Any]) -> SerRecord:
    steps = {step: _label(StepLabel, row, f"{step}_label") for step in STEPS}
    return SerRecord(
        **{name: row[name] for name in _PLAIN},
        history=tuple(
            Utterance(speaker=said["speaker"], text=said["text"], media=tuple(Media(**one) for one in said["media"]))
            for said in row["history"]
        ),
        candidate=SupportTurn(
            history=HistoryStep(text=row["history_text"], stage=row["stage"]),
            emotion=EmotionStep(
                text=row["emotion_text"],
                sentiment=row["sentiment"],
                emotion=row["emotion"],
                intensity=row["intensity"],
            ),
            strategy=StrategyStep(text=row["strategy_text"], strategy=row["strategy"]),
            response=row["response"],
        ),
        labels=StepLabels.model_validate(steps) if all(steps.values()) else None,
        preference=_label(PreferenceLabel, row, "preference"),
        derived=tuple(row["derived"]),
    )


def _label(kind: type[StepLabel] | type[PreferenceLabel], row: dict[str, Any], name: str) -> Any:
    if row[name] is None:
        return None
    values = {field: row[f"{name}_{field}"] for field in kind.model_fields if field != "value"}
    return kind(value=row[name], **values)
