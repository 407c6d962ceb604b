"""Records in the forms that trainers take: `load_dataset` opens them, and each row leads back to its record."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from compeer.dialogue import Utterance
from compeer.errors import InputError
from compeer.evaluate.decisions import corpus_records
from compeer.reasoning import parse_turn, render_turn
from compeer.ser.export import FORMS, chat_messages, export_records
from compeer.ser.record import PreferenceLabel, SerRecord, write_records


@pytest.fixture(scope="module")
def records() -> list[SerRecord]:
    """Turns of the sample, in all splits; every second one compared, by each of the four preferences."""
    found = corpus_records("sample", 2, 0, Counter())[:40]
    changed = []
    for place, record in enumerate(found):
        value = ("candidate", "reference", "both", "neither")[place // 2 % 4]
        label = PreferenceLabel(value=value, source="silver", how="a test") if place % 2 else None  # type: ignore[arg-type]
        more = {
            "split": ("reward", "policy", "test")[place % 3],
            "preference": label,
            "reference": f"Another, {place}.",
        }
        changed.append(record.model_copy(update=more | ({"author": "silver"} if place % 5 == 0 else {})))
    return changed


@pytest.fixture(scope="module")
def file(records: list[SerRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms") / "records.jsonl"
    write_records(path, records)
    return path


def loaded(folder: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """All rows of a folder, as `datasets` reads them, with the split of each."""
    from datasets import load_dataset

    found = load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    return [{**row, "split": split} for split in found for row in found[split]]


def test_preferences_are_pairs_that_lead_back(file: Path, records: list[SerRecord], tmp_path: Path) -> None:
    told = export_records(file, tmp_path / "out", "preferences")
    rows = {row["id"]: row for row in loaded(tmp_path / "out", tmp_path)}
    compared = [one for one in records if one.preference and one.preference.value in ("candidate", "reference")]
    assert set(rows) == {one.id for one in compared}
    assert told["left_out"] == len(records) - len(compared)
    for record in compared:
        row = rows[record.id]
        assert row["split"] == record.split
        assert row["prompt"] == chat_messages(record.history)
        assert row["prompt"][-1]["role"] == "user"
        (chosen,), (rejected,) = row["chosen"], row["rejected"]
        responses = {chosen["content"], rejected["content"]}
        assert responses == {record.candidate.response, record.reference}
        assert record.preference
        assert (chosen["content"] == record.reference) == (record.preference.value == "reference")
        assert {chosen["role"], rejected["role"]} == {"assistant"}


def test_trl_takes_the_pairs_as_they_are(file: Path, tmp_path: Path, tiny_model: Path) -> None:
    from transformers import AutoTokenizer
    from trl.data_utils import apply_chat_template, is_conversational

    export_records(file, tmp_path / "out", "preferences")
    row = {name: loaded(tmp_path / "out", tmp_path)[0][name] for name in ("prompt", "chosen", "rejected")}
    assert is_conversational(row)
    shown = apply_chat_template(row, AutoTokenizer.from_pretrained(tiny_model))
    assert row["prompt"][-1]["content"] in shown["prompt"]
    assert row["chosen"][0]["content"] in shown["chosen"]


def test_messages_and_sharegpt_say_the_same(file: Path, records: list[SerRecord], tmp_path: Path) -> None:
    export_records(file, tmp_path / "messages", "messages")
    export_records(file, tmp_path / "sharegpt", "sharegpt")
    messages = {row["id"]: row["messages"] for row in loaded(tmp_path / "messages", tmp_path)}
    other = {row["id"]: row["conversations"] for row in loaded(tmp_path / "sharegpt", tmp_path)}
    assert set(messages) == set(other) == {one.id for one in records if one.author == "corpus"}
    roles = {"human": "user", "gpt": "assistant"}
    for record in records:
        if record.author == "corpus":
            assert [{"role": roles[one["from"]], "content": one["value"]} for one in other[record.id]] == messages[
                record.id
            ]
            assert messages[record.id][-1]["content"] == render_turn(record.candidate)
            assert parse_turn(messages[record.id][-1]["content"]).turn == record.candidate


def test_the_card_names_the_splits(file: Path, tmp_path: Path) -> None:
    import yaml

    for form in FORMS:
        export_records(file, tmp_path / form, form)
    export_records(file, tmp_path / "all", "datasets")
    for folder in ("all", *FORMS):
        text = (tmp_path / folder / "README.md").read_text(encoding="utf-8")
        _, block, _ = text.split("---\n", 2)
        (config,) = yaml.safe_load(block)["configs"]
        assert [one["split"] for one in config["data_files"]] == ["reward", "policy", "test"]
        assert all((tmp_path / folder / one["path"]).is_file() for one in config["data_files"])


def test_what_is_said_in_a_row_is_one_message() -> None:
    said = [Utterance(speaker="seeker", text="Hm."), Utterance(speaker="seeker", text="I failed.")]
    assert chat_messages(said) == [{"role": "user", "content": "Hm.\nI failed."}]


def test_records_without_a_pair_are_refused(records: list[SerRecord], tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, [one for one in records if one.preference is None])
    with pytest.raises(InputError, match="nothing in this file for 'preferences'"):
        export_records(path, tmp_path / "out", "preferences")
    assert not (tmp_path / "out").exists()
