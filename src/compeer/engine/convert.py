"""Models and adapters as files that llama.cpp reads (GGUF).

- A folder of `transformers` (Llama, Qwen2): its matrices in eight bits (Q8_0), a small model's as they are. The file
  has no words in it: text is turned into tokens by the folder's own tokenizer.
- Adapters of `peft`: their two narrow matrices, scaled, under llama.cpp's names. Llama's queries and keys stand in
  another order there.
- A base whose matrices are Q4_1, as the packaged SmolLM2's: llama.cpp has no quick way to read a prompt with these,
  but one for Q4_0. A block of Q4_1 is `scale * q + least`, one of Q4_0 `scale * (q - 8)`; they differ by one number for
  each block of 32 inputs. So the same weights are a Q4_0 file and a narrow pair of matrices, the sums of 32 inputs each
  and these numbers, which travel with the adapters. No weight changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compeer.engine.gguf import IN_LAYERS, OUTSIDE_LAYERS
from compeer.errors import InputError

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]
"""Two narrow matrices, (rank, inputs) and (outputs, rank), whose product is added to a matrix."""

_NAMES = {theirs: own for own, theirs in IN_LAYERS.items()}
_OUTSIDE = {f"{theirs}.weight": f"{own}.weight" for own, theirs in OUTSIDE_LAYERS.items()}
_LAYER = re.compile(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)")
_ADAPTER = re.compile(r"(?:.*\.)?layers\.(\d+)\.([\w.]+)\.lora_([AB])(?:\.default)?\.weight")
_BLOCK = 32
_SMALL = 32 << 20
"""Models of fewer bytes (in float32) than this stay as they are: eight bits would gain nothing."""
FAMILIES = ("llama", "qwen2")


def family(folder: Path) -> str | None:
    """The family of a model folder, if it is one that can be converted."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    plain = not config.get("rope_scaling") and not config.get("use_sliding_window") and not config.get("attention_bias")
    return config["model_type"] if config.get("model_type") in FAMILIES and plain else None


