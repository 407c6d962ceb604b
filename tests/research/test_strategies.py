"""The classifier that decides whether a response carries out a strategy, and how well it says that it does."""

import numpy as np
import pytest
from research.judge.strategies import DecidingClassifier, strategy_replies

from compeer.dialogue import Dialogue, Strategy, Utterance
from compeer.errors import InputError
from compeer.reward.strategies import StrategyClassifier
from tests.support.judged_records import turn


def corpus(dialogues: int, noise: float) -> list[Dialogue]:
    """Questions end with a question mark, suggestions say "try"; some replies are labelled wrong."""
    rng = np.random.default_rng(0)
    things = ["sleep", "work", "rent", "exam", "friend", "sister"]
    found = []
    for number in range(dialogues):
        utterances = [Utterance(speaker="seeker", text="you could try? no label here")]
        for _ in range(4):
            thing = things[rng.integers(len(things))]
            kind = int(rng.integers(3))
            text = (f"how is {thing} now?", f"you could try a walk after {thing}", f"{thing} and more {thing}")[kind]
            labels: tuple[Strategy, ...] = ("Question", "Providing Suggestions", "Others")
            label = labels[int(rng.integers(3)) if rng.random() < noise else kind]
            utterances.append(Utterance(speaker="supporter", text=text, strategy=label))
        found.append(Dialogue(id=f"d{number}", language="en", source="test", utterances=tuple(utterances)))
    return found


def test_the_classifier_tells_strategies_and_says_how_well() -> None:
    classifier = DecidingClassifier(strategy_replies(corpus(150, 0.1)), seed=1)
    report = classifier.report
    assert report["accuracy"] > 0.85 > 0.5 > report["majority"]
    assert report["intervals"]["accuracy"][0] < report["accuracy"] < report["intervals"]["accuracy"][1]
    assert report["own_wrong"] <= classifier.errors + 0.01
    assert report["other_wrong"] <= classifier.errors + 0.01
    assert 0 <= report["lower"] <= report["upper"] <= 1
    turns = [
        turn("Question", "how is the exam now?"),
        turn("Providing Suggestions", "how is the exam now?"),
        turn("Self-disclosure", "how is the exam now?"),
    ]
    told = DecidingClassifier(strategy_replies(corpus(150, 0.0)), seed=1, errors=0.05).follows(turns)
    # of a strategy that was never seen nothing can be told
    assert told == [True, False, None]
    assert classifier.follows([]) == []


def test_the_classifier_is_the_same_for_the_same_seed() -> None:
    known = corpus(60, 0.2)
    first, again, other = (DecidingClassifier(strategy_replies(known), seed).report for seed in (1, 1, 2))
    assert first == again != other


def test_the_classifier_decides_nothing_where_nothing_can_be_told() -> None:
    classifier = DecidingClassifier(strategy_replies(corpus(150, 1.0)), seed=1, errors=0.05)
    report = classifier.report
    assert report["accuracy"] < 0.5
    assert report["own_decided"] < 0.2


def test_the_classifier_needs_labels() -> None:
    with pytest.raises(InputError, match="too few"):
        DecidingClassifier(strategy_replies([]), seed=1)
    with pytest.raises(InputError, match="too few"):
        StrategyClassifier([("why?", "Question", "a"), ("how?", "Question", "b")])
