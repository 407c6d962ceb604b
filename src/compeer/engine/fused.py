"""All layers of a small model in eight bits as one compiled function, for a few tokens; products with a large one's.

A token of a small model costs torch thousands of short operations, and what lies between them takes longer than they
do. Here numba compiles the whole pass when it is first needed, once for a machine. It computes what `int8.py` computes.
A token's numbers depend neither on its batch nor on how many threads share the work. `vpdpbusd`, which multiplies 64
numbers of eight bits and adds them up, is asked for by name.
"""

# mypy: disallow-untyped-decorators=False
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from compeer.engine.matrices import TOP, WIDTH, ZERO

Array = npt.NDArray[Any]
Stacks = Mapping[str, tuple[Array, Array]]  # the weights and scales of a part of all layers

_LOAD, _CORES = Path("/proc/loadavg"), os.cpu_count() or 1  # where Linux says how many threads are active now
_pool = ThreadPoolExecutor(3, thread_name_prefix="compeer-rows")  # more do not read a large matrix faster
_PATIENCE = 1 << 30  # so often a thread checks for the others: about a minute

binding.initialize_native_asmparser()
compiled = njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
exact = njit(nogil=True, cache=True, error_model="numpy")
"""For loops of which a token or a thread may have the middle or the end, which fast mathematics may round otherwise."""


class Matrices(NamedTuple):
    """One matrix of every layer; a single one is that of the only layer."""

    weight: Array  # (layers, outputs, inputs) in eight bits
    scale: Array  # (layers, outputs), float32
    excess: Array  # (layers, outputs), whole numbers: what counting the other factor from -128 adds to a product


class Room(NamedTuple):
    """A thread's numbers in eight bits, what these leave out, and the largest number of each token."""

    eight: Array
    rest: Array
    tops: Array


class Shared(NamedTuple):
    """How often threads have come to a point where they wait, and what they write for each other."""

    waiting: Array
    qkv: Array
    attended: Array
    both: Array
    inner: Array
    added: Array


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
        added = cgutils.get_or_insert_function(builder.module, add, "llvm.vector.reduce.add.v16i32")
        return builder.call(added, [builder.load(total)])

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


@intrinsic
def _added(_: Any, count: Any, _more: Any) -> Any:
    """What a number that threads share was before something is added to it, after a pause."""

    def write(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = context.make_array(signature.args[0])(context, builder, given[0]).data
        builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "pause", "", side_effect=True), [])
        return builder.atomic_rmw("add", place, given[1], "seq_cst")

    return types.int64(count, types.int64), write


@compiled
def _wait(count: Array, until: int) -> int:
    """Waits for the other threads to come as far, and says how far; not for ever, for one may have failed."""
    _added(count, 1)
    for _ in range(_PATIENCE):
        if _added(count, 0) >= until:
            return until
    raise RuntimeError("a thread has failed")


@compiled
def _prepared(numbers: Array, room: Room) -> None:
    """Numbers, a row a token, in eight bits."""
    for token in range(len(numbers)):
        room.tops[token] = _rounded(numbers[token], room.eight[token], room.rest[token])


@exact
def _times(layer: int, count: int, own: Matrices, fine: bool, room: Room, start: int, end: int, found: Array) -> None:
    """What was prepared times a layer's matrix, from an output to another; `fine` numbers have sixteen bits."""
    outputs, inputs = own.weight.shape[1:]
    width = room.eight.shape[1]
    for output in range(start, end):
        first = (layer * outputs + output) * inputs
        excess, scale = own.excess[layer, output], own.scale[layer, output]
        for token in range(count):
            value = np.float32(_product(room.eight, token * width, own.weight, first, inputs) - excess)
            if fine:
                rest = np.float32(_product(room.rest, token * width, own.weight, first, inputs) - excess)
                value += rest * np.float32(0.5 / TOP)
            found[token, output] = value * (scale * room.tops[token])


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
def _turned(head: Array, cosines: Array, sines: Array, apart: int) -> None:
    """Turns a head by a position; the two numbers of a pair stand so far apart."""
    for n in range(len(cosines)):
        one = 2 * n if apart == 1 else n
        x, y = head[one], head[one + apart]
        head[one] = x * cosines[n] - y * sines[n]
        head[one + apart] = x * sines[n] + y * cosines[n]


