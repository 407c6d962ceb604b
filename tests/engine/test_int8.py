"""Matrices in eight bits: what they round, and that a token's products are its own."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compeer.engine import int8, matrices
from compeer.engine.gguf import convert_folder
from compeer.engine.int8 import Int8, _turned
from compeer.engine.matrices import Matrix, Narrow, Rotation, in_eight

FAST = torch.cpu._is_vnni_supported()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_each_number_is_off_by_half_a_step_at_most(rows: int, columns: int, seed: int) -> None:
    values = random(rows, columns, seed=seed)
    whole, scale = in_eight(values)
    assert whole.dtype == torch.int8
    assert bool(((whole.float() * scale[:, None] - values).abs() <= scale[:, None] * 0.5001).all())


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("laid_out", [False, True] if FAST else [False])
def test_a_tokens_products_are_nearly_right_and_do_not_depend_on_its_batch(
    monkeypatch: pytest.MonkeyPatch, laid_out: bool, fine: bool
) -> None:
    monkeypatch.setattr(matrices, "_LARGE", 0 if laid_out else 1 << 40)
    weight, tokens = random(96, 64), random(9, 64, seed=1) * torch.logspace(-3, 3, 9)[:, None]
    whole, scale = in_eight(weight)
    matrix = Matrix(whole, scale, fine)
    exact = tokens @ (whole.float() * scale[:, None] if fine else weight).t()
    found = matrix.times(tokens)
    off = (found - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(off.max()) < (0.0002 if fine else 0.02)
    for row in range(9):
        assert torch.equal(matrix.times(tokens[row : row + 1])[0], found[row])
    assert torch.equal(matrix.times(torch.zeros(1, 64)), torch.zeros(1, 96))
    monkeypatch.setattr(matrices, "few_rows", lambda *_: None)  # without a compiler the same numbers
    assert torch.equal(Matrix(whole, scale, fine).times(tokens[:2]), matrix.times(tokens[:2]))


def test_small_models_are_not_rounded() -> None:
    weight, tokens = random(12, 8), random(3, 8, seed=1)
    torch.testing.assert_close(Matrix(weight, None).times(tokens), tokens @ weight.t())


def test_narrow_matrices_are_added_where_they_belong() -> None:
    numbers, found = random(3, 6), torch.zeros(3, 10)
    pairs = [(start, np.full((2, 6), 1.0 + start), np.full((4, 2), 2.0)) for start in (0, 6)]
    Narrow(pairs, 10).added(numbers, found)
    sums = numbers.sum(1, keepdim=True)
    torch.testing.assert_close(found[:, :4], (4 * sums).expand(3, 4))
    torch.testing.assert_close(found[:, 4:6], torch.zeros(3, 2))
    torch.testing.assert_close(found[:, 6:], (28 * sums).expand(3, 4))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_heads_turn_in_pairs_and_keep_their_length(family: str) -> None:
    heads = random(2, 3, 8)
    turns = torch.polar(torch.ones(2, 1, 4), torch.tensor([[[0.0] * 4], [[0.5, 1.0, 1.5, 2.0]]]))
    found = _turned(heads, turns, family)
    torch.testing.assert_close(found[0], heads[0])
    torch.testing.assert_close(found.norm(dim=-1), heads.norm(dim=-1))
    one, other = (0, 1) if family == "llama" else (0, 4)
    expected = heads[1, :, one] * np.cos(0.5) - heads[1, :, other] * np.sin(0.5)
    torch.testing.assert_close(found[1, :, one], expected)


def random_model(family: str, folder: Path, tied: bool, outlier: float = 1.0) -> Path:
    """The file of a random model of two layers; one number of each hidden state is so many times as large."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
    settings, network = kinds[family]
    sizes = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "tie_word_embeddings": tied}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = network(settings(**sizes, **heads))
        for name, values in made.named_parameters():
            if name.endswith(("bias", "norm.weight")):
                torch.nn.init.uniform_(values, 0.3, 1.2)
        with torch.no_grad():
            made.model.embed_tokens.weight[:, 3] *= outlier
        made.save_pretrained(folder)
    convert_folder(folder, folder / "model.gguf")
    return folder / "model.gguf"


