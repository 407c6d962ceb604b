"""Each corpus' reader does what its schema says, quirks included; on the real corpora, where they are at hand, too."""

import csv
import io
import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compeer import cli
from compeer.corpora import FORMATS, PROBLEMS, BadDialogues, read_corpus, sample_path, write_jsonlines
from compeer.corpora.counting import count_corpus
from compeer.corpora.esconv import rated
from compeer.corpora.items import CHUNK, array_items
from compeer.corpora.labels import EMOTIONS, PROBLEM_TYPES, SPEAKERS, STRATEGIES, normal
from compeer.corpora.mesc import clip_name
from compeer.dialogue import Dialogue, Media
from compeer.errors import InputError

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the public corpora are not at hand")

Json = dict[str, Any]


def write(path: Path, *values: Any, array: bool = False, indent: int | None = None) -> Path:
    lines = "\n".join(json.dumps(value, ensure_ascii=False) for value in values)
    path.write_text(json.dumps(values, ensure_ascii=False, indent=indent) if array else lines, encoding="utf-8")
    return path


def read(path: Path, **options: Any) -> list[Dialogue]:
    return list(read_corpus(path, **options))


def refused(path: Path, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        read(path, **options)
    return caught.value


# --- fixtures, in our own words -------------------------------------------------------------------------------------


def esconv(**changes: Any) -> Json:
    return {
        "experience_type": "Current Experience",
        "emotion_type": "nervousness",
        "problem_type": "Sleep Problems",
        "situation": "The neighbour's dog has kept me up for a week.",
        "survey_score": {
            "seeker": {"initial_emotion_intensity": "4", "empathy": "5", "final_emotion_intensity": "2"},
            "supporter": {"relevance": "0"},
        },
        "dialog": [
            {"text": "Evening! What keeps you awake?", "speaker": "sys", "strategy": "Question"},
            {"text": "A dog.", "speaker": "usr"},
            {"text": "It howls.", "speaker": "usr"},
            {"text": "That would fray my nerves too.", "speaker": "sys", "strategy": "Self-disclosure"},
        ],
        "seeker_question1": "fine",
        **changes,
    }


def official(*turns: tuple[str, str, Json], **changes: Any) -> Json:
    dialog = [{"speaker": who, "annotation": annotation, "content": text} for who, text, annotation in turns]
    return {**esconv(), "dialog": dialog, **changes}


FAILED = official(
    ("speaker", "Nobody came to my stall today.\n", {}),
    ("listener", "Why do you think that was?\n\n", {"strategy": "Questions"}),
    ("listener", "Tell me more", {"strategy": "Other"}),
    ("speaker", "Rain, I suppose.\n", {"feedback": "2"}),
    ("listener", "Sell umbrellas then.", {"strategy": "Direct Guidance"}),
    ("speaker", "Very funny.\n", {}),
    ("listener", "You will manage", {"strategy": "Approval and Reassurance"}),
    ("listener", "So it rained.", {"strategy": "Restatement"}),
    ("speaker", "Bye.\n", {"feedback": "1"}),
)

MULTIESC: Json = {
    "emotion_type": "sadness",
    "problem_type": "job crisis",
    "situation": "My shift was cut .",
    "init_intensity": 5,
    "final_intensity": 2,
    "dialog": [
        {"text": "Hello , there .", "speaker": "sys", "strategy": "Greeting", "all_strategy": ["Greetings"]},
        {"text": "They cut my shift .", "speaker": "usr", "vad": [0.1, 0.2, 0.3], "cause": None, "feedback": None},
        {
            "text": "There is a union for that .",
            "speaker": "sys",
            "strategy": "Providing Suggestions or Information",
            "all_strategy": ["Providing Suggestions or Information"],
        },
        {"text": "Thanks .", "speaker": "usr", "vad": [0.1, 0.2, 0.3], "cause": "x", "feedback": "5"},
    ],
}

COLUMNS = [
    "Utterance",
    "Speaker",
    "Emotion",
    "Strategy",
    "Dialogue_ID",
    "Utterance_ID",
    "Season",
    "Episode",
    "StartTime",
    "EndTime",
]
MESC_ROWS: list[list[Any]] = [
    [
        "I dreamt of the harbour again, twice.",
        "Client",
        "fear",
        "undefined",
        7,
        1,
        1,
        2,
        "00:07:25,500",
        "00:07:31,250",
    ],
    ["What was it like?", "Therapist", "neutral", "open question", 7, 0, 1, 2, "00:07:20,000", "00:07:22,000"],
    ["The harbour is your father, perhaps.", "Therapist", "sadness", "Interpretation", 7, 2, 1, 2, "452", "455.5"],
    ["Shall we begin?", "Therapist", "joy", "Structuring the therapy", 8, 0, 2, 11, "", ""],
]


def mesc_csv(path: Path, rows: list[list[Any]] = MESC_ROWS) -> Path:
    text = io.StringIO()
    csv.writer(text).writerows([COLUMNS, *rows])
    path.write_text(text.getvalue(), encoding="utf-8-sig", newline="")
    return path


MESC_JSON: Json = {
    "problem_type": "Fear of harbours",
    "situation": "She dreams.",
    "dialog": [
        {"text": "I dreamt again.", "speaker": "user", "emotion": "fear", "strategy": "undefined"},
        {"text": "Well done for telling me.", "speaker": "sys", "emotion": "neutral", "strategy": "Approval"},
    ],
}


def avamerg(**changes: Any) -> Json:
    first = {"index": 1, "role": "speaker", "utterance": "My cactus died."}
    second = {"index": 2, "role": "listener", "utterance": "Oh no, the one on the sill?"}
    third = {"index": 3, "role": "speaker", "utterance": "Yes. I had it for nine years."}
    chain = {
        "speaker_emotion": "Devastated",
        "event_scenario": "A plant of many years died.",
        "emotion_cause": "It was a companion.",
        "goal_to_response": "Show that the loss counts.",
    }
    return {
        "conversation_id": "00042",
        "speaker_profile": {"ID": 13, "age": "young", "gender": "female", "timbre": "high"},
        "listener_profile": {"ID": "7", "age": "elderly", "gender": "male", "timbre": "low"},
        "topic": "plants",
        "turns": [
            {
                "turn_id": 1,
                "context": "a plant",
                "dialogue_history": [first],
                "response": second["utterance"],
                "chain_of_empathy": {**chain, "speaker_emotion": "sad"},
            },
            {
                "turn_id": 2,
                "context": "a plant",
                "dialogue_history": [first, second, third],
                "response": "Nine years is a friendship.",
                "chain_of_empathy": chain,
            },
        ],
        **changes,
    }


SOULCHAT: Json = {
    "id": 5,
    "topic": "工作",
    "messages": [{"role": "user", "content": "排班又变了。"}, {"role": "assistant", "content": "听起来你很累。"}],
}
SMILE: Json = {
    "id": 24,
    "dialog": [{"role": "client", "content": "猫不理我。"}, {"role": "counselor", "content": "从什么时候开始的？"}],
}


# --- ESConv ---------------------------------------------------------------------------------------------------------


def test_esconv_lines(tmp_path: Path) -> None:
    (dialogue,) = read(write(tmp_path / "train.jsonl", esconv()))
    assert (dialogue.id, dialogue.language, dialogue.source) == ("esconv-train-0001", "en", "esconv")
    assert (dialogue.emotion, dialogue.problem) == ("anxiety", "sleep")
    assert (dialogue.intensity.initial, dialogue.intensity.final) == (4, 2)
    assert dialogue.extra["emotion_type"] == "nervousness"
    assert dialogue.extra["problem_type"] == "Sleep Problems"
    assert dialogue.extra["survey_score"]["supporter"] == {"relevance": "0"}
    assert dialogue.extra["seeker_question1"] == "fine"
    assert [u.speaker for u in dialogue.utterances] == ["supporter", "seeker", "seeker", "supporter"]
    assert [u.strategy for u in dialogue.utterances] == ["Question", None, None, "Self-disclosure"]
    assert all(u.extra == {} for u in dialogue.utterances)


def test_esconv_without_a_final_intensity(tmp_path: Path) -> None:
    survey = {"seeker": {"initial_emotion_intensity": "4"}, "supporter": {}}
    (dialogue,) = read(write(tmp_path / "test.jsonl", esconv(survey_score=survey)))
    assert (dialogue.intensity.initial, dialogue.intensity.final) == (4, None)


def test_the_official_array(tmp_path: Path) -> None:
    value = official(
        ("supporter", "Evening\n", {"strategy": "Others"}),
        ("seeker", "A dog howls.\n", {}),
        ("supporter", "I see", {"strategy": "Reflection of feelings"}),
        ("seeker", "Good.", {"feedback": "5"}),
    )
    (dialogue,) = read(write(tmp_path / "ESConv.json", value, array=True, indent=2))
    assert dialogue.id == "esconv-0001"
    assert dialogue.utterances[0].text == "Evening"
    assert [u.feedback for u in dialogue.utterances] == [5, None, 5, None]
    assert dialogue.utterances[3].extra == {"feedback": 5}


def test_failed_esconv(tmp_path: Path) -> None:
    (dialogue,) = read(write(tmp_path / "FailedESConv.json", FAILED, array=True))
    assert (dialogue.id, dialogue.source) == ("failed-esconv-0001", "failed-esconv")
    assert [u.text for u in dialogue.utterances][:2] == ["Nobody came to my stall today.", "Why do you think that was?"]
    assert [u.strategy for u in dialogue.utterances if u.speaker == "supporter"] == [
        "Question",
        "Others",
        "Providing Suggestions",
        "Affirmation and Reassurance",
        "Restatement or Paraphrasing",
    ]
    assert dialogue.utterances[4].extra == {"strategy": "Direct Guidance"}
    assert [u.feedback for u in dialogue.utterances] == [None, 2, 2, None, 1, None, 1, 1, None]
    assert [u.extra.get("feedback") for u in dialogue.utterances if u.speaker == "seeker"] == [None, 2, None, 1]


def test_a_file_called_failed_in_the_official_words(tmp_path: Path) -> None:
    value = official(("seeker", "Hi", {}), ("supporter", "Hi", {"strategy": "Other"}))
    assert read(write(tmp_path / "failed.json", value, array=True))[0].source == "failed-esconv"


def test_multiesc(tmp_path: Path) -> None:
    (dialogue,) = read(write(tmp_path / "multiesc_valid_with_feedback.txt", MULTIESC))
    assert dialogue.id == "esconv-multiesc-valid-with-feedback-0001"
    assert (dialogue.intensity.initial, dialogue.intensity.final) == (5, 2)
    assert [u.strategy for u in dialogue.utterances] == ["Others", None, None, None]
    assert dialogue.utterances[2].extra["strategy"] == "Providing Suggestions or Information"
    assert dialogue.utterances[1].extra["vad"] == [0.1, 0.2, 0.3]
    assert [u.feedback for u in dialogue.utterances] == [5, None, 5, None]


@pytest.mark.parametrize(
    ("talk", "ratings"),
    [
        ("S k S k4", "4.4."),  # the usual case: the last two
        ("S S k S S k4", "44.44."),  # two blocks of two
        ("S k S k S k4", ".." + "4.4."),  # three blocks: the last two only
        ("S k2 S k4", "2.4."),  # nothing before the last rating is rated again
        ("S k2 k4", "2.."),  # nothing new: nothing is rated
        ("k4 S", ".."),
        ("S k k4", "4.."),
    ],
)
def test_which_messages_a_rating_is_for(talk: str, ratings: str) -> None:
    turns = talk.split()
    found = rated(
        ["supporter" if turn[0] == "S" else "seeker" for turn in turns],
        [int(turn[1]) if len(turn) > 1 else None for turn in turns],
    )
    assert "".join(str(found.get(index, ".")) for index in range(len(turns))) == ratings


# --- MESC -----------------------------------------------------------------------------------------------------------


def test_mesc_csv(tmp_path: Path) -> None:
    first, second = read(mesc_csv(tmp_path / "MESC.csv"), media="clips")
    assert (first.id, second.id, first.source) == ("mesc-7", "mesc-8", "mesc")
    assert [u.speaker for u in first.utterances] == ["supporter", "seeker", "supporter"]
    assert [u.strategy for u in first.utterances] == ["Question", None, "Others"]
    assert [u.emotion for u in first.utterances] == [None, "fear", None]
    assert first.utterances[0].extra["emotion"] == "neutral"
    assert first.utterances[2].extra["strategy"] == "Interpretation"
    assert first.utterances[1].extra == {
        "Season": 1,
        "Episode": 2,
        "StartTime": "00:07:25,500",
        "EndTime": "00:07:31,250",
    }
    clip = Media(kind="video", path="clips/S01E02_00-07-25.500_00-07-31.250.mp4", start=445.5, end=451.25)
    assert first.utterances[1].media == (clip,)
    assert first.utterances[2].media[0].path == f"clips/{clip_name(1, 2, 452, 455.5)}"
    assert second.utterances[0].media == ()
    assert second.utterances[0].strategy == "Others"


def test_mesc_json(tmp_path: Path) -> None:
    (dialogue,) = read(write(tmp_path / "val.json", MESC_JSON, array=True))
    assert (dialogue.id, dialogue.source, dialogue.situation) == ("mesc-val-0001", "mesc", "She dreams.")
    assert (dialogue.problem, dialogue.extra["problem_type"]) == (None, "Fear of harbours")
    assert [u.emotion for u in dialogue.utterances] == ["fear", None]
    assert [u.strategy for u in dialogue.utterances] == [None, "Affirmation and Reassurance"]
    assert dialogue.utterances[1].extra == {"emotion": "neutral", "strategy": "Approval"}
    (known,) = read(write(tmp_path / "val.json", {**MESC_JSON, "problem_type": "Breakups or Divorce"}, array=True))
    assert known.problem == "breakup"


@pytest.mark.parametrize(
    ("column", "value", "field", "what"),
    [
        ("Speaker", "Nurse", "Speaker", "unknown speaker 'Nurse'"),
        ("Emotion", "awe", "Emotion", "unknown emotion 'awe'"),
        ("Strategy", "Hugging", "Strategy", "unknown strategy 'Hugging'"),
        ("Utterance", " ", "Utterance", "at least 1 character"),
        ("Utterance_ID", "one", "Utterance_ID", "integer"),
        ("Utterance_ID", 0, "Utterance_ID", "twice"),
        ("Season", -1, "Season", "greater than or equal to 0"),
        ("StartTime", "noon", "StartTime", "no time"),
        ("EndTime", "3", "EndTime", "ends before it starts"),
    ],
)
def test_a_bad_mesc_row_is_named(tmp_path: Path, column: str, value: Any, field: str, what: str) -> None:
    rows = [list(row) for row in MESC_ROWS]
    rows[2][COLUMNS.index(column)] = value
    path = mesc_csv(tmp_path / "MESC.csv", rows)
    error = refused(path)
    assert (error.file, error.line, error.field) == (path, 4, field)
    assert what in error.what
    bad = BadDialogues()
    assert [dialogue.id for dialogue in read(path, skip_bad=bad)] == ["mesc-8"]
    assert bad.reasons.total() == 1


def test_a_row_with_a_stray_comma_spoils_the_dialogues_around_it(tmp_path: Path) -> None:
    extra = [["Again.", "Client", "fear", "undefined", 9, 0, 1, 2, "", ""]]
    path = mesc_csv(tmp_path / "MESC.csv", [*MESC_ROWS[:3], [*MESC_ROWS[3], "stray"], MESC_ROWS[3], *extra])
    error = refused(path)
    assert (error.line, "more or fewer cells" in error.what) == (5, True)
    bad = BadDialogues()
    assert [dialogue.id for dialogue in read(path, skip_bad=bad)] == ["mesc-9"]
    assert dict(bad.reasons) == {"the row has more or fewer cells than the header": 2}


def test_mesc_files_that_are_broken_altogether(tmp_path: Path) -> None:
    path = tmp_path / "MESC.csv"
    path.write_text("Dialogue_ID,Speaker\n1,Client\n", encoding="utf-8")
    assert (refused(path).line, refused(path).field) == (1, "Utterance")
    path.write_bytes(mesc_csv(path).read_bytes() + b"caf\xe9,Client,fear,undefined,9,0,1,1,,\n")
    assert (refused(path).line, "UTF-8" in refused(path).what) == (6, True)


# --- AvaMERG, SoulChat, SMILE ---------------------------------------------------------------------------------------


def test_avamerg(tmp_path: Path) -> None:
    (dialogue,) = read(write(tmp_path / "train.json", avamerg(), array=True), media="clips")
    assert (dialogue.id, dialogue.source, dialogue.language) == ("avamerg-00042", "avamerg", "en")
    assert [u.speaker for u in dialogue.utterances] == ["seeker", "supporter"] * 2
    assert [u.emotion for u in dialogue.utterances] == ["sadness", None, "sadness", None]
    assert [u.media[0].path for u in dialogue.utterances] == [
        "clips/dia00042utt1_13.mp4",
        "clips/dia00042utt2_7.mp4",
        "clips/dia00042utt3_13.mp4",
        "clips/dia00042utt4_7.mp4",
    ]
    reply = dialogue.utterances[3]
    assert reply.notes
    assert reply.notes.history == "A plant of many years died."
    assert reply.notes.emotion == "Devastated: It was a companion."
    assert reply.notes.strategy == "Show that the loss counts."
    assert reply.extra["chain_of_empathy"]["speaker_emotion"] == "Devastated"
    assert reply.extra["context"] == "a plant"
    assert dialogue.extra["topic"] == "plants"
    assert dialogue.extra["speaker_profile"]["age"] == "young"


def test_an_avamerg_turn_of_another_version_labels_nothing(tmp_path: Path) -> None:
    value = avamerg()
    value["turns"][0]["response"] = "How sad."
    (dialogue,) = read(write(tmp_path / "train.json", value, array=True))
    assert dialogue.utterances[1].text == "Oh no, the one on the sill?"
    assert dialogue.utterances[1].notes is None
    assert dialogue.utterances[0].emotion is None
    assert [turn["response"] for turn in dialogue.extra["other_turns"]] == ["How sad."]


def test_soulchat_and_smile(tmp_path: Path) -> None:
    (dialogue,) = read(write(tmp_path / "soulchat.json", SOULCHAT, array=True))
    assert (dialogue.id, dialogue.source, dialogue.language) == ("soulchat-5", "soulchat", "zh")
    assert dialogue.extra == {"topic": "工作"}
    (dialogue,) = read(write(tmp_path / "smile_2000.jsonl", SMILE))
    assert (dialogue.id, dialogue.source, dialogue.language) == ("smile-24", "smile", "zh")
    assert [u.speaker for u in dialogue.utterances] == ["seeker", "supporter"]
    assert dialogue.emotion is None


# --- reading in general ---------------------------------------------------------------------------------------------

BAD_FIELDS = [
    (esconv(emotion_type="awe"), "emotion_type", "unknown emotion 'awe'"),
    (esconv(problem_type="dragons"), "problem_type", "unknown problem 'dragons'"),
    (esconv(dialog=[]), "dialog", "at least 1 item"),
    (esconv(dialog=[{"text": "x", "speaker": "cat"}]), "dialog.0.speaker", "unknown speaker 'cat'"),
    (
        esconv(dialog=[{"text": "x", "speaker": "sys", "strategy": "Hug"}]),
        "dialog.0.strategy",
        "unknown strategy 'Hug'",
    ),
    (esconv(dialog=[{"text": " \n", "speaker": "usr"}]), "dialog.0.text", "at least 1 character"),
    (esconv(dialog=[{"speaker": "usr"}]), "dialog.0.text", "required"),
    (
        esconv(survey_score={"seeker": {"initial_emotion_intensity": "6"}}),
        "survey_score.seeker.initial_emotion_intensity",
        "less than or equal to 5",
    ),
    (official(("seeker", "x", {"feedback": "high"})), "dialog.0.annotation.feedback", "integer"),
]


@pytest.mark.parametrize(("bad", "field", "what"), BAD_FIELDS)
def test_bad_lines_and_items_name_their_place(tmp_path: Path, bad: Json, field: str, what: str) -> None:
    lines = write(tmp_path / "train.jsonl", esconv(), bad, esconv())
    error = refused(lines)
    assert (error.file, error.line, error.field) == (lines, 2, field)
    assert what in error.what
    array = write(tmp_path / "train.json", esconv(), bad, esconv(), array=True)
    error = refused(array)
    assert (error.file, error.line, error.field) == (array, None, f"item 2, {field}")
    for path in (lines, array):
        skipped = BadDialogues()
        assert [d.id for d in read(path, skip_bad=skipped)] == ["esconv-train-0001", "esconv-train-0003"]
        assert skipped.reasons.total() == 1
        assert next(iter(skipped.reasons)).startswith(field.replace(".0", ""))


@pytest.mark.parametrize(
    ("value", "field", "what"),
    [
        (avamerg(turns=[]), "turns", "at least 1 item"),
        (avamerg(conversation_id="../x"), "conversation_id", "pattern"),
        (avamerg(speaker_profile={}), "speaker_profile.ID", "required"),
        ({**SOULCHAT, "messages": [{"role": "system", "content": "x"}]}, "messages.0.role", "unknown speaker 'system'"),
        ({**SMILE, "dialog": [{"role": "client"}]}, "dialog.0.content", "required"),
    ],
)
def test_bad_fields_of_the_other_corpora(tmp_path: Path, value: Json, field: str, what: str) -> None:
    error = refused(write(tmp_path / "corpus.jsonl", value))
    assert (error.line, error.field) == (1, field)
    assert what in error.what


def test_unknown_emotion_and_falling_indices_of_avamerg(tmp_path: Path) -> None:
    value = avamerg()
    value["turns"][1]["chain_of_empathy"]["speaker_emotion"] = "zen"
    error = refused(write(tmp_path / "corpus.jsonl", value))
    assert error.field == "turns.1.chain_of_empathy.speaker_emotion"
    value = avamerg()
    value["turns"][1]["dialogue_history"][2]["index"] = 1
    assert refused(write(tmp_path / "corpus.jsonl", value)).field == "turns.1.dialogue_history.2.index"


def test_reasons_are_counted_together(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *[value for value, *_ in BAD_FIELDS[:2]] * 2, esconv())
    path.write_text(path.read_text(encoding="utf-8") + "\n{\n{1}\n", encoding="utf-8")
    skipped = BadDialogues()
    assert [dialogue.id for dialogue in read(path, skip_bad=skipped)] == ["esconv-train-0005"]
    assert dict(skipped.reasons) == {
        "emotion_type: unknown emotion 'awe'": 2,
        "problem_type: unknown problem 'dragons'": 2,
        "this is not JSON": 2,
    }
    assert skipped.first["this is not JSON"].line == 6


def test_any_callback_may_take_the_bad_ones(tmp_path: Path) -> None:
    errors: list[InputError] = []
    path = write(tmp_path / "smile.jsonl", SMILE, SMILE)
    assert len(read(path, skip_bad=errors.append)) == 1
    assert [error.what for error in errors] == ["this id is used twice: 'smile-24' stands on line 1 already"]


def test_a_broken_array_is_an_error_even_when_bad_dialogues_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "soulchat.json"
    whole = json.dumps([SOULCHAT, {**SOULCHAT, "id": 6}], indent=1)
    for text, line in [
        (whole[:-1], 30),
        (whole[:-40], None),
        (whole + "x", None),
        (whole.replace("},\n {", "}\n {"), None),
    ]:
        path.write_text(text, encoding="utf-8")
        error = refused(path, skip_bad=BadDialogues())
        assert error.file == path
        assert error.line is not None
        assert error.line > 1
        assert str(error.field).startswith("item ")
        assert line is None or error.line == line


def test_arrays_are_read_in_pieces(tmp_path: Path) -> None:
    long = {**SOULCHAT, "topic": "é" * (CHUNK + 7)}
    values = [{**(long if number % 3 == 0 else SOULCHAT), "id": number} for number in range(10)]
    path = write(tmp_path / "soulchat.json", *values, array=True)
    path.write_bytes(b"\xef\xbb\xbf\r\n " + path.read_bytes() + b"\n")
    assert [dialogue.id for dialogue in read(path)] == [f"soulchat-{number}" for number in range(10)]
    assert [dialogue.extra for dialogue in read(path)] == [{"topic": value["topic"]} for value in values]


@pytest.mark.parametrize("size", range(CHUNK - 6, CHUNK + 6))
def test_arrays_whose_values_end_where_a_piece_ends(tmp_path: Path, size: int) -> None:
    path = tmp_path / "numbers.json"
    values: list[Any] = ["a" * (size - 9), 1234567, True, -1.5e10, 'ü\\"', None]
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
    assert [item.value for item in array_items(path) if not isinstance(item, InputError)] == values


def test_long_arrays_do_not_fill_the_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "soulchat.json", *[{**SOULCHAT, "id": number} for number in range(5_000)], array=True)
    code = (
        "import sys, tracemalloc; from pathlib import Path; from compeer.corpora.items import array_items;"
        "tracemalloc.start(); count = sum(1 for _ in array_items(Path(sys.argv[1])));"
        "print(count, tracemalloc.get_traced_memory()[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    count, peak = map(int, done.stdout.split())
    assert count == 5_000
    assert peak < 3_000_000 > path.stat().st_size / 2


def test_lines_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", esconv(), *[esconv(emotion_type="awe")] * 100)
    dialogues = read_corpus(path)
    assert next(dialogues).id == "esconv-train-0001"
    with pytest.raises(InputError):
        next(dialogues)


def test_merging(tmp_path: Path) -> None:
    (dialogue,) = read(write(tmp_path / "train.jsonl", esconv()), merge=True)
    assert [u.speaker for u in dialogue.utterances] == ["supporter", "seeker", "supporter"]
    assert dialogue.utterances[1].text == "A dog.\nIt howls."


def test_a_folder_is_all_its_corpora(tmp_path: Path) -> None:
    write(tmp_path / "valid.jsonl", esconv())
    write(tmp_path / "test.jsonl", esconv())
    write(tmp_path / "FailedESConv.json", FAILED, array=True)
    write(tmp_path / "strategy.json", "[Question]", array=True)
    (tmp_path / "settings.json").write_text('{\n "a": 1\n}', encoding="utf-8")
    (tmp_path / "LICENSE").write_text("Do what you like.", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("Nothing here.", encoding="utf-8")
    assert [d.id for d in read(tmp_path)] == ["failed-esconv-0001", "esconv-test-0001", "esconv-valid-0001"]
    assert [d.id for d in read(tmp_path, format="failed-esconv")] == ["failed-esconv-0001"]
    with pytest.raises(InputError, match="no corpus file of format 'mesc'"):
        read_corpus(tmp_path, format="mesc")
    write(tmp_path / "valid.json", esconv(), array=True)
    error = refused(tmp_path)
    assert "item 1 of valid.json" in error.what
    (tmp_path / "valid.json").unlink()
    (tmp_path / "broken.jsonl").write_text('{"id": ', encoding="utf-8")
    assert refused(tmp_path).file == tmp_path / "broken.jsonl"


def test_what_is_no_corpus_is_said_to_be_none(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "x.jsonl", {"name": "x"}))
    assert (error.line, error.what) == (1, "the format is not recognised")
    assert all(name in str(error.do) for name in FORMATS)
    assert refused(write(tmp_path / "x.json", 1, array=True)).field == "item 1"
    assert refused(write(tmp_path / "x.jsonl", SMILE), format="esconv").field == "dialog.0.speaker"


def test_a_format_is_recognised_behind_a_broken_beginning(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("{oops\n" + json.dumps(esconv()), encoding="utf-8")
    assert refused(path).line == 1
    assert [d.id for d in read(path, skip_bad=BadDialogues())] == ["esconv-train-0002"]


def corpora_of_all_formats(folder: Path) -> dict[str, Path]:
    return {
        "compeer": sample_path(),
        "esconv": write(folder / "train.jsonl", esconv(), MULTIESC),
        "failed-esconv": write(folder / "FailedESConv.json", FAILED, array=True),
        "mesc": mesc_csv(folder / "MESC.csv"),
        "avamerg": write(folder / "avamerg.json", avamerg(), array=True),
        "soulchat": write(folder / "soulchat.json", SOULCHAT, array=True),
        "smile": write(folder / "smile.jsonl", SMILE),
    }


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("merge", [False, True])
def test_conversion_keeps_everything(tmp_path: Path, name: str, merge: bool) -> None:
    before = read(corpora_of_all_formats(tmp_path)[name], merge=merge)
    assert write_jsonlines(before, tmp_path / "out.jsonl") == len(before)
    assert read(tmp_path / "out.jsonl") == before


def test_nothing_is_written_where_reading_fails(tmp_path: Path) -> None:
    bad, out = write(tmp_path / "train.jsonl", esconv(), esconv(emotion_type="awe")), tmp_path / "out.jsonl"
    out.write_text("as it was", encoding="utf-8")
    with pytest.raises(InputError):
        write_jsonlines(read_corpus(bad), out)
    assert out.read_text(encoding="utf-8") == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "train.jsonl"]
    for wrong in (tmp_path, tmp_path / "none" / "out.jsonl"):
        with pytest.raises(InputError, match="folder"):
            write_jsonlines([], wrong)


PIECES = [
    *(json.dumps(value).encode() for value in (esconv(), FAILED, MULTIESC, MESC_JSON, avamerg(), SOULCHAT, SMILE)),
    *(
        b"[",
        b"]",
        b",",
        b"\n",
        b"{",
        b"}",
        b'"',
        b"\\ud800",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\x0c",
        b" ",
        b"null",
        b"1e999",
    ),
    *(",".join(COLUMNS).encode() + b"\n", b"Hi,Client,fear,undefined,1,0,1,1,0:01,0:02\n", b"\r", b"NaN"),
    *(b'{"dialog": [{"text": 1}]}', b'{"utterances": 1}', b'{"dialog": null, "emotion_type": []}', b'{"messages": {}}'),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join)),
    suffix=st.sampled_from([".jsonl", ".json", ".csv", ".txt"]),
    name=st.sampled_from([None, *FORMATS]),
    skip=st.booleans(),
)
def test_any_bytes_end_in_dialogues_or_an_input_error(
    tmp_path: Path, data: bytes, suffix: str, name: str | None, skip: bool
) -> None:
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(data)
    with suppress(InputError):
        dialogues = read(path, format=name, skip_bad=BadDialogues() if skip else None, merge=skip)
        assert write_jsonlines(dialogues, tmp_path / "out") == len(dialogues)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_place_is_read_or_named(tmp_path: Path, data: st.DataObject) -> None:
    value = json.loads(
        json.dumps(data.draw(st.sampled_from([esconv(), FAILED, MULTIESC, MESC_JSON, avamerg(), SMILE])))
    )
    spot: Any = value
    while True:  # walk to a random place and put something there
        key = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else list(range(len(spot)))))
        if not (isinstance(spot[key], dict | list) and spot[key] and data.draw(st.booleans())):
            break
        spot = spot[key]
    spot[key] = data.draw(JSON)
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps(value), encoding="utf-8")
    error = None
    try:
        write_jsonlines(read_corpus(path), tmp_path / "out.jsonl")
    except InputError as caught:
        error = caught
    assert error is None or error.line == 1