@compiled
def _attended(asked: Array, keys: Array, values: Array, weights: Array, until: int, found: Array) -> None:
    """What one head finds among the first keys and values, (positions, size); `weights` is room to work."""
    size = len(asked)
    by, most, total = np.float32(1) / np.sqrt(np.float32(size)), np.float32(-1e30), np.float32(0)
    for at in range(until):
        product = np.float32(0)
        for n in range(size):
            product += asked[n] * keys[at, n]
        weights[at] = product * by
        most = max(most, weights[at])
    for n in range(size):
        found[n] = 0
    for at in range(until):
        weight = np.exp(weights[at] - most)
        total += weight
        for n in range(size):
            found[n] += weight * values[at, n]
    for n in range(size):
        found[n] /= total


@exact
def _all_layers(
    given: Array,
    sequences: Array,
    positions: Array,
    cells: Array,
    matrices: tuple[Matrices, Matrices, Matrices, Matrices],
    norms: Array,  # (layers, 2, size)
    biases: Array,  # (layers, outputs)
    cosines: Array,  # (positions, half a head), as the sines
    sines: Array,
    queries: int,
    apart: int,
    eps: float,
    shared: Shared,
    thread: int,
    threads: int,
) -> None:
    """One thread's part: it computes its share of every matrix and of the heads, and waits where it needs others'."""
    first, output, gate_up, down = matrices
    count, keys, size = len(given), cells.shape[3], cells.shape[5]
    hidden, normed, waited = given.copy(), np.empty_like(given), 0
    wide = max(down.weight.shape[2], given.shape[1], queries * size)
    room = Room(np.empty((count, wide), np.uint8), np.empty((count, wide), np.uint8), np.empty(count, np.float32))
    weights = np.empty(positions.max() + 1, np.float32)
    heads, mine, inner = queries + 2 * keys, output.scale.shape[1], down.weight.shape[2]
    flat = shared.qkv.reshape(count, -1)
    for layer in range(len(cells)):
        _normed(hidden, norms[layer, 0], eps, normed)
        _prepared(normed, room)
        start, end = heads * thread // threads, heads * (thread + 1) // threads
        _times(layer, count, first, False, room, start * size, end * size, flat)
        for token in range(count):
            sequence, position = sequences[token], positions[token]
            for head in range(start, end):
                own = shared.qkv[token, head]
                for n in range(size):
                    own[n] += biases[layer, head * size + n]
                if head < queries + keys:
                    _turned(own, cosines[position], sines[position], apart)
                if head >= queries:
                    value = (head - queries) // keys
                    cells[layer, value, sequence, head - queries - value * keys, position] = own
        waited = _wait(shared.waiting, waited + threads)
        for part in range(thread, count * queries, threads):
            token, head = part // queries, part % queries
            key, sequence = head // (queries // keys), sequences[token]
            known = cells[layer, 0, sequence, key], cells[layer, 1, sequence, key]
            own = shared.attended[token, head * size : (head + 1) * size]
            _attended(shared.qkv[token, head], *known, weights, positions[token] + 1, own)
        waited = _wait(shared.waiting, waited + threads)
        _prepared(shared.attended, room)
        start, end = mine * thread // threads, mine * (thread + 1) // threads
        _times(layer, count, output, False, room, start, end, shared.added)
        waited = _wait(shared.waiting, waited + threads)
        hidden += shared.added
        _normed(hidden, norms[layer, 1], eps, normed)
        _prepared(normed, room)
        begin, until = inner * thread // threads, inner * (thread + 1) // threads
        _times(layer, count, gate_up, False, room, begin, until, shared.both)
        _times(layer, count, gate_up, False, room, begin + inner, until + inner, shared.both)
        for token in range(count):
            for n in range(begin, until):
                gate = shared.both[token, n]
                shared.inner[token, n] = gate / (np.float32(1) + np.exp(-gate)) * shared.both[token, n + inner]
        waited = _wait(shared.waiting, waited + threads)
        _prepared(shared.inner, room)
        _times(layer, count, down, True, room, start, end, shared.added)
        waited = _wait(shared.waiting, waited + threads)
        hidden += shared.added
    if thread == 0:
        given[:] = hidden


