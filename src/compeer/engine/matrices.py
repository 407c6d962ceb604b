"""Matrices in eight bits on torch, the narrow ones that adapters add to them, and how a model is turned before.

Each row of a matrix has a scale, and so has each token that is multiplied with it; what lies between is whole numbers,
so a token's products do not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch

_ROWS = 4096  # rows that are turned into eight bits at a time
TOP, ZERO = 127, 128
WIDTH = 64  # so many numbers the processor multiplies at once
_LARGE = 4 << 20  # matrices of so many numbers are laid out for their kernel: smaller ones are quicker without
_FEW = 4  # so many tokens are multiplied with a matrix as it lies in its file, twice as fast as with one laid out
_ROOM = 5 << 30  # memory that must be free for that: both stand in memory then


def in_eight(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in eight bits, and the scale of each row."""
    whole, scale = torch.empty(values.shape, dtype=torch.int8), torch.empty(len(values))
    for start in range(0, len(values), _ROWS):
        part = values[start : start + _ROWS].float()
        scale[start : start + _ROWS] = own = part.abs().amax(1).clamp_min_(1e-30) / TOP
        whole[start : start + _ROWS] = (part / own[:, None]).round_().to(torch.int8)
    return whole, scale


class Matrix:
    """A matrix in eight bits with a scale a row, or as it is."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor | None, fine: bool = False) -> None:
        self.outputs, self.inputs = weight.shape
        self._fine = fine
        self.packed = scale is not None and weight.numel() >= _LARGE
        if scale is not None:
            self.scale = scale / TOP
        self.plain = scale is None
        self.weight = torch.ops.onednn.qlinear_prepack(weight, None) if self.packed else weight.clone().t()
        self._rows = few_rows(weight, self.scale) if self.packed else None
        self._zeros = torch.zeros(self.outputs, dtype=torch.long)

    def times(self, numbers: torch.Tensor, fine: bool = False) -> torch.Tensor:
        if self.plain:
            return numbers @ self.weight
        top = numbers.abs().amax(1, keepdim=True).clamp_min_(1e-30)
        scaled = numbers * (TOP / top)
        whole = scaled.round()
        if not (fine or self._fine):
            return self._product(whole).mul_(top)
        rest = scaled.sub_(whole).mul_(2 * TOP).round_()
        found = self._product(torch.cat([whole, rest]))
        return found[: len(top)].add_(found[len(top) :], alpha=0.5 / TOP).mul_(top)

    def _product(self, whole: torch.Tensor) -> torch.Tensor:
        """Whole numbers from -127 to 127 multiplied with the matrix."""
        eight = whole.to(torch.int8)
        if not self.packed:
            return torch._int_mm(eight, self.weight).float().mul_(self.scale)
        above = eight.view(torch.uint8).bitwise_xor_(ZERO)  # the same numbers, counted from -128
        if self._rows and len(above) <= _FEW:
            return torch.from_numpy(self._rows(above.numpy()))
        rest: tuple[Any, ...] = (self.weight, self.scale, self._zeros, None, 1.0, 0, torch.float32, "none", [], "")
        found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(above, 1.0, ZERO, *rest)
        return found


def few_rows(weight: torch.Tensor, scale: torch.Tensor) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None:
    """A compiled product of a few tokens with a matrix; None where there is no compiler or too little memory for it."""
    if weight.shape[1] % WIDTH or psutil.virtual_memory().available < _ROOM or (fused := compiler()) is None:
        return None
    return partial(fused.few_tokens, fused.with_excess(weight.numpy()[None], scale.numpy()[None]))


def compiler() -> ModuleType | None:
    """What is compiled; None where numba is not there, or finds no folder to keep it."""
    try:
        return import_module("compeer.engine.fused")
    except (ImportError, RuntimeError):
        return None


def together(own: Sequence[Matrix]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The weights and scales of matrices that are alike, (matrices, outputs, inputs) and (matrices, outputs)."""
    weight = torch.stack([one.weight.t() for one in own])
    for one, part in zip(own, weight, strict=True):
        one.weight = part.t()  # they stand in memory once
    return weight.numpy(), torch.stack([one.scale for one in own]).numpy()