# --- labels ---------------------------------------------------------------------------------------------------------


def documented(section: str) -> dict[tuple[str, str], str | None]:
    """What docs/labels.md says of each corpus' labels."""
    page = (ROOT / "docs" / "labels.md").read_text(encoding="utf-8")
    found: dict[tuple[str, str], str | None] = {}
    for line in page.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines():
        if not line.startswith("| ") or line.startswith("| corpus"):
            continue
        corpora, labels, ours, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for corpus in corpora.split(", "):
            for theirs in labels.split(", "):
                assert (corpus, theirs) not in found, line
                found[corpus, theirs] = None if ours == "–" else ours
    return found


@pytest.mark.parametrize(
    ("section", "tables"),
    [("Speakers", SPEAKERS), ("Strategies", STRATEGIES), ("Emotions", EMOTIONS), ("Problems", PROBLEM_TYPES)],
)
def test_the_page_on_labels_says_what_the_tables_say(section: str, tables: dict[str, dict[str, str | None]]) -> None:
    changed = {
        (corpus, theirs): ours
        for corpus, table in tables.items()
        for theirs, ours in table.items()
        if ours is None or normal(ours) != theirs
    }
    assert documented(section) == changed


def test_tables_are_written_as_they_are_looked_up() -> None:
    for tables in (SPEAKERS, STRATEGIES, EMOTIONS, PROBLEM_TYPES):
        assert set(tables) <= set(FORMATS)
        for table in tables.values():
            assert all(theirs == normal(theirs) for theirs in table)
    assert {ours for table in PROBLEM_TYPES.values() for ours in table.values()} <= set(PROBLEMS)


