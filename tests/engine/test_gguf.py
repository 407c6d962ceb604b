"""GGUF files: their tensors are those that `transformers` reads itself, and a base works wherever a folder does."""

import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from compeer.engine.gguf import chat_template, made, write_folder
from compeer.engine.network import load_tokenizer
from compeer.errors import InputError
from compeer.io import file_hash
from compeer.models import Generation, Request, Sampling, ask
from compeer.models.catalogue import SMOLLM2, Base, Wheels, remember
from compeer.models.local import LocalModel
from compeer.models.resolve import display_name, model_folder, model_mark, open_model
from tests.support.bases import only_base

LAYERS, HIDDEN, INNER, HEADS, SHARED, LENGTH = 2, 64, 96, 4, 2, 128
OWN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tokens() -> tuple[list[str], list[str]]:
    """All bytes as a byte-level BPE writes them, a merge, and the marks of ChatML."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = [chr(byte) for byte in visible] + [chr(256 + number) for number in range(len(hidden))]
    return [*letters, "he", "<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["h e"]


def write_gguf(path: Path, kind: str, tied: bool = False) -> None:
    """A tiny random file of a kind, its matrices quantised."""
    words, merges = tokens()
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(LENGTH)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(SHARED)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([1] * (len(words) - 3) + [3] * 3)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(words) - 3)
    writer.add_eos_token_id(len(words) - 1)
    writer.add_chat_template(OWN)
    random = np.random.default_rng(3)

    def add(name: str, *shape: int, how: Any = gguf.GGMLQuantizationType.Q8_0) -> None:
        values = random.normal(0, 0.3, shape).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, how), raw_dtype=how)

    plain, short = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16
    wide = SHARED * HIDDEN // HEADS
    add("token_embd.weight", len(words), HIDDEN)
    add("output_norm.weight", HIDDEN, how=plain)
    if not tied:
        add("output.weight", len(words), HIDDEN, how=short)
    for layer in range(LAYERS):
        for name, rows in (("attn_q", HIDDEN), ("attn_k", wide), ("attn_v", wide)):
            add(f"blk.{layer}.{name}.weight", rows, HIDDEN)
            if kind == "qwen2":
                add(f"blk.{layer}.{name}.bias", rows, how=plain)
        add(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
        add(f"blk.{layer}.attn_norm.weight", HIDDEN, how=plain)
        add(f"blk.{layer}.ffn_norm.weight", HIDDEN, how=plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`transformers` reads a file twice, word by word, and lists the names of all tensors for each module: here all of
    this is done once, and on plain memory."""
    slow = gguf.GGUFReader

    @cache
    def read(path: str) -> gguf.GGUFReader:
        with monkeypatch.context() as patch:
            patch.setattr(np, "memmap", lambda path, mode: np.fromfile(path, np.uint8))
            return slow(path)

    monkeypatch.setattr(gguf, "GGUFReader", read)
    monkeypatch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))


@pytest.mark.parametrize(("kind", "tied"), [("qwen2", False), ("qwen2", True), ("llama", False)])
def test_tensors_are_those_of_transformers(tmp_path: Path, kind: str, tied: bool) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, kind, tied)
    made(tmp_path / "model", lambda to: write_folder(path, to, "Tiny"))
    mine = load_file(tmp_path / "model" / "model.safetensors")
    config = GgufConfig(gguf_file=path.name, dequantize=True)
    network = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32, quantization_config=config
    )
    theirs = network.state_dict()
    assert set(theirs) - set(mine) == ({"lm_head.weight"} if tied else set())
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name].to(torch.bfloat16)), name
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    for name, tensor in written.state_dict().items():
        assert torch.equal(tensor, theirs[name].to(torch.bfloat16)), name
    ids = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(written.float()(ids).logits, network(ids).logits, rtol=0.1, atol=0.1)


@pytest.mark.usefixtures("read_once")
def test_a_real_file_of_llamas_kind_comes_out_as_by_transformers() -> None:
    source = SMOLLM2.checked_path()
    mine = load_file(model_folder("embedded") / "model.safetensors")
    config = GgufConfig(gguf_file=source.name, dequantize=True)
    theirs = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, quantization_config=config
    ).state_dict()
    assert set(theirs) - set(mine) == {"lm_head.weight"}
    assert all(torch.equal(theirs[name], tensor) for name, tensor in mine.items())


def test_what_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"no such thing at all")
    with pytest.raises(InputError, match="no GGUF file"):
        made(tmp_path / "model", lambda to: write_folder(path, to, "Tiny"))
    write_gguf(path, "gemma")
    with pytest.raises(InputError, match="'gemma' is not known"):
        made(tmp_path / "model", lambda to: write_folder(path, to, "Tiny"))
    write_gguf(path, "qwen2")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        with pytest.raises(InputError, match="the disk is full"):
            made(tmp_path / "model", lambda to: write_folder(path, to, "Tiny"))
    with monkeypatch.context() as patch:
        patch.setattr("compeer.engine.gguf.unpacked", lambda *_: (_ for _ in ()).throw(RuntimeError("stopped")))
        with pytest.raises(RuntimeError):
            made(tmp_path / "model", lambda to: write_folder(path, to, "Tiny"))
    assert {one.name for one in tmp_path.iterdir()} == {"tiny.gguf"}, "whole or not at all"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Base:
    """A base that is here."""
    monkeypatch.setenv("COMPEER_CACHE", str(tmp_path))
    path = tmp_path / "models" / "tiny.gguf"
    path.parent.mkdir()
    write_gguf(path, "qwen2")
    found = Base(
        name="tiny",
        title="Tiny-Instruct",
        licence="MIT",
        languages="English",
        file=path.name,
        bytes=path.stat().st_size,
        sha256=file_hash(path),
        repository="maker/Tiny",
        revision="main",
        wheels=Wheels(package="", version="", member="", sha256=()),
    )
    only_base(monkeypatch, found)
    remember(found)
    return found


def test_a_base_stands_wherever_a_folder_does(base: Base) -> None:
    folder = model_folder("tiny")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_folder("tiny") == folder == base.folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp, "unpacked once"
    assert model_mark("tiny") == base.sha256
    assert display_name("tiny") == "Tiny-Instruct"
    model = open_model("tiny")
    assert isinstance(model, LocalModel)
    (answer,) = ask(model, [Request(({"role": "user", "content": "hello"},))], Sampling(max_tokens=5))
    assert isinstance(answer, Generation)


def test_its_tokenizer_can_train_and_its_own_template_is_kept(base: Base) -> None:
    folder = model_folder("tiny")
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.chat_template == chat_template()
    assert (folder / "chat_template_of_the_file.jinja").read_text() == OWN
    chat = [{"role": "user", "content": "he"}, {"role": "assistant", "content": "hé!"}]
    taught = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    learnt = [token for token, mark in zip(taught["input_ids"], taught["assistant_masks"], strict=True) if mark]
    assert tokenizer.decode(learnt) == "hé!<|im_end|>\n"
    plain = AutoTokenizer.from_pretrained(base.path.parent, gguf_file=base.path.name)
    assert tokenizer("he said hé 你好 12").input_ids == plain("he said hé 你好 12").input_ids


def test_a_base_that_is_gone_says_how_to_get_it(base: Base) -> None:
    base.path.unlink()
    with pytest.raises(InputError, match="compeer models get tiny"):
        model_folder("tiny")
