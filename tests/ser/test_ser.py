"""From dialogues to SER records: sampled rounds, silver labels, a whole build, and the file records are kept in."""

import json
import os
import random
import signal
import subprocess
import sys
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
from compeer.models.embedder import WordEmbedder
from compeer.reasoning import EMOTIONS, STAGES, STEPS, STRATEGIES, EmotionStep, sentiment_of
from compeer.ser import SerRecord, SerSettings, build_ser, read_records, sample_rounds, write_records
from compeer.ser.build import BuildSettings, build_records
from compeer.ser.pairing import IMPROBABLE, PATTERNS, Moments, are_near, compare_turn, exchange, wrong_emotion
from compeer.ser.reason import CandidateTurn
from compeer.ser.record import PREFERENCES, SPLITS, StepLabel, is_judged
from compeer.ser.sampling import Context, contexts_of, read_contexts, round_weights
from compeer.ser.silver import silver_records
from compeer.ser.wording import content_words, derived_stage, halves, quotes_of, reference_of, why_not, wordings
from compeer.statistics import words

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


# --- contexts and reference turns -----------------------------------------------------------------------------------


def dialogue(id: str, situation: str | None = None, **changes: Any) -> Dialogue:
    utterances = (
        Utterance(speaker="seeker", text=f"{id} hurts", emotion="hurt", intensity=4),
        Utterance(speaker="supporter", text=f"{id} is heard. Go on.", strategy="Question", feedback=4),
    )
    return Dialogue(
        **{"id": id, "language": "en", "source": "test", "situation": situation, "utterances": utterances, **changes}
    )


def context_of(one: Dialogue) -> Context:
    return contexts_of(one, "reward", 99, 0)[-1]


def with_reply(one: Dialogue, **labels: Any) -> Dialogue:
    return one.model_copy(update={"utterances": (*one.utterances[:-1], one.utterances[-1].model_copy(update=labels))})


def test_a_reference_turn_carries_the_labels_of_the_corpus() -> None:
    reference = reference_of(context_of(with_reply(dialogue("d"), stage="comforting")), 0)
    turn = reference.turn
    assert (turn.history.stage, turn.strategy.strategy) == ("comforting", "Question")
    assert (turn.emotion.sentiment, turn.emotion.emotion, turn.emotion.intensity) == ("negative", "hurt", 4)
    assert turn.response == "d is heard. Go on."
    assert reference.derived == ()
    assert reference.context.id == "d:1"


def test_what_a_rule_gave_is_named() -> None:
    one = dialogue("d", emotion="shame", intensity=Intensity(initial=5))
    bare = one.utterances[0].model_copy(update={"emotion": None, "intensity": None})
    context = context_of(one.model_copy(update={"utterances": (bare, one.utterances[1])}))
    assert context.derived == ("stage", "emotion", "intensity")
    turn = reference_of(context, 0).turn
    assert (turn.history.stage, turn.emotion.emotion, turn.emotion.intensity) == ("exploration", "shame", 5)
    assert [derived_stage(number) for number in (1, 3, 4, 6, 7, 40)] == [
        *["exploration"] * 2,
        *["comforting"] * 2,
        *["action"] * 2,
    ]


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (with_reply(dialogue("d"), strategy=None), "no strategy label"),
        (with_reply(dialogue("d"), text=" \n"), "empty reply"),
        (with_reply(dialogue("d"), text="long " * 2000), "over-long reply"),
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
    assert why_not(context_of(one)) == reason


def test_a_praised_reply_serves_even_where_the_dialogue_did_not_help() -> None:
    one = with_reply(dialogue("d", intensity=Intensity(initial=4, final=4)), feedback=4)
    assert why_not(context_of(one)) is None


