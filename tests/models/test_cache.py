"""Answers kept on disk: whole, for everyone who shares the file, and only where nothing that matters differs."""

import json
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compeer.errors import InputError
from compeer.models import (
    AnswerCache,
    CallSettings,
    EndpointModel,
    Generation,
    ModelSettings,
    Request,
    Sampling,
    ask,
    open_model,
)
from compeer.models.local import LocalModel
from compeer.models.resolve import folder_mark
from tests.support.cached import count_rows

ANSWER = Generation("That sounds hard. 很难。\ud83d", cut_off=True, prompt_tokens=7, tokens=3)


def request(text: str, **more: Any) -> Request:
    return Request(messages=({"role": "user", "content": text},), **more)


# --- the file -------------------------------------------------------------------------------------------------------


def test_what_is_put_is_got_again(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "a.sqlite")
    assert cache.get("k") is None
    cache.put("k", ANSWER)
    cache.put("l", Generation(""))
    for reader in (cache, AnswerCache(tmp_path / "a.sqlite")):
        assert reader.get("k") == ANSWER
        assert reader.get("l") == Generation("")
        assert reader.get("m") is None
        assert count_rows(tmp_path / "a.sqlite") == 2
        reader.close()


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"no database, but long enough to be taken for one " * 100)
    with pytest.raises(InputError, match="no readable cache") as caught:
        AnswerCache(path)
    assert str(path) in str(caught.value)
    assert "Move it away" in str(caught.value)
    assert path.read_bytes().startswith(b"no database")


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    cache = AnswerCache(path)
    for number in range(500):
        cache.put(f"{number}", ANSWER)
    cache.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(InputError, match="no readable cache"):
        AnswerCache(path).get("1")


def test_an_answer_under_another_key_or_altered_is_not_given(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    cache = AnswerCache(path)
    good, bad = Generation("You are not alone."), Generation("You are worthless.")
    for key, answer in (("asked", good), ("other", bad), ("altered", good), ("kept", good)):
        cache.put(key, answer)
    with sqlite3.connect(path) as hand:
        hand.execute("DELETE FROM answers WHERE key = 'asked'")
        hand.execute("UPDATE answers SET key = 'asked' WHERE key = 'other'")
        hand.execute("UPDATE answers SET answers = replace(answers, 'not alone', 'worthless') WHERE key = 'altered'")
        hand.execute("INSERT INTO answers (key, answers) SELECT 'forged', answers FROM answers WHERE key = 'kept'")
    hand.close()
    assert [cache.get(key) for key in ("asked", "other", "altered", "forged")] == [None] * 4
    assert cache.get("kept") == good
    cache.put("asked", good)
    assert cache.get("asked") == good, "what was asked again takes its place"
    cache.close()


def test_a_cache_of_another_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    AnswerCache(path).close()
    with sqlite3.connect(path, isolation_level=None) as hand:
        hand.execute("PRAGMA user_version = 0")
    hand.close()
    with pytest.raises(InputError, match="another version"):
        AnswerCache(path)


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE answers (key TEXT, answers TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="another program"):
        AnswerCache(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", [".", "no/such/folder/a.sqlite"])
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be used") as caught:
        AnswerCache(tmp_path / name)
    assert caught.value.do


def test_a_cache_that_stays_locked_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    cache = AnswerCache(path, busy_seconds=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(InputError, match="cannot be used"):
        cache.put("k", ANSWER)
    assert cache.get("k") is None  # reading goes on
    other.execute("ROLLBACK")
    cache.put("k", ANSWER)
    assert cache.get("k") == ANSWER
    other.close()


GOOD = {"text": "x", "cut_off": False, "prompt_tokens": 1, "tokens": 1}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[",
        "7",
        "null",
        "{}",
        "[7]",
        '["x"]',
        json.dumps([{"text": "x"}]),
        json.dumps([{**GOOD, "text": None}]),
        json.dumps([{**GOOD, "tokens": "1"}]),
        json.dumps([{**GOOD, "more": 1}]),
        b"\xff\xfe",
        12,
    ],
)
def test_a_row_that_cannot_be_read_is_a_miss(tmp_path: Path, value: object) -> None:
    cache = AnswerCache(tmp_path / "a.sqlite")
    cache.put("k", ANSWER)
    cache.put("l", ANSWER)
    with sqlite3.connect(tmp_path / "a.sqlite") as other:
        other.execute("UPDATE answers SET answers = ? WHERE key = 'k'", (value,))
        other.execute("UPDATE answers SET answers = CAST(x'ff22' AS TEXT) WHERE key = 'l'")
    other.close()
    assert cache.get("k") is None
    assert cache.get("l") is None
    cache.put("k", ANSWER)
    assert cache.get("k") == ANSWER


WRITE = """
import sys
from compeer.models import AnswerCache, Generation
cache = AnswerCache(sys.argv[1])
for number in range(150):
    cache.put(f"{sys.argv[2]} {number}", Generation("x" * number))
    assert cache.get(f"{sys.argv[2]} {number}")
"""


def test_processes_and_threads_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, str(path), str(number)]) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    cache = AnswerCache(path)

    def write(name: int) -> None:
        for number in range(50):
            cache.put(f"thread {name} {number}", ANSWER)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count_rows(path) == 3 * 150 + 4 * 50
    assert cache.get("2 149") == Generation("x" * 149)


