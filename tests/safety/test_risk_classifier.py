"""The learnt layers: their files and texts, what they say, their training, and a detector whose classifier fails."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compeer.errors import InputError
from compeer.models.embedder import Embedder, Matrix, ngram_vector
from compeer.safety import Detector
from compeer.safety.classifier import RiskClassifier, heads, members, stored_members
from compeer.safety.encoder import CHANGED, LAYERS, WIDTH, Encoder
from compeer.safety.phrases import COLUMNS, Guess, Phrases, messages_keys, packaged_phrases
from compeer.safety.risk import KINDS
from compeer.safety.rules import Scan
from compeer.safety.training import encoder as encoder_training
from compeer.safety.training import phrases as training
from compeer.safety.training.texts import (
    NEIGHBOURS,
    Text,
    held_out,
    made_longer,
    numbered,
    packaged_folder,
    read_texts,
)
from compeer.safety.weights import read_weights, write_weights

PACKAGED = Path(str(files("compeer.safety").joinpath("weights")))
DIRECT = ["I want to kill myself", "I swallowed a whole bottle of pills", "我不想活了", "我想自杀"]


class NgramEncoder:
    """Stands in for MiniLM."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        return np.stack([ngram_vector(text, WIDTH) for text in texts])


class Says:
    """A classifier that gives one answer to everything, or raises, or takes its time."""

    def __init__(
        self, danger: float, crisis: float = 0.0, error: Exception | None = None, seconds: float = 0.0
    ) -> None:
        self.danger, self.crisis, self.error, self.seconds = danger, crisis, error, seconds

    def classify(self, windows: Sequence[Sequence[str]]) -> list[Guess]:
        time.sleep(self.seconds)
        if self.error:
            raise self.error
        return [Guess("suicide", self.danger, self.crisis)] * len(windows)


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_packaged_weights_are_whole_and_small() -> None:
    phrases, classifier = read_weights("phrases"), read_weights("classifier")
    for language in ("en", "zh"):
        keys = phrases[f"{language}_keys"]
        assert np.all(np.diff(keys.astype(np.int64)) > 0)
        assert phrases[f"{language}_weights"].shape == (len(keys), len(COLUMNS))
    assert [one["heads"].shape for one in members(classifier)] == [(WIDTH + 1, len(COLUMNS))] * 2
    assert classifier["joined"].shape == (2, 3)
    assert all(np.isfinite(array).all() for array in [*phrases.values(), *classifier.values()])
    assert sum(path.stat().st_size for path in PACKAGED.iterdir()) < 7_000_000


@pytest.mark.parametrize("name", ["phrases", "classifier"])
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
    write_weights("one", arrays, tmp_path)
    write_weights("two", dict(reversed(arrays.items())), tmp_path)
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
        read_texts(tmp_path)
    assert "line 3" in str(caught.value)


