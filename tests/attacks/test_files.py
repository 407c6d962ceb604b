"""Files and people that try the limits: a line of many megabytes, odd ids, one invitation taken up by many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compeer.annotate.store import Store, create_store
from compeer.corpora import read_corpus
from compeer.errors import InputError
from tests.support.annotation import PASSWORD, cheap_hashes_fixture  # noqa: F401
from tests.support.workbench import Client, workbench


def dialogue(name: str, text: str = "Hello.") -> str:
    utterances = [{"speaker": "seeker", "text": text}, {"speaker": "supporter", "text": "Hello to you."}]
    return json.dumps({"id": name, "language": "en", "source": "test", "utterances": utterances})


def test_a_line_of_many_megabytes_is_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(dialogue("long", "word " * 4_000_000) + "\n", encoding="utf-8")
    (found,) = read_corpus(path)
    assert len(found.utterances[0].text) >= 19_000_000
    path.write_text('{"id": "' + "x" * 20_000_000, encoding="utf-8")
    with pytest.raises(InputError) as error:
        list(read_corpus(path))
    assert len(str(error.value)) < 2_000, "an error does not repeat what it cannot read"


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "a\nb", "a b", "-rf", "nul", "é" * 200, "%00", "'; DROP"])
def test_an_odd_id_is_only_a_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(dialogue(name) + "\n", encoding="utf-8")
    (found,) = read_corpus(path)
    assert found.id == name
    assert [one.name for one in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = create_store(str(tmp_path / "labels.sqlite"))
    yield made
    made.close()


def test_of_many_who_take_up_one_invitation_at_once_one_comes_in(store: Store) -> None:
    with workbench(store) as bench:
        boss = bench.someone("Boss", "admin")
        sent = boss.got("POST", "/invitations", {"roles": ["annotator"], "languages": ["en"]})["invitation"]

        def join(number: int) -> int:
            form = {"invitation": sent, "name": f"Guest {number}", "password": PASSWORD}
            return Client(bench.url)("POST", "/join", form).status_code

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(join, range(8)))
        assert sum(200 <= status < 300 for status in answers) == 1
        assert {status for status in answers if status >= 300} <= {403, 409, 429}
        people = boss.got("GET", "/people")["people"]
        assert len([one for one in people if one["name"].startswith("Guest")]) == 1
