"""What is made of records: Parquet files for any tool and any trainer, a file a split.

All formats but `parquet` have the layout that `datasets.load_dataset(folder)` expects, also offline:

    parquet       reward.parquet, policy.parquet, test.parquet: flat columns, so that any tool for tables reads them
    datasets      the same columns in data/reward-00000-of-00001.parquet …
    preferences   prompt, chosen, rejected: lists of messages, for DPO, ORPO and reward trainers
    messages      messages: the conversation so far and the corpus' own turn, steps and response, for SFT
    sharegpt      conversations: the same as `from` (human, gpt) and `value`

`tables/columns.toml` says what each column holds, in the files' schema and README too. Only records in which one
response was found better are pairs. Memory does not grow with the records, and every row has its record's id.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

from compeer.dialogue import Utterance, merge_consecutive
from compeer.errors import InputError
from compeer.io import atomic_folder, file_hash
from compeer.reasoning import STEPS, render_turn
from compeer.ser.asking import table
from compeer.ser.record import SPLITS, SerRecord, read_records

Format = Literal["parquet", "datasets", "preferences", "messages", "sharegpt"]
Row = dict[str, Any]
RECORDS_A_GROUP = 4096  # records of a split that are held in memory, and that one row group of a file holds
COLUMNS: dict[str, str] = table("ser/tables/columns")  # what each column holds
_NOT_TEXT = {"round": "int32", "intensity": "int8", "candidate_first": "bool"} | {f"{s}_label": "bool" for s in STEPS}
_PLAIN = [*("id", "dialogue", "round", "language", "source", "split", "author", "response_strategy", "reference")]
_PLAIN += ["candidate_first", "rewritten"]
_ROLES = {"seeker": "user", "supporter": "assistant"}
_SHAREGPT = {"user": "human", "assistant": "gpt"}
_NO_CARD = "---\nlicense: other\n---\n\n# SER records\n\nThe licences of the corpora they come from hold.\n"


def export_records(records: Path, out: Path, format: Format) -> dict[str, Any]:
    """Writes records as a folder, their card as its README; returns rows by split, records without one, and hashes."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("this is there already.", file=out, do="Remove it, or give another name.")
    if not out.parent.is_dir():
        raise InputError("there is no such folder.", file=out.parent, do="Make it first, or give another name.")
    where = "{}.parquet" if format == "parquet" else "data/{}-00000-of-00001.parquet"
    names = {split: where.format(split) for split in SPLITS}
    with atomic_folder(out) as folder:
        counts, left_out = _write_splits(records, {split: folder / name for split, name in names.items()}, format)
        written = {split: name for split, name in names.items() if counts[split]}
        if format in FORMS:
            rows = ", ".join(f"{split} {count:,}" for split, count in counts.items())
            readme = f"{_NO_CARD}\nRows in the form `{format}`: {rows}.\n"
        else:
            readme = _with_columns(records.with_name("card.md"))
        (folder / "README.md").write_text(_with_configs(readme, written), encoding="utf-8")
        hashes = {name: file_hash(folder / name) for name in written.values()}
    return {"records": counts, "left_out": left_out, "files": hashes}


