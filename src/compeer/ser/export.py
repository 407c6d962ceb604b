"""SER records as Parquet files, a file a split, and back again; and three sets of equal size to compare rewriting.

The columns are flat, so that any tool for tables can read them; `tables/columns.toml` says what each holds, and the
same words stand in the files' schema and in the README beside them. Records are read and written a few thousand at a
time, so memory does not grow with their number. The folder takes its name when it is whole.

    parquet     reward.parquet, policy.parquet, test.parquet
    datasets    data/reward-00000-of-00001.parquet …, as `datasets.load_dataset(folder)` expects them, also offline
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from compeer.errors import InputError
from compeer.io import atomic_folder, file_hash, json_line
from compeer.pipeline import Done, Stage, in_blocks
from compeer.reasoning import STEPS
from compeer.ser.asking import run_stage, table
from compeer.ser.record import SPLITS, SerRecord, read_records

RECORDS_A_GROUP = 4096
"""Records of a split that are held in memory, and that one row group of a file holds."""
COLUMNS: dict[str, str] = table("columns")
"""What each column holds."""
_NOT_TEXT = {"round": "int32", "intensity": "int8", "candidate_first": "bool"} | {f"{s}_label": "bool" for s in STEPS}
_PLAIN = [*("id", "dialogue", "round", "language", "source", "split", "author", "response_strategy", "reference")]
_PLAIN += ["candidate_first", "rewritten"]


def export_records(records: Path, out: Path, format: Literal["parquet", "datasets"]) -> dict[str, Any]:
    """Writes a file of records as a folder of Parquet files; returns the records by split and the files' hashes.

    The card of the records, if it lies beside them, becomes the folder's README.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("this is there already.", file=out, do="Remove it, or give another name.")
    if not out.parent.is_dir():
        raise InputError("there is no such folder.", file=out.parent, do="Make it first, or give another name.")
    names = {
        split: f"data/{split}-00000-of-00001.parquet" if format == "datasets" else f"{split}.parquet"
        for split in SPLITS
    }
    with atomic_folder(out) as folder:
        counts = _write_splits(records, {split: folder / name for split, name in names.items()})
        (folder / "README.md").write_text(_readme(records.with_name("card.md")), encoding="utf-8")
        files = {name: file_hash(folder / name) for split, name in names.items() if counts[split]}
        if out.is_dir():
            out.rmdir()
    return {"records": counts, "files": files}


def records_from_parquet(path: Path) -> Iterator[SerRecord]:
    """The records of an exported file, or of all files of an exported folder, one at a time."""
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    for file in sorted(path.rglob("*.parquet")) if path.is_dir() else [path]:
        with parquet.ParquetFile(file) as opened:
            if missing := [name for name in COLUMNS if name not in opened.schema_arrow.names]:
                do = "Give a folder that we exported."
                raise InputError(f"the column '{missing[0]}' is missing.", file=file, do=do)
            for batch in opened.iter_batches(RECORDS_A_GROUP):
                yield from map(_record, batch.to_pylist())


def _write_splits(records: Path, files: dict[str, Path]) -> dict[str, int]:
    """Writes each split's records to its file as they come; a split without any gets no file."""
    import pyarrow
    import pyarrow.parquet as parquet

    schema = _schema()
    writers: dict[str, Any] = {}
    waiting: dict[str, list[dict[str, Any]]] = {split: [] for split in files}
    counts = dict.fromkeys(files, 0)
    with ExitStack() as closing:

        def write(split: str) -> None:
            if split not in writers:
                files[split].parent.mkdir(exist_ok=True)
                writers[split] = closing.enter_context(parquet.ParquetWriter(files[split], schema, compression="zstd"))
            writers[split].write_table(pyarrow.Table.from_pylist(waiting[split], schema=schema))
            waiting[split].clear()

        for record in read_records(records):
            waiting[record.split].append(_row(record, records))
            counts[record.split] += 1
            if len(waiting[record.split]) == RECORDS_A_GROUP:
                write(record.split)
        for split, rows in waiting.items():
            if rows:
                write(split)
    if not any(counts.values()):
        raise InputError("there is no record in this file.", file=records)
    return counts


def _schema() -> Any:
    import pyarrow

    text, seconds = pyarrow.string(), pyarrow.float64()
    media = pyarrow.struct({"kind": text, "path": text, "start": seconds, "end": seconds})
    utterance = pyarrow.struct({"speaker": text, "text": text, "media": pyarrow.list_(media)})
    types = {name: pyarrow.type_for_alias(alias) for name, alias in _NOT_TEXT.items()}
    types |= {"history": pyarrow.list_(utterance), "derived": pyarrow.list_(text)}
    return pyarrow.schema(
        [pyarrow.field(name, types.get(name, text), metadata={"description": what}) for name, what in COLUMNS.items()]
    )