def test_texts_are_read_with_their_messages(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("crisis\tsuicide\tone ¶ two\nnone\t-\t你好\nnone\t-\t你好\n", "utf-8")
    assert read_texts(tmp_path) == [Text(("one", "two"), "crisis", "suicide"), Text(("你好",), "none")]
    with pytest.raises(InputError, match="no texts"):
        read_texts(tmp_path / "nowhere")


def test_longer_texts_keep_what_they_were_made_from() -> None:
    texts = numbered([Text((f"harmless {place}",), "none") for place in range(9)])
    texts += [Text(("the danger",), "crisis", "suicide", 9)]
    made = made_longer(texts, 1)
    grave = [text for text in made if text.level == "crisis"]
    assert grave
    assert all("the danger" in " ".join(text.messages) and text.source == 9 for text in grave)
    assert not any("the danger" in " ".join(text.messages) for text in made if text.level == "none")
    assert made == made_longer(texts, 1) != made_longer(texts, 2)


def test_what_has_one_source_is_held_out_together_and_with_its_neighbours() -> None:
    texts = [Text((f"{place}",), "none", None, place // 2) for place in range(200)]
    folds = held_out(texts, 1)
    blocks = folds.reshape(-1, 2 * NEIGHBOURS)
    assert (blocks == blocks[:, :1]).all()
    assert sorted(np.bincount(folds)) == [40] * 5


# --- phrases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_texts_of_its_own_are_learnt(language: str) -> None:
    texts = [text for text in read_texts(packaged_folder()) if text.language == language][::7]
    guesses = packaged_phrases().classify([text.messages for text in texts])
    grave = [guess.danger >= 0.5 for guess, text in zip(guesses, texts, strict=True) if text.level != "none"]
    harmless = [guess.danger < 0.5 for guess, text in zip(guesses, texts, strict=True) if text.level == "none"]
    assert min(len(grave), len(harmless)) > 100
    assert np.mean(grave) > 0.2  # much of it is veiled, and its harmless double stands beside it
    assert np.mean(harmless) > 0.97


def test_phrases_are_learnt_alike_and_tell_texts_apart() -> None:
    texts = [Text((f"the train leaves at {hour}",), "none") for hour in range(30)]
    texts += [Text((f"he will strangle me at {hour}",), "crisis", "abuse") for hour in range(30)]
    arrays, again = training.fit(texts, [], "en"), training.fit(texts, [], "en")
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    odds = training.odds([Text(("will he strangle me",), "crisis"), Text(("the train leaves",), "none")], "en", arrays)
    assert odds[0].min() > 0 > odds[1].max()


def test_messages_are_weighed_together() -> None:
    one, two = messages_keys(["I bought a rope"], "en"), messages_keys(["Nobody is home"], "en")
    assert set(messages_keys(["I bought a rope", "Nobody is home"], "en")) == {*one, *two}


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=3))
def test_guesses_are_probabilities(messages: list[str]) -> None:
    for layer in (packaged_phrases(), RiskClassifier(read_weights("classifier"), [NgramEncoder()] * 2)):
        guess = layer.classify([messages])[0]
        assert 0 <= guess.danger <= 1
        assert 0 <= guess.crisis <= 1


# --- the encoder ------------------------------------------------------------------------------------------------------


def test_the_encoder_without_changes_is_the_packaged_embedder() -> None:
    texts = ["The rain has not stopped for days.", "hello"]
    rows = Encoder().embed(texts)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.allclose(rows, Embedder().embed(texts)[:, :WIDTH], atol=1e-5)
    matrix = f"encoder.layer.{LAYERS - 1}.{CHANGED[0]}"
    changes = {f"{matrix}.A": np.ones((2, WIDTH), np.float16), f"{matrix}.B": np.ones((WIDTH, 2), np.float16)}
    changed = Encoder(changes).embed(texts)
    assert not np.allclose(changed / np.linalg.norm(changed, axis=1, keepdims=True), rows, atol=1e-3)


def test_the_encoder_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_training, "ROUNDS", 6)
    monkeypatch.setattr(encoder_training, "BATCH", 8)
    texts = [Text((f"We had soup and bread number {place}.",), "none") for place in range(8)]
    texts += [Text((f"He locked me in room {place} and took my phone.",), "crisis", "abuse") for place in range(8)]
    arrays = encoder_training.fit(texts, 1)
    rows = Encoder(arrays).embed(["Is there any soup left?", "He locks me in at night."]).astype(float)
    scores = heads(rows, arrays["heads"].astype(float))
    assert scores[1, 0] > scores[0, 0]
    assert scores[1, 1] > scores[0, 1]
    assert KINDS[int(scores[1, 2:].argmax())] == "abuse"


def test_the_mean_of_the_members_counts() -> None:
    class Row:
        def __init__(self, value: float) -> None:
            self.value = value

        def embed(self, texts: Sequence[str]) -> np.ndarray:
            return np.full((len(texts), WIDTH), self.value)

    shape = (WIDTH + 1, len(COLUMNS))
    weights = stored_members([{"heads": np.ones(shape)}, {"heads": np.ones(shape)}])
    weights["joined"] = np.array([[1.0, 0, 0], [1.0, 0, 0]])

    def danger(*values: float) -> float:
        return RiskClassifier(weights, [Row(value) for value in values]).odds(["hello"]).danger

    assert danger(1, 3) == pytest.approx((danger(1, 1) + danger(3, 3)) / 2)
    assert danger(-3, 9) == danger(-3, 0) < 0, "the first is sure"
    assert len(members(weights)) == 2


# --- in a detector ----------------------------------------------------------------------------------------------------


def test_the_classifier_raises_alone() -> None:
    harmless = "The sky is low today."
    assert Detector(Says(0.3)).detect(harmless).level == "none"
    assert Detector(Says(0.9)).detect(harmless).level == "concern"
    found = Detector(Says(0.9, 0.9)).detect(harmless)
    assert found.level == "crisis"
    assert [(trigger.by, trigger.message) for trigger in found.reasons] == [("classifier", 0)]