class Narrow:
    """Narrow matrices of adapters: each pair is added from a row on, all pairs of a matrix at a time."""

    def __init__(self, pairs: Sequence[tuple[int, npt.NDArray[Any], npt.NDArray[Any]]], outputs: int) -> None:
        self._down = torch.from_numpy(np.concatenate([down for _, down, _ in pairs])).float().t()
        self._up, rank = torch.zeros(self._down.shape[1], outputs), 0
        for start, down, up in pairs:
            self._up[rank : rank + len(down), start : start + len(up)] = torch.from_numpy(up).t()
            rank += len(down)

    def added(self, numbers: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return found.addmm_(numbers @ self._down, self._up)

    def product(self) -> torch.Tensor:
        """What they add to the matrix, (outputs, inputs)."""
        return (self._down @ self._up).t()


class Rotation:
    """Turns a model's hidden states, so that none of their numbers stands out; its matrices are turned to fit.

    A few numbers of a hidden state are hundreds of times as large as the others, and leave these next to nothing of
    eight bits. Turned by a random orthogonal matrix all are of one size, and the model computes the same: the root mean
    square of a hidden state stays, and norms' weights go into the matrices behind them. Values are turned in each head.
    (QuaRot, arXiv 2404.00456.) What `ffn_down` is given is not turned, but its columns are made equally large, at the
    expense of the rows of `ffn_up`, which have a scale each.
    """

    def __init__(self, hidden: torch.Tensor, head: torch.Tensor, norms: Mapping[str, torch.Tensor]) -> None:
        self._hidden, self._head, self._norms = hidden, head, dict(norms)

    @classmethod
    def of(cls, hidden: int, head: int) -> Rotation:
        """A turn of hidden states and heads of these sizes, which knows no norms yet."""
        return cls(_orthogonal(hidden), _orthogonal(head), {})

    @classmethod
    def taken(cls, weights: dict[str, torch.Tensor]) -> Rotation | None:
        """The turn that was kept among weights, which loses it; None if they were not turned."""
        own = {name[len("turn.") :]: weights.pop(name) for name in list(weights) if name.startswith("turn.")}
        return cls(own.pop("hidden"), own.pop("head"), own) if own else None

    def kept(self) -> dict[str, torch.Tensor]:
        """What `taken` reads."""
        own = {"hidden": self._hidden, "head": self._head, **self._norms}
        return {f"turn.{name}": values for name, values in own.items()}

    def turned(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """A model's tensor, turned. A norm comes before the matrices behind it, which take its weights."""
        values = values.float()
        if name.endswith("norm"):
            self._norms[name] = values
            return torch.ones_like(values)
        if name.endswith("ffn_down"):
            values = self.outputs(name, values)
            largest = values.abs().amax(0)
            self._norms[name] = largest / largest.mean()
            return self.inputs(name, values)
        if name.endswith(".bias"):
            return self.outputs(name.removesuffix(".bias"), values[:, None])[:, 0]
        return self.outputs(name, self.inputs(name, values))

    def inputs(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Rows of a matrix, or of what adapters multiply its inputs with."""
        layer, _, part = name.rpartition(".")
        if part == "embedding":
            return rows @ self._hidden
        if norm := {"qkv": f"{layer}.attn_norm", "gate_up": f"{layer}.ffn_norm", "output": "output_norm"}.get(part):
            return (rows * self._norms[norm]) @ self._hidden
        if part == "ffn_down":
            return rows / self._norms[name]
        return _by_heads(rows, self._head) if part == "attn_output" else rows

    def outputs(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Columns of a matrix, or of what adapters add to its outputs; of `qkv` and `gate_up` parts are turned."""
        layer, _, part = name.rpartition(".")
        if part == "ffn_up":
            return rows * self._norms[f"{layer}.ffn_down"][:, None]
        if part in ("attn_output", "ffn_down"):
            return self._hidden.T @ rows
        return _by_heads(rows.T, self._head).T if part == "attn_v" else rows


def _by_heads(rows: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    return (rows.reshape(len(rows), -1, len(turn)) @ turn).flatten(1)


def _orthogonal(size: int) -> torch.Tensor:
    own = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turn: torch.Tensor = torch.linalg.qr(own)[0].float().contiguous()
    return turn
