"""Llama and Qwen2 models in eight bits on torch, for processors that multiply eight-bit numbers (VNNI).

Reading weights takes most of a step's time: in eight bits they are a quarter of float32's, and one read serves all
tokens of the batch. `Int8` takes the files of `llama.Llama`: a base, and adapters to it, which stay in float32. What
`ffn_down` is given ranges too widely for eight bits, and comes in two parts of eight bits; so do the numbers for the
other small matrices of a large model, whose hidden states are turned as well (`matrices.Rotation`). A few tokens of a
small model go through one compiled function (`fused.py`). A base is brought into eight bits once, into the cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from compeer.engine.gguf import Pair, check_room, int8_folder, made, opened, progress_in_bytes, read_pairs, unpacked
from compeer.engine.llama import Ids
from compeer.engine.matrices import WIDTH, Matrix, Narrow, Rotation, compiler, in_eight, together
from compeer.errors import InputError
from compeer.io import Frozen

if TYPE_CHECKING:
    from compeer.engine.fused import Fused

_PARTS = {  # matrices of a layer that are fed the same numbers are one
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "attn_output": ("attn_output",),
    "gate_up": ("ffn_gate", "ffn_up"),
    "ffn_down": ("ffn_down",),
}
_SMALL = 64 << 20  # models of fewer bytes are computed in float32: eight bits would gain little there


class _Shape(Frozen):
    """What is known of a model beside its weights."""

    family: str
    layers: int
    hidden: int
    heads: int
    keys: int
    size: int
    eps: float
    rope: float
    limit: int
    vocabulary: int


def has_eight_bits() -> bool:
    """Whether this processor multiplies eight-bit numbers quickly. `COMPEER_CPU=llama.cpp` says no."""
    return os.environ.get("COMPEER_CPU", "") != "llama.cpp" and bool(torch.cpu._is_vnni_supported())


def is_supported(path: Path) -> bool:
    """Whether this processor can, and the file holds a model that is known here."""
    return has_eight_bits() and path.is_file() and (int8_folder(path).is_dir() or _shape(opened(path)) is not None)


_Tensors: TypeAlias = dict[str, torch.Tensor]
_Weights: TypeAlias = tuple[_Shape, _Tensors, _Tensors]
_Variant: TypeAlias = "tuple[dict[str, Matrix], dict[str, Narrow], Fused | None]"
"""Matrices, what adapters add to them, and the layers as one function."""


class Int8:
    """A model file and room for `sequences` sequences of up to `width` tokens, with the calls of `llama.Llama`."""

    def __init__(self, path: Path, sequences: int, width: int) -> None:
        self.path, self.sequences = path, sequences
        self.mark = f"int8 4 {torch.__version__}"
        self._shape, self._embedding, weights = _weights(path)
        self._turn = Rotation.taken(weights)
        shape = self._shape
        self.width, self.vocabulary = min(width, shape.limit), shape.vocabulary
        self._matrices, self._vectors = _laid_out(weights, self._turn is not None)
        frequencies = shape.rope ** (-torch.arange(0, shape.size, 2, dtype=torch.float64) / shape.size)
        turns = torch.outer(torch.arange(self.width, dtype=torch.float64), frequencies)
        self._turns = torch.polar(torch.ones_like(turns), turns).to(torch.complex64)
        cells = (shape.layers, 2, sequences, shape.keys, self.width, shape.size)
        self._cells = torch.empty(cells)  # memory is taken as it is written
        self._lengths = [0] * sequences
        self._few = self._compiled(self._matrices)
        self.block = 128 if self._few else 64  # tokens of a block of a prompt: small models read large ones faster
        self._used: dict[str, Narrow] = {}
        self._variants: dict[Path | None, _Variant] = {None: (self._matrices, self._used, self._few)}
        self.exact: set[Path | None] = set()  # adapters with which all that matrices are given comes in two parts
        self._fine = False

    def close(self) -> None:
        self._variants.clear()
        self._matrices, self._used, self._few = {}, {}, None
        self._cells = torch.empty(0)

    def use(self, adapter: Path | None) -> None:
        if adapter and adapter not in self._variants:
            with torch.inference_mode(False):  # the threads that unpack a file do not inherit it
                self._variants[adapter] = self._variant(adapter)
        self._matrices, self._used, self._few = self._variants[adapter]
        self._fine = adapter in self.exact

    @torch.inference_mode()
    def decode(self, sequences: Ids, positions: Ids, tokens: Ids, wanted: Sequence[bool]) -> npt.NDArray[np.float32]:
        """Computes tokens; the logits after those that are wanted, in their order. A sequence's stand together."""
        runs, end = [], 0
        for sequence, own in groupby(sequences):
            start, end = end, end + len(list(own))
            runs.append(_Run(sequence, start, end, positions[start], self._shape))
            self._lengths[sequence] = positions[end - 1] + 1
        hidden = self._embedding["embedding"][list(tokens)].float()
        if (scale := self._embedding.get("embedding.scale")) is not None:
            hidden *= scale[list(tokens), None]
        if self._few and len(tokens) <= self._few.most:
            self._few.run(hidden.numpy(), sequences, positions, self._cells.numpy())
        else:
            turns = self._turns[list(positions)][:, None]
            for layer in range(self._shape.layers):
                hidden = self._layer(layer, hidden, turns, runs)
        if not any(wanted):
            return np.empty((0, self.vocabulary), dtype=np.float32)
        last = self._normed("output_norm", hidden[list(wanted)])
        logits: npt.NDArray[np.float32] = self._times("output", last).numpy()
        return logits

    def cut(self, sequence: int, length: int) -> None:
        self._lengths[sequence] = min(length, self._lengths[sequence])

    def clear(self) -> None:
        self._lengths = [0] * self.sequences

    def state(self, sequence: int) -> bytes:
        return self._cells[:, :, sequence, :, : self._lengths[sequence]].numpy().tobytes()

    def restore(self, sequence: int, state: bytes) -> bool:
        layers, two, _, keys, width, size = self._cells.shape
        length, rest = divmod(len(state), 4 * layers * two * keys * size)
        if rest or length > width:
            return False
        values = np.frombuffer(state, dtype=np.float32).reshape(layers, two, keys, length, size)
        self._cells[:, :, sequence, :, :length].numpy()[...] = values
        self._lengths[sequence] = length
        return True

    # --- computing ------------------------------------------------------------------------------------------------

    def _layer(self, number: int, hidden: torch.Tensor, turns: torch.Tensor, runs: Sequence[_Run]) -> torch.Tensor:
        shape, name = self._shape, f"blk.{number}"
        heads = self._times(f"{name}.qkv", self._normed(f"{name}.attn_norm", hidden))
        if f"{name}.qkv.bias" in self._vectors:
            heads += self._vectors[f"{name}.qkv.bias"]
        heads = heads.view(len(hidden), shape.heads + 2 * shape.keys, shape.size)
        turned = _turned(heads[:, : shape.heads + shape.keys], turns, shape.family)
        found = torch.empty(len(hidden), shape.heads * shape.size)
        for run in runs:
            run.attend(turned, heads[:, -shape.keys :], self._cells[number, :, run.sequence], found)
        hidden = hidden + self._times(f"{name}.attn_output", found)
        both = self._times(f"{name}.gate_up", self._normed(f"{name}.ffn_norm", hidden))
        gate, up = both.chunk(2, dim=1)
        return hidden.add_(self._times(f"{name}.ffn_down", functional.silu(gate).mul_(up)))

    def _normed(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, hidden.shape[-1:], self._vectors[name], self._shape.eps)

    def _times(self, name: str, numbers: torch.Tensor) -> torch.Tensor:
        found = self._matrices[name].times(numbers, self._fine)
        return self._used[name].added(numbers, found) if name in self._used else found

    def _turned(self, name: str, part: str, pair: Pair) -> Pair:
        """An adapter's pair, turned as the matrix that it is added to."""
        if self._turn is None:
            return pair
        down, up = (torch.from_numpy(one).float() for one in pair)
        return self._turn.inputs(name, down).numpy(), self._turn.outputs(part, up).numpy()

    def _compiled(self, matrices: dict[str, Matrix]) -> Fused | None:
        """All layers as one function for a few tokens, on the same weights; None where they are large, or float32."""
        if self._turn:
            return None
        numbers = range(self._shape.layers)
        parts = {part: [matrices[f"blk.{n}.{part}"] for n in numbers] for part in _PARTS}
        others = any(one.packed or one.plain or one.inputs % WIDTH for own in parts.values() for one in own)
        if others or (fused := compiler()) is None:
            return None
        stacks, shape = {part: together(own) for part, own in parts.items()}, self._shape
        found: Fused = fused.Fused(stacks, self._vectors, self._turns, shape.heads, shape.family, shape.eps)
        return found

    def _variant(self, adapter: Path) -> _Variant:
        """The model with adapters: beside its matrices, or in them where these are small."""
        whole, _, few = self._variants[None]
        pairs = self._narrow(adapter)
        if few is None:
            return whole, pairs, None
        output = {"output": pairs.pop("output")} if "output" in pairs else {}
        matrices, _ = _laid_out(_weights(self.path, adapter, pairs)[2])
        return matrices, output, self._compiled(matrices)

    def _narrow(self, adapter: Path) -> dict[str, Narrow]:
        """The matrices of an adapter file, by the matrix that they are added to."""
        found = {}
        pairs = {name.removesuffix(".weight"): pair for name, pair in read_pairs(adapter).items()}
        shape = self._shape
        rows = {"attn_q": shape.heads * shape.size, **dict.fromkeys(("attn_k", "attn_v"), shape.keys * shape.size)}
        for layer in range(shape.layers):
            for name, parts in _PARTS.items():
                own: list[tuple[int, npt.NDArray[Any], npt.NDArray[Any]]] = []
                start, whole = 0, self._variants[None][0][f"blk.{layer}.{name}"]
                for part in parts:
                    if pair := pairs.pop(f"blk.{layer}.{part}", None):
                        own.append((start, *self._turned(f"blk.{layer}.{name}", f"blk.{layer}.{part}", pair)))
                    start += rows.get(part, whole.outputs // len(parts))
                if any(down.shape[1] != whole.inputs or at + len(up) > whole.outputs for at, down, up in own):
                    raise InputError(f"these adapters do not fit {self.path.name}: blk.{layer}.{name}", file=adapter)
                if own:
                    found[f"blk.{layer}.{name}"] = Narrow(own, whole.outputs)
        if pair := pairs.pop("output", None):
            found["output"] = Narrow([(0, *self._turned("output", "output", pair))], shape.vocabulary)
        if pairs:
            raise InputError(f"these adapters do not fit {self.path.name}: {min(pairs)}", file=adapter)
        return found


class _Run:
    """Tokens of one sequence that are computed together, and what each may attend to."""

    def __init__(self, sequence: int, start: int, end: int, past: int, shape: _Shape) -> None:
        self.sequence, self._start, self._end, self._past, self._shape = sequence, start, end, past, shape
        count, self._bias = end - start, None
        if count > 1:
            hidden = torch.ones(count, past + count, dtype=torch.bool).tril_(past).logical_not_()
            bias = torch.zeros(count, past + count).masked_fill_(hidden, -torch.inf)
            self._bias = bias.repeat(shape.heads // shape.keys, 1)

    def attend(self, turned: torch.Tensor, values: torch.Tensor, cells: torch.Tensor, found: torch.Tensor) -> None:
        """Keeps keys and values of these tokens, and writes what their heads find among all so far."""
        own, shape, count = slice(self._start, self._end), self._shape, self._end - self._start
        until = self._past + count
        cells[0, :, self._past : until] = turned[own, shape.heads :].transpose(0, 1)
        cells[1, :, self._past : until] = values[own].transpose(0, 1)
        # heads that share keys are several queries to the same keys
        asked = turned[own, : shape.heads].view(count, shape.keys, -1, shape.size).permute(1, 2, 0, 3)
        asked = asked.reshape(1, shape.keys, -1, shape.size)
        keys, known = cells[:, None, :, :until]
        answer = functional.scaled_dot_product_attention(asked, keys, known, attn_mask=self._bias)
        answer = answer.view(shape.keys, -1, count, shape.size).permute(2, 0, 1, 3)
        found[own] = answer.reshape(count, -1)


def _turned(heads: torch.Tensor, turns: torch.Tensor, family: str) -> torch.Tensor:
    """Heads turned by their positions: Llama's files turn neighbours together, Qwen2's the two halves of a head."""
    shape = heads.shape[:-1]
    pairs = heads.reshape(*shape, -1, 2) if family == "llama" else heads.reshape(*shape, 2, -1).transpose(-1, -2)
    found = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns)
    return (found if family == "llama" else found.transpose(-1, -2)).flatten(-2)


# --- from files -------------------------------------------------------------------------------------------------------


def _shape(reader: Any) -> _Shape | None:
    """What a file says of its model; None where it is not known here."""
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    family = fields["general.architecture"]
    own = {name.removeprefix(f"{family}."): value for name, value in fields.items()}
    others = [name for name in own if name.startswith(("rope.scaling", "expert"))]
    if family not in ("llama", "qwen2") or others or any(one.name == "rope_freqs.weight" for one in reader.tensors):
        return None
    heads = own["attention.head_count"]
    size = own.get("attention.key_length") or own["embedding_length"] // heads
    if own.get("rope.dimension_count", size) != size:
        return None
    return _Shape(
        family=family,
        layers=own["block_count"],
        hidden=own["embedding_length"],
        heads=heads,
        keys=own.get("attention.head_count_kv", heads),
        size=size,
        eps=own["attention.layer_norm_rms_epsilon"],
        rope=own.get("rope.freq_base", 10000.0),
        limit=own["context_length"],
        vocabulary=next(int(one.shape[1]) for one in reader.tensors if one.name == "token_embd.weight"),
    )


def _weights(path: Path, adapter: Path | None = None, pairs: Mapping[str, Narrow] | None = None) -> _Weights:
    """A file's shape, embedding and other weights, with `pairs` added before rounding; made once of a large file."""
    from safetensors.torch import load_file, save_file

    if path.stat().st_size < _SMALL:
        return _unpacked(path, pairs)

    def fill(to: Path) -> None:
        shape, embedding, weights = _unpacked(path, pairs)
        size = sum(one.nbytes for one in (*embedding.values(), *weights.values()))
        check_room(to.parent, size, f"{path.name} in eight bits")
        save_file(embedding, to / "embedding.safetensors")
        save_file(weights, to / "weights.safetensors")
        (to / "shape.json").write_text(shape.model_dump_json(), "utf-8")

    folder = made(int8_folder(adapter or path), fill)
    shape = _Shape.model_validate_json((folder / "shape.json").read_text("utf-8"))
    # these tensors stay in their files until they are needed, where the system may let them go again
    return shape, load_file(folder / "embedding.safetensors"), load_file(folder / "weights.safetensors")


def _laid_out(weights: _Tensors, turned: bool = False) -> tuple[dict[str, Matrix], _Tensors]:
    """Weights as matrices, and what is left of them as vectors."""
    fine = ("ffn_down", "qkv", "attn_output") if turned else "ffn_down"
    names = sorted(name for name in weights if weights[name].ndim == 2)

    def matrix(name: str) -> Matrix:
        return Matrix(weights.pop(name), weights.pop(f"{name}.scale", None), name.endswith(fine))

    with ThreadPoolExecutor() as pool:  # laying out takes longer than reading
        matrices = dict(zip(names, pool.map(matrix, names), strict=True))
    return matrices, {name: value.clone() for name, value in weights.items()}


def _unpacked(path: Path, pairs: Mapping[str, Narrow] | None) -> _Weights:
    """The same from the file, in eight bits unless it is small."""
    reader = opened(path)
    shape = _shape(reader)
    if shape is None:
        raise InputError("the CPU engine does not know this model in eight bits.", file=path)
    tensors = {one.name: one for one in reader.tensors}
    small = path.stat().st_size < _SMALL
    size = sum(int(one.n_elements) for one in tensors.values())
    found: dict[str, torch.Tensor] = {}

    # a model whose embedding also writes its output would need that twice
    turn = None if small or "output.weight" not in tensors else Rotation.of(shape.hidden, shape.size)

    def rows(name: str) -> torch.Tensor:
        values = unpacked(tensors[name], torch.float32 if small else torch.bfloat16)
        part = name.rpartition(".")[0]
        if turn and part.endswith(("attn_v", "ffn_up")):
            return turn.outputs(part, values.float().view(len(values), -1)).view(values.shape)
        return values

    with progress_in_bytes("Preparing it in eight bits (once)", 0 if small else size) as advance:
        for name, values in _named(tensors, shape, rows):
            values = turn.turned(name, values) if turn else values
            if pairs and name in pairs:
                values = values.float() + pairs[name].product()
            found[name] = values.float() if small or values.ndim == 1 else values
            if not small and values.ndim == 2:
                found[name], found[f"{name}.scale"] = in_eight(values)
            advance(0 if small else values.numel())
    embedding = {name: found.pop(name) for name in list(found) if name.startswith("embedding")}
    if "output.weight" not in tensors:
        found |= {name.replace("embedding", "output"): value for name, value in embedding.items()}
    return shape, embedding, found | (turn.kept() if turn else {})


def _named(tensors: dict[str, Any], shape: _Shape, rows: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """A file's tensors by the names that they have here."""
    yield "embedding", rows("token_embd.weight")
    yield "output_norm", rows("output_norm.weight")
    if "output.weight" in tensors:
        yield "output", rows("output.weight")
    for layer in range(shape.layers):
        name = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            yield f"{name}.{norm}", rows(f"{name}.{norm}.weight")
        for matrix, parts in reversed(_PARTS.items()):  # what is done to `ffn_down` decides about `ffn_up`
            yield f"{name}.{matrix}", torch.cat([rows(f"{name}.{part}.weight") for part in parts])
            if f"{name}.{parts[0]}.bias" in tensors:
                yield f"{name}.{matrix}.bias", torch.cat([rows(f"{name}.{part}.bias") for part in parts])
