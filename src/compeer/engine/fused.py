"""All layers of a small model in eight bits as one compiled function, for a few tokens at a time.

A token of a small model costs torch thousands of short operations, and what lies between them takes longer than they
do. Here numba compiles the whole pass when it is first needed, once for a machine. It computes what `int8.py` computes,
on the same weights, in one thread: a busy machine delays it less, and a token's numbers do not depend on its batch.
`vpdpbusd`, which multiplies 64 numbers of eight bits and adds them up, is asked for by name: no compiler finds it
where it is not written down.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from compeer.engine.matrices import TOP, WIDTH, ZERO

Array = npt.NDArray[Any]

binding.initialize_native_asmparser()
compiled = njit(nogil=True, cache=True, fastmath=True, error_model="numpy")


class Matrices(NamedTuple):
    """One matrix of every layer, and what adapters add to it. All but the weights are float32."""

    weight: Array
    """(layers, outputs, inputs) in eight bits."""
    scale: Array
    """(layers, outputs)"""
    excess: Array
    """(layers, outputs): what counting the other factor from -128 adds to a product."""
    down: Array
    """(layers, rank, inputs)"""
    up: Array
    """(layers, rank, outputs)"""


def _matrices(weight: Array, scale: Array) -> Matrices:
    """Matrices without adapters."""
    layers, outputs, inputs = weight.shape
    excess = (ZERO * weight.sum(2, dtype=np.int32)).astype(np.float32)
    none = np.zeros((layers, 0, inputs), np.float32), np.zeros((layers, 0, outputs), np.float32)
    return Matrices(weight, scale, excess, *none)


@intrinsic
def _product(_: Any, numbers: Any, start: Any, weight: Any, first: Any, count: Any) -> Any:
    """The sum of products of `count` numbers from 0 to 255 with as many from -128 to 127, each from an index on."""
    eight, sums, index = ir.VectorType(ir.IntType(8), WIDTH), ir.VectorType(ir.IntType(32), 16), ir.IntType(64)

    def write(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        one, other = (context.make_array(signature.args[n])(context, builder, given[n]).data for n in (0, 2))
        call = ir.InlineAsm(ir.FunctionType(sums, [eight, eight, sums]), "vpdpbusd $2, $1, $0", "=v,v,v,0")
        total = cgutils.alloca_once_value(builder, ir.Constant(sums, [0] * 16))

        def at(data: Any, offset: Any) -> Any:
            place = builder.bitcast(builder.gep(data, [offset]), eight.as_pointer())
            return builder.load(place, align=1)

        step = ir.Constant(index, WIDTH)
        with cgutils.for_range_slice(builder, ir.Constant(index, 0), given[4], step, intp=index) as (done, _):
            parts = at(one, builder.add(given[1], done)), at(other, builder.add(given[3], done))
            builder.store(builder.call(call, [*parts, builder.load(total)]), total)
        add = ir.FunctionType(ir.IntType(32), [sums])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, add, "llvm.vector.reduce.add.v16i32"), [builder.load(total)]
        )

    return types.int32(numbers, start, weight, first, count), write


@compiled
def _rounded(numbers: Array, eight: Array, rest: Array) -> np.float32:
    """Numbers in eight bits counted from -128, what that leaves out in eight more, and the largest of them."""
    top = np.float32(1e-30)
    for n in range(len(numbers)):
        top = max(top, abs(numbers[n]))
    by = np.float32(TOP) / top
    for n in range(len(numbers)):
        scaled = numbers[n] * by
        whole = np.rint(scaled)
        eight[n] = np.uint8(np.int32(whole) + ZERO)
        rest[n] = np.uint8(np.int32(np.rint((scaled - whole) * np.float32(2 * TOP))) + ZERO)
    return top


@compiled
def _times(layer: int, numbers: Array, own: Matrices, fine: bool, found: Array) -> None:
    """Numbers, a row a token, times the matrix of a layer; `fine` numbers have sixteen bits in two parts."""
    count, inputs = numbers.shape
    outputs = own.scale.shape[1]
    eight, tops = np.empty((2, count, inputs), np.uint8), np.empty(count, np.float32)
    for token in range(count):
        tops[token] = _rounded(numbers[token], eight[0, token], eight[1, token])
    for output in range(outputs):
        first = (layer * outputs + output) * inputs
        excess, scale = own.excess[layer, output], own.scale[layer, output]
        for token in range(count):
            value = np.float32(_product(eight, token * inputs, own.weight, first, inputs)) - excess
            if fine:
                rest = np.float32(_product(eight, (count + token) * inputs, own.weight, first, inputs)) - excess
                value += rest * np.float32(0.5 / TOP)
            found[token, output] = value * (scale * tops[token])
    for token in range(count):
        for n in range(own.down.shape[1]):
            narrow = np.float32(0)
            for k in range(inputs):
                narrow += numbers[token, k] * own.down[layer, n, k]
            for output in range(outputs):
                found[token, output] += narrow * own.up[layer, n, output]


@compiled
def _normed(hidden: Array, weight: Array, eps: float, found: Array) -> None:
    for token in range(len(hidden)):
        squares = np.float32(0)
        for n in range(len(weight)):
            squares += hidden[token, n] * hidden[token, n]
        by = np.float32(1) / np.sqrt(squares / np.float32(len(weight)) + np.float32(eps))
        for n in range(len(weight)):
            found[token, n] = hidden[token, n] * by * weight[n]


@compiled
def _turned(heads: Array, cosines: Array, sines: Array, apart: int) -> None:
    """Turns heads by a position; the two numbers of a pair stand so far apart."""
    for head in range(len(heads)):
        for n in range(len(cosines)):
            one = 2 * n if apart == 1 else n
            x, y = heads[head, one], heads[head, one + apart]
            heads[head, one] = x * cosines[n] - y * sines[n]
            heads[head, one + apart] = x * sines[n] + y * cosines[n]


@compiled
def _attended(asked: Array, keys: Array, values: Array, weights: Array, found: Array) -> None:
    """What one head finds among keys and values, (positions, size), of which there are as many as `weights`."""
    size = len(asked)
    by, most, total = np.float32(1) / np.sqrt(np.float32(size)), np.float32(-1e30), np.float32(0)
    for at in range(len(weights)):
        product = np.float32(0)
        for n in range(size):
            product += asked[n] * keys[at, n]
        weights[at] = product * by
        most = max(most, weights[at])
    for n in range(size):
        found[n] = 0
    for at in range(len(weights)):
        weight = np.exp(weights[at] - most)
        total += weight
        for n in range(size):
            found[n] += weight * values[at, n]
    for n in range(size):
        found[n] /= total


@compiled
def _all_layers(
    hidden: Array,
    sequences: Array,
    positions: Array,
    cells: Array,
    matrices: tuple[Matrices, Matrices, Matrices, Matrices],
    norms: Array,
    biases: Array,
    cosines: Array,
    sines: Array,
    queries: int,
    apart: int,
    eps: float,
) -> None:
    """Norms are (layers, 2, size), biases (layers, outputs), cosines and sines (positions, half a head)."""
    first, output, gate_up, down = matrices
    count, keys, size = len(hidden), cells.shape[3], cells.shape[5]
    normed, both = np.empty_like(hidden), np.empty((count, gate_up.scale.shape[1]), np.float32)
    qkv = np.empty((count, queries + 2 * keys, size), np.float32)
    attended = np.empty((count, queries, size), np.float32)
    weights, inner = np.empty(positions.max() + 1, np.float32), np.empty((count, both.shape[1] // 2), np.float32)
    for layer in range(len(cells)):
        _normed(hidden, norms[layer, 0], eps, normed)
        _times(layer, normed, first, False, qkv.reshape(count, -1))
        for token in range(count):
            sequence, position = sequences[token], positions[token]
            for head in range(queries + 2 * keys):
                for n in range(size):
                    qkv[token, head, n] += biases[layer, head * size + n]
            _turned(qkv[token, : queries + keys], cosines[position], sines[position], apart)
            cells[layer, 0, sequence, :, position] = qkv[token, queries : queries + keys]
            cells[layer, 1, sequence, :, position] = qkv[token, queries + keys :]
        for token in range(count):
            own, until = cells[layer, :, sequences[token]], positions[token] + 1
            for head in range(queries):
                key = head // (queries // keys)
                _attended(qkv[token, head], own[0, key], own[1, key], weights[:until], attended[token, head])
        _times(layer, attended.reshape(count, -1), output, False, normed)
        hidden += normed
        _normed(hidden, norms[layer, 1], eps, normed)
        _times(layer, normed, gate_up, False, both)
        for token in range(count):
            for n in range(inner.shape[1]):
                gate = both[token, n]
                inner[token, n] = gate / (np.float32(1) + np.exp(-gate)) * both[token, n + inner.shape[1]]
        _times(layer, inner, down, True, normed)
        hidden += normed


class Fused:
    """The layers of a model: weights and scales of each part of all layers, and what is known of norms and turns."""

    most = 16
    """Tokens at a time; more are computed by torch, which uses all cores."""

    def __init__(
        self,
        stacks: Mapping[str, tuple[Array, Array]],
        vectors: Mapping[str, torch.Tensor],
        turns: torch.Tensor,
        queries: int,
        family: str,
        eps: float,
    ) -> None:
        self._parts = {part: _matrices(*own) for part, own in stacks.items()}
        count, outputs = self._parts["qkv"].scale.shape

        def stacked(name: str, none: int = 0) -> Array:
            own = [vectors.get(f"blk.{layer}.{name}", torch.zeros(none)) for layer in range(count)]
            return torch.stack(own).numpy()

        norms = np.stack([stacked("attn_norm"), stacked("ffn_norm")], axis=1)
        turned = [np.ascontiguousarray(one.numpy()) for one in (turns.real, turns.imag)]
        # Llama's files turn neighbours together, Qwen2's the two halves of a head
        apart = 1 if family == "llama" else turns.shape[1]
        self._rest = norms, stacked("qkv.bias", outputs), *turned, queries, apart, eps

    def with_adapters(self, pairs: Mapping[str, tuple[Array, Array]]) -> Fused:
        """The same layers with narrow pairs, (rank, inputs) and (rank, outputs), by the matrix they are added to."""
        found = copy(self)
        found._parts = {}
        for part, whole in self._parts.items():
            own = [pairs.get(f"blk.{layer}.{part}") for layer in range(len(whole.scale))]
            rank = max((len(pair[0]) for pair in own if pair), default=0)
            down, up = (np.zeros((len(own), rank, one.shape[2]), np.float32) for one in (whole.down, whole.up))
            for layer, pair in enumerate(own):
                if pair:
                    down[layer, : len(pair[0])], up[layer, : len(pair[1])] = pair
            found._parts[part] = whole._replace(down=down, up=up)
        return found

    def run(self, hidden: Array, sequences: Sequence[int], positions: Sequence[int], cells: Array) -> None:
        """Takes tokens, (tokens, size), through all layers in place, and keeps their keys and values in `cells`.

        A sequence's tokens stand in their order.
        """
        matrices = tuple(self._parts.values())
        _all_layers(hidden, np.array(sequences), np.array(positions), cells, matrices, *self._rest)
