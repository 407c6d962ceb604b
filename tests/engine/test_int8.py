"""Matrices in eight bits: what they round, and that a token's products are its own."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compeer.engine import int8
from compeer.engine.int8 import _in_eight, _Matrix, _Narrow, _turned

FAST = torch.cpu._is_vnni_supported()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_each_number_is_off_by_half_a_step_at_most(rows: int, columns: int, seed: int) -> None:
    values = random(rows, columns, seed=seed)
    whole, scale = _in_eight(values)
    assert whole.dtype == torch.int8
    assert bool(((whole.float() * scale[:, None] - values).abs() <= scale[:, None] * 0.5001).all())


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("laid_out", [False, True] if FAST else [False])
def test_a_tokens_products_are_nearly_right_and_do_not_depend_on_its_batch(
    monkeypatch: pytest.MonkeyPatch, laid_out: bool, fine: bool
) -> None:
    monkeypatch.setattr(int8, "_LARGE", 0 if laid_out else 1 << 40)
    weight, tokens = random(96, 64), random(9, 64, seed=1) * torch.logspace(-3, 3, 9)[:, None]
    whole, scale = _in_eight(weight)
    matrix = _Matrix(whole, scale, fine)
    exact = tokens @ (whole.float() * scale[:, None] if fine else weight).t()
    found = matrix.times(tokens)
    off = (found - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(off.max()) < (0.0002 if fine else 0.02)
    for row in range(9):
        assert torch.equal(matrix.times(tokens[row : row + 1])[0], found[row])
    assert torch.equal(matrix.times(torch.zeros(1, 64)), torch.zeros(1, 96))


def test_small_models_are_not_rounded() -> None:
    weight, tokens = random(12, 8), random(3, 8, seed=1)
    torch.testing.assert_close(_Matrix(weight, None).times(tokens), tokens @ weight.t())


def test_narrow_matrices_are_added_where_they_belong() -> None:
    numbers, found = random(3, 6), torch.zeros(3, 10)
    pairs = [(start, np.full((2, 6), 1.0 + start), np.full((4, 2), 2.0)) for start in (0, 6)]
    _Narrow(pairs, 10).added(numbers, found)
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
