"""In a matched set every turn stands in two histories with opposite labels, so that the turn alone tells nothing."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from research.judge import matching
from research.judge.matching import MIXTURES, is_right, match_turns, matched_records

from compeer.errors import InputError
from compeer.reasoning import EMOTIONS, STEPS, STRATEGIES, render_turn
from compeer.ser.record import SerRecord, read_records, write_records

OPPOSITE = {"candidate": "reference", "reference": "candidate"}


class Letters:
    """Embeds a text by how often it has each letter."""

    def __init__(self) -> None:
        self.calls = 0

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.calls += 1
        rows = np.array([[text.count(letter) + 0.1 for letter in "abcdefghij"] for text in texts], dtype=np.float32)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def record(number: int, wrong: str | None = None, **changes: Any) -> SerRecord:
    label = {"value": True, "source": "llm", "how": "judged", "reason": f"It fits {number}."}
    own = "abcdefghij"[number % 10] * 9
    value = {
        "id": f"c{number}",
        "dialogue": f"d{number}",
        "round": 2,
        "language": "en",
        "source": "ours",
        "split": "test" if number % 4 == 0 else "reward",
        "history": [{"speaker": "seeker", "text": f"It is about {own}."}],
        "candidate": {
            "history": {"text": f"They speak of {own}, {number}.", "stage": "exploration"},
            "emotion": {
                "text": f"Moved by {own}, {number}.",
                "sentiment": "negative",
                "emotion": EMOTIONS[number % 7],
                "intensity": 3,
            },
            "strategy": {"text": f"Ask about {own}, {number}.", "strategy": STRATEGIES[number % 5]},
            "response": f"What of {own}, {number}?",
        },
        "author": "llm",
        "reference": "I see.",
        "labels": {part: {**label, "value": part != wrong} for part in STEPS},
        "preference": {"value": "candidate", "source": "llm", "how": "judged"},
        "candidate_first": True,
        **changes,
    }
    return SerRecord.model_validate(value)


def take(folder: Path, records: Sequence[SerRecord], **options: Any) -> tuple[list[SerRecord], dict[str, Any]]:
    write_records(folder / "records.jsonl", records)
    options = {"seed": 0, "embedder": Letters(), **options}
    manifest = match_turns(folder / "records.jsonl", folder / "matched.jsonl", **options)
    return list(read_records(folder / "matched.jsonl")), manifest


def by_turn(records: Sequence[SerRecord]) -> list[list[SerRecord]]:
    found: dict[str, list[SerRecord]] = defaultdict(list)
    for one in records:
        found[render_turn(one.candidate)].append(one)
    return list(found.values())


def test_every_turn_stands_in_two_histories_with_opposite_labels(tmp_path: Path) -> None:
    records, manifest = take(tmp_path, [record(number) for number in range(60)])
    pairs = manifest["counts"]["matched"]["pairs"]
    assert pairs > 20
    assert len(records) == 8 * pairs == manifest["counts"]["matched"]["records"]
    assert len({one.id for one in records}) == len(records)
    for group in by_turn(records):
        one, other = group
        assert one.history != other.history
        assert (one.split, one.reference, one.candidate_first) == (other.split, other.reference, other.candidate_first)
        for part in STEPS:
            assert getattr(one.labels, part).value is not getattr(other.labels, part).value
        assert one.preference is not None
        assert other.preference is not None
        assert one.preference.value == OPPOSITE[other.preference.value]


def test_what_is_at_home_is_true_and_keeps_its_label_and_what_is_not_is_false_by_rule(tmp_path: Path) -> None:
    given = {f"c{number}": record(number) for number in range(40)}
    records, _ = take(tmp_path, list(given.values()))
    for one in records:
        home, partner, _ = one.id.split("~")
        for part in STEPS:
            label, text = getattr(one.labels, part), one.candidate.step(part).text
            assert label.value is (text == given[home].candidate.step(part).text)
            if label.value:
                assert label == getattr(given[home].labels, part)
            else:
                assert text == given[partner].candidate.step(part).text
                assert (label.source, label.reason) == ("silver", None)
                assert label.kind is not None
                assert partner in label.how
        assert one.preference is not None
        better = one.candidate.response if one.preference.value == "candidate" else one.reference
        assert better == given[home].candidate.response


def test_pairs_are_of_one_split_and_differ_in_emotion_and_strategy(tmp_path: Path) -> None:
    given = {f"c{number}": record(number) for number in range(60)}
    records, _ = take(tmp_path, list(given.values()))
    for one in records:
        a, b = (given[key] for key in one.id.split("~")[:2])
        assert a.split == b.split == one.split
        assert a.dialogue != b.dialogue
        assert a.candidate.emotion.emotion != b.candidate.emotion.emotion
        assert a.candidate.strategy.strategy != b.candidate.strategy.strategy


def test_contexts_that_may_share_an_issue_are_no_pair(tmp_path: Path) -> None:
    near = [record(1), record(11)]  # the same words, another dialogue
    far = [record(1), record(2)]
    for given, records in ((near, 0), (far, 8)):
        given = [one.model_copy(update={"split": "reward"}) for one in given]
        assert len(take(tmp_path, given)[0]) == records


def test_only_right_turns_are_taken_one_a_context(tmp_path: Path) -> None:
    given = [
        *(record(number, split="reward") for number in range(20)),
        *(record(number, split="reward", id=f"again{number}") for number in range(20)),
        *(record(number, split="reward", id=f"wrong{number}", wrong="emotion") for number in range(20)),
        record(50, split="reward", labels=None),
    ]
    records, manifest = take(tmp_path, given)
    assert manifest["counts"]["matched"]["right turns"] == 20
    assert not any("again" in one.id or "wrong" in one.id for one in records)
    with_mistakes, manifest = take(tmp_path, given, mistakes=True)
    added = [one for one in with_mistakes if "wrong" in one.id]
    assert added == [one for one in given if one.labels and not is_right(one)]
    assert manifest["counts"]["matched"]["mistaken turns as they stood"] == 20
    assert [one for one in with_mistakes if "wrong" not in one.id] == records


def test_a_response_that_was_judged_worse_decides_nothing(tmp_path: Path) -> None:
    worse = {"value": "reference", "source": "llm", "how": "judged"}
    given = [record(1, split="reward", preference=worse), record(2, split="reward")]
    records, _ = take(tmp_path, given)
    assert len(records) == 8
    assert {one.preference for one in records} == {None}


def test_rewrites_and_languages_are_not_mixed(tmp_path: Path) -> None:
    given = [
        record(1, split="reward"),
        record(2, split="reward", rewritten="plain"),
        record(3, split="reward", language="zh"),
    ]
    assert take(tmp_path, given)[0] == []


@pytest.mark.parametrize("mixtures", range(len(MIXTURES) + 1))
def test_of_the_mixtures_as_many_are_made_as_asked(mixtures: int) -> None:
    records = list(matched_records(record(1), record(2), mixtures, seed=0))
    assert len(records) == 4 + 2 * mixtures
    assert len(by_turn(records)) == 2 + mixtures
    again = list(matched_records(record(1), record(2), mixtures, seed=0))
    assert records == again


def test_more_mixtures_than_there_are_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mixtures"):
        match_turns(tmp_path / "records.jsonl", tmp_path / "out.jsonl", 0, mixtures=7)


def test_stopped_and_run_again_it_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "BLOCK", 10)
    write_records(tmp_path / "records.jsonl", [record(number) for number in range(80)])
    match_turns(tmp_path / "records.jsonl", tmp_path / "whole.jsonl", 0, embedder=Letters())

    class Stopping(Letters):
        def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().embed(texts)

    with pytest.raises(KeyboardInterrupt):
        match_turns(tmp_path / "records.jsonl", tmp_path / "stopped.jsonl", 0, embedder=Stopping())
    left = Letters()
    match_turns(tmp_path / "records.jsonl", tmp_path / "stopped.jsonl", 0, embedder=left)
    assert (tmp_path / "stopped.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    whole = Letters()
    match_turns(tmp_path / "records.jsonl", tmp_path / "other.jsonl", 1, embedder=whole)
    assert left.calls == whole.calls - 2
    assert (tmp_path / "other.jsonl").read_bytes() != (tmp_path / "whole.jsonl").read_bytes()
