"""SER records in the forms that trainers take, as a folder that `datasets.load_dataset` opens, also offline.

    preferences   prompt, chosen, rejected: lists of messages, for DPO, ORPO and reward trainers
    messages      messages: the conversation so far and the corpus' own turn, steps and response, for SFT
    sharegpt      conversations: the same as `from` (human, gpt) and `value`

A preference pair is a record in which one response was found better; where both are good, or neither is, there is no
pair. Histories are chats: the seeker is `user`, the supporter `assistant`, and messages in a row are one. Every row
has the record's id, dialogue and language, so that a row can be followed back to its record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from compeer.dialogue import Utterance, merge_consecutive
from compeer.errors import InputError
from compeer.io import atomic_folder, file_hash
from compeer.reasoning import render_turn
from compeer.ser.record import SPLITS, SerRecord, read_records

TrainingForm = Literal["preferences", "messages", "sharegpt"]
TRAINING_FORMS: tuple[TrainingForm, ...] = get_args(TrainingForm)
Row = dict[str, Any]
_ROLES = {"seeker": "user", "supporter": "assistant"}
_SHAREGPT = {"user": "human", "assistant": "gpt"}
_ROWS_A_GROUP = 4096


def chat_messages(history: Sequence[Utterance]) -> list[dict[str, str]]:
    """A history as the messages of a chat."""
    return [{"role": _ROLES[one.speaker], "content": one.text} for one in merge_consecutive(history)]


def preference_row(record: SerRecord) -> Row | None:
    """The two responses of a record, the better one as chosen; None where neither is better."""
    if record.preference is None or record.preference.value not in ("candidate", "reference"):
        return None
    responses = [record.candidate.response, record.reference]
    chosen, rejected = responses if record.preference.value == "candidate" else responses[::-1]
    answers = {"chosen": chosen, "rejected": rejected}
    return {
        "prompt": chat_messages(record.history),
        **{name: [{"role": "assistant", "content": text}] for name, text in answers.items()},
    }


def messages_row(record: SerRecord) -> Row | None:
    """The history and the corpus' own turn; None where somebody else wrote the turn."""
    if record.author != "corpus":
        return None
    answer = {"role": "assistant", "content": render_turn(record.candidate)}
    return {"messages": [*chat_messages(record.history), answer]}


def sharegpt_row(record: SerRecord) -> Row | None:
    """The same in ShareGPT's words."""
    found = messages_row(record)
    return found and {
        "conversations": [{"from": _SHAREGPT[one["role"]], "value": one["content"]} for one in found["messages"]]
    }


_ROW: Mapping[TrainingForm, Callable[[SerRecord], Row | None]] = {
    "preferences": preference_row,
    "messages": messages_row,
    "sharegpt": sharegpt_row,
}
_COLUMNS: Mapping[TrainingForm, tuple[str, ...]] = {
    "preferences": ("prompt", "chosen", "rejected"),
    "messages": ("messages",),
    "sharegpt": ("conversations",),
}


def export_form(records: Path, out: Path, form: TrainingForm) -> dict[str, Any]:
    """Writes the rows of a form, a file a split; returns rows by split, records without one, and hashes."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("this is there already.", file=out, do="Remove it, or give another name.")
    if not out.parent.is_dir():
        raise InputError("there is no such folder.", file=out.parent, do="Make it first, or give another name.")
    with atomic_folder(out) as unfinished:
        counts, left_out = _write(records, unfinished, form)
        if not any(counts.values()):
            do = "Give records that were judged, or another --format."
            raise InputError(f"there is nothing in this file for '{form}'.", file=records, do=do)
        files = {split: split_file(split) for split, count in counts.items() if count}
        top = "---\nlicense: other\n---\n\n# SER records\n\nThe licences of the corpora they come from hold.\n"
        about = f"\nRows in the form `{form}`: {', '.join(f'{split} {count:,}' for split, count in counts.items())}.\n"
        (unfinished / "README.md").write_text(with_configs(top + about, files), encoding="utf-8")
        hashes = {name: file_hash(unfinished / name) for name in files.values()}
    return {"records": counts, "left_out": left_out, "files": hashes}


def split_file(split: str) -> str:
    """Where the rows of a split lie, by the hub's layout."""
    return f"data/{split}-00000-of-00001.parquet"


def with_configs(card: str, files: Mapping[Any, str]) -> str:
    """A card whose metadata block names the file of each split, as the hub and `load_dataset` read it."""
    lines = ["configs:", "- config_name: default", "  data_files:"]
    for split, name in files.items():
        lines += [f"  - split: {split}", f"    path: {name}"]
    block = "\n".join(lines)
    if card.startswith("---\n"):
        return card.replace("---\n", f"---\n{block}\n", 1)
    return f"---\n{block}\n---\n\n{card}"


def _write(records: Path, folder: Path, form: TrainingForm) -> tuple[dict[str, int], int]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    names = ("from", "value") if form == "sharegpt" else ("role", "content")
    messages = pyarrow.list_(pyarrow.struct({name: pyarrow.string() for name in names}))
    fields = [(name, pyarrow.string()) for name in ("id", "dialogue", "language")]
    schema = pyarrow.schema([*fields, *((name, messages) for name in _COLUMNS[form])])
    waiting: dict[str, list[Row]] = {split: [] for split in SPLITS}
    counts, left_out, writers = dict.fromkeys(map(str, SPLITS), 0), 0, dict[str, Any]()

    def write(split: str) -> None:
        if split not in writers:
            (folder / "data").mkdir(exist_ok=True)
            writers[split] = parquet.ParquetWriter(folder / split_file(split), schema, compression="zstd")
        writers[split].write_table(pyarrow.Table.from_pylist(waiting[split], schema=schema))
        waiting[split].clear()

    try:
        for record in read_records(records):
            row = _ROW[form](record)
            if row is None:
                left_out += 1
                continue
            waiting[record.split].append(
                {"id": record.id, "dialogue": record.dialogue, "language": record.language, **row}
            )
            counts[record.split] += 1
            if len(waiting[record.split]) == _ROWS_A_GROUP:
                write(record.split)
        for split, rows in waiting.items():
            if rows:
                write(split)
    finally:
        for writer in writers.values():
            writer.close()
    return counts, left_out