def test_a_context_knows_what_came_before_and_nothing_later() -> None:
    said = [
        Utterance(speaker="seeker", text="First.", emotion="fear"),
        Utterance(speaker="supporter", text="Yes?", strategy="Question"),
        Utterance(speaker="seeker", text="Second.", emotion="relief"),
        Utterance(speaker="supporter", text="Good.", strategy="Others"),
        Utterance(speaker="seeker", text="Third.", emotion="joy"),
    ]
    context = contexts_of(Dialogue(id="d", language="en", source="s", utterances=tuple(said)), "test", 9, 0)[-1]
    assert (context.round, context.emotion, context.earlier_emotions) == (2, "relief", ("fear",))
    assert context.earlier_strategies == ("Question",)
    assert [utterance.text for utterance in context.history] == ["First.", "Yes?", "Second."]
    assert all(utterance.strategy is None and utterance.emotion is None for utterance in context.history)


# --- wordings -------------------------------------------------------------------------------------------------------


def seeker(*texts: str) -> list[Utterance]:
    return [Utterance(speaker="seeker", text=text) for text in texts]


def test_the_most_content_words_are_quoted() -> None:
    quotes = quotes_of(
        [*seeker("Hi there. My landlord sold the house and we must leave by March."), *seeker("ok", "I cannot sleep.")]
    )
    assert quotes.issue == "My landlord sold the house and we must leave by March"
    assert quotes.said == "I cannot sleep"


@given(st.lists(st.text(max_size=80), min_size=1, max_size=4))
def test_any_history_can_be_quoted_and_worded(texts: list[str]) -> None:
    utterances = (*seeker(*texts), Utterance(speaker="supporter", text="Go on.", strategy="Question"))
    one = Dialogue(id="d", language="en", source="s", emotion="fear", utterances=utterances)
    context = contexts_of(one, "test", 1, 0)[0]
    assert reference_of(context, 3) == reference_of(context, 3)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_decision_has_wordings_and_test_has_its_own(language: str) -> None:
    known = wordings(language)
    assert set(known["feeling"]) == set(EMOTIONS)
    assert set(known["strength"]) == set("12345")
    for part in ("train", "test"):
        assert set(known["history"][part]) == {"issue", *STAGES}
        assert set(known["strategy"][part]) == set(STRATEGIES)
    for step in ("history", "emotion", "strategy"):
        train, test = ({text for texts in known[step][part].values() for text in texts} for part in ("train", "test"))
        assert not train & test


def test_a_language_without_wordings_gets_english() -> None:
    assert wordings("fi") == wordings("en")


# --- moments and comparison -----------------------------------------------------------------------------------------


def many_contexts() -> list[Context]:
    return [context for one in read_corpus("sample") for context in contexts_of(one, "reward", 99, 0)]


def moments_of(contexts: list[Context]) -> Moments:
    moments = Moments()
    for context in contexts:
        moments.add(context)
    return moments


def test_lifts_are_shares_against_the_usual_ones() -> None:
    contexts = many_contexts()
    moments = moments_of(contexts)
    usual = np.array([moments.usual[strategy] + 1.0 for strategy in STRATEGIES])
    usual /= usual.sum()
    for context in contexts[:50]:
        assert float(moments.lifts(context) @ usual) == pytest.approx(1)
    own = [moments.lifts(c)[STRATEGIES.index(c.reply.strategy)] for c in contexts if c.reply.strategy]
    assert np.mean(own) > 1.2
    assert Moments().lifts(contexts[0]) == pytest.approx(np.ones(len(STRATEGIES)))


def test_emotions_that_are_wrong_have_names() -> None:
    context = next(c for c in many_contexts() if c.earlier_emotions)

    def step(emotion: str, intensity: int = 4) -> EmotionStep:
        return EmotionStep.model_validate(
            {"text": "x", "sentiment": sentiment_of(emotion), "emotion": emotion, "intensity": intensity}  # type: ignore[arg-type]
        )

    fresh = context.model_copy(update={"earlier_emotions": ("shame",)})
    assert wrong_emotion(fresh, step("fear"), step("fear", 1)) == "wrong intensity"
    assert wrong_emotion(fresh, step("fear"), step("shame")) == "outdated emotion"
    assert wrong_emotion(fresh, step("fear"), step("joy")) == "opposite emotion"
    assert wrong_emotion(fresh, step("fear"), step("anxiety")) == "neighbouring emotion"
    assert wrong_emotion(fresh, step("fear"), step("anger")) == "another emotion"
    assert are_near("fear", "anxiety")
    assert not are_near("fear", "anger")


