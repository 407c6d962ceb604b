"""Reference turns, their wordings, and halved replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compeer.dialogue import Dialogue, Intensity, Utterance
from compeer.reasoning import EMOTIONS, STAGES, STRATEGIES
from compeer.ser.sampling import contexts_of
from compeer.ser.wording import derived_stage, halves, quotes_of, reference_of, why_not, wordings
from compeer.statistics import words
from tests.support.contexts import context_of, dialogue, with_reply


def test_a_reference_turn_carries_the_labels_of_the_corpus() -> None:
    reference = reference_of(context_of(with_reply(dialogue("d"), stage="comforting")), 0)
    turn = reference.turn
    assert (turn.history.stage, turn.strategy.strategy) == ("comforting", "Question")
    assert (turn.emotion.sentiment, turn.emotion.emotion, turn.emotion.intensity) == ("negative", "hurt", 4)
    assert turn.response == "d is heard. Go on."
    assert reference.context.derived == ()
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


def seeker(*texts: str) -> list[Utterance]:
    return [Utterance(speaker="seeker", text=text) for text in texts]


def test_the_most_content_words_are_quoted() -> None:
    quotes = quotes_of(
        [*seeker("Hi there. My landlord sold the house and we must leave by March."), *seeker("ok", "I cannot sleep.")]
    )
    assert quotes.issue == "My landlord sold the house and we must leave by March"
    assert quotes.last == "I cannot sleep"


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