def _write_splits(records: Path, files: Mapping[str, Path], format: Format) -> tuple[dict[str, int], int]:
    """Writes each split's rows, if there are any, to its file as they come; counts them, and records without one."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    schema = _schema(format)
    row_of = FORMS.get(format) or partial(_columns_row, records)
    writers: dict[str, Any] = {}
    waiting: dict[str, list[Row]] = {split: [] for split in files}
    counts, left_out = dict.fromkeys(files, 0), 0
    with ExitStack() as closing:

        def write(split: str) -> None:
            if split not in writers:
                files[split].parent.mkdir(exist_ok=True)
                writers[split] = closing.enter_context(parquet.ParquetWriter(files[split], schema, compression="zstd"))
            writers[split].write_table(pyarrow.Table.from_pylist(waiting[split], schema=schema))
            waiting[split].clear()

        for record in read_records(records):
            row = row_of(record)
            if row is None:
                left_out += 1
                continue
            waiting[record.split].append(row)
            counts[record.split] += 1
            if len(waiting[record.split]) == RECORDS_A_GROUP:
                write(record.split)
        for split, rows in waiting.items():
            if rows:
                write(split)
    if not any(counts.values()):
        if format not in FORMS:
            raise InputError("there is no record in this file.", file=records)
        do = "Give records that were judged, or another --format."
        raise InputError(f"there is nothing in this file for '{format}'.", file=records, do=do)
    return counts, left_out


def _schema(format: Format) -> Any:
    import pyarrow

    text, seconds = pyarrow.string(), pyarrow.float64()
    if format in FORMS:
        names = ("from", "value") if format == "sharegpt" else ("role", "content")
        messages = pyarrow.list_(pyarrow.struct(dict.fromkeys(names, text)))
        fields = {"preferences": ("prompt", "chosen", "rejected"), "messages": ("messages",)}
        own = dict.fromkeys(fields.get(format, ("conversations",)), messages)
        return pyarrow.schema(dict.fromkeys(("id", "dialogue", "language"), text) | own)
    media = pyarrow.struct({"kind": text, "path": text, "start": seconds, "end": seconds})
    utterance = pyarrow.struct({"speaker": text, "text": text, "media": pyarrow.list_(media)})
    types = {name: pyarrow.type_for_alias(alias) for name, alias in _NOT_TEXT.items()}
    types |= {"history": pyarrow.list_(utterance), "derived": pyarrow.list_(text)}
    return pyarrow.schema(
        [pyarrow.field(name, types.get(name, text), metadata={"description": what}) for name, what in COLUMNS.items()]
    )


def _columns_row(file: Path, record: SerRecord) -> Row:
    """A record in all columns."""
    values = record.model_dump()
    if any(one.model_dump(exclude_defaults=True).keys() - {"speaker", "text", "media"} for one in record.history):
        what = f"record '{record.id}' has labels in its history, which no column holds."
        raise InputError(what, file=file, field="history", do="A history holds words and media only; take them out.")
    row = {name: values[name] for name in _PLAIN}
    row["derived"] = list(record.derived)
    row["history"] = [{name: one[name] for name in ("speaker", "text", "media")} for one in values["history"]]
    row["response"] = record.candidate.response
    for step in STEPS:
        decided = values["candidate"][step]
        row |= {f"{step}_text": decided.pop("text"), **decided}
        row |= _label_columns(f"{step}_label", (values["labels"] or {}).get(step))
    return row | _label_columns("preference", values["preference"])


def _label_columns(name: str, label: dict[str, Any] | None) -> dict[str, Any]:
    found = label or {}
    return {name: found.get("value"), **{f"{name}_{key}": value for key, value in found.items() if key != "value"}}


def _with_columns(card: Path) -> str:
    """The card, if there is one, and what the columns hold."""
    top = card.read_text(encoding="utf-8").rstrip() + "\n" if card.is_file() else _NO_CARD
    rows = "".join(f"| `{name}` | {what} |\n" for name, what in COLUMNS.items())
    return f"{top}\n## Columns\n\n| column | what it holds |\n|---|---|\n{rows}"


def _with_configs(card: str, files: Mapping[Any, str]) -> str:
    """A card whose metadata block names the file of each split, as the hub and `load_dataset` read it."""
    block = "configs:\n- config_name: default\n  data_files:"
    block += "".join(f"\n  - split: {split}\n    path: {name}" for split, name in files.items())
    if card.startswith("---\n"):
        return card.replace("---\n", f"---\n{block}\n", 1)
    return f"---\n{block}\n---\n\n{card}"


def chat_messages(history: Sequence[Utterance]) -> list[dict[str, str]]:
    return [{"role": _ROLES[one.speaker], "content": one.text} for one in merge_consecutive(history)]


def _preference_row(record: SerRecord) -> Row | None:
    """The two responses of a record, the better one as chosen; None where neither is better."""
    if record.preference is None or record.preference.value not in ("candidate", "reference"):
        return None
    responses = [[{"role": "assistant", "content": text}] for text in (record.candidate.response, record.reference)]
    chosen, rejected = responses if record.preference.value == "candidate" else responses[::-1]
    return _named_row(record, prompt=chat_messages(record.history), chosen=chosen, rejected=rejected)


def _messages_row(record: SerRecord) -> Row | None:
    """The history and the corpus' own turn; None where somebody else wrote the turn."""
    if record.author != "corpus":
        return None
    answer = {"role": "assistant", "content": render_turn(record.candidate)}
    return _named_row(record, messages=[*chat_messages(record.history), answer])


def _sharegpt_row(record: SerRecord) -> Row | None:
    """The same in ShareGPT's words."""
    found = _messages_row(record)
    messages = [{"from": _SHAREGPT[one["role"]], "value": one["content"]} for one in (found or {}).get("messages", ())]
    return _named_row(record, conversations=messages) if found else None


def _named_row(record: SerRecord, **columns: Any) -> Row:
    return {"id": record.id, "dialogue": record.dialogue, "language": record.language, **columns}


Form = Callable[[SerRecord], Row | None]  # the row that a record gives, or None
FORMS: dict[str, Form] = {"preferences": _preference_row, "messages": _messages_row, "sharegpt": _sharegpt_row}