def test_a_models_turn_is_compared_with_what_the_corpus_knows() -> None:
    contexts = many_contexts()
    moments = moments_of(contexts)
    context = next(c for c in contexts if why_not(c) is None and not c.derived)
    turn = reference_of(context, 0).turn
    said = content_words(" ".join(utterance.text for utterance in context.history))
    right = turn.model_copy(update={"history": turn.history.model_copy(update={"text": " ".join(sorted(said))})})
    labels = compare_turn(right, context, moments, "exploration")
    assert labels is not None
    assert [getattr(labels, part).value for part in STEPS] == [True] * 3
    assert {getattr(labels, part).source for part in STEPS} == {"silver"}
    lifts = moments.lifts(context)
    unusual = STRATEGIES[int(np.argmin(lifts))]
    assert lifts.min() < IMPROBABLE
    wrong = right.model_copy(update={"strategy": right.strategy.model_copy(update={"strategy": unusual})})
    labels = compare_turn(wrong, context, moments, "exploration")
    assert labels is not None
    assert (labels.strategy.value, labels.strategy.kind) == (False, "improbable strategy")
    elsewhere = right.model_copy(update={"history": right.history.model_copy(update={"text": "zebra xylophone"})})
    assert compare_turn(elsewhere, context, moments, "exploration") is None


# --- exchange -------------------------------------------------------------------------------------------------------


@given(st.integers(2, 40), st.integers(0, 99), st.floats(0.1, 1))
def test_exchanges_are_disjoint_allowed_within_cells_and_within_their_share(n: int, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 3, n).tolist()
    values = [[str(value)] for value in rng.integers(0, 3, n).tolist()]
    allowed = rng.random((n, n)) < 0.6
    free = rng.random(n) < 0.8
    pairs = exchange(cells, values, allowed, rng.random((n, n)).astype(np.float32), share, free, rng)
    taken = [index for pair in pairs for index in pair]
    assert len(taken) == len(set(taken))
    for one, other in pairs:
        assert allowed[one, other]
        assert allowed[other, one]
        assert cells[one] == cells[other]
        assert free[one]
        assert free[other]
    for value, count in Counter(value for own in values for value in own).items():
        assert sum(value in values[index] for index in taken) <= share * count + 1


def test_near_partners_are_preferred() -> None:
    n = 40
    closeness = np.zeros((n, n), dtype=np.float32)
    for one in range(0, n, 2):
        closeness[one, one + 1] = closeness[one + 1, one] = 5
    pairs = exchange(
        [0] * n, [[]] * n, np.ones((n, n), bool), closeness, 1.0, np.ones(n, bool), np.random.default_rng(0)
    )
    assert {tuple(sorted(pair)) for pair in pairs} == {(one, one + 1) for one in range(0, n, 2)}


@given(st.text(max_size=200))
def test_halves_are_whole_sentences_of_about_the_same_length(text: str) -> None:
    found = halves(text)
    if found:
        sizes = [len(words(half)) for half in found]
        assert min(sizes) >= 3
        assert max(sizes) <= 3 * min(sizes)
        assert "".join("".join(found).split()) == "".join(text.split())


def test_a_single_sentence_has_no_halves() -> None:
    assert halves("I am with you in this, whatever comes of it tomorrow.") is None
    assert halves("Stay with me a while. Tell me what he said.") == ("Stay with me a while.", "Tell me what he said.")


# --- silver records of the sample corpus ----------------------------------------------------------------------------

SEED = 11


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ser")
    return folder / "records.jsonl", build_ser(SerSettings(embedder="words"), folder, SEED)


@pytest.fixture(scope="module")
def records(built: tuple[Path, dict[str, Any]]) -> list[SerRecord]:
    return list(read_records(built[0]))


@pytest.fixture(scope="module")
def exchanged(records: list[SerRecord]) -> list[SerRecord]:
    """The candidates that pairs of contexts gave, in their order."""
    return [record for record in records if record.id.endswith((":true", ":spoiled"))]