def test_many_can_make_the_file_at_once(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def make(path: Path, start: threading.Barrier) -> None:
        start.wait()
        try:
            AnswerCache(path).put("k", ANSWER)
        except BaseException as error:
            problems.append(error)

    for turn in range(10):
        start = threading.Barrier(6)
        threads = [threading.Thread(target=make, args=(tmp_path / f"{turn}.sqlite", start)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == []


# --- what an endpoint's answer depends on -----------------------------------------------------------------------------


def endpoint_model(
    cache: AnswerCache | None = None, url: str = "http://x.invalid/v1", model: str = "m", **settings: Any
) -> EndpointModel:
    return EndpointModel(url, model, CallSettings(**{"constrain": "vllm", **settings}), cache)


def key_of(one: Request, sampling: Sampling, **setting: Any) -> str:
    """The key under which a model looks for its answer."""
    keys: list[str] = []
    cache = SimpleNamespace(get=lambda key: keys.append(key) or ANSWER)
    assert ask(endpoint_model(cache, **setting), [one], sampling) == [ANSWER]  # type: ignore[arg-type]
    return keys[0]


ASKED = request("a", seed=1, grammar='start: "x"')
SAMPLING = Sampling(temperature=0.5, stop=("END",))


@pytest.mark.parametrize(
    ("setting", "asked", "sampling"),
    [
        ({"url": "http://x.invalid/v2"}, {}, {}),
        ({"model": "n"}, {}, {}),
        ({"constrain": "llama.cpp"}, {}, {}),
        ({"constrain": "off"}, {}, {}),
        ({}, {"messages": ({"role": "system", "content": "a"},)}, {}),
        ({}, {"messages": ({"role": "user", "content": "b"},)}, {}),
        ({}, {"messages": ({"role": "user", "content": [{"type": "text", "text": "a"}]},)}, {}),
        ({}, {"seed": 2}, {}),
        ({}, {"prefix": "p"}, {}),
        ({}, {"grammar": None}, {}),
        ({}, {"grammar": 'start: "y"'}, {}),
        ({}, {}, {"temperature": 0.6}),
        ({}, {}, {"top_p": 0.9}),
        ({}, {}, {"max_tokens": 191}),
        ({}, {}, {"stop": ()}),
    ],
)
def test_whatever_matters_is_in_the_key(
    setting: dict[str, Any], asked: dict[str, Any], sampling: dict[str, Any]
) -> None:
    changed = key_of(replace(ASKED, **asked), SAMPLING.model_copy(update=sampling), **setting)
    assert changed != key_of(ASKED, SAMPLING)


def test_what_does_not_matter_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = AnswerCache(tmp_path / "a.sqlite")
    cache.put(key_of(ASKED, SAMPLING), ANSWER)
    monkeypatch.setenv("ANOTHER", "key")
    caps = {
        "concurrency": 3,
        "requests_per_minute": 5,
        "timeout": 1,
        "deadline": 2,
        "retries": 0,
    }
    more = {**caps, "key_variable": "ANOTHER", "url": "http://x.invalid/v1/"}
    other = endpoint_model(cache, **more)
    assert ask(other, [ASKED], SAMPLING) == [ANSWER]
    assert (other.counters.calls, other.counters.cached) == (0, 1)


# --- models by name -------------------------------------------------------------------------------------------------


def test_an_endpoint_by_name(tmp_path: Path) -> None:
    how = ModelSettings(concurrency=5, constrain="vllm", batch=3)
    model = open_model("org/big@2@http://x.invalid:8000/v1", settings=how, cache=tmp_path / "a.sqlite")
    assert isinstance(model, EndpointModel)
    assert (model.name, model.batch_size, model.at_once) == ("org/big@2", 1, 20)
    assert model._endpoint.url == "http://x.invalid:8000/v1"
    assert model._settings.constrain == "vllm"
    assert (tmp_path / "a.sqlite").is_file()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("http://x/v1", "NAME@http://x/v1"),
        ("@http://x/v1", "NAME@http://x/v1"),
        ("m@http://", "no URL"),
        ("m@http://x:y/v1", "no URL"),
        ("m@localhost:8000", "NAME@http://host:8000/v1"),
        ("no/such/folder", "no model 'no/such/folder'"),
        ("", "no model ''"),
    ],
)
def test_a_name_that_means_no_model_is_told(name: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        open_model(name)
    assert says in str(caught.value)


def test_an_endpoint_needs_no_torch() -> None:
    code = "import sys, compeer.models as m; m.open_model('m@http://x/v1'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_folder_by_name_is_counted_and_keeps_no_answers(tiny_model: Path, tmp_path: Path) -> None:
    requests = [request(f"hello {number}", seed=number) for number in range(3)]
    model = open_model(str(tiny_model), settings=ModelSettings(batch=2), cache=tmp_path / "a.sqlite")
    assert isinstance(model, LocalModel)
    assert (model.batch_size, model.at_once) == (2, 1)
    ask(model, requests, Sampling(max_tokens=4))
    assert (model.counters.requests, model.counters.calls, model.counters.successes) == (3, 3, 3)
    assert not (tmp_path / "a.sqlite").exists()


def test_a_folders_mark_changes_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = folder_mark(tmp_path)
    assert folder_mark(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    second = folder_mark(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"1235")
    assert len({first, second, folder_mark(tmp_path)}) == 3