def convert_folder(folder: Path, to: Path) -> None:
    """Writes a model folder as one file."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind, weights = config["model_type"], _weights(folder)
    heads, keys = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    writer = GGUFWriter(to, kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    size = sum(4 * int(np.prod(shape)) for shape in weights.shapes())
    for name, values in weights:
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        own = _own_name(name, folder)
        if kind == "llama" and own.endswith(("attn_q.weight", "attn_k.weight")):
            values = _turned(values, heads if "attn_q" in own else keys)
        if values.ndim == 2 and size >= _SMALL and values.shape[1] % _BLOCK == 0:
            eight = GGMLQuantizationType.Q8_0
            writer.add_tensor(own, quantize(values, eight), raw_dtype=eight)
        else:
            writer.add_tensor(own, np.ascontiguousarray(values, dtype=np.float32))
    _finish(writer)


def convert_adapter(folder: Path, base: Path, to: Path, offsets: Mapping[str, Pair] | None = None) -> None:
    """Writes adapters to a base file, with the numbers that the base was split from, if it was."""
    from gguf import GGUFReader

    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    reader = GGUFReader(base)
    kind = str(reader.fields["general.architecture"].contents())
    heads = {
        "attn_q": int(reader.fields[f"{kind}.attention.head_count"].contents()),
        "attn_k": int(reader.fields[f"{kind}.attention.head_count_kv"].contents()),
    }
    shapes = {tensor.name: tuple(int(size) for size in tensor.shape) for tensor in reader.tensors}
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    narrow: dict[str, dict[str, Array]] = {}
    for name, values in _tensors(folder / "adapter_model.safetensors"):
        match = _ADAPTER.fullmatch(name)
        if match is None or match.group(2) not in _NAMES:
            raise InputError(f"llama.cpp has no place for {name}.", file=folder / "adapter_model.safetensors")
        part = _NAMES[match.group(2)]
        if match.group(3) == "B":
            values = values * scale
            if kind == "llama" and part in heads:
                values = _turned(values, heads[part])
        narrow.setdefault(f"blk.{match.group(1)}.{part}.weight", {})[match.group(3)] = values
    pairs: dict[str, Pair] = {}
    for name, both in narrow.items():
        if shapes.get(name) != (both["A"].shape[1], both["B"].shape[0]):
            raise InputError(f"the base {base.name} has no matrix {name} of this size.", file=folder)
        pairs[name] = both["A"], both["B"]
    write_pairs(kind, together(pairs, offsets or {}), to)


def together(one: Mapping[str, Pair], other: Mapping[str, Pair]) -> dict[str, Pair]:
    """Pairs whose products are the sums of both products."""
    found = dict(one)
    for name, (down, up) in other.items():
        if name in found:
            down, up = np.concatenate([found[name][0], down]), np.concatenate([found[name][1], up], axis=1)
        found[name] = down, up
    return found


def write_pairs(kind: str, pairs: Mapping[str, Pair], to: Path) -> None:
    """Writes narrow matrices as an adapter file for a base of that family."""
    from gguf import GGUFWriter

    writer = GGUFWriter(to, kind)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 0.0)  # the scale is in the matrices
    for name, (down, up) in pairs.items():
        writer.add_tensor(f"{name}.lora_a", np.ascontiguousarray(down, dtype=np.float32))
        writer.add_tensor(f"{name}.lora_b", np.ascontiguousarray(up, dtype=np.float32))
    _finish(writer)


def read_pairs(path: Path) -> dict[str, Pair]:
    """The narrow matrices of an adapter file."""
    from gguf import GGUFReader

    found: dict[str, dict[str, Array]] = {}
    for tensor in GGUFReader(path).tensors:
        name, _, letter = tensor.name.rpartition(".lora_")
        found.setdefault(name, {})[letter] = np.array(tensor.data)
    return {name: (both["a"], both["b"]) for name, both in found.items()}


def split(base: Path, to: Path) -> dict[str, Pair]:
    """Writes a base with Q4_0 in the place of Q4_1, and gives what has to be added to it."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(base)
    writer = GGUFWriter(to, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    added: dict[str, Pair] = {}
    for tensor in reader.tensors:
        raw = np.asarray(tensor.data)
        if tensor.tensor_type == GGMLQuantizationType.Q4_1:
            blocks = raw.reshape(raw.shape[0], -1, 20)
            scales, least = (blocks[:, :, at : at + 2].copy().view(np.float16)[..., 0] for at in (0, 2))
            sums = np.kron(np.eye(blocks.shape[1], dtype=np.float32), np.ones((1, _BLOCK), dtype=np.float32))
            added[tensor.name] = sums, least.astype(np.float32) + 8 * scales.astype(np.float32)
            raw = np.delete(blocks, [2, 3], axis=2).reshape(raw.shape[0], -1)
            writer.add_tensor(tensor.name, raw, raw_dtype=GGMLQuantizationType.Q4_0)
        else:
            writer.add_tensor(tensor.name, raw, raw_dtype=tensor.tensor_type)
    _finish(writer)
    return added


def family_of(base: Path) -> str:
    """The family that a base file is of; an error if it is none of these files."""
    from gguf import GGUFReader

    try:
        return str(GGUFReader(base).fields["general.architecture"].contents())
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise InputError("this is no GGUF file.", file=base) from error


class _weights:
    """The weights of a folder by name, one at a time as float32."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.safetensors"))
        if not self._paths:
            raise InputError("there are no weights (*.safetensors) in it.", file=folder)

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        for path in self._paths:
            yield from _tensors(path)

    def shapes(self) -> Iterator[list[int]]:
        from safetensors import safe_open

        for path in self._paths:
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118
                    yield file.get_slice(name).get_shape()


def _tensors(path: Path) -> Iterator[tuple[str, Array]]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:  # numpy has no bfloat16
        for name in file.keys():  # noqa: SIM118
            yield name, file.get_tensor(name).float().numpy()


def _own_name(name: str, folder: Path) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match = _LAYER.fullmatch(name)
    if match is None or match.group(2) not in _NAMES:
        raise InputError(f"llama.cpp has no place for the weight {name}.", file=folder)
    return f"blk.{match.group(1)}.{_NAMES[match.group(2)]}.{match.group(3)}"


def _turned(rows: Array, heads: int) -> Array:
    """Rows of queries or keys in llama.cpp's order: the two halves of a head, which turn together, interleaved."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