def with_excess(weight: Array, scale: Array) -> Matrices:
    """Matrices whose products can be counted from -128."""
    return Matrices(weight, scale, (ZERO * torch.from_numpy(weight).sum(2, dtype=torch.int32)).numpy())


def few_tokens(own: Matrices, eight: Array) -> Array:
    """Tokens, (tokens, inputs) from 0 to 255, times a single matrix, which is read once for all of them."""
    count, outputs = len(eight), own.scale.shape[1]
    found, room = np.empty((count, outputs), np.float32), Room(eight, eight, np.ones(count, np.float32))
    threads = min(torch.get_num_threads(), 4)
    cuts = [outputs * n // threads for n in range(threads + 1)]
    work = partial(_times, 0, count, own, False, room)
    others = [_pool.submit(work, cuts[n], cuts[n + 1], found) for n in range(1, threads)]
    work(0, cuts[1], found)
    for other in others:
        other.result()
    return found


class Fused:
    """The layers of a model: weights and scales of each part of all layers, and what is known of norms and turns."""

    most = 16  # tokens at a time; more are computed by torch, which uses all cores

    def __init__(
        self, stacks: Stacks, vectors: Mapping[str, Tensor], turns: Tensor, queries: int, family: str, eps: float
    ) -> None:
        self._parts = tuple(with_excess(*stacks[part]) for part in ("qkv", "attn_output", "gate_up", "ffn_down"))
        count, outputs = self._parts[0].scale.shape

        def stacked(name: str, none: int = 0) -> Array:
            own = [vectors.get(f"blk.{layer}.{name}", torch.zeros(none)) for layer in range(count)]
            return torch.stack(own).numpy()

        norms = np.stack([stacked("attn_norm"), stacked("ffn_norm")], axis=1)
        turned = [np.ascontiguousarray(one.numpy()) for one in (turns.real, turns.imag)]
        # Llama's files turn neighbours together, Qwen2's the two halves of a head
        apart = 1 if family == "llama" else turns.shape[1]
        self._rest = norms, stacked("qkv.bias", outputs), *turned, queries, apart, eps
        self._most_threads = min(2, torch.get_num_threads())
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compeer-layers")

    def run(self, hidden: Array, sequences: Sequence[int], positions: Sequence[int], cells: Array) -> None:
        """Takes tokens, (tokens, size), a sequence's in order, through all layers; keys and values go to `cells`."""
        count, keys, size = len(hidden), cells.shape[3], cells.shape[5]
        queries, both = self._rest[4], self._parts[2].scale.shape[1]
        sizes = ((queries + 2 * keys, size), (queries * size,), (both,), (both // 2,), hidden.shape[1:])
        shared = Shared(np.zeros(1, np.int64), *(np.empty((count, *one), np.float32) for one in sizes))
        threads = self._threads()
        tokens = hidden, np.array(sequences), np.array(positions), cells
        work = partial(_all_layers, *tokens, self._parts, *self._rest, shared)
        others = [self._pool.submit(work, thread, threads) for thread in range(1, threads)]
        work(0, threads)
        for other in others:
            other.result()

    def _threads(self) -> int:
        """How many to use: a second one only helps where nobody else wants its core now. No number changes by it."""
        try:
            active = int(_LOAD.read_text("ascii").split()[3].partition("/")[0])
        except (OSError, ValueError, IndexError):
            return 1
        return self._most_threads if active < _CORES else 1