def _row(record: SerRecord, file: Path) -> dict[str, Any]:
    values = record.model_dump()
    if any(said.model_dump(exclude_defaults=True).keys() - {"speaker", "text", "media"} for said in record.history):
        what = f"record '{record.id}' has labels in its history, which no column holds."
        raise InputError(what, file=file, field="history", do="A history holds words and media only; take them out.")
    row = {name: values[name] for name in _PLAIN}
    row["derived"] = list(record.derived)
    row["history"] = [{name: said[name] for name in ("speaker", "text", "media")} for said in values["history"]]
    row["response"] = record.candidate.response
    for step in STEPS:
        decided = values["candidate"][step]
        row |= {f"{step}_text": decided.pop("text"), **decided}
        row |= _label_columns(f"{step}_label", (values["labels"] or {}).get(step))
    return row | _label_columns("preference", values["preference"])


def _label_columns(name: str, label: dict[str, Any] | None) -> dict[str, Any]:
    found = label or {}
    return {name: found.get("value"), **{f"{name}_{key}": value for key, value in found.items() if key != "value"}}


def _readme(card: Path) -> str:
    """The card, if there is one, and what the columns hold."""
    if card.is_file():
        top = card.read_text(encoding="utf-8").rstrip() + "\n"
    else:
        top = "---\nlicense: other\n---\n\n# SER records\n\nThe licences of the corpora they come from hold.\n"
    rows = "".join(f"| `{name}` | {what} |\n" for name, what in COLUMNS.items())
    return f"{top}\n## Columns\n\n| column | what it holds |\n|---|---|\n{rows}"


_DECISIONS = {"history": ("stage",), "emotion": ("sentiment", "emotion", "intensity"), "strategy": ("strategy",)}


def _record(row: dict[str, Any]) -> SerRecord:
    steps = {
        step: {"text": row[f"{step}_text"], **{name: row[name] for name in names}} for step, names in _DECISIONS.items()
    }
    labels = {step: _label(row, f"{step}_label", ("source", "how", "kind", "reason")) for step in STEPS}
    return SerRecord.model_validate(
        {
            **{name: row[name] for name in (*_PLAIN, "history", "derived")},
            "candidate": {**steps, "response": row["response"]},
            "labels": labels if all(labels.values()) else None,
            "preference": _label(row, "preference", ("source", "how", "reason")),
        }
    )


def _label(row: dict[str, Any], name: str, fields: tuple[str, ...]) -> dict[str, Any] | None:
    if row[name] is None:
        return None
    return {"value": row[name], **{field: row[f"{name}_{field}"] for field in fields}}


# --- -D, -R and -P: what rewriting does, told from what more data does ------------------------------------------------

SETS = {"duplicate": "duplicated.jsonl", "plain": "with-plain.jsonl", "personality": "with-personality.jsonl"}
"""What is added to the original records, and the file that holds them together."""
RECORDS_A_UNIT = 500


def equal_sets(
    records: Path, folder: Path, plain: Path | None = None, personality: Path | None = None
) -> dict[str, Any]:
    """Writes the set -D and one for each rewrite given; returns the manifest, which lies beside `duplicated.jsonl`.

    Each holds all original records and as many more: the same records once more (-D), plainly reworded (-R), or
    reworded by personality (-P). What is added are the records for which every rewrite given survived.
    """
    given = {kind: path for kind, path in {"plain": plain, "personality": personality}.items() if path}
    if not given:
        raise InputError("there are no rewrites.", do="Give the plain ones, those by personality, or both.")
    folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(folder / SETS["duplicate"], {}, {"original": records, **given}, beside=[SETS[kind] for kind in given])
    if found := stage.finished():
        return found
    known = {record.id for record in read_records(records) if record.split == "reward"}
    counts: Counter[str] = Counter()
    common = known
    for kind, path in given.items():
        times = Counter(_origin(record, kind, path) for record in read_records(path))
        if twice := next((origin for origin, count in times.items() if count > 1), None):
            raise InputError(f"record '{twice}' is reworded twice.", file=path, do="Keep one rewrite of each record.")
        counts[f"{kind} without an original"] = len(times.keys() - known)
        counts[kind] = len(times.keys() & known)
        common = common & times.keys()
    if not common:
        what = "no record has its rewrites in all files given."
        raise InputError(what, file=records, do="Give the records that the rewrites were made of.")
    return run_stage(stage, _set_units(records, given, common, counts), lambda done: done)


def _set_units(original: Path, given: dict[str, Path], common: set[str], counts: Counter[str]) -> Iterator[Done]:
    for block in in_blocks(read_records(original), RECORDS_A_UNIT):
        lines = [json_line(record) for record in block]
        again = [json_line(r.model_copy(update={"id": f"{r.id}~duplicate"})) for r in block if r.id in common]
        beside = {SETS[kind]: lines for kind in given}
        yield Done(lines + again, beside, {"sets": {"original": len(block), "added": len(again)}})
    for kind, path in given.items():
        for block in in_blocks(read_records(path), RECORDS_A_UNIT):
            yield Done(beside={SETS[kind]: [json_line(r) for r in block if _origin(r, kind, path) in common]})
    yield Done(counts={"rewrites": counts})


def _origin(record: SerRecord, kind: str, path: Path) -> str:
    """The id of the record that this one was made of."""
    if record.rewritten != kind:
        raise InputError(f"record '{record.id}' is no {kind} rewrite.", file=path, field="rewritten")
    return record.id.removesuffix(f"~{kind}")
