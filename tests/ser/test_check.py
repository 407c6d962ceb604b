"""The check of a file of records: a good file passes, and each broken promise is found and named by ids alone."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compeer.reasoning import EMOTIONS, STAGES, STEPS, STRATEGIES, sentiment_of
from compeer.ser.check import CheckFinding, check_records, shared_texts
from compeer.ser.record import PREFERENCES, SerRecord, Split, write_records
from compeer.ser.split import words_hash

WORDS = [f"{a}{b}" for a in ("bar", "del", "kin", "lom", "mus", "nev") for b in ("an", "es", "ik", "ol", "um", "eth")]
Values = list[dict[str, Any]]


def speech(seed: str, count: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count))


def step_values(split: str, number: int) -> dict[str, dict[str, Any]]:
    """The reference steps of one context, worded as nowhere else."""
    rng = random.Random(f"{split}{number}")
    emotion = rng.choice(EMOTIONS)
    return {
        "history": {"text": speech(f"h{split}{number}", 8), "stage": rng.choice(STAGES)},
        "emotion": {
            "text": speech(f"e{split}{number}", 8),
            "sentiment": sentiment_of(emotion),
            "emotion": emotion,
            "intensity": rng.randint(1, 5),
        },
        "strategy": {"text": speech(f"s{split}{number}", 8), "strategy": rng.choice(STRATEGIES)},
    }


def good_records(contexts: int = 60) -> Values:
    """Two candidates a context: one all True; in the other, neighbours exchange one step. Lengths are alike."""
    found = []
    for split in ("reward", "policy", "test"):
        for number in range(contexts):
            dialogue, partner = f"{split}-{number}", number ^ 1
            for kind in ("true", "spoiled"):
                steps, false = step_values(split, number), STEPS[number // 2 % 3] if kind == "spoiled" else None
                if false:
                    steps[false] = step_values(split, partner)[false]
                label = {"value": True, "source": "silver", "how": "its own"}
                labels = {part: {**label, "value": part != false} for part in STEPS}
                preferred = PREFERENCES[(number // 2 + (kind == "true")) % 4]
                found.append(
                    {
                        "id": f"{dialogue}:{kind}",
                        "dialogue": dialogue,
                        "round": 1,
                        "language": "en",
                        "source": "test",
                        "split": split,
                        "history": [{"speaker": "seeker", "text": speech(f"history {dialogue}", 60)}],
                        "candidate": {**steps, "response": speech(f"own {dialogue}", 10 + number % 5)},
                        "author": "silver",
                        "reference": speech(f"other {dialogue}", 10 + (number + 2) % 5),
                        "labels": labels,
                        "preference": {"value": preferred, "source": "silver", "how": "by chance"},
                        "candidate_first": True,
                    }
                )
    return found


def checked(values: Sequence[dict[str, Any]], folder: Path, splits: str | None = None) -> dict[str, CheckFinding]:
    path = folder / "records.jsonl"
    write_records(path, (SerRecord.model_validate(value) for value in values))
    if splits is not None:
        (folder / "splits.jsonl").write_text(splits, encoding="utf-8")
    report = check_records(path, folder / "splits.jsonl" if splits is not None else None)
    assert report.records == len(values)
    assert report.passed == all(finding.passed is not False for finding in report.findings)
    found = {finding.name: finding for finding in report.findings}
    assert len(found) == len(report.findings)
    return found


def splits_of(values: Sequence[dict[str, Any]], group: Callable[[str], str] = str) -> str:
    lines = {v["dialogue"]: v["split"] for v in values}.items()
    return "".join(f'{{"dialogue": "{d}", "split": "{s}", "group": "{group(d)}"}}\n' for d, s in lines)


def failed(findings: dict[str, CheckFinding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.passed is False}


def test_a_good_file_passes(tmp_path: Path) -> None:
    values = good_records()
    findings = checked(values, tmp_path, splits_of(values))
    assert failed(findings) == set()
    assert {"as split", "groups", "histories", "openings", "replies", "wordings", "sources"} < set(findings)
    assert findings["matched, test"].metrics["matched"] == 1
    assert findings["matched, test"].metrics["false share"] == pytest.approx(1 / 6)
    assert findings["preferences, test"].metrics == pytest.approx(dict.fromkeys(PREFERENCES, 0.25), abs=0.02)
    assert findings["lengths, test"].metrics["longer is better"] == pytest.approx(0.5, abs=0.15)


def of(values: Values, split: Split, number: int, kind: str = "true") -> dict[str, Any]:
    return next(value for value in values if value["id"] == f"{split}-{number}:{kind}")


def same_id(values: Values) -> None:
    of(values, "test", 1)["id"] = "test-1:spoiled"


def dialogue_in_two_splits(values: Values) -> None:
    of(values, "test", 1)["dialogue"] = "reward-1"


def copied_history(values: Values) -> None:
    said = {"speaker": "seeker", "text": speech("history reward-1", 60).upper().replace(" ", ", ")}
    for kind in ("true", "spoiled"):
        of(values, "test", 1, kind)["history"] = [{"speaker": "supporter", "text": "Hi."}, said]


def copied_opening(values: Values) -> None:
    one, other = of(values, "reward", 1), of(values, "test", 1)
    for value, name in ((one, "a"), (other, "b")):
        opening = {"speaker": "seeker", "text": speech("opening", 15)}
        value["history"] = [opening, *({"speaker": "supporter", "text": speech(f"{name}{n}", 20)} for n in range(6))]


def copied_reply(values: Values) -> None:
    of(values, "test", 1)["reference"] = of(values, "policy", 5)["candidate"]["response"] + "!"


def copied_wording(values: Values) -> None:
    text = of(values, "policy", 5)["candidate"]["emotion"]["text"]
    for kind in ("true", "spoiled"):
        of(values, "test", 1, kind)["candidate"]["emotion"]["text"] = text


def unmatched(values: Values) -> None:
    for number in range(0, 12):
        value = of(values, "test", number, "spoiled")
        part = STEPS[number // 2 % 3]
        value["candidate"][part]["text"] = speech(f"nowhere {number}", 9)


def same_wrong_decision(values: Values) -> None:
    for value in values:
        if value["split"] == "policy":
            wrong = not value["labels"]["strategy"]["value"]
            value["candidate"]["strategy"]["strategy"] = "Others" if wrong else "Question"


def no_both(values: Values) -> None:
    for value in values:
        if value["split"] == "test" and value["preference"]["value"] == "both":
            value["preference"]["value"] = "neither"


def longer_is_better(values: Values) -> None:
    for value in values:
        if value["split"] == "reward" and value["preference"]["value"] == "candidate":
            value["candidate"]["response"] += " and some more words"


def unsaid(values: Values) -> None:
    of(values, "test", 1)["labels"]["history"]["how"] = " "


@pytest.mark.parametrize(
    ("change", "names", "at_fault"),
    [
        (same_id, {"ids"}, ("test-1:spoiled",)),
        (dialogue_in_two_splits, {"dialogues"}, ("reward-1",)),
        (copied_history, {"histories", "openings"}, ("reward-1", "test-1")),
        (copied_opening, {"openings"}, ("reward-1", "test-1")),
        (copied_reply, {"replies"}, ("policy-5:true", "policy-5:spoiled", "test-1:true")),
        (copied_wording, {"wordings"}, ("test-1:true", "test-1:spoiled")),
        (unmatched, {"matched, test"}, tuple(f"test-{number}:spoiled" for number in range(10))),
        (same_wrong_decision, {"decisions, policy", "matched, policy"}, ()),
        (no_both, {"preferences, test"}, ()),
        (longer_is_better, {"lengths, reward"}, ()),
        (unsaid, {"sources"}, ("test-1:true",)),
    ],
)
def test_a_broken_promise_is_found(
    tmp_path: Path, change: Callable[[Values], None], names: set[str], at_fault: tuple[str, ...]
) -> None:
    values = good_records()
    change(values)
    findings = checked(values, tmp_path)
    assert failed(findings) == names
    for name in names if at_fault else ():
        assert set(findings[name].at_fault) == set(at_fault)


def test_no_text_of_a_record_is_in_the_report(tmp_path: Path) -> None:
    values = good_records(12)
    for change in (copied_history, copied_reply, copied_wording, unmatched):
        change(values)
    report = str(checked(values, tmp_path))
    assert not any(word in report for word in WORDS)


def test_mistakes_that_can_be_true_nowhere_are_counted_apart(tmp_path: Path) -> None:
    values = good_records()
    unmatched(values)
    for number in range(12):
        value = of(values, "test", number, "spoiled")
        value["labels"][STEPS[number // 2 % 3]]["kind"] = "swapped fact"
    finding = checked(values, tmp_path)["matched, test"]
    assert finding.passed
    assert finding.metrics["can only be false"] == pytest.approx(12 / 60)


def test_labels_of_people_and_records_without_labels_need_not_be_matched(tmp_path: Path) -> None:
    values = good_records()
    unmatched(values)
    for value in values:
        if value["split"] == "test":
            for label in (*value["labels"].values(), value["preference"]):
                label["source"] = "human"
    del of(values, "reward", 3)["labels"], of(values, "reward", 4)["preference"]
    findings = checked(values, tmp_path)
    # what was left out of the reward split leaves its partners' steps without a match
    assert failed(findings) <= {"matched, reward"}
    assert findings["matched, test"].passed is None
    assert findings["lengths, test"].passed is None


def test_groups_and_splits_are_held_against_the_file_of_splits(tmp_path: Path) -> None:
    values = good_records(12)
    given = splits_of(values, lambda dialogue: dialogue.split("-")[1] if dialogue.endswith("-7") else dialogue)
    findings = checked(values, tmp_path, given.replace('"policy-3", "split": "policy"', '"policy-3", "split": "test"'))
    assert failed(findings) == {"groups", "as split"}
    assert findings["groups"].at_fault == ("7",)
    assert set(findings["as split"].at_fault) == {"policy-3:true", "policy-3:spoiled"}


def test_replies_of_two_splits_can_be_known_before() -> None:
    stock, own = "I am really sorry to hear all of this.", "That was quite a day you had, was it not?"

    def replies() -> Iterator[tuple[str, Split]]:
        yield from ((stock, "reward"), (own, "policy"), (own, "policy"), ("Hello there.", "reward"))
        yield from ((stock.upper(), "test"), ("Hello there.", "test"))

    assert shared_texts(replies()) == {words_hash(stock)}


def test_an_empty_file_promises_nothing(tmp_path: Path) -> None:
    assert failed(checked([], tmp_path)) == set()