# --- the command line -----------------------------------------------------------------------------------------------


def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["compeer", "corpus", *words])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr()
    return int(stop.value.code or 0), " ".join((printed.out + printed.err).split())


def test_statistics_of_several_corpora(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = write(tmp_path / "train.jsonl", esconv(), esconv(emotion_type="awe"))
    second = write(tmp_path / "FailedESConv.json", FAILED, array=True)
    code, printed = run_cli(monkeypatch, capsys, "stats", str(first), str(second), "--skip-bad")
    assert code == 0
    for piece in (
        "train.jsonl FailedESConv.json",
        "dialogues 1 1",
        "utterances 4 9",
        "by the seeker 50.0 % 44.4 %",
        "median utterances a dialogue 4 9",
        "en 1 1",
        "Question 50.0 % 20.0 %",
        "anxiety 1 1",
        "sleep 1 1",
        "feedback 0 5",
        "1 – 3",
        "emotion_type: unknown emotion 'awe' 1 –",
    ):
        assert piece in printed
    code, printed = run_cli(monkeypatch, capsys, "stats", str(first))
    assert code == 2
    assert "line 2, field 'emotion_type': unknown emotion 'awe'" in printed
    code, printed = run_cli(monkeypatch, capsys, "stats", str(second), "--merge")
    assert "utterances 7" in printed


def test_converting_says_how_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    corpus = write(tmp_path / "train.jsonl", esconv(), esconv(emotion_type="awe"))
    out = tmp_path / "out.jsonl"
    assert run_cli(monkeypatch, capsys, "convert", str(corpus), str(out))[0] == 2
    assert not out.exists()
    code, printed = run_cli(monkeypatch, capsys, "convert", str(corpus), str(out), "--skip-bad", "--format", "esconv")
    assert code == 0
    assert "1 dialogues written" in printed
    assert "1 left out: emotion_type: unknown emotion 'awe'" in printed
    assert [dialogue.id for dialogue in read(out)] == ["esconv-train-0001"]
    code, printed = run_cli(monkeypatch, capsys, "convert", str(corpus), str(out), "--format", "esconf")
    assert (code, "unknown format 'esconf'" in printed) == (2, True)


# --- the real corpora -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def esconv_splits() -> dict[str, list[Dialogue]]:
    return {split: read(REAL / "esconv" / f"{split}.jsonl") for split in ("train", "valid", "test")}


@real
def test_esconv_is_complete(esconv_splits: dict[str, list[Dialogue]]) -> None:
    assert {split: len(dialogues) for split, dialogues in esconv_splits.items()} == {
        "train": 910,
        "valid": 195,
        "test": 195,
    }
    dialogues = [dialogue for split in esconv_splits.values() for dialogue in split]
    assert len({dialogue.id for dialogue in dialogues}) == 1300
    counts = count_corpus(dialogues)
    assert sum(counts.lengths) == 38_365
    assert (min(counts.lengths), max(counts.lengths)) == (16, 120)
    total = counts.strategies.total()
    assert {strategy: round(100 * count / total, 1) for strategy, count in counts.strategies.items()} == {
        "Question": 20.7,
        "Others": 18.2,
        "Providing Suggestions": 16.1,
        "Affirmation and Reassurance": 15.4,
        "Self-disclosure": 9.3,
        "Reflection of feelings": 7.8,
        "Information": 6.6,
        "Restatement or Paraphrasing": 5.9,
    }
    assert dict(counts.dialogue_emotions) == {
        "anxiety": 354 + 13,
        "depression": 334,
        "sadness": 308,
        "anger": 111,
        "fear": 95,
        "shame": 42,
        "disgust": 40,
        "guilt": 1,
        "hurt": 1,
    }
    assert Counter(dialogue.utterances[0].speaker for dialogue in dialogues) == {"supporter": 683, "seeker": 617}
    assert counts.problems.total() == 1300


@real
def test_esconv_intensity_always_falls(esconv_splits: dict[str, list[Dialogue]]) -> None:
    intensities = [dialogue.intensity for split in esconv_splits.values() for dialogue in split]
    assert all(intensity.initial is not None for intensity in intensities)
    finals = [(i.initial, i.final) for i in intensities if i.initial is not None and i.final is not None]
    assert len(intensities) - len(finals) == 150
    assert all(final < initial for initial, final in finals)


@real
def test_failed_esconv_ratings() -> None:
    dialogues = read(REAL / "esconv" / "FailedESConv.json")
    assert len(dialogues) == 196
    given = [u.extra["feedback"] for d in dialogues for u in d.utterances if "feedback" in u.extra]
    assert (sum(rating <= 2 for rating in given), sum(rating >= 4 for rating in given)) == (346, 377)
    assert all((u.strategy is not None) == (u.speaker == "supporter") for d in dialogues for u in d.utterances)
    assert not any(u.feedback for d in dialogues for u in d.utterances if u.speaker == "seeker")
    assert not any(u.text != u.text.strip() for d in dialogues for u in d.utterances)


@real
def test_multiesc_ratings() -> None:
    dialogues = read(REAL / "esconv" / "multiesc_valid_with_feedback.txt")
    assert len(dialogues) == 195
    given = [u.extra["feedback"] for d in dialogues for u in d.utterances if "feedback" in u.extra]
    assert sum(rating <= 2 for rating in given) == 39


@real
def test_smile_is_complete() -> None:
    dialogues = read(REAL / "smile" / "smile_2000.jsonl")
    assert len(dialogues) == 2000
    assert {(d.language, d.source) for d in dialogues} == {("zh", "smile")}


@real
def test_real_corpora_survive_conversion(tmp_path: Path) -> None:
    before = read(REAL / "esconv" / "FailedESConv.json", merge=True)
    write_jsonlines(before, tmp_path / "out.jsonl")
    assert read(tmp_path / "out.jsonl") == before


@real
def test_profiles_are_no_corpus() -> None:
    assert refused(REAL / "sage" / "simulator_profile_withfirsttalk.jsonl").what == "the format is not recognised"
    with pytest.raises(InputError, match="no corpus file"):
        read_corpus(REAL / "rlver")