def test_the_summary_counts_what_was_made(built: tuple[Path, dict[str, Any]], records: list[SerRecord]) -> None:
    _, summary = built
    assert summary["records"] == len(records)
    assert summary["histories"] == sum(record.author == "corpus" for record in records) > 250
    assert summary["records_by_split"] == dict(Counter(record.split for record in records))
    assert summary["dropped"]["badly rated reply"] > 0
    assert summary["dropped"]["dialogue did not help"] > 0
    assert summary["dropped"]["language not wanted"] == 12
    assert len({record.id for record in records}) == len(records)


def test_the_false_share_is_near_its_setting(exchanged: list[SerRecord]) -> None:
    for part in STEPS:
        share = sum(not label(record, part).value for record in exchanged) / len(exchanged)
        assert share == pytest.approx(SerSettings().false_share, abs=0.06)


def label(record: SerRecord, part: str) -> StepLabel:
    assert record.labels is not None
    found: StepLabel = getattr(record.labels, part)
    return found


def test_every_false_step_is_true_in_one_other_history_of_its_split_as_often(exchanged: list[SerRecord]) -> None:
    for part in STEPS:
        true, false = Counter[Any](), Counter[Any]()
        for record in exchanged:
            own = label(record, part)
            key = (record.split, record.candidate.step(part))
            if own.value:
                true[key] += 1
            elif own.kind not in ("wrong stage", "swapped fact", "reasoning contradicts the decision"):
                false[key] += 1
                assert record.dialogue not in own.how
        assert false.total() > 20
        assert all(count <= true[key] for key, count in false.items())


def test_exchanges_are_mutual(exchanged: list[SerRecord]) -> None:
    """Where a step comes from another context, that one shows this one's in return."""
    spoiled = {record.id.removesuffix(":spoiled"): record for record in exchanged if record.id.endswith(":spoiled")}
    pairs = 0
    for own, record in spoiled.items():
        for part in STEPS:
            if not label(record, part).value:
                partner = label(record, part).how.split(" ")[-1]
                assert label(spoiled[partner], part).how.endswith(" " + own)
                assert spoiled[partner].split == record.split
                pairs += 1
    assert pairs > 100


def test_what_is_wrong_with_a_step_is_named(exchanged: list[SerRecord]) -> None:
    kinds = {part: Counter(label(r, part).kind for r in exchanged if not label(r, part).value) for part in STEPS}
    assert {"another seeker's issue", "wrong stage"} <= set(kinds["history"])
    assert {"neighbouring emotion", "opposite emotion", "another emotion"} <= set(kinds["emotion"])
    assert "improbable strategy" in kinds["strategy"]
    assert all(None not in counts for counts in kinds.values())
    patterns = {sum(not label(record, part).value for part in STEPS) for record in exchanged}
    assert patterns == {0, 1, 2, 3}


def test_no_decision_is_false_more_often_than_another() -> None:
    """On a corpus of many dialogues whose labels are spread as in real ones."""
    rng = np.random.default_rng(5)
    contexts = []
    for number in range(900):
        round_ = int(rng.integers(1, 12))
        before = int(rng.choice(8, p=[0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]))
        strategy = STRATEGIES[(before + int(rng.choice(8, p=[0.35, 0.2, 0.15, 0.1, 0.1, 0.05, 0.03, 0.02]))) % 8]
        text = " ".join(rng.choice([f"word{i}" for i in range(300)], 12))
        contexts.append(
            Context(
                id=f"d{number}:1",
                dialogue=f"d{number}",
                round=round_,
                language="en",
                source="s",
                split="reward",
                history=(Utterance(speaker="seeker", text=text + ("?" if rng.random() < 0.4 else ".")),),
                reply=Utterance(
                    speaker="supporter", text=f"Reply number {number} to you. It goes on.", strategy=strategy
                ),
                emotion=EMOTIONS[int(rng.choice(4, p=[0.4, 0.3, 0.2, 0.1]))],
                intensity=int(rng.integers(1, 6)),
                earlier_strategies=(STRATEGIES[before],),
            )
        )
    made = [
        r
        for r in silver_records(contexts, {}, moments_of(contexts), WordEmbedder(), 0.23, 0.8, 1, Counter())
        if is_judged(r)
    ]
    for part, value in (("history", "stage"), ("emotion", "emotion"), ("strategy", "strategy")):
        shares = {}
        for name in {getattr(record.candidate.step(part), value) for record in made}:
            here = [record for record in made if getattr(record.candidate.step(part), value) == name]
            shares[name] = sum(not label(record, part).value for record in here) / len(here)
        assert max(shares.values()) - min(shares.values()) < 0.12, shares


