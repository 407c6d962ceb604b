"""Moments, comparison with what the corpus knows, and exchanges."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.reasoning import STEPS, STRATEGIES, EmotionStep, sentiment_of
from compeer.ser.pairing import IMPROBABLE, PATTERNS, Moments, are_near, compare_turn, exchange, wrong_emotion
from compeer.ser.wording import content_words, reference_of, why_not
from tests.support.contexts import many_contexts, moments_of


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


def test_the_patterns_reach_every_step_alike() -> None:
    shares = [sum(p.weight for p in PATTERNS if part in p.steps) for part in STEPS]
    assert max(shares) - min(shares) <= 1
