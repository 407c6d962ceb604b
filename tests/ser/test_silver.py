"""Silver records of the sample corpus."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compeer.corpora import read_corpus
from compeer.dialogue import Utterance, rounds_of
from compeer.reasoning import EMOTIONS, STEPS, STRATEGIES
from compeer.ser import SerRecord, SerSettings, build_ser, read_records
from compeer.ser.reason import CandidateTurn
from compeer.ser.record import PREFERENCES, SPLITS, StepLabel, is_judged
from compeer.ser.sampling import Context, contexts_of, read_contexts
from compeer.ser.silver import SilverSettings, silver_records
from compeer.ser.wording import halves, reference_of, why_not
from tests.support.contexts import SEED, many_contexts, moments_of


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
        for r in silver_records(contexts, {}, moments_of(contexts), SilverSettings(embedder="words"), 1, Counter())
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


def test_contexts_of_one_dialogue_exchange_nothing() -> None:
    one = next(read_corpus("sample"))
    contexts = contexts_of(one, "test", 99, 0)
    made = list(
        silver_records(contexts, {}, moments_of(contexts), SilverSettings(embedder="words"), 1, dropped := Counter())
    )
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
        for r in silver_records(contexts, turns, moments_of(contexts), SilverSettings(embedder="words"), 1, Counter())
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