def test_a_true_step_says_what_the_corpus_says(records: list[SerRecord]) -> None:
    references = {(r.dialogue, r.round): r.candidate for r in records if r.author == "corpus"}
    for record in records:
        if record.id.endswith(":badly-rated"):
            continue
        reference = references[record.dialogue, record.round]
        for part in STEPS:
            if label(record, part).value:
                assert record.candidate.step(part).decision == reference.step(part).decision


def test_every_preference_occurs_and_is_what_the_texts_say(
    exchanged: list[SerRecord], records: list[SerRecord]
) -> None:
    homes = {(r.dialogue, r.round): r.candidate.response for r in records if r.author == "corpus"}
    seen: Counter[str] = Counter()
    for record in exchanged:
        assert record.preference is not None
        own = " ".join(homes[record.dialogue, record.round].split())
        value = record.preference.value
        seen[value] += 1
        candidate, reference = (" ".join(text.split()) for text in (record.candidate.response, record.reference))
        if value in ("both", "neither"):
            parts = (candidate, reference)
            assert (f"{parts[0]} {parts[1]}" == own or f"{parts[1]} {parts[0]}" == own) == (value == "both")
        else:
            assert (candidate == own, reference == own) == (value == "candidate", value == "reference")
    assert set(seen) == set(PREFERENCES)
    assert seen["both"] == seen["neither"]
    assert {record.candidate_first for record in exchanged} == {True, False}


def test_what_a_response_does_is_what_the_corpus_says(
    built: tuple[Path, dict[str, Any]], exchanged: list[SerRecord], records: list[SerRecord]
) -> None:
    said: dict[str, set[Any]] = {}
    for context in read_contexts(built[0].with_name("contexts.jsonl")):
        text = context.reply.text.strip()
        for part in (text, *(halves(text) or ())):
            said.setdefault(part, set()).add(context.reply.strategy)
    for record in (*exchanged, *(record for record in records if record.author == "corpus")):
        assert record.response_strategy is not None
        assert record.response_strategy in said[record.candidate.response]
    own = [record for record in records if record.author == "corpus"]
    assert all(record.response_strategy == record.candidate.strategy.strategy for record in own)
    other = [record for record in exchanged if record.response_strategy != record.candidate.strategy.strategy]
    assert 0.05 < len(other) / len(exchanged) < 0.6


def test_every_pair_of_responses_is_judged_both_ways(exchanged: list[SerRecord]) -> None:
    """The same two texts, better and worse the other way round in the partner's history; halves good and bad."""
    verdicts: dict[frozenset[str], Counter[str]] = {}
    for record in exchanged:
        assert record.preference is not None
        pair = frozenset((record.candidate.response, record.reference))
        better = {"candidate": record.candidate.response, "reference": record.reference}
        verdicts.setdefault(pair, Counter())[better.get(record.preference.value, record.preference.value)] += 1
    for counts in verdicts.values():
        assert len(set(counts.values())) == 1
        assert len(counts) == 2


