"""Blind probes: each finds the leak that was planted for it, and finds nothing where labels were drawn by chance."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from research.probes.probe import FEWEST, PREFERENCE_LIMIT, STEP_LIMIT, Probe, interval_by_dialogue, probe_records

from compeer.reasoning import STEPS
from compeer.ser.record import PREFERENCES, SerRecord, write_records
from compeer.ser.split import words_hash

TOPICS = 12
WORDS = [
    [f"{a}{b}{topic:02}" for a in ("bar", "del", "kin", "lom") for b in ("an", "es", "ik", "ol")]
    for topic in range(TOPICS)
]
COMMON = ["the", "and", "so", "very", "much", "about", "with", "feels", "says", "now"]
Leak = Callable[[dict[str, Any], dict[str, bool], random.Random], None]


def speech(rng: random.Random, topic: int, count: int = 8) -> str:
    return " ".join(rng.choice(WORDS[topic] if rng.random() < 0.7 else COMMON) for _ in range(count))


def record(number: int, rng: random.Random, leak: Leak | None) -> dict[str, Any]:
    """A record whose labels are drawn by chance: nothing tells them, unless a leak is planted."""
    topic, other = rng.randrange(TOPICS), rng.randrange(TOPICS)
    labels = {part: rng.random() < 0.6 for part in STEPS}
    split = "test" if number % 10 < 4 else "reward" if number % 2 else "policy"
    value: dict[str, Any] = {
        "id": f"r{number}",
        "dialogue": f"{split}{number // 10}",
        "round": 1,
        "language": "en",
        "source": "test",
        "split": split,
        "history": [{"speaker": "seeker", "text": "Not looked at."}],
        "candidate": {
            "history": {"text": speech(rng, topic), "stage": rng.choice(["exploration", "comforting"])},
            "emotion": {
                "text": speech(rng, topic),
                "sentiment": "negative",
                "emotion": rng.choice(["fear", "anger"]),
                "intensity": rng.randint(2, 4),
            },
            "strategy": {"text": speech(rng, topic), "strategy": rng.choice(["Question", "Information"])},
            "response": speech(rng, topic, rng.randint(8, 14)),
        },
        "author": "silver",
        "reference": speech(rng, other, rng.randint(8, 14)),
        "candidate_first": rng.random() < 0.5,
        "preference": {"value": rng.choice(PREFERENCES), "source": "silver", "how": "by chance"},
    }
    if leak:
        leak(value, labels, rng)
    value["labels"] = {part: {"value": true, "source": "silver", "how": "by chance"} for part, true in labels.items()}
    return value


def leaks_of_steps(value: dict[str, Any], labels: dict[str, bool], rng: random.Random) -> None:
    """False history steps have a word of their own, False emotion steps are about something else than the turn, stages
    go with strategies where these are True, and the shorter response is the worse one."""
    candidate = value["candidate"]
    if not labels["history"] and rng.random() < 0.9:
        candidate["history"]["text"] += " perhaps"
    if not labels["emotion"]:
        candidate["emotion"]["text"] = speech(rng, rng.randrange(TOPICS))
    exploring = candidate["history"]["stage"] == "exploration"
    candidate["strategy"]["strategy"] = "Question" if exploring == labels["strategy"] else "Information"
    first, second = goodness(value)
    candidate["response"] = speech(rng, rng.randrange(TOPICS), 13 if first else 9)
    value["reference"] = speech(rng, rng.randrange(TOPICS), 13 if second else 9)


def leaks_of_words(value: dict[str, Any], labels: dict[str, bool], rng: random.Random) -> None:
    """False history steps are longer; good responses have a word of their own."""
    if not labels["history"]:
        value["candidate"]["history"]["text"] += " " + " ".join(rng.choice(COMMON) for _ in range(6))
    first, second = goodness(value)
    value["candidate"]["response"] += " gladly" * first
    value["reference"] += " gladly" * second


def responses_that_fit_the_steps(value: dict[str, Any], _: dict[str, bool], rng: random.Random) -> None:
    """A good response is about what the steps are about."""
    topic = rng.randrange(TOPICS)
    for part in STEPS:
        value["candidate"][part]["text"] = speech(rng, topic)
    others = [(topic + rng.randrange(1, TOPICS)) % TOPICS for _ in range(2)]
    first, second = goodness(value)
    value["candidate"]["response"] = speech(rng, topic if first else others[0], 12)
    value["reference"] = speech(rng, topic if second else others[1], 12)


def goodness(value: dict[str, Any]) -> tuple[bool, bool]:
    preferred = value["preference"]["value"]
    return preferred in ("candidate", "both"), preferred in ("reference", "both")


class BagOfWords:
    """An embedder: words hashed into 64 dimensions."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def embed(self, texts: Sequence[str]) -> Any:
        self.seen += texts
        rows = np.zeros((len(texts), 70), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.split():
                row[words_hash(word) % 64] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def probed(folder: Path, leak: Leak | None, count: int = 700, **settings: Any) -> dict[tuple[str, str], Probe]:
    rng = random.Random(1)
    values = [record(number, rng, leak) for number in range(count)]
    write_records(folder / "records.jsonl", (SerRecord.model_validate(value) for value in values))
    found = probe_records(folder / "records.jsonl", 1, **settings)
    assert found.records == count
    assert found.sources == {"silver": count}
    probes = {(probe.label, probe.sees): probe for probe in found.probes}
    assert len(probes) == len(found.probes)
    assert found.passed == all(probe.passed is not False for probe in found.probes)
    return probes


BETTER, ACCEPTABLE, CLASSES = (
    "preference: the better one",
    "preference: candidate acceptable",
    "preference: four classes",
)


def assert_found(probes: dict[tuple[str, str], Probe], *keys: tuple[str, str]) -> None:
    for key in keys:
        probe = probes[key]
        assert probe.balanced_accuracy is not None
        assert probe.balanced_accuracy > 0.8, key
        assert probe.passed is (False if probe.limit else None)
        assert (probe.low or 1) <= probe.balanced_accuracy <= (probe.high or 0)


def test_planted_leaks_of_steps_and_lengths_are_found(tmp_path: Path) -> None:
    probes = probed(tmp_path, leaks_of_steps, embedder=BagOfWords())
    assert_found(
        probes,
        ("history step", "words of the step"),
        ("history step", "words of the turn"),
        ("emotion step", "model of the turn"),
        ("emotion step", "model of the turn, embedded"),
        ("strategy step", "decisions of the turn"),
        *((label, sees) for label in (BETTER, ACCEPTABLE, CLASSES) for sees in ("lengths", "model", "model, embedded")),
    )
    # the leak lies between the steps: what sees one of them alone does not find it
    for key in (
        ("emotion step", "words of the step"),
        ("emotion step", "decisions of the turn"),
        ("strategy step", "decision of the step"),
        ("strategy step", "words of the step"),
    ):
        assert (probes[key].balanced_accuracy or 1) < 0.62, key


def test_planted_leaks_of_words_are_found(tmp_path: Path) -> None:
    probes = probed(tmp_path, leaks_of_words, 1200)
    assert_found(
        probes, ("history step", "length of the step"), (BETTER, "words"), (ACCEPTABLE, "words"), (CLASSES, "model")
    )
    assert (probes[CLASSES, "words"].balanced_accuracy or 0) > 2 * 0.25


def test_what_the_reasoning_tells_is_found_and_has_no_limit(tmp_path: Path) -> None:
    probes = probed(tmp_path, responses_that_fit_the_steps)
    assert_found(probes, *((label, "model, with the reasoning") for label in (BETTER, ACCEPTABLE, CLASSES)))
    assert (probes[BETTER, "model"].balanced_accuracy or 1) < 0.62


@pytest.fixture(scope="module")
def by_chance(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Probe]:
    return probed(tmp_path_factory.mktemp("chance"), None, 500, embedder=BagOfWords())


def test_labels_drawn_by_chance_stay_near_chance(by_chance: dict[tuple[str, str], Probe]) -> None:
    assert len(by_chance) == 3 * 7 + 3 * 7
    for key, probe in by_chance.items():
        assert probe.balanced_accuracy is not None
        # of 200 tests about 80 are of the rarer class: four standard deviations of √(0.25 / 80 / 2) = 0.04
        assert probe.balanced_accuracy == pytest.approx(probe.chance, abs=0.16), key
        assert (probe.low or 0) < probe.balanced_accuracy < (probe.high or 0)


def test_every_probe_says_its_limit(by_chance: dict[tuple[str, str], Probe]) -> None:
    for (label, sees), probe in by_chance.items():
        if "with the reasoning" in sees:
            assert probe.limit is None
            assert probe.passed is None
        else:
            assert probe.limit == (PREFERENCE_LIMIT if label.startswith("preference") else STEP_LIMIT)
        assert probe.chance == (0.25 if label == CLASSES else 0.5)


def test_the_embedder_reads_few_texts_and_each_once(tmp_path: Path) -> None:
    embedder = BagOfWords()
    probes = probed(tmp_path, None, 200, embedder=embedder, embedded_texts=300)
    assert 200 < len(embedder.seen) == len(set(embedder.seen)) <= 300
    probe = probes["emotion step", "model of the turn, embedded"]
    assert 0 < probe.trained + probe.tested < 300 / 4


def test_the_same_seed_gives_the_same_figures(tmp_path: Path) -> None:
    one, again = (probed(tmp_path, leaks_of_words, 200) for _ in range(2))
    assert one == again
    assert one["history step", "words of the step"].balanced_accuracy is not None


def test_a_draw_is_limited_and_too_few_labels_say_nothing(tmp_path: Path) -> None:
    write_records(
        tmp_path / "records.jsonl",
        (SerRecord.model_validate(record(number, random.Random(number), None)) for number in range(400)),
    )
    found = probe_records(tmp_path / "records.jsonl", 1, limit=50)
    assert found.records == 50
    assert found.sources == {"silver": 400}
    assert found.passed
    for probe in found.probes:
        assert probe.trained <= 35
        assert probe.tested <= 15 < FEWEST
        assert probe.balanced_accuracy is None
        assert probe.passed is None


def test_records_without_preference_or_labels_are_left_out(tmp_path: Path) -> None:
    values = [record(number, random.Random(number), None) for number in range(60)]
    del values[0]["preference"], values[1]["labels"]
    write_records(tmp_path / "records.jsonl", (SerRecord.model_validate(value) for value in values))
    found = probe_records(tmp_path / "records.jsonl", 1)
    assert found.records == 59
    seen = {probe.label: probe.trained + probe.tested for probe in found.probes}
    assert seen["history step"] == 58
    assert seen[CLASSES] == 59


def test_a_file_without_a_test_split_is_not_probed(tmp_path: Path) -> None:
    values = [record(number, random.Random(number), None) for number in (5, 7, 9)]
    write_records(tmp_path / "records.jsonl", (SerRecord.model_validate(value) for value in values))
    assert probe_records(tmp_path / "records.jsonl", 1).probes == ()


def test_the_interval_draws_whole_dialogues() -> None:
    """Ten answers of one dialogue are one thing drawn, not ten."""
    truth, told = [True, False] * 200, [True, False] * 100 + [False, True] * 100
    alone = interval_by_dialogue(truth, told, [str(number // 2) for number in range(400)])
    together = interval_by_dialogue(truth, told, [str(number // 100) for number in range(400)])
    assert 0.4 < alone[0] < 0.5 < alone[1] < 0.6
    assert together[0] < 0.2
    assert together[1] > 0.8
