"""Dialogues: blocks, rounds and transcripts, and what a dialogue refuses."""

import pytest
from pydantic import ValidationError

from compeer.dialogue import Dialogue, Media, Notes, Utterance, last_seeker, merge_consecutive, rounds_of, transcript


def seeker(text: str, **labels: object) -> Utterance:
    return Utterance(speaker="seeker", text=text, **labels)  # type: ignore[arg-type]


def supporter(text: str, **labels: object) -> Utterance:
    return Utterance(speaker="supporter", text=text, **labels)  # type: ignore[arg-type]


def dialogue(*utterances: Utterance) -> Dialogue:
    return Dialogue(id="d", language="en", source="test", utterances=utterances)


def test_what_one_speaker_says_in_a_row_becomes_one_block() -> None:
    blocks = merge_consecutive([seeker("a"), seeker("b"), supporter("c"), seeker("d"), seeker("e"), seeker("f")])
    assert [(block.speaker, block.text) for block in blocks] == [
        ("seeker", "a\nb"),
        ("supporter", "c"),
        ("seeker", "d\ne\nf"),
    ]


def test_of_a_supporter_block_the_first_strategy_counts() -> None:
    first, second = Notes(strategy="first"), Notes(strategy="second")
    (block,) = merge_consecutive(
        [
            supporter("hm"),
            supporter("a", strategy="Question", stage="exploration", notes=first, feedback=2),
            supporter("b", strategy="Information", stage="action", notes=second, feedback=4),
        ]
    )
    assert (block.strategy, block.stage, block.notes) == ("Question", "exploration", first)
    assert block.feedback == 4


def test_of_a_seeker_block_the_last_feeling_counts() -> None:
    (block,) = merge_consecutive(
        [seeker("a", emotion="fear", intensity=5), seeker("b", emotion="relief", intensity=2), seeker("c")]
    )
    assert (block.emotion, block.intensity) == ("relief", 2)


def test_media_and_other_labels_of_a_block_are_carried_through() -> None:
    face, voice = Media(kind="image", path="face.png"), Media(kind="audio", path="a.wav", start=1, end=2.5)
    utterances = [seeker("a", media=(face,), extra={"x": 1, "y": 1}), seeker("b", media=(voice,), extra={"y": 2})]
    (block,) = merge_consecutive(utterances)
    assert block.media == (face, voice)
    assert block.extra == {"x": 1, "y": 2}
    (found,) = rounds_of(dialogue(*utterances, supporter("c")))
    assert found.history[0].media == (face, voice)


def test_merging_leaves_the_given_utterances_alone() -> None:
    given = [seeker("a"), seeker("b")]
    merge_consecutive(given)
    assert [utterance.text for utterance in given] == ["a", "b"]


def test_each_round_sees_all_that_was_said_before_it() -> None:
    rounds = rounds_of(dialogue(seeker("1"), supporter("2"), supporter("3"), seeker("4"), seeker("5"), supporter("6")))
    assert [round_.number for round_ in rounds] == [1, 2]
    assert [[u.text for u in round_.history] for round_ in rounds] == [["1"], ["1", "2\n3", "4\n5"]]
    assert [round_.reply.text for round_ in rounds] == ["2\n3", "6"]


def test_a_supporter_who_opens_answers_nobody_but_is_heard() -> None:
    rounds = rounds_of(dialogue(supporter("hello"), supporter("there"), seeker("a"), supporter("b")))
    assert [(round_.number, round_.reply.text) for round_ in rounds] == [(1, "b")]
    assert [utterance.text for utterance in rounds[0].history] == ["hello\nthere", "a"]


def test_a_seeker_who_is_not_answered_makes_no_round() -> None:
    assert rounds_of(dialogue(seeker("a"))) == []
    assert rounds_of(dialogue(supporter("a"))) == []
    assert len(rounds_of(dialogue(seeker("a"), supporter("b"), seeker("c")))) == 1


def test_last_seeker() -> None:
    assert last_seeker([seeker("a"), seeker("b"), supporter("c")]) == seeker("b")
    assert last_seeker([supporter("c")]) is None
    assert last_seeker([]) is None


def test_a_transcript_has_one_line_an_utterance() -> None:
    history = [seeker("one\nSupporter: two"), supporter("  three \t four ")]
    assert transcript(history) == "Seeker: one Supporter: two\nSupporter: three four"
    assert transcript([]) == ""


@pytest.mark.parametrize(
    "labels",
    [
        {"speaker": "user"},
        {"strategy": "question"},
        {"stage": "ending"},
        {"emotion": "melancholy"},
        {"intensity": 0},
        {"intensity": 6},
        {"feedback": 6},
        {"mood": "bad"},
        {"media": [{"kind": "smell", "path": "x"}]},
        {"media": [{"kind": "audio", "path": "x", "start": -1}]},
        {"notes": {"thought": "x"}},
        {"text": None},
    ],
)
def test_bad_labels_are_refused(labels: dict[str, object]) -> None:
    good: dict[str, object] = {"speaker": "supporter", "text": "x"}
    Utterance.model_validate(good)
    with pytest.raises(ValidationError):
        Utterance.model_validate({**good, **labels})


@pytest.mark.parametrize("change", [{"id": ""}, {"utterances": []}, {"emotion": "blue"}, {"intensity": {"initial": 9}}])
def test_bad_dialogues_are_refused(change: dict[str, object]) -> None:
    good = {"id": "d", "language": "en", "source": "test", "utterances": [{"speaker": "seeker", "text": "x"}]}
    Dialogue.model_validate(good)
    with pytest.raises(ValidationError):
        Dialogue.model_validate({**good, **change})


def test_a_dialogue_reads_back_from_json() -> None:
    given = dialogue(
        seeker("a", emotion="hope", media=(Media(kind="image", path="x.png"),)), supporter("b", feedback=3)
    )
    assert Dialogue.model_validate_json(given.model_dump_json()) == given
