"""Turns made elsewhere become records that fit a build of the same corpus; what is bad is named by line and field."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from research.judge import importing
from research.judge.importing import dealt_split, import_turns

from compeer.corpora import read_corpus
from compeer.dialogue import rounds_of
from compeer.errors import InputError
from compeer.reasoning import STEPS
from compeer.ser.record import SPLITS, SerRecord, read_records

REAL = Path(__file__).parents[3] / "shared" / "data"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the public corpora are not at hand")

Json = dict[str, Any]
SECRET = "My landlord Tamsin reads my letters."


def verdict(correct: bool | None = True, reason: str | None = "It says so.") -> Json:
    return {"correct": correct, "votes": [True, bool(correct)], "reason": reason}


def candidate(*steps: bool | None, **changes: Any) -> Json:
    return {
        "analysis": "The landlord opens the letters.",
        "stage": "exploration",
        "feeling": "Watched, and cross about it.",
        "sentiment": "negative",
        "emotion": "anger",
        "intensity": 4,
        "plan": "Ask how long it has been going on.",
        "strategy": "Question",
        "response": "How did you find out?",
        "steps": [verdict(step) for step in (steps or (True, True, True))],
        "preference": "candidate",
        "preference_votes": ["both", "candidate", "candidate"],
        "preference_reasons": ["Fine, both.", "The second one asks.", "It asks instead of telling."],
        **changes,
    }


def context(dialogue: int = 1, turn: int = 1, **changes: Any) -> Json:
    return {
        "id": f"esconv-train-{dialogue}-{turn}",
        "corpus": "esconv",
        "split": "train",
        "dialogue": dialogue,
        "turn": turn,
        "language": "en",
        "history": [{"speaker": "seeker", "text": SECRET}],
        "reference": "That is against the law.",
        "reference_strategies": ["Information"],
        "candidates": [candidate(), candidate(True, False, True, strategy="Self-disclosure", preference=None)],
        **changes,
    }


def write(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def take(folder: Path, values: Sequence[Any], **options: Any) -> tuple[list[SerRecord], Json]:
    manifest = import_turns(write(folder / "turns.jsonl", *values), folder / "records.jsonl", **options)
    return list(read_records(folder / "records.jsonl")), manifest


def refused(folder: Path, *values: Any, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        take(folder, values, **options)
    assert "Tamsin" not in str(caught.value)
    return caught.value


# --- contexts with candidates -----------------------------------------------------------------------------------------


def test_each_candidate_becomes_a_record_that_says_how_it_was_judged(tmp_path: Path) -> None:
    records, manifest = take(tmp_path, [context()])
    first, second = records
    assert [first.id, second.id] == ["esconv-train-1-1:1", "esconv-train-1-1:2"]
    assert first.candidate.history.text == "The landlord opens the letters."
    assert first.candidate.emotion.decision == "negative, anger, 4"
    assert (first.author, first.source, first.reference) == ("llm", "esconv", "That is against the law.")
    assert second.labels is not None
    assert [getattr(second.labels, part).value for part in STEPS] == [True, False, True]
    label = second.labels.emotion
    assert (label.source, label.reason) == ("llm", "It says so.")
    assert label.how == "judged by annotators who are language models; votes: True, False"
    assert second.preference is None
    assert first.preference is not None
    assert first.preference.how.endswith("votes: both, candidate, candidate")
    assert manifest["counts"]["steps"] == {
        "emotion False": 1,
        "emotion True": 1,
        "history True": 2,
        "strategy True": 2,
    }


def test_a_reason_that_speaks_of_an_order_nobody_knows_is_not_taken(tmp_path: Path) -> None:
    (record, *_), _ = take(tmp_path, [context()])
    assert record.preference is not None
    assert record.preference.reason == "It asks instead of telling."
    only = candidate(
        preference_votes=["candidate", "candidate"], preference_reasons=["First wins.", "The latter tells."]
    )
    (record,), _ = take(tmp_path, [context(candidates=[only])])
    assert record.preference is not None
    assert record.preference.reason is None


def test_the_dialogue_and_round_are_those_of_our_reader(tmp_path: Path) -> None:
    said = [
        ("sys", "Hello."),
        ("usr", SECRET),
        ("usr", "All of them."),
        ("sys", "Really?"),
        ("usr", "Yes."),
        ("sys", "Oh."),
    ]
    opened_by_seeker = said[1:]
    corpus = write(
        tmp_path / "train.jsonl",
        *({"dialog": [{"speaker": who, "text": text} for who, text in turns]} for turns in (said, opened_by_seeker)),
    )
    dialogues = list(read_corpus(corpus, format="esconv"))
    contexts = [context(0, 2, reference="Really?"), context(0, 4, reference="Oh."), context(1, 1, reference="Really?")]
    records, _ = take(tmp_path, contexts)
    for record in records:
        dialogue = next(one for one in dialogues if one.id == record.dialogue)
        assert rounds_of(dialogue)[record.round - 1].reply.text == record.reference
    assert len(records) == 6


def test_where_no_two_votes_agree_on_a_step_the_turn_is_dropped_and_counted(tmp_path: Path) -> None:
    records, manifest = take(tmp_path, [context(candidates=[candidate(True, None, True), candidate()])])
    assert [record.id for record in records] == ["esconv-train-1-1:2"]
    assert manifest["counts"]["dropped"] == {"no two votes agree on a step": 1}
    assert manifest["counts"]["import"] == {"lines": 1, "records": 1, "turns": 2}


def test_strategies_can_be_left_out(tmp_path: Path) -> None:
    records, manifest = take(tmp_path, [context()], leave_out=["Self-disclosure"])
    assert [record.candidate.strategy.strategy for record in records] == ["Question"]
    assert manifest["counts"]["dropped"] == {"strategy left out": 1}


def test_rewrites_are_known_as_such_and_stay_in_the_split_of_their_original(tmp_path: Path) -> None:
    plain = context(id="esconv-train-1-1#R", rewritten_from="esconv-train-1-1")
    personal = context(
        id="esconv-train-1-1#P", rewritten_from="esconv-train-1-1", profile={"cluster": 2, "seeker": "Curt."}
    )
    records, _ = take(tmp_path, [context(), plain, personal])
    assert Counter(record.rewritten for record in records) == {None: 2, "plain": 2, "personality": 2}
    assert len({record.id for record in records}) == 6
    assert len({record.split for record in records}) == 1


def test_splits_are_dealt_by_dialogue_and_seed_or_taken_from_a_file(tmp_path: Path) -> None:
    contexts = [context(number) for number in range(300)]
    dealt, _ = take(tmp_path, contexts)
    assert {record.dialogue: record.split for record in dealt} == {
        r.dialogue: dealt_split(r.dialogue, 0) for r in dealt
    }
    shares = Counter(record.split for record in dealt)
    assert [round(shares[split] / 600, 1) for split in SPLITS] == pytest.approx([0.45, 0.35, 0.2], abs=0.11)
    other, _ = take(tmp_path, contexts, seed=1)
    assert [record.split for record in other] != [record.split for record in dealt]

    given = [{"dialogue": f"esconv-train-{number + 1:04d}", "split": "test", "group": "g"} for number in range(299)]
    splits = write(tmp_path / "splits.jsonl", *given)
    taken, _ = take(tmp_path, contexts[:299], splits=splits)
    assert {record.split for record in taken} == {"test"}
    error = refused(tmp_path, *contexts, splits=splits)
    assert (error.line, error.field) == (300, "dialogue")


def test_the_order_of_the_responses_is_drawn_by_the_seed(tmp_path: Path) -> None:
    contexts = [context(number) for number in range(200)]
    first, _ = take(tmp_path, contexts)
    again, _ = take(tmp_path, contexts)
    other, _ = take(tmp_path, contexts, seed=5)
    assert first == again
    assert 150 < sum(record.candidate_first for record in first) < 250
    assert [record.candidate_first for record in first] != [record.candidate_first for record in other]


def test_human_labels_are_said_to_be_human(tmp_path: Path) -> None:
    (record, *_), _ = take(tmp_path, [context()], source="human")
    assert record.labels is not None
    assert (record.labels.history.source, record.labels.history.how) == (
        "human",
        "judged by human annotators; votes: True, True",
    )


# --- our own shape ----------------------------------------------------------------------------------------------------


def own(folder: Path, *contexts: Json) -> list[Json]:
    records, _ = take(folder, contexts or [context()])
    return [record.model_dump(mode="json", exclude_defaults=True) for record in records]


def test_records_of_ours_pass_unchanged(tmp_path: Path) -> None:
    given = own(tmp_path)
    unjudged = {**given[0], "id": "other"}
    del unjudged["labels"], unjudged["preference"]
    records, _ = take(tmp_path, [*given, unjudged])
    assert records == [SerRecord.model_validate(value) for value in [*given, unjudged]]


def test_the_source_of_labels_can_be_set(tmp_path: Path) -> None:
    records, _ = take(tmp_path, own(tmp_path), source="human")
    for record in records:
        assert record.labels is not None
        assert {getattr(record.labels, part).source for part in STEPS} == {"human"}
    assert records[0].preference is not None
    assert records[0].preference.source == "human"
    assert records[0].preference.reason == "It asks instead of telling."


def test_records_of_ours_take_the_splits_of_a_file(tmp_path: Path) -> None:
    given = own(tmp_path)
    splits = write(tmp_path / "splits.jsonl", {"dialogue": "esconv-train-0002", "split": "policy"})
    for split in SPLITS:
        records, _ = take(tmp_path, [{**value, "split": split} for value in given], splits=splits)
        assert {record.split for record in records} == {"policy"}


# --- what is bad ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (context(id="x", candidates=[candidate(emotion="jolly")]), "candidates.0.emotion"),
        (context(id="x", candidates=[candidate(), candidate(intensity=6)]), "candidates.1.intensity"),
        (context(id="x", candidates=[candidate(response="  ")]), "candidates.0.response"),
        (context(id="x", candidates=[candidate(analysis="")]), "candidates.0.analysis"),
        (context(id="x", candidates=[candidate(steps=[verdict()])]), "candidates.0.steps.1"),
        (context(id="x", candidates=[]), "candidates"),
        (context(id="x", history=[{"speaker": "user", "text": SECRET}]), "history.0.speaker"),
        (context(id="x", mood="odd"), "mood"),
        (context(), "id"),
        ({key: value for key, value in context().items() if key != "id"}, "id"),
        ([1], None),
        ({"id": "x", "dialog": []}, None),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, bad: Any, field: str | None) -> None:
    error = refused(tmp_path, context(), bad)
    assert (error.line, error.field) == (2, field)
    assert not (tmp_path / "records.jsonl").exists()


def test_two_shapes_in_one_file_are_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, *own(tmp_path), context()).line == 3


def test_a_bad_record_of_ours_is_named_with_its_field(tmp_path: Path) -> None:
    given = own(tmp_path)
    assert refused(tmp_path, given[0], {**given[1], "split": "train"}).field == "split"
    assert refused(tmp_path, given[0], given[0]).field == "id"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        import_turns(tmp_path / "nothing.jsonl", tmp_path / "out.jsonl")


# --- stopped, and many at work ----------------------------------------------------------------------------------------


def test_stopped_anywhere_and_run_again_it_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "LINES_A_UNIT", 7)
    turns = write(tmp_path / "turns.jsonl", *(context(number) for number in range(40)))
    import_turns(turns, tmp_path / "whole.jsonl")
    work = importing._records
    done = 0

    def stopping(*given: Any) -> Any:
        nonlocal done
        done += 1
        if done in (3, 5):
            raise KeyboardInterrupt
        return work(*given)

    monkeypatch.setattr(importing, "_records", stopping)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            import_turns(turns, tmp_path / "stopped.jsonl")
    manifest = import_turns(turns, tmp_path / "stopped.jsonl")
    assert (tmp_path / "stopped.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert manifest["counts"]["import"] == {"lines": 40, "records": 80, "turns": 80}
    assert done == 8  # six units, and two that were stopped


def test_two_workers_give_the_same_bytes(tmp_path: Path) -> None:
    turns = write(tmp_path / "turns.jsonl", *(context(number) for number in range(450)))
    import_turns(turns, tmp_path / "one.jsonl")
    import_turns(turns, tmp_path / "two.jsonl", workers=2)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


# --- the real set -----------------------------------------------------------------------------------------------------


@real
def test_the_real_set_is_read_whole(tmp_path: Path) -> None:
    folder = REAL / "ser_llm"
    counts = import_turns(folder / "ser_llm.jsonl", tmp_path / "records.jsonl")["counts"]
    assert counts["import"] == {"lines": 784, "records": 1556, "turns": 1568}
    assert counts["dropped"] == {"no two votes agree on a step": 12}
    assert [counts["steps"][f"{part} False"] for part in STEPS] == [347, 334, 335]
    assert counts["preference"] == {"both": 82, "candidate": 830, "neither": 22, "none": 40, "reference": 582}
    records = {record.id: record for record in read_records(tmp_path / "records.jsonl")}
    for kind in ("plain", "personality"):
        import_turns(folder / f"rewrites_{kind}.jsonl", tmp_path / f"{kind}.jsonl")
        rewritten = list(read_records(tmp_path / f"{kind}.jsonl"))
        assert len(rewritten) == 391
        for record in rewritten:
            original = records[record.id.removesuffix(f"~{kind}")]
            assert record.rewritten == kind
            assert (record.split, record.round, record.dialogue) == (original.split, original.round, original.dialogue)


@real
def test_the_real_set_lies_where_our_reader_puts_it(tmp_path: Path) -> None:
    import_turns(REAL / "ser_llm" / "ser_llm.jsonl", tmp_path / "records.jsonl")
    dialogues = {dialogue.id: dialogue for dialogue in read_corpus(REAL / "esconv" / "train.jsonl")}
    for record in read_records(tmp_path / "records.jsonl"):
        round_ = rounds_of(dialogues[record.dialogue])[record.round - 1]
        assert round_.reply.text.split() == record.reference.split()
        shown = round_.history[-len(record.history) :]
        assert [said.text.split() for said in shown] == [said.text.split() for said in record.history]
