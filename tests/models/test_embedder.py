"""The real packaged MiniLM, and the n-grams that stand in for it where it cannot read."""

from pathlib import Path

import numpy as np
import pytest

from compeer.errors import InputError
from compeer.models.embedder import Embedder, is_latin, ngram_vector

FIRED = "I lost my job and feel awful"
SACKED = "Getting fired has left me miserable"
RECIPE = "The recipe needs two eggs and flour"
SAD = "我今天很难过"
SADDER = "我今天非常难过"
FRUIT = "苹果香蕉葡萄"


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder()


def test_what_means_the_same_is_closer(embedder: Embedder) -> None:
    fired, sacked, recipe = embedder.embed([FIRED, SACKED, RECIPE])
    assert fired @ sacked > 0.4
    assert fired @ recipe < 0.2
    assert sacked @ recipe < 0.2


def test_rows_have_unit_length_and_one_width(embedder: Embedder) -> None:
    rows = embedder.embed([FIRED, SAD, "hi", "Привет, как дела?"])
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert rows.dtype == np.float32
    assert embedder.embed([RECIPE]).shape[1] == rows.shape[1]


def test_chinese_is_compared_by_its_wording(embedder: Embedder) -> None:
    rows = embedder.embed([SAD, SAD, SADDER, FRUIT, FIRED])
    similarity = rows @ rows.T
    assert similarity[0, 1] == pytest.approx(1.0, abs=1e-5)
    assert 0.3 < similarity[0, 2] < 0.99
    assert similarity[0, 3] == 0.0
    assert similarity[0, 4] == 0.0
    assert similarity[3, 4] == 0.0


def test_an_empty_text_is_like_nothing(embedder: Embedder) -> None:
    rows = embedder.embed([FIRED, "", " \n\t"])
    assert not rows[1:].any()
    assert rows[0].any()


@pytest.mark.parametrize("text", ["...", "?!"])
def test_a_text_without_letters_is_like_nothing(embedder: Embedder, text: str) -> None:
    assert not embedder.embed([text]).any()


def test_no_texts_give_no_rows(embedder: Embedder) -> None:
    assert len(embedder.embed([])) == 0


def test_a_text_is_embedded_the_same_alone_and_among_others(embedder: Embedder) -> None:
    alone = embedder.embed([FIRED])[0]
    among = embedder.embed([RECIPE * 5, SAD, FIRED, ""])[2]
    assert among == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "latin"),
    [
        ("hello", True),
        ("Grüße, naïve", True),
        ("我很难过", False),
        ("OK 我很难过", False),
        ("12 …", True),
        ("Привет", False),
    ],
)
def test_which_texts_are_latin(text: str, latin: bool) -> None:
    assert is_latin(text) == latin


def test_ngrams_by_hand() -> None:
    # "aa" has the grams a, a and aa: counts 2 and 1, so the length is √5
    vector = ngram_vector("A, a!")
    assert sorted(vector[vector > 0]) == pytest.approx([1 / 5**0.5, 2 / 5**0.5])
    assert not ngram_vector("…").any()


def test_a_folder_that_is_no_embedder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"modules\.json") as caught:
        Embedder(tmp_path)
    assert caught.value.file == tmp_path
    assert "embedded" in str(caught.value.do)
