"""From dialogues to SER records: sampled rounds, splits, silver labels, and the file they are kept in."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.corpora import read_corpus
from compeer.dialogue import Dialogue, Intensity, Utterance, rounds_of
from compeer.errors import InputError
from compeer.reasoning import STEPS
from compeer.ser import SerRecord, SerSettings, build_ser, read_records, sample_rounds, write_records
from compeer.ser.record import PREFERENCES
from compeer.ser.sampling import round_weights
from compeer.ser.silver import Context, reference_context, silver_records
from compeer.ser.split import SPLITS, assign_splits

# --- equation 1 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        (1, [1.0]),
        # μ = 1, σ = 1/2: exp(0) = 1 and exp(−1 / (2·1/4)) = exp(−2) = 0.135335; sum 1.135335
        (2, [0.880797, 0.119203]),
        # μ = 2, σ = 1: exp(−1/2) = 0.606531, 1, 0.606531, exp(−2) = 0.135335; sum 2.348397
        (4, [0.258274, 0.425822, 0.258274, 0.057629]),
    ],
)
def test_equation_1_by_hand(rounds: int, expected: list[float]) -> None:
    assert round_weights(rounds) == pytest.approx(expected, abs=1e-6)


@given(st.integers(0, 60), st.integers(0, 12), st.integers(), st.booleans())
def test_sampled_rounds_are_ascending_unique_and_there(rounds: int, count: int, seed: int, numpy: bool) -> None:
    def draw() -> list[int]:
        return sample_rounds(rounds, count, np.random.default_rng(abs(seed)) if numpy else random.Random(seed))

    found = draw()
    assert found == sorted(set(found))
    assert set(found) <= set(range(1, rounds + 1))
    assert len(found) == min(count, rounds)
    assert draw() == found


def test_one_drawn_round_follows_equation_1() -> None:
    rng, draws = random.Random(1), 6000
    counts = Counter(sample_rounds(6, 1, rng)[0] for _ in range(draws))
    for number, weight in enumerate(round_weights(6), 1):
        # four standard deviations of a share
        assert counts[number] / draws == pytest.approx(weight, abs=4 * (weight * (1 - weight) / draws) ** 0.5)


def test_a_second_round_is_drawn_from_what_is_left() -> None:
    weights, rng, draws = round_weights(3), np.random.default_rng(2), 6000
    counts = Counter(tuple(sample_rounds(3, 2, rng)) for _ in range(draws))
    for pair in ((1, 2), (1, 3), (2, 3)):
        a, b = weights[pair[0] - 1], weights[pair[1] - 1]
        expected = a * b / (1 - a) + b * a / (1 - b)
        assert counts[pair] / draws == pytest.approx(expected, abs=4 * (expected * (1 - expected) / draws) ** 0.5)


# --- splits ---------------------------------------------------------------------------------------------------------


def dialogue(id: str, situation: str | None = None, **changes: Any) -> Dialogue:
    utterances = (
        Utterance(speaker="seeker", text=f"{id} hurts", emotion="hurt", intensity=4),
        Utterance(speaker="supporter", text=f"{id} is heard. Go on.", strategy="Question", feedback=4),
    )
    return Dialogue(
        **{"id": id, "language": "en", "source": "test", "situation": situation, "utterances": utterances, **changes}
    )


@given(
    st.lists(st.sampled_from([None, "a", "b", "c", "d", "e"]), min_size=1, max_size=40),
    st.tuples(*[st.floats(0.05, 1)] * 3),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_splits(
    situations: list[str | None], shares: tuple[float, float, float], seed: int, shuffler: random.Random
) -> None:
    dialogues = [dialogue(f"d{number}", situation) for number, situation in enumerate(situations)]
    splits = assign_splits(dialogues, shares, seed)
    assert set(splits) == {one.id for one in dialogues}
    assert set(splits.values()) <= set(SPLITS)
    for situation in set(situations) - {None}:
        assert len({splits[one.id] for one in dialogues if one.situation == situation}) == 1
    shuffled = list(dialogues)
    shuffler.shuffle(shuffled)
    assert assign_splits(shuffled, shares, seed) == splits
    groups: dict[str, str] = {one.situation or one.id: splits[one.id] for one in dialogues}
    for split, share in zip(SPLITS, shares, strict=True):
        there = sum(found == split for found in groups.values())
        assert abs(there - share / sum(shares) * len(groups)) < 1 + 1e-9


def test_another_seed_splits_otherwise() -> None:
    dialogues = [dialogue(f"d{number}") for number in range(30)]
    assert assign_splits(dialogues, (1, 1, 1), 1) == assign_splits(dialogues, (1, 1, 1), 1)
    assert assign_splits(dialogues, (1, 1, 1), 1) != assign_splits(dialogues, (1, 1, 1), 2)
    assert set(assign_splits(dialogues, (1, 0, 0), 1).values()) == {"reward"}


# --- reference turns ------------------------------------------------------------------------------------------------


def context_of(one: Dialogue) -> Context | str:
    return reference_context(one, rounds_of(one)[-1])


def with_reply(one: Dialogue, **labels: Any) -> Dialogue:
    return one.model_copy(update={"utterances": (*one.utterances[:-1], one.utterances[-1].model_copy(update=labels))})


def test_a_reference_turn_carries_the_labels_of_the_corpus() -> None:
    context = context_of(with_reply(dialogue("d"), stage="comforting"))
    assert isinstance(context, Context)
    turn = context.turn
    assert (turn.history.stage, turn.strategy.strategy) == ("comforting", "Question")
    assert (turn.emotion.sentiment, turn.emotion.emotion, turn.emotion.intensity) == ("negative", "hurt", 4)
    assert turn.response == "d is heard. Go on."
    assert context.derived == ()
    assert context.key == "d:1"


def test_what_a_rule_gave_is_named() -> None:
    one = dialogue("d", emotion="shame", intensity=Intensity(initial=5))
    bare = one.utterances[0].model_copy(update={"emotion": None, "intensity": None})
    context = context_of(one.model_copy(update={"utterances": (bare, one.utterances[1])}))
    assert isinstance(context, Context)
    assert context.derived == ("stage", "emotion", "intensity")
    assert (context.turn.history.stage, context.turn.emotion.emotion) == ("exploration", "shame")
    assert context.turn.emotion.intensity == 5


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (with_reply(dialogue("d"), strategy=None), "no strategy label"),
        (with_reply(dialogue("d"), text=" \n"), "empty reply"),
        (with_reply(dialogue("d"), feedback=2), "badly rated reply"),
        (with_reply(dialogue("d", intensity=Intensity(initial=4, final=4)), feedback=3), "dialogue did not help"),
        (with_reply(dialogue("d", intensity=Intensity(initial=4, final=5)), feedback=None), "dialogue did not help"),
        (
            dialogue("d").model_copy(
                update={"utterances": (Utterance(speaker="seeker", text="x"), dialogue("d").utterances[1])}
            ),
            "no emotion label",
        ),
    ],
)
def test_what_cannot_serve_as_a_reference_is_named(one: Dialogue, reason: str) -> None:
    assert context_of(one) == reason


def test_a_praised_reply_serves_even_where_the_dialogue_did_not_help() -> None:
    one = with_reply(dialogue("d", intensity=Intensity(initial=4, final=4)), feedback=4)
    assert isinstance(context_of(one), Context)


# --- silver records of the sample corpus ----------------------------------------------------------------------------

SEED = 11


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ser")
    return folder / "records.jsonl", build_ser(SerSettings(), folder, SEED)


@pytest.fixture(scope="module")
def records(built: tuple[Path, dict[str, Any]]) -> list[SerRecord]:
    return list(read_records(built[0]))


def test_the_summary_counts_what_was_made(built: tuple[Path, dict[str, Any]], records: list[SerRecord]) -> None:
    _, summary = built
    assert summary["records"] == len(records) == 3 * summary["histories"]
    assert summary["records_by_split"] == dict(Counter(record.split for record in records))
    assert summary["dropped"]["badly rated reply"] > 0
    assert summary["dropped"]["dialogue did not help"] > 0
    assert len({record.id for record in records}) == len(records)


def test_the_false_share_is_near_its_setting(records: list[SerRecord]) -> None:
    candidates = [record for record in records if record.preference]
    for part in STEPS:
        share = sum(not getattr(record.labels, part).value for record in candidates) / len(candidates)
        assert share == pytest.approx(SerSettings().false_share, abs=0.05)


def test_every_false_step_is_true_elsewhere_in_its_split(records: list[SerRecord]) -> None:
    for part in STEPS:
        true = {(r.split, r.candidate.step(part), r.dialogue) for r in records if getattr(r.labels, part).value}
        false = [r for r in records if not getattr(r.labels, part).value]
        assert false
        for record in false:
            homes = {home for split, step, home in true if (split, step) == (record.split, record.candidate.step(part))}
            assert homes - {record.dialogue}


def test_a_true_step_is_the_reference_step(records: list[SerRecord]) -> None:
    references = {(r.dialogue, r.round): r.candidate for r in records if r.author == "corpus"}
    for record in records:
        reference = references[record.dialogue, record.round]
        for part in STEPS:
            same = record.candidate.step(part) == reference.step(part)
            assert same == getattr(record.labels, part).value


def test_every_preference_occurs_and_is_what_the_texts_say(records: list[SerRecord]) -> None:
    homes = {(r.dialogue, r.round): r.candidate.response for r in records if r.author == "corpus"}
    seen: Counter[str] = Counter()
    for record in records:
        if record.preference is None:
            continue
        own = homes[record.dialogue, record.round]
        seen[record.preference.value] += 1
        whose = (record.candidate.response == own, record.reference == own)
        if record.preference.value == "both":
            assert own.startswith(record.candidate.response) or " ".join(own.split()).startswith(
                record.candidate.response
            )
            assert any(whose)
        else:
            expected = {"candidate": (True, False), "reference": (False, True), "neither": (False, False)}
            assert whose == expected[record.preference.value]
    assert set(seen) == set(PREFERENCES)
    assert {record.candidate_first for record in records if record.preference} == {True, False}


def test_nothing_unknown_to_a_supporter_is_in_a_record(records: list[SerRecord]) -> None:
    situations = {one.id: one.situation for one in read_corpus("sample")}
    for record in records:
        situation = situations[record.dialogue]
        assert situation
        assert json.dumps(situation, ensure_ascii=False)[1:-1] not in record.model_dump_json()


def test_histories_are_utterances_alone(records: list[SerRecord]) -> None:
    dialogues = {one.id: one for one in read_corpus("sample")}
    for record in records:
        for utterance in record.history:
            assert utterance == Utterance(speaker=utterance.speaker, text=utterance.text)
        said = rounds_of(dialogues[record.dialogue])[record.round - 1].history
        assert [u.text for u in record.history] == [u.text for u in said]


def test_badly_rated_replies_are_nobodys_example(records: list[SerRecord]) -> None:
    rounds = [round_ for one in read_corpus("sample") for round_ in rounds_of(one)]
    bad = {round_.reply.text for round_ in rounds if round_.reply.feedback in (1, 2)}
    assert len(bad) > 20
    assert not bad & {text for record in records for text in (record.candidate.response, record.reference)}


def test_splits_share_no_dialogue_and_no_text(records: list[SerRecord]) -> None:
    homes: dict[str, set[str]] = {}
    replies: dict[str, set[str]] = {}
    for record in records:
        homes.setdefault(record.dialogue, set()).add(record.split)
        if record.author == "corpus":
            replies.setdefault(record.candidate.response, set()).add(record.split)
    assert all(len(splits) == 1 for splits in homes.values())
    assert all(len(splits) == 1 for splits in replies.values())
    assert {split for splits in homes.values() for split in splits} == set(SPLITS)


def test_the_same_seed_gives_the_same_bytes(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    build_ser(SerSettings(), tmp_path, SEED)
    assert (tmp_path / "records.jsonl").read_bytes() == built[0].read_bytes()
    build_ser(SerSettings(), tmp_path, SEED + 1)
    assert (tmp_path / "records.jsonl").read_bytes() != built[0].read_bytes()


def test_languages_are_chosen(tmp_path: Path, records: list[SerRecord]) -> None:
    assert {record.language for record in records} == {"en"}
    build_ser(SerSettings(languages=("zh",), shares=(0.4, 0.3, 0.3)), tmp_path, SEED)
    assert {record.language for record in read_records(tmp_path / "records.jsonl")} == {"zh"}
    with pytest.raises(InputError, match="0 dialogues in fr"):
        build_ser(SerSettings(languages=("fr",)), tmp_path, SEED)


def test_a_stranger_is_never_of_the_same_dialogue() -> None:
    one = next(read_corpus("sample"))
    contexts = [c for round_ in rounds_of(one) if isinstance(c := reference_context(one, round_), Context)]
    assert len(contexts) > 2
    made = silver_records(contexts, "test", 0.23, 1)
    assert not [r for r in made if r.preference and "another dialogue" in r.preference.how]


# --- the file of records --------------------------------------------------------------------------------------------


def test_records_read_back(tmp_path: Path, records: list[SerRecord]) -> None:
    path = tmp_path / "records.jsonl"
    assert write_records(path, records[:40]) == 40
    assert list(read_records(path)) == records[:40]


def test_a_half_written_file_never_has_the_final_name(tmp_path: Path, records: list[SerRecord]) -> None:
    path = tmp_path / "records.jsonl"

    def broken() -> Iterator[SerRecord]:
        yield records[0]
        assert not path.exists() or path.read_text(encoding="utf-8") == "before"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(path, broken())
    assert not path.exists()
    path.write_text("before", encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        write_records(path, broken())
    assert path.read_text(encoding="utf-8") == "before"


@pytest.mark.parametrize(
    ("change", "field", "what"),
    [
        (lambda line: line[:-9], None, "not JSON"),
        (lambda line: line.replace('"round":', '"runde":'), "round", "required"),
        (lambda line: line.replace('"split":"', '"split":"x'), "split", ""),
        (lambda line: line.replace('"id":', '"more":1,"id":'), "more", "unknown key"),
    ],
)
def test_a_bad_record_is_named(
    tmp_path: Path, records: list[SerRecord], change: Any, field: str | None, what: str
) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, records[:2])
    first, second = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{first}\n{change(second)}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        list(read_records(path))
    assert (caught.value.file, caught.value.line, caught.value.field) == (path, 2, field)
    assert what in caught.value.what


def test_a_missing_file_of_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file") as caught:
        list(read_records(tmp_path / "records.jsonl"))
    assert caught.value.file == tmp_path / "records.jsonl"


def test_a_file_of_records_that_is_not_utf8_is_named(tmp_path: Path, records: list[SerRecord]) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, records[:1])
    path.write_bytes(path.read_bytes() + b"\xff\n")
    with pytest.raises(InputError) as caught:
        list(read_records(path))
    assert (caught.value.file, caught.value.line) == (path, 2)
