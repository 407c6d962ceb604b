"""The sample corpus keeps its promises, and bad corpus files are refused with file, line and field."""

import json
from collections import Counter
from pathlib import Path

import pytest

from compeer.corpora import PROBLEMS, corpus_path, read_corpus, sample_path
from compeer.dialogue import Dialogue, Utterance
from compeer.errors import InputError
from compeer.reasoning import EMOTIONS, STAGES, STRATEGIES
from compeer.statistics import distinct, words


@pytest.fixture(scope="module")
def sample() -> list[Dialogue]:
    return list(read_corpus("sample"))


def said_by(dialogues: list[Dialogue], speaker: str) -> list[Utterance]:
    return [utterance for dialogue in dialogues for utterance in dialogue.utterances if utterance.speaker == speaker]


def helped(dialogue: Dialogue) -> bool:
    assert dialogue.intensity.initial is not None
    assert dialogue.intensity.final is not None
    return dialogue.intensity.final < dialogue.intensity.initial


# --- the sample corpus ----------------------------------------------------------------------------------------------


def test_sample_is_large_enough(sample: list[Dialogue]) -> None:
    assert len(sample) >= 80
    assert sum(dialogue.language == "en" and helped(dialogue) for dialogue in sample) >= 60
    assert sum(not helped(dialogue) for dialogue in sample) >= 10
    assert sum(dialogue.language == "zh" for dialogue in sample) >= 10


def test_sample_dialogues_are_of_natural_length(sample: list[Dialogue]) -> None:
    lengths = [len(dialogue.utterances) for dialogue in sample]
    assert min(lengths) >= 10
    assert max(lengths) <= 24


def test_sample_ids_and_situations_are_unique(sample: list[Dialogue]) -> None:
    assert len({dialogue.id for dialogue in sample}) == len(sample)
    assert len({dialogue.situation for dialogue in sample}) == len(sample)


def test_sample_covers_the_vocabularies(sample: list[Dialogue]) -> None:
    assert {utterance.strategy for utterance in said_by(sample, "supporter")} == set(STRATEGIES)
    assert {utterance.stage for utterance in said_by(sample, "supporter")} == set(STAGES)
    assert {utterance.emotion for utterance in said_by(sample, "seeker")} == set(EMOTIONS)
    problems = {dialogue.problem for dialogue in sample}
    assert problems <= set(PROBLEMS)
    assert len(problems) >= 10


def test_sample_supporter_turns_are_labelled(sample: list[Dialogue]) -> None:
    for utterance in said_by(sample, "supporter"):
        assert utterance.text.strip()
        assert utterance.strategy
        assert utterance.stage
        assert utterance.notes
        assert all(note and note.strip() for _, note in utterance.notes)
        assert utterance.emotion is None


def test_sample_seeker_turns_are_labelled(sample: list[Dialogue]) -> None:
    for utterance in said_by(sample, "seeker"):
        assert utterance.text.strip()
        assert utterance.emotion
        assert utterance.intensity
        assert utterance.strategy is None
        assert utterance.notes is None


def test_sample_holds_every_feedback(sample: list[Dialogue]) -> None:
    given = {utterance.feedback for utterance in said_by(sample, "supporter")}
    assert given == {None, 1, 2, 3, 4, 5}


def test_sample_replies_are_not_all_alike(sample: list[Dialogue]) -> None:
    replies = [u.text for u in said_by([d for d in sample if d.language == "en"], "supporter")]
    assert distinct(replies, 2) > 0.6
    openings = Counter(tuple(words(reply)[:2]) for reply in replies)
    assert openings.most_common(1)[0][1] <= 0.03 * len(replies)
    assert len(set(replies)) == len(replies)


# --- reading files --------------------------------------------------------------------------------------------------


def line(**changes: object) -> str:
    dialogue: dict[str, object] = {
        "id": "d1",
        "language": "en",
        "source": "test",
        "utterances": [{"speaker": "seeker", "text": "hello", "emotion": "hope"}],
    }
    return json.dumps({key: value for key, value in {**dialogue, **changes}.items() if value is not None})


def refused(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        list(read_corpus(path))
    return caught.value


def test_the_name_sample_is_a_file() -> None:
    assert corpus_path("sample") == sample_path()
    assert sample_path().is_file()


def test_byte_order_mark_blank_lines_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{line()}\r\n\r\n   \n{line(id='d2')}".encode())
    assert [dialogue.id for dialogue in read_corpus(path, format="compeer")] == ["d1", "d2"]


def test_an_empty_file_holds_no_dialogues(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"")
    assert list(read_corpus(path)) == []


@pytest.mark.parametrize(
    ("bad", "field", "what"),
    [
        ('{"id": "d2", ', None, "not JSON"),
        ("[1, 2]", None, ""),
        (
            line(id="d2", utterances=[{"speaker": "seeker", "text": "x", "emotion": "melancholy"}]),
            "utterances.0.emotion",
            "",
        ),
        (
            line(id="d2", utterances=[{"speaker": "seeker", "text": "x"}, {"text": "y"}]),
            "utterances.1.speaker",
            "required",
        ),
        (line(id=None), "id", "required"),
        (line(id="d2", utterances=None), "utterances", "required"),
        (line(id="d2", mood="x"), "mood", "unknown key"),
        (line(id="d1"), "id", "line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, field: str | None, what: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(f"{line()}\n\n{bad}\n{line(id='d3')}\n", encoding="utf-8")
    error = refused(path)
    assert (error.file, error.line, error.field) == (path, 3, field)
    assert what in error.what
    message = str(error)
    assert str(path) in message
    assert "line 3" in message
    assert field is None or f"'{field}'" in message


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(f"{line()}\n".encode() + line(id="café").replace("\\u00e9", "é").encode("latin-1"))
    error = refused(path)
    assert (error.file, error.line) == (path, 2)
    assert "UTF-8" in error.what


def test_what_stands_before_a_bad_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(f"{line()}\n{{", encoding="utf-8")
    dialogues = read_corpus(path)
    assert next(dialogues).id == "d1"
    with pytest.raises(InputError):
        next(dialogues)


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such corpus file") as caught:
        read_corpus(tmp_path / "nowhere.jsonl")
    assert caught.value.file == tmp_path / "nowhere.jsonl"
    with pytest.raises(InputError, match="no corpus file in this folder"):
        read_corpus(tmp_path)
    with pytest.raises(InputError, match="unknown format 'csv'") as caught:
        read_corpus("sample", format="csv")
    assert "compeer" in str(caught.value.do)


def test_text_that_cannot_be_written_again_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(line(utterances=[{"speaker": "seeker", "text": "\ud800"}]), encoding="utf-8")
    assert refused(path).line == 1


@pytest.mark.parametrize("bad", ["1" * 5000, "[" * 100_000])
def test_json_that_python_will_not_read_is_refused(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(bad, encoding="utf-8")
    assert refused(path).line == 1