@pytest.mark.parametrize("coherent", [0.0, 1.0])
def test_a_wrong_plan_is_carried_out_in_the_share_that_is_wanted(
    tmp_path: Path, exchanged: list[SerRecord], coherent: float
) -> None:
    build_ser(SerSettings(embedder="words", coherent=coherent), tmp_path, SEED)
    made = {record.id: record for record in read_records(tmp_path / "records.jsonl")}
    outcomes: dict[bool, Counter[bool]] = {True: Counter(), False: Counter()}
    for usual in exchanged:
        record = made[usual.id]
        assert record.candidate.model_copy(update={"response": ""}) == usual.candidate.model_copy(
            update={"response": ""}
        )
        kind = label(made[usual.id.replace(":true", ":spoiled")], "strategy").kind
        if kind == "improbable strategy":
            assert record.preference is not None
            accepted = record.preference.value in ("candidate", "both")
            outcomes[label(record, "strategy").value][accepted] += 1
    right, wrong = outcomes[True], outcomes[False]
    assert min(right.total(), wrong.total()) > 10
    if coherent:
        assert right[False] == wrong[True] == 0, "a right plan has its own reply, a wrong one that of its home"
    else:
        assert min(right[True], right[False], wrong[True], wrong[False]) > 2


def test_badly_rated_replies_are_only_ever_unacceptable(records: list[SerRecord]) -> None:
    rounds = [round_ for one in read_corpus("sample") for round_ in rounds_of(one)]
    bad = {round_.reply.text for round_ in rounds if round_.reply.feedback in (1, 2)}
    assert len(bad) > 20
    shown = [r for r in records if r.candidate.response in bad or r.reference in bad]
    assert len(shown) > 10
    for record in shown:
        assert record.preference is not None
        assert record.preference.value == "neither"
        assert "strategy" in record.derived


def test_nothing_unknown_to_a_supporter_is_in_a_record(records: list[SerRecord]) -> None:
    situations = {one.id: one.situation for one in read_corpus("sample")}
    for record in records:
        situation = situations[record.dialogue]
        assert situation
        assert json.dumps(situation, ensure_ascii=False)[1:-1] not in record.model_dump_json()


def test_histories_are_utterances_alone(built: tuple[Path, dict[str, Any]], records: list[SerRecord]) -> None:
    dialogues = {one.id: one for one in read_corpus(built[0].with_name("screened.jsonl"))}
    for record in records:
        for utterance in record.history:
            assert utterance == Utterance(speaker=utterance.speaker, text=utterance.text)
        said = rounds_of(dialogues[record.dialogue])[record.round - 1].history
        assert [u.text for u in record.history] == [u.text for u in said]


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
    for seed, same in ((SEED, True), (SEED + 1, False)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        build_ser(SerSettings(embedder="words"), folder, seed)
        assert ((folder / "records.jsonl").read_bytes() == built[0].read_bytes()) == same


def test_languages_are_chosen(tmp_path: Path, records: list[SerRecord]) -> None:
    assert {record.language for record in records} == {"en"}
    chinese = SerSettings(languages=("zh",), shares=(0.4, 0.3, 0.3), embedder="words")
    build_ser(chinese, tmp_path, SEED)
    made = list(read_records(tmp_path / "records.jsonl"))
    assert {record.language for record in made} == {"zh"}
    with pytest.raises(InputError, match="no record for the reward split"):
        build_ser(SerSettings(languages=("fr",), embedder="words"), tmp_path, SEED)


def test_contexts_of_one_dialogue_exchange_nothing() -> None:
    one = next(read_corpus("sample"))
    contexts = contexts_of(one, "test", 99, 0)
    made = list(silver_records(contexts, {}, moments_of(contexts), WordEmbedder(), 0.23, 0.8, 1, dropped := Counter()))
    assert {record.author for record in made} == {"corpus"}
    assert dropped["no partner to exchange with"] == len(made) > 2


def test_turns_of_models_become_records_and_what_no_rule_can_judge_waits() -> None:
    contexts = many_contexts()[:80]
    references = {c.id: reference_of(c, 0).turn for c in contexts if why_not(c) is None}
    turns = {
        id: [CandidateTurn(context=id, model="m", number=1, turn=turn), CandidateTurn(context=id, model="m", number=2)]
        for id, turn in references.items()
    }
    made = [
        r
        for r in silver_records(contexts, turns, moments_of(contexts), WordEmbedder(), 0.23, 0.8, 1, Counter())
        if r.author == "m"
    ]
    assert len(made) == len(references)
    assert {is_judged(record) for record in made} == {True, False}
    for record in made:
        if record.labels is None:
            assert record.preference is None
        if record.preference:
            own = references[f"{record.dialogue}:{record.round}"].response
            better = record.candidate.response if record.preference.value == "candidate" else record.reference
            assert better == own


def test_the_patterns_reach_every_step_alike() -> None:
    shares = [sum(p.weight for p in PATTERNS if part in p.steps) for part in STEPS]
    assert max(shares) - min(shares) <= 1


# --- a build that is stopped ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_build_gives_the_same_bytes_with_any_number_of_workers(
    built: tuple[Path, dict[str, Any]], tmp_path: Path, workers: int
) -> None:
    settings = BuildSettings(embedder="words")
    build_records(["sample"], tmp_path, settings, SEED, workers=workers)
    assert files_of(tmp_path) == files_of(built[0].parent)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