class HearsInShort:
    """Hears a danger only where not much else is said, and says how much it was given."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def classify(self, windows: Sequence[Sequence[str]]) -> list[Guess]:
        self.read += [text for window in windows for text in window]
        grave = ["the wardrobe is empty" in " ".join(one) and len(" ".join(one)) <= 300 for one in windows]
        return [Guess("suicide", 0.9 * heard, 0.9 * heard) for heard in grave]


@pytest.mark.parametrize("length", [400, 600, 2_000, 19_000, 55_000])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("end", [". ", " and ", "。"])
def test_a_sentence_is_heard_wherever_it_stands_in_a_long_message(length: int, place: float, end: str) -> None:
    heard = HearsInShort()
    filler = [f"we painted fence number {number} in green" for number in range(length // 40)]
    filler.insert(int(place * len(filler)), "the wardrobe is empty, and so is the desk")
    found = Detector(heard, timeout=60).detect(end.join(filler))
    assert found.level == "crisis"
    assert found.degraded == ()
    joined = "\n".join(heard.read)
    assert all(f"number {number} in" in joined for number in range(length // 40)), "all of it was read"


def test_a_turn_costs_what_its_new_message_costs_however_long_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    def letter(name: str) -> str:
        return " ".join(f"We painted fence {number} of {name} in green." for number in range(45))

    heard, scans = HearsInShort(), []

    def counted(text: str, _: str) -> Scan:
        scans.append(text)
        return Scan()

    monkeypatch.setattr(sys.modules["compeer.safety.detect"], "scanned", counted)
    detector = Detector(heard, timeout=60)
    talk = [letter(f"house {number}") for number in range(110)]
    detector.detect(talk)
    for other in range(12):  # others talk as much, before the next message comes
        detector.detect([letter(f"street {other}, house {number}") for number in range(110)])
    heard.read.clear()
    scans.clear()
    detector.detect([*talk, letter("the last house")])
    assert len(scans) == 1
    assert all("the last house" in text for text in heard.read)
    assert 0 < len(heard.read) < 15


class HearsTogether:
    """Hears a danger only where two things were said, in whichever message."""

    def classify(self, windows: Sequence[Sequence[str]]) -> list[Guess]:
        grave = [all(any(word in said for said in window) for word in ("garage", "hose")) for window in windows]
        return [Guess("suicide", 0.9 * heard, 0.9 * heard) for heard in grave]


def test_messages_are_read_together() -> None:
    detector = Detector(HearsTogether())
    told = ["I was in the garage today.", "The hose reaches far enough."]
    assert detector.detect(told[1:]).level == "none"
    found = detector.detect(told)
    assert found.level == "crisis"
    assert [trigger.by for trigger in found.reasons] == ["classifier, messages together"]
    assert detector.detect([*told, *["Tea is ready now."] * 3]).level == "concern"
    assert detector.detect([*told, "Only joking!", "Tea is ready now."]).level == "concern"


@pytest.mark.parametrize(
    "classifier", [Says(0, error=ValueError("secret")), Says(0, error=OSError()), Says(0, seconds=0.5)]
)
def test_without_its_classifier_the_others_still_catch(classifier: Says) -> None:
    detector = Detector(classifier, timeout=0.1, loading=0.1)
    for message in DIRECT:
        risk = detector.detect(message)
        assert risk.level == "crisis"
        assert "alone" in risk.degraded[0]
        assert "secret" not in repr(risk)
    assert detector.detect("hello").level == "none"


def test_a_classifier_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Says(0.9, error=OSError())
    detector = Detector(classifier)
    assert detector.detect("The sky is low today.").degraded
    classifier.error = None
    assert detector.detect("The sky is low today.").degraded
    monkeypatch.setattr("compeer.safety.learned.time.monotonic", lambda: time.perf_counter() + 1e9)
    risk = detector.detect("The sky is low today.")
    assert (risk.level, risk.degraded) == ("concern", ())


def test_corrupt_files_degrade(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_name: str, _folder: Path | None = None) -> None:
        raise InputError("the weights cannot be read")

    monkeypatch.setattr("compeer.safety.classifier.read_weights", lost)
    risk = Detector("packaged").detect("我想自杀")
    assert risk.level == "crisis"
    assert "weighted phrases alone" in risk.degraded[0]
    monkeypatch.setattr("compeer.safety.learned.packaged_phrases", lambda: Phrases({}))
    risk = Detector("packaged").detect("我想自杀了")
    assert risk.level == "crisis"
    assert "rules alone" in risk.degraded[1]
