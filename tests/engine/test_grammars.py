"""Grammars are followed token by token, whatever decoder a tokenizer comes with."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import decoders

from compeer.engine.network import load_network, load_tokenizer, vocabulary_size
from compeer.engine.sampling import Grammars
from compeer.reasoning import render_turn, turn_grammar
from compeer.ser.build import SerSettings, build_ser
from compeer.ser.record import read_records

RECORDS = "records.jsonl"
PIECES = decoders.Sequence(
    [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "), decoders.ByteLevel()]  # type: ignore[list-item]
)
"""As transformers 5.17 gives it to a tokenizer that it reads from a GGUF file."""


@pytest.fixture(scope="module")
def network(tiny_learner: Path) -> Any:
    import torch

    return load_network(tiny_learner, torch.device("cpu"), torch.float32)


def test_a_tokenizer_that_splits_by_bytes_is_read_as_such(tiny_learner: Path, network: Any) -> None:
    tokenizer = load_tokenizer(tiny_learner)
    begun = tokenizer("History:", add_special_tokens=False)["input_ids"]
    usual = Grammars(tokenizer, vocabulary_size(network)).matcher(turn_grammar(), begun).compute_bitmask()
    tokenizer.backend_tokenizer.decoder = PIECES
    odd = Grammars(tokenizer, vocabulary_size(network)).matcher(turn_grammar(), begun).compute_bitmask()
    assert odd == usual
    assert int.from_bytes(odd, "little").bit_count() > 1


def test_a_grammar_is_followed_from_the_start_each_time(tiny_learner: Path, network: Any) -> None:
    tokenizer = load_tokenizer(tiny_learner)
    grammars = Grammars(tokenizer, vocabulary_size(network))
    whole = tokenizer("yes no", add_special_tokens=False)["input_ids"]
    for _ in range(2):
        matcher = grammars.matcher('start: "yes no"', whole)
        assert matcher.is_stopped()
        assert not matcher.is_error()


@pytest.mark.parametrize(("grammar", "begun"), [("start: nowhere", ""), ('start: "yes"', "no")])
def test_what_cannot_be_followed_is_an_error(tiny_learner: Path, network: Any, grammar: str, begun: str) -> None:
    tokenizer = load_tokenizer(tiny_learner)
    ids = tokenizer(begun, add_special_tokens=False)["input_ids"] if begun else []
    assert Grammars(tokenizer, vocabulary_size(network)).matcher(grammar, ids).is_error()


def test_steps_as_a_supporter_learns_them_fit_the_grammar(tiny_learner: Path, network: Any, tmp_path: Path) -> None:
    """Or they would end in the middle of a sentence where people talk to it."""
    build_ser(SerSettings(embedder="words", rounds=1), tmp_path, seed=1)
    said = [record.candidate.model_copy(update={"response": "I see."}) for record in read_records(tmp_path / RECORDS)]
    tokenizer = load_tokenizer(tiny_learner)
    grammars = Grammars(tokenizer, vocabulary_size(network))
    assert max(len(turn.history.text) for turn in said) > 160
    for turn in said:
        tokens = tokenizer(render_turn(turn), add_special_tokens=False)["input_ids"]
        assert not grammars.matcher(turn_grammar(), tokens).is_error()