def model_in_eight_bits(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Int8:
    """A random model, in eight bits although it is small."""
    monkeypatch.setattr(int8, "_SMALL", 0)
    return Int8(random_model(family, folder, tied=True), sequences=3, width=40)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_turned_model_computes_the_same_and_hidden_states_of_any_shape_well(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = random_model(family, tmp_path, tied=False, outlier=100.0)
    sizes = {
        "attn_q": (64, 64),
        "attn_v": (64, 32),
        "attn_output": (64, 64),
        "ffn_up": (64, 128),
        "ffn_down": (128, 64),
    }
    rng = np.random.default_rng(0)

    def pair(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        return tuple(rng.normal(size=shape).astype(np.float32) / 4 for shape in ((4, inputs), (outputs, 4)))

    pairs = {f"blk.{layer}.{part}.weight": pair(*size) for layer in range(2) for part, size in sizes.items()}
    pairs["output.weight"] = pair(64, 300)
    monkeypatch.setattr(int8, "read_pairs", lambda _: dict(pairs))
    (tmp_path / "adapter.gguf").write_bytes(b"the pairs are those above")
    ids = [int(one) for one in rng.integers(300, size=24)]

    def computed(kind: str, adapter: Path | None, is_exact: bool = False) -> np.ndarray:
        monkeypatch.setenv("COMPEER_CACHE", str(tmp_path / kind))
        model = Int8(path, sequences=1, width=40)
        model.exact |= {adapter} if is_exact else set()
        model.use(adapter)
        return model.decode([0] * 24, range(24), ids, [True] * 24)

    def apart(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.median(np.linalg.norm(one - other, axis=1) / np.linalg.norm(one, axis=1)))

    for adapter in (None, tmp_path / "adapter.gguf"):
        exact = computed("float", adapter)
        with monkeypatch.context() as eight_bits:
            eight_bits.setattr(int8, "_SMALL", 0)
            turned = apart(exact, computed("turned", adapter))
            assert apart(exact, computed("turned", adapter, is_exact=True)) < turned
            eight_bits.setattr(Rotation, "of", lambda *_: None)
            assert turned < 0.05
            assert 1.5 * turned < apart(exact, computed("straight", adapter))


@pytest.mark.parametrize("family", ["llama", "qwen2"] if FAST else [])
def test_a_few_tokens_are_computed_as_many_are(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compeer.engine.fused import Fused  # needs numba, which comes where there are such processors

    monkeypatch.setenv("COMPEER_CACHE", str(tmp_path / "cache"))
    model = model_in_eight_bits(family, tmp_path, monkeypatch)
    rng = np.random.default_rng(0)
    ids = [int(one) for one in rng.integers(300, size=24)]
    down, up = rng.normal(size=(2, 4, 64)).astype(np.float32) / 4
    narrow = {f"blk.{layer}.qkv": Narrow([(0, down, up.T), (96, down, up[:, :32].T)], 128) for layer in range(2)}
    monkeypatch.setattr(model, "_narrow", lambda adapter: dict(narrow) if adapter else {})
    whole = model._variants[None][0]
    (tmp_path / "adapter").write_bytes(b"the pairs are those above")

    def computed(adapter: Path | None, *changed: object) -> np.ndarray:
        """The logits after eight tokens that are computed one by one, then together with another sequence's."""
        model.use(adapter)
        if changed:
            model._matrices, model._used, model._few = changed
        model.clear()
        for sequence in (0, 1):
            model.decode([sequence] * 16, range(16), ids[:16], [False] * 16)
        one_by_one = [model.decode([0], [16 + n], [ids[16 + n]], [True])[0] for n in range(8)]
        return np.stack([*one_by_one, *model.decode([1] * 8 + [2], [*range(16, 24), 0], [*ids[16:], 0], [True] * 9)])

    def apart(one: np.ndarray, other: np.ndarray) -> float:
        return float((np.linalg.norm(one - other, axis=1) / np.linalg.norm(one, axis=1)).max())

    for adapter, beside in ((None, {}), (tmp_path / "adapter", narrow)):
        fused = computed(adapter)
        assert model._few is not None
        assert np.array_equal(fused[:8], fused[8:16])  # whoever is computed beside it
        # a number that lies between two may be rounded up by one and down by the other
        assert apart(computed(adapter, model._matrices, model._used, None), fused) < 0.1
        assert apart(computed(adapter, whole, beside, None), fused) < 0.1
    assert apart(computed(None), fused) > 0.2
    for threads in (1, 2):
        monkeypatch.setattr(Fused, "_threads", lambda _, own=threads: own)
        assert np.array_equal(computed(tmp_path / "adapter"), fused)


@pytest.mark.parametrize("family", ["llama"] if FAST else [])
def test_without_numba_torch_computes_all(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPEER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "compeer.engine.fused", None)
    model = model_in_eight_bits(family, tmp_path, monkeypatch)
    assert model._few is None
    assert model.decode([0] * 3, range(3), [5, 6, 7], [False, False, True]).shape == (1, 300)