STAGES_OF_A_BUILD = ("screened.jsonl", "splits.jsonl", "contexts.jsonl", "records.jsonl")


@pytest.mark.parametrize("stage", STAGES_OF_A_BUILD)
def test_a_build_killed_in_any_stage_goes_on_to_the_same_bytes(tmp_path: Path, stage: str) -> None:
    """The process is killed at the moment when the stage has written some of its lines, and called again."""
    code = f"""
import os, signal
import compeer.pipeline as stage
from pathlib import Path
from compeer.ser.build import BuildSettings, build_records
for module in ("screen", "sampling", "split", "silver"):
    __import__("compeer.ser." + module)
import compeer.ser.sampling, compeer.ser.screen, compeer.ser.silver
compeer.ser.sampling.DIALOGUES_A_UNIT = compeer.ser.screen.DIALOGUES_A_UNIT = 10
compeer.ser.silver.BLOCK = 60
add = stage.Stage.add
def dying(self, done):
    add(self, done)
    if self.out.name == {stage!r} and self.units == (1 if {stage!r} == "splits.jsonl" else 2):
        self._open[""].write(b'{{"half a li')
        self._open[""].flush()
        os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("DIE"):
    stage.Stage.add = dying
build_records(["sample"], Path({str(tmp_path)!r}) / os.environ["PLACE"], BuildSettings(embedder="words"), {SEED})
"""
    for place, die in (("killed", "yes"), ("killed", ""), ("whole", "")):
        (tmp_path / place).mkdir(exist_ok=True)
        environment = {**os.environ, "DIE": die, "PLACE": place}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == (-signal.SIGKILL if die else 0), done.stderr
        if die:
            assert (tmp_path / place / f"{stage}.unfinished").exists()
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


def test_a_stage_is_done_again_when_its_settings_change_and_not_otherwise(tmp_path: Path) -> None:
    build_records(["sample"], tmp_path, BuildSettings(embedder="words"), SEED)
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    build_records(["sample"], tmp_path, BuildSettings(embedder="words"), SEED)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    build_records(["sample"], tmp_path, BuildSettings(embedder="words", false_share=0.4), SEED)
    changed = {path.name for path in tmp_path.iterdir() if path.stat().st_mtime_ns != times[path.name]}
    assert changed == {"records.jsonl", "records.jsonl.manifest.json"}


def test_a_file_that_was_tampered_with_is_made_again(tmp_path: Path) -> None:
    build_records(["sample"], tmp_path, BuildSettings(embedder="words"), SEED)
    path = tmp_path / "contexts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + b" " * 99 + b"\n")
    build_records(["sample"], tmp_path, BuildSettings(embedder="words"), SEED)
    assert path.read_bytes() == whole


def test_a_bad_context_is_named(tmp_path: Path) -> None:
    path = tmp_path / "contexts.jsonl"
    path.write_text('{"id": "x"}\n', encoding="utf-8")
    with pytest.raises(InputError) as caught:
        list(read_contexts(path))
    assert (caught.value.file, caught.value.line) == (path, 1)
    with pytest.raises(InputError, match="no such file"):
        list(read_contexts(tmp_path / "nowhere.jsonl"))


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


def test_building_leaves_the_number_of_threads_as_it_was(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        build_ser(SerSettings(rounds=1), tmp_path, SEED)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
