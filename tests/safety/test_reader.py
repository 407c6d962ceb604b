"""The readers: their files and texts, what they say, their training, and a detector whose reader is late or fails."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from compeer.dialogue import Utterance
from compeer.engine.cpu_table import CpuEngine
from compeer.errors import InputError
from compeer.safety import Detector
from compeer.safety.large import MOST_LETTERS, LargeReader, large_reader, mean, prompt
from compeer.safety.large import as_guess as as_guess_of_large
from compeer.safety.reader import COLUMNS, SUPPORTER, Guess, SmallReader, Window, as_guess, features, small_reader
from compeer.safety.risk import KINDS
from compeer.safety.rules import Scan
from compeer.safety.weights import read_weights
from compeer.statistics import Numbers
from tests.support.guard_scripts import FOLDER, prepare, train

PACKAGED = Path(str(files("compeer.safety").joinpath("weights")))
DIRECT = ["I want to kill myself", "I swallowed a whole bottle of pills", "我不想活了", "我想自杀"]
Text = prepare.Text


def embed(texts: Sequence[str]) -> Numbers:
    """Stands in for the embedder: rows that differ from text to text."""
    return np.stack([np.cos(np.arange(512) * (1 + len(text) % 7)) / 16 for text in texts])


class Says:
    """A reader that gives one answer to everything, or raises, or waits until it is let go."""

    whole = False

    def __init__(
        self, danger: float, crisis: float = 0.0, error: Exception | None = None, until: threading.Event | None = None
    ) -> None:
        self.danger, self.crisis, self.error, self.until = danger, crisis, error, until

    def read(self, windows: Sequence[Window]) -> list[Guess]:
        if self.until:
            self.until.wait(60)
        if self.error:
            raise self.error
        return [Guess("suicide", self.danger, self.crisis)] * len(windows)


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_packaged_weights_are_whole_and_small() -> None:
    phrases, reader = read_weights("phrases"), read_weights("reader")
    for language in ("en", "zh"):
        keys = phrases[f"{language}_keys"]
        assert np.all(np.diff(keys.astype(np.int64)) > 0)
        assert phrases[f"{language}_weights"].shape == (len(keys), len(COLUMNS))
        assert reader[f"{language}_bounds"].shape == (2,)
    assert reader["joined"].shape == (2, 2)
    assert reader["outer"].shape == (reader["hidden"].shape[1], len(COLUMNS))
    assert all(np.isfinite(array).all() for array in [*phrases.values(), *reader.values()])
    assert sum(path.stat().st_size for path in PACKAGED.iterdir()) < 2_000_000


@pytest.mark.parametrize("name", ["phrases", "reader", "replies"])
def test_weights_that_were_changed_or_lost_are_refused(name: str, tmp_path: Path) -> None:
    for path in PACKAGED.glob(f"{name}.*"):
        shutil.copy(path, tmp_path)
    assert set(read_weights(name, tmp_path)) == set(read_weights(name))
    file = tmp_path / f"{name}.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match="hash differs"):
        read_weights(name, tmp_path)
    file.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        read_weights(name, tmp_path)


def test_the_same_arrays_give_the_same_bytes(tmp_path: Path) -> None:
    arrays = {"b": np.arange(3), "a": np.ones(2, np.float16)}
    train.write_weights("one", arrays, tmp_path)
    train.write_weights("two", dict(reversed(arrays.items())), tmp_path)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert np.array_equal(read_weights("one", tmp_path)["b"], arrays["b"])


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("hello", "no labelled text"),
        ("grave\t-\thello", "no such level"),
        ("none\tsuicide\thello", "no such kind"),
        ("crisis\t-\thello", "no such kind"),
        ("none\t-\t ¶ ", "no text"),
    ],
)
def test_a_bad_line_is_named(line: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text(f"# ours\nnone\t-\thello\n{line}\n", "utf-8")
    with pytest.raises(InputError, match=what) as caught:
        prepare.read_texts(tmp_path)
    assert "line 3" in str(caught.value)


def test_texts_are_read_with_their_messages(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("crisis\tsuicide\tone ¶ two\nnone\t-\t你好\nnone\t-\t你好\n", "utf-8")
    expected = [Text(("one", "two"), "crisis", "suicide", "own"), Text(("你好",), "none", None, "own")]
    assert prepare.read_texts(tmp_path) == expected
    with pytest.raises(InputError, match="no texts"):
        prepare.read_texts(tmp_path / "nowhere")


def test_longer_texts_keep_what_they_were_made_from() -> None:
    texts = [Text((f"harmless {number}",), "none") for number in range(9)]
    texts += [Text(("the danger",), "crisis", "suicide")]
    made = prepare.made_longer(texts, 1)
    grave = [text for text in made if text.level == "crisis"]
    assert grave
    assert all("the danger" in " ".join(text.messages) for text in grave)
    assert not any("the danger" in " ".join(text.messages) for text in made if text.level == "none")
    assert made == prepare.made_longer(texts, 1) != prepare.made_longer(texts, 2)


def test_conversations_are_read_with_who_said_what(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    entry = "### x-1 | abuse | concern | several\nSeeker: one\nSupporter: two\nSeeker: three\nfour\n"
    (tmp_path / "own" / "en-x.txt").write_text(f"{entry}\n### x-2 | none | none | harmless\nSeeker: five\n", "utf-8")
    first, second = prepare.read_conversations("own", tmp_path)
    assert first.messages == ("one", "three\nfour")
    assert first.both == ("one", f"{SUPPORTER}two", "three\nfour")
    assert (first.id, first.kind, first.level, first.manner, first.writer) == (
        "x-1",
        "abuse",
        "concern",
        "several",
        "en-x",
    )
    assert second.kind is None
    (tmp_path / "own" / "en-y.txt").write_text("### y-1 | none | crisis | direct\nSeeker: one\n", "utf-8")
    with pytest.raises(InputError, match="no such kind"):
        prepare.read_conversations("own", tmp_path)


def test_writers_are_dealt_into_parts_and_pairs_are_balanced() -> None:
    parts = {part: prepare.read_conversations(part) for part in ("train", "tune")}
    writers = {part: {text.writer for text in texts} for part, texts in parts.items()}
    assert not writers["train"] & writers["tune"]
    for texts in parts.values():
        assert 0.5 <= sum(text.level == "none" for text in texts) / len(texts) < 0.56
        assert {text.kind for text in texts} == {*KINDS, None}


# --- the small reader -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_texts_of_its_own_are_learnt(language: str) -> None:
    texts = [text for text in prepare.read_texts(FOLDER / "texts") if text.language == language][::29]
    guesses = SmallReader(embed=None).read([text.messages for text in texts])
    grave = [guess.danger >= 0.5 for guess, text in zip(guesses, texts, strict=True) if text.level != "none"]
    harmless = [guess.danger < 0.5 for guess, text in zip(guesses, texts, strict=True) if text.level == "none"]
    assert min(len(grave), len(harmless)) > 100
    assert np.mean(grave) > 0.2  # much of it is veiled, and its harmless double stands beside it
    assert np.mean(harmless) > 0.95


def test_phrases_are_learnt_alike_and_tell_texts_apart() -> None:
    texts = [Text((f"the train leaves at {hour}",), "none") for hour in range(30)]
    texts += [Text((f"he will strangle me at {hour}",), "crisis", "abuse") for hour in range(30)]
    arrays, again = train.fit_phrases(texts, "en"), train.fit_phrases(texts, "en")
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    new = [Text(("will he strangle me",), "crisis"), Text(("the train leaves",), "none")]
    odds = train.phrase_odds(new, arrays, "en")
    assert odds[0, :2].min() > 0 > odds[1, :2].max()


def test_the_network_learns_alike_and_tells_rows_apart() -> None:
    rng = np.random.default_rng(1)
    truth = np.arange(200) % 2 == 0
    rows = rng.normal(0, 0.1, (200, 20)) + np.where(truth, 0.5, -0.5)[:, None]
    texts = [Text(("x",), "crisis", "abuse") if grave else Text(("x",), "none") for grave in truth]
    arrays, again = train.fit_network(texts, rows), train.fit_network(texts, rows)
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    odds = train.reader.network(rows, arrays)
    assert odds[truth, :2].min() > odds[~truth, :2].max()
    assert as_guess(odds[0]).kind == "abuse"


def test_messages_are_weighed_together() -> None:
    one, two = features(["I bought a rope"], "en"), features(["Nobody is home"], "en")
    assert set(features(["I bought a rope", "Nobody is home"], "en")) == {*one, *two}


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=3))
def test_guesses_are_probabilities(messages: list[str]) -> None:
    for layer in (SmallReader(embed=None), SmallReader({**read_weights("phrases"), **read_weights("reader")}, embed)):
        guess = layer.read([tuple(messages)])[0]
        assert 0 <= guess.danger <= 1
        assert 0 <= guess.crisis <= 1


# --- the large reader -------------------------------------------------------------------------------------------------


def test_the_large_reader_reads_a_whole_conversation(tiny_model: Path, tmp_path: Path) -> None:
    reader = LargeReader(tiny_model)
    talk = ("I sold the car.", f"{SUPPORTER}How was that?", "Easy. 我把狗送人了。")
    one, other = reader.read([talk, ("The soup was good.",)])
    assert one != other
    assert all(0 <= value <= 1 for value in (one.danger, one.crisis, other.danger, other.crisis))
    assert reader.read([talk]) == [one]
    reader.close()
    card = tmp_path / "own"
    shutil.copytree(tiny_model, card)
    (card / "compeer.json").write_text(json.dumps({"thresholds": {"danger": 1e-5, "crisis": 0.99999}}))
    strict = LargeReader(card)
    assert not strict.checks_replies
    moved = strict.read([talk])[0]
    assert moved.danger > one.danger
    assert moved.crisis < one.crisis
    strict.close()
    (card / "adapter_model.safetensors").write_bytes(b"x")
    (card / "compeer.json").write_text(json.dumps({"sha256": "0" * 64}))
    with pytest.raises(InputError, match="hash differs"):
        LargeReader(card)


def test_where_the_first_adapter_is_not_sure_the_second_is_asked(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_model, tmp_path / "two")
    shutil.copytree(tiny_model, tmp_path / "two" / "second")
    weights = tmp_path / "two" / "second" / "model.safetensors"
    save_file({name: value * 0.5 for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    talk = ("I sold the car.",)
    found = {}
    for folder in (tiny_model, tmp_path / "two" / "second", tmp_path / "two"):
        reader = LargeReader(folder)
        found[folder] = reader.read([talk])[0].danger
        reader.close()
    first, second, both = found.values()
    assert both == pytest.approx(max(first, (first + second) / 2))
    monkeypatch.setattr("compeer.safety.large.UNSURE", (0.0, first / 2))
    sure = LargeReader(tmp_path / "two")
    assert sure.read([talk])[0].danger == first
    sure.close()
    (tmp_path / "two" / "second" / "adapter_model.safetensors").write_bytes(b"x")
    (tmp_path / "two" / "second" / "compeer.json").write_text(json.dumps({"sha256": "0" * 64}))
    with pytest.raises(InputError, match="hash differs"):
        LargeReader(tmp_path / "two")


@pytest.mark.parametrize(("threshold", "questions"), [(0.99999, 1), (0.00001, 2)])
def test_the_kind_is_asked_for_where_there_is_danger(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: float, questions: int
) -> None:
    shutil.copytree(tiny_model, tmp_path / "own")
    (tmp_path / "own" / "compeer.json").write_text(json.dumps({"thresholds": {"danger": threshold}}))
    reader = LargeReader(tmp_path / "own")
    asked, whole = [], CpuEngine.probabilities
    monkeypatch.setattr(CpuEngine, "probabilities", lambda *given: asked.append(1) or whole(*given))
    assert (reader.read([("I sold the car.",)])[0].danger >= 0.5) == (questions == 2)
    assert len(asked) == questions
    reader.close()


def test_two_adapters_speak_together_and_a_few_words_must_be_plainer() -> None:
    assert mean([0.6, 0.3, 0.1], [0.2, 0.4, 0.4]) == pytest.approx([0.4, 0.35, 0.25])
    thresholds = {"danger": 0.3, "crisis": 0.3, "short": 0.5}
    kinds = [1.0, 0.0, 0.0, 0.0, 0.0]
    long = as_guess_of_large([0.6, 0.3, 0.1], kinds, thresholds, ("word " * 40,))
    short = as_guess_of_large([0.6, 0.3, 0.1], kinds, thresholds, ("a few words",))
    assert short.danger < 0.5 < long.danger


def test_the_prompt_says_who_said_what_and_keeps_the_end() -> None:
    system, user = prompt(["one\ntwo", f"{SUPPORTER}three"])
    assert "crisis" in system["content"]
    assert user["content"] == "Seeker: one two\nSupporter: three"
    long = prompt(["first", "x" * MOST_LETTERS, "last"])[1]["content"]
    assert long == "Seeker: last"
    assert len(prompt(["y" * 3 * MOST_LETTERS])[1]["content"]) == MOST_LETTERS
    assert (prepare.answer("none", None), prepare.answer("crisis", "abuse")) == ("none", "crisis: abuse")


def test_without_its_files_there_is_no_large_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPEER_CACHE", str(tmp_path))
    assert large_reader.__wrapped__() is None


def test_chats_for_the_training_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prepare.py", str(tmp_path), "--texts", "5"])
    prepare.main()
    rows = [json.loads(line) for line in (tmp_path / "chats.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) >= 805
    assert [message["role"] for message in rows[0]["messages"]] == ["system", "user", "assistant"]
    training, checking = json.loads((tmp_path / "plan.json").read_text("utf-8"))
    assert training["train"] == checking["first"] == "guard-1.5b"
    asked = [json.loads(line)["prompt"] for line in (tmp_path / "replies.jsonl").read_text("utf-8").splitlines()]
    assert all("\nProgram: " in prompt[-1]["content"] for prompt in asked)
    answers = {row["messages"][-1]["content"] for row in rows if "Program: " in row["messages"][1]["content"]}
    assert answers == set(checking["words"])


class HearsAll:
    """A reader of whole conversations that finds a crisis as soon as two things were said."""

    whole = True

    def __init__(self) -> None:
        self.read_before: list[Window] = []

    def read(self, windows: Sequence[Window]) -> list[Guess]:
        self.read_before += windows
        grave = [all(any(word in said for said in one) for word in ("garage", "hose")) for one in windows]
        return [Guess("suicide", 0.9 if heard else 0.05, 0.9 * heard) for heard in grave]


def test_a_reader_of_whole_conversations_raises_where_the_danger_rose() -> None:
    reader = HearsAll()
    talk = [
        Utterance(speaker="seeker", text="I was in the garage today."),
        Utterance(speaker="supporter", text="What did you do?"),
        Utterance(speaker="seeker", text="The hose reaches far enough."),
    ]
    found = Detector(reader).detect(talk)
    assert found.level == "crisis"
    assert [(trigger.by, trigger.message) for trigger in found.reasons] == [("reader", 1)]
    assert reader.read_before[-1][1] == f"{SUPPORTER}What did you do?"
    brushed_off = [*talk, "Only joking!"]
    assert Detector(reader).detect(brushed_off).level == "crisis", "the reader heard that too, and is not reassured"
    later = ["Tea is ready now, it is green."] * 3
    assert Detector(reader).detect([*talk, *later]).level == "concern", "a danger of before is not a new one"


def test_a_reader_lowers_weak_rules_only() -> None:
    plan = "I have the pills here and tonight I will kill myself."
    assert Detector(HearsAll()).detect(plan).level == "crisis"
    assert Detector(Says(0.0)).detect(plan).level == "crisis"


# --- in a detector ----------------------------------------------------------------------------------------------------


def test_the_reader_raises_alone() -> None:
    harmless = "The sky is low today."
    assert Detector(Says(0.3)).detect(harmless).level == "none"
    assert Detector(Says(0.9)).detect(harmless).level == "concern"
    found = Detector(Says(0.9, 0.9)).detect(harmless)
    assert found.level == "crisis"
    assert [(trigger.by, trigger.message) for trigger in found.reasons] == [("reader", 0)]


class HearsInShort:
    """Hears a danger only where not much else is said, and says how much it was given."""

    whole = False

    def __init__(self) -> None:
        self.given: list[str] = []
        self.windows: list[Window] = []

    def read(self, windows: Sequence[Window]) -> list[Guess]:
        self.windows += windows
        self.given += [text for window in windows for text in window]
        grave = ["the wardrobe is empty" in " ".join(one) and len(" ".join(one)) <= 300 for one in windows]
        return [Guess("suicide", 0.9 * heard, 0.9 * heard) for heard in grave]


@pytest.mark.parametrize("length", [400, 600, 2_000, 19_000, 55_000])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("end", [". ", " and ", "。"])
def test_a_sentence_is_heard_wherever_it_stands_in_a_long_message(length: int, place: float, end: str) -> None:
    heard = HearsInShort()
    filler = [f"we painted fence number {number} in green" for number in range(length // 40)]
    filler.insert(int(place * len(filler)), "the wardrobe is empty, and so is the desk")
    found = Detector(heard).detect(end.join(filler))
    assert found.level == "crisis"
    assert found.degraded == ()
    joined = "\n".join(heard.given)
    assert all(f"number {number} in" in joined for number in range(length // 40)), "all of it was read"


def test_a_turn_costs_what_its_new_message_costs_however_long_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    def letter(name: str) -> str:
        return " ".join(f"We painted fence {number} of {name} in green." for number in range(45))

    heard, scans = HearsInShort(), []

    def counted(text: str, _: str) -> Scan:
        scans.append(text)
        return Scan()

    monkeypatch.setattr(sys.modules["compeer.safety.detect"], "scanned", counted)
    detector = Detector(heard)
    talk = [letter(f"house {number}") for number in range(110)]
    detector.detect(talk)
    for other in range(12):  # others talk as much, before the next message comes
        detector.detect([letter(f"street {other}, house {number}") for number in range(110)])
    heard.windows.clear()
    scans.clear()
    detector.detect([*talk, letter("the last house")])
    assert len(scans) == 1
    assert all("the last house" in window[-1] for window in heard.windows)
    assert 0 < len(heard.windows) < 15


class HearsTogether:
    """Hears a danger only where two things were said, in whichever message."""

    whole = False

    def read(self, windows: Sequence[Window]) -> list[Guess]:
        grave = [all(any(word in said for said in window) for word in ("garage", "hose")) for window in windows]
        return [Guess("suicide", 0.9 * heard, 0.9 * heard) for heard in grave]


def test_messages_are_read_together() -> None:
    detector = Detector(HearsTogether())
    told = ["I was in the garage today.", "The hose reaches far enough."]
    assert detector.detect(told[1:]).level == "none"
    found = detector.detect(told)
    assert found.level == "crisis"
    assert [trigger.by for trigger in found.reasons] == ["reader, messages together"]
    assert detector.detect([*told, *["Tea is ready now."] * 3]).level == "concern"
    assert detector.detect([*told, "Only joking!", "Tea is ready now."]).level == "concern"


@pytest.mark.parametrize("reader", [Says(0, error=ValueError("secret")), Says(0, error=TimeoutError())])
def test_without_its_reader_the_others_still_catch(reader: Says) -> None:
    detector = Detector(reader)
    for message in DIRECT:
        risk = detector.detect(message)
        assert risk.level == "crisis"
        assert "alone" in risk.degraded[0]
        assert "secret" not in repr(risk)
    assert detector.detect("hello").level == "none"
    reader.error = None
    assert detector.detect("The sky is low today.").degraded == (), "it is tried again"


def test_late_is_not_absent() -> None:
    """A slow reader is waited for, and its answer is the same; one that does not come gets the cautious answer."""
    go = threading.Event()
    threading.Timer(0.3, go.set).start()
    assert Detector(Says(0.9, 0.9, until=go)).detect("The sky is low today.") == Detector(Says(0.9, 0.9)).detect(
        "The sky is low today."
    )
    never = threading.Event()
    detector = Detector(Says(0.0, until=never), limit=0.05)
    for message, level in (("The sky is low today.", "concern"), ("I want to kill myself", "crisis")):
        risk = detector.detect(message)
        assert risk.level == level
        assert "took longer" in risk.degraded[0]
        assert ("suicide", "concern", "failure") in [(one.kind, one.level, one.by) for one in risk.reasons]
    never.set()
    assert detector.detect("The sky is low today.").level == "none", "the next message is read again"


def test_corrupt_files_degrade(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> SmallReader:
        raise InputError("the weights cannot be read")

    monkeypatch.setattr("compeer.safety.reader.small_reader", lost)
    risk = Detector(None).detect("我想自杀了")
    assert risk.level == "crisis"
    assert "rules alone" in risk.degraded[0]


def test_the_packaged_reader_says_how_it_reads() -> None:
    found = small_reader().by
    assert found in ("small reader", "weighted phrases")
