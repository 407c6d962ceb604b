"""A supporter that replies at once: taught responses alone, asked for them alone, refused where steps are needed."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from compeer import cli
from compeer.errors import InputError
from compeer.models import Failure, Generation, Request, Sampling
from compeer.models.training import model_card
from compeer.policy.control import Control
from compeer.policy.prompt import direct_prompt, refuse_direct, supporter_prompt
from compeer.policy.selection import Output, generate_turns
from compeer.policy.sft import SupporterSettings, training_chats
from compeer.ser import SerSettings, build_ser, read_records, write_records
from compeer.ser.record import SerRecord


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few records of the policy split of the sample corpus."""
    folder = tmp_path_factory.mktemp("records")
    build_ser(SerSettings(embedder="words", rounds=1), folder, 3)
    every = list(read_records(folder / "records.jsonl"))
    write_records(folder / "few.jsonl", [r for r in every if r.split == "policy" and r.author == "corpus"][:3])
    return folder / "few.jsonl"


@pytest.fixture
def record(records: Path) -> SerRecord:
    return next(iter(read_records(records)))


class Scripted:
    """Says what it is told to, and keeps what it was asked."""

    name, batch_size, at_once = "scripted", 8, 1

    def __init__(self, text: str, cut_off: bool = False) -> None:
        self._answer, self.asked = Generation(text, cut_off), list[Request]()

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        self.asked += requests
        return [self._answer for _ in requests]


def replied(record: SerRecord, text: str, cut_off: bool = False) -> Output:
    (found,) = generate_turns(Scripted(text, cut_off), [record], Sampling(), 1, direct=True)
    assert isinstance(found, Output)
    return found


def test_the_response_alone_is_taught_and_asked_for(record: SerRecord) -> None:
    settings = SupporterSettings(steps=1, learning_rate=1e-3, direct=True, control_share=1, history=1)
    ((system, said, output),) = training_chats([record], settings, 1)
    assert output == {"role": "assistant", "content": record.candidate.response}
    model = Scripted("That sounds hard.")
    generate_turns(model, [record], Sampling(), 1, 1, direct=True)
    assert [system, said] == list(model.asked[0].messages) == direct_prompt(record.history, 1)
    steps, same = supporter_prompt(record.history, 1)
    assert said == same
    assert system != steps
    assert not {"History", "Strategy", "Choose"} & set(str(system["content"]).replace(".", "").split())


def test_all_that_it_writes_is_the_response(record: SerRecord) -> None:
    for text in ("That sounds hard.", "Strategy: ask.\n\nResponse: no [Question]", "```\n\\ two", "回复：好"):
        found = replied(record, text)
        assert found.parsed.parts == {"response": text}
        assert set(found.parsed.missing) == {"history", "emotion", "strategy"}
        assert found.text == text
        assert not found.parsed.complete
    assert replied(record, "That sou", cut_off=True).parsed.missing["response"].startswith("cut off")
    assert "empty" in replied(record, " \n").parsed.missing["response"]


def test_what_it_cannot_do_is_said(record: SerRecord) -> None:
    for request in ({"control": Control(strategy="Question")}, {"constrained": True}):
        with pytest.raises(InputError, match="replies at once"):
            generate_turns(Scripted(""), [record], Sampling(), 1, direct=True, **request)  # type: ignore[arg-type]


def test_from_training_to_replies(
    records: Path, tiny_learner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str | Path) -> int:
        monkeypatch.setattr(sys, "argv", ["compeer", "policy", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0)

    monkeypatch.chdir(tmp_path)
    small = [f"model={tiny_learner}", "steps=1", "batch=1", "history=1", "direct=true"]
    assert run("sft", records, "sft", *(word for one in small for word in ("--set", one))) == 0
    assert model_card(tmp_path / "sft/model") == {"role": "supporter", "history": 1, "direct": True}
    ask = ["generate", records, "out.jsonl", "--model", "sft/model", "--max-tokens", "6"]
    assert run(*ask) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    assert all(set(row["missing"]) >= {"history", "emotion", "strategy"} for row in rows)
    assert all(reason.startswith("cut off") for row in rows if (reason := row["missing"].get("response")))
    assert run(*ask, "--control", "strategy=Question") == 2
    with pytest.raises(InputError, match="writes no steps"):
        refuse_direct(tmp_path / "sft/model")
    from compeer.chat.local import LocalWriter

    with pytest.raises(InputError, match="writes no steps"):
        LocalWriter(tmp_path / "sft/model")
