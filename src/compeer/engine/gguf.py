"""GGUF files: unpacked into folders of `transformers`, and models and adapters written as llama.cpp reads them.

A base is a quantised file, made for talking on a CPU. Training, and whatever else goes through `transformers`, wants
plain weights: they are unpacked once into the cache, tensor by tensor, so that no more than one lies in memory.

Written are a folder of `transformers`, in eight bits (Q8_0) unless it is small, with no words in it, for its own
tokenizer makes tokens; adapters of `peft`, scaled, under llama.cpp's names; and a base whose matrices are Q4_1, as the
packaged SmolLM2's, with which llama.cpp reads prompts slowly. A block of Q4_1 is `scale * q + least`, one of Q4_0
`scale * (q - 8)`: the same weights are a Q4_0 file and a narrow pair of matrices, the sums of 32 inputs each and one
number for each such block, which travel with the adapters. No weight changes.

Known are the architectures `qwen2` and `llama`. Llama's queries and keys stand in another order in these files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from compeer.errors import InputError
from compeer.io import atomic_folder, text_hash
from compeer.progress import console, progress

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]  # narrow matrices, (rank, inputs) and (outputs, rank), whose product is added to a matrix

_FAMILIES = ("llama", "qwen2")
_LORA = re.compile(r"(?:.*\.)?(layers\.\d+\.[\w.]+)\.lora_([AB])(?:\.default)?\.weight")
_ENDS = ("<|im_end|>", "<|endoftext|>")  # what ends a turn, and what fills up a batch, where a file speaks ChatML
_VALUES_AT_ONCE = 1 << 20  # unpacked at a time by a thread: what fits into a processor's cache
_MEGABYTE = 1_000_000
ROOM = 300 * _MEGABYTE  # that must be left on a disk: for a wheel, say, and pip's own copy of it
_BLOCK = 32
_SMALL = 32 << 20  # models of fewer bytes than this are written in float32: eight bits would gain nothing


def cache_folder() -> Path:
    """The folder of downloaded and converted models: `COMPEER_CACHE`, or `compeer` under the user's cache folder."""
    if folder := os.environ.get("COMPEER_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compeer"


def file_mark(path: Path) -> str:
    """Changes with a file's size and time: a gigabyte is not read at every start."""
    found = path.stat()
    return text_hash(f"{path} {found.st_size} {found.st_mtime_ns}")


def int8_folder(path: Path) -> Path:
    """Where a file's weights lie in eight bits, once `int8.py` has made them."""
    return cache_folder() / "engine" / f"int8-4-{file_mark(path)[:16]}"


def made(name: str | Path, make: Callable[[Path], None], message: str = "") -> Path:
    """A folder of the cache that is filled the first time that it is asked for, whole or not at all."""
    folder = cache_folder() / name
    if not folder.is_dir():
        if message:
            console.print(f"  {message}", highlight=False)
        with atomic_folder(folder) as unfinished:
            make(unfinished)
    return folder


def check_room(folder: Path, size: int, what: str) -> None:
    """An error if so many more bytes, and some to spare, do not fit where a folder lies."""
    if shutil.disk_usage(folder).free < size + ROOM:
        do = "Free some space, or set COMPEER_CACHE to a folder with more. Then call again."
        raise InputError(f"the disk is full: {what} takes {size / 1e9:.1f} GB.", file=folder, do=do)


@contextmanager
def progress_in_bytes(title: str, size: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A progress bar in megabytes that is given bytes, of which some may be done."""
    with progress(f"{title}, MB", size // _MEGABYTE) as advance:

        def count(new: int) -> None:
            nonlocal done
            advance((done + new) // _MEGABYTE - done // _MEGABYTE)
            done += new

        advance(done // _MEGABYTE)
        yield count


def chat_template() -> str:
    """ChatML without a default system message, and with marks around what the assistant says, for training."""
    return files("compeer.engine").joinpath("chatml.jinja").read_text(encoding="utf-8")


def opened(path: Path) -> Any:
    """A reader of a file; an error if it is none of these files."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        _family(reader)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise InputError(f"this is no GGUF file that can be read: {error}", file=path) from error
    return reader


def _family(reader: Any) -> str:
    return str(reader.fields["general.architecture"].contents())


def _naming(kind: str, layers: int, source: Path) -> Callable[[str], str]:
    """Gives the name in files of a family for a tensor's name in `transformers`."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    architecture = next(one for one, known in MODEL_ARCH_NAMES.items() if known == kind)
    names = get_tensor_name_map(architecture, layers)

    def own_name(theirs: str) -> str:
        found: str | None = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise InputError(f"llama.cpp has no place for {theirs}.", file=source)
        return found

    return own_name


def _turned_heads(reader: Any, name: str) -> int | None:
    """How many heads the rows of a tensor make up, if they stand in another order than in `transformers`."""
    count = re.search(r"\.attn_([qk])\.", name)
    if _family(reader) != "llama" or not count:
        return None
    return int(reader.fields[f"llama.attention.head_count{'_kv' if count[1] == 'k' else ''}"].contents())


# --- unpacking --------------------------------------------------------------------------------------------------------


def write_folder(source: Path, folder: Path, title: str, dtype: str = "bfloat16") -> None:
    """Fills a model folder from a GGUF file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    reader = opened(source)
    if _family(reader) not in _FAMILIES:
        do = "Known are qwen2 and llama."
        raise InputError(f"the architecture '{_family(reader)}' is not known here.", file=source, do=do)
    tensors = {one.name: one for one in reader.tensors if one.name != "rope_freqs.weight"}
    width = getattr(torch, dtype).itemsize
    size = sum(width * int(one.n_elements) for one in tensors.values())
    check_room(folder.parent, size, f"{source.name}, unpacked,")
    write_settings(source, folder, tied="output.weight" not in tensors, dtype=dtype)
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    own_name = _naming(_family(reader), config.num_hidden_layers, source)
    theirs = {own_name(name): name for name in network.state_dict()}
    if unknown := set(tensors) - set(theirs):
        raise InputError(f"the tensor '{min(unknown)}' is not known here.", file=source)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    kind, end = {"bfloat16": "BF16", "float32": "F32"}[dtype], 0
    for name, one in tensors.items():
        start, end = end, end + width * int(one.n_elements)
        header[theirs[name]] = {"dtype": kind, "shape": _shape(one), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    unpacking = progress_in_bytes(f"Unpacking {title} (once)", size)
    with unpacking as advance, (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for one in tensors.values():
            plain = unpacked(one, getattr(torch, dtype))
            if heads := _turned_heads(reader, one.name):
                plain = plain.reshape(heads, -1, 2, *plain.shape[1:]).transpose(1, 2).reshape(plain.shape)
            values = plain.contiguous().view(torch.uint8).numpy()
            file.write(values.data)
            advance(values.nbytes)


def unpacked(tensor: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor as plain numbers, in the order of the file."""
    import gguf
    import torch

    shape = _shape(tensor)
    found = torch.empty(shape, dtype=dtype)
    step = max(1, _VALUES_AT_ONCE * shape[0] // int(tensor.n_elements)) if len(shape) > 1 else shape[0]

    def unpack(start: int) -> None:
        values = gguf.quants.dequantize(tensor.data[start : start + step], tensor.tensor_type)
        found[start : start + step] = torch.from_numpy(np.require(values, requirements="W"))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(unpack, range(0, shape[0], step)))
    return found


def _shape(tensor: Any) -> list[int]:
    return [int(size) for size in reversed(tensor.shape.tolist())]


def write_settings(source: Path, folder: Path, tied: bool = True, dtype: str = "bfloat16") -> None:
    """Config and tokenizer as the file has them. Its own chat template lies beside ours, which training needs."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if own := tokenizer.chat_template:
        (folder / "chat_template_of_the_file.jinja").write_text(own, encoding="utf-8")
    known = tokenizer.get_vocab()
    if all(word in known for word in _ENDS):
        tokenizer.eos_token, tokenizer.pad_token = _ENDS
        tokenizer.chat_template = chat_template()
    config.architectures = [AutoModelForCausalLM._model_mapping[type(config)].__name__]
    config.dtype = dtype
    config.tie_word_embeddings = tied
    marks = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config.update(marks)
    config.save_pretrained(folder)
    GenerationConfig(**marks).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# --- writing ----------------------------------------------------------------------------------------------------------


def family(folder: Path) -> str | None:
    """The family of a model folder, if it is one that can be converted."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    plain = not config.get("rope_scaling") and not config.get("use_sliding_window") and not config.get("attention_bias")
    return config["model_type"] if config.get("model_type") in _FAMILIES and plain else None


def convert_folder(folder: Path, to: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind, paths = config["model_type"], sorted(folder.glob("*.safetensors"))
    if not paths:
        raise InputError("there are no weights (*.safetensors) in it.", file=folder)
    heads, keys = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    writer = GGUFWriter(to, kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    width = config.get("head_dim") or config["hidden_size"] // heads
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(width)
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    small = sum(path.stat().st_size for path in paths) < _SMALL
    own_name = _naming(kind, config["num_hidden_layers"], folder)
    for name, values in (one for path in paths for one in _tensors(path)):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        own = own_name(name)
        if kind == "llama" and own.endswith(("attn_q.weight", "attn_k.weight")):
            values = _turned(values, heads if "attn_q" in own else keys)
        if values.ndim == 2 and not small and values.shape[1] % _BLOCK == 0:
            eight = GGMLQuantizationType.Q8_0
            writer.add_tensor(own, quantize(values, eight), raw_dtype=eight)
        else:
            writer.add_tensor(own, np.ascontiguousarray(values, dtype=np.float32))
    _finish(writer)


def convert_adapter(folder: Path, base: Path, to: Path, offsets: Mapping[str, Pair] | None = None) -> None:
    """Writes adapters to a base file, with the numbers that the base was split from, if it was."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    reader = opened(base)
    shapes = {tensor.name: _shape(tensor) for tensor in reader.tensors}
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    path = folder / "adapter_model.safetensors"
    own_name = _naming(_family(reader), int(reader.fields[f"{_family(reader)}.block_count"].contents()), path)
    narrow: dict[str, dict[str, Array]] = {}
    for name, values in _tensors(path):
        match = _LORA.fullmatch(name)
        if match is None:
            raise InputError(f"llama.cpp has no place for {name}.", file=path)
        own, letter = own_name(f"model.{match[1]}.weight"), match[2]
        heads = _turned_heads(reader, own)
        if letter == "B":
            values = _turned(values * scale, heads) if heads else values * scale
        narrow.setdefault(own, {})[letter] = values
    for name, both in narrow.items():
        if shapes.get(name) != [both["B"].shape[0], both["A"].shape[1]]:
            raise InputError(f"the base {base.name} has no matrix {name} of this size.", file=folder)
    pairs = {name: (both["A"], both["B"]) for name, both in narrow.items()}
    write_pairs(_family(reader), together(pairs, offsets or {}), to)


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
    found: dict[str, dict[str, Array]] = {}
    for tensor in opened(path).tensors:
        name, _, letter = tensor.name.rpartition(".lora_")
        found.setdefault(name, {})[letter] = np.array(tensor.data)
    return {name: (both["a"], both["b"]) for name, both in found.items()}


def split(base: Path, to: Path) -> dict[str, Pair]:
    """Writes a base with Q4_0 in the place of Q4_1, and gives what has to be added to it."""
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

    reader = opened(base)
    writer = GGUFWriter(to, _family(reader))
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


def _tensors(path: Path) -> Iterator[tuple[str, Array]]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:  # numpy has no bfloat16
        for name in file.keys():  # noqa: SIM118
            yield name, file.get_tensor(name).float().numpy()


def _turned(rows: Array, heads: int) -> Array:
    """Rows of queries or keys in llama.cpp's order: the two halves of a head, which turn together, interleaved."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
