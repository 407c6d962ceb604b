"""GGUF files as `transformers` knows models: their tensors in bfloat16, and a folder made from them once.

A base of the catalogue is a quantised file, made for talking on a CPU. Training, and whatever else goes through
`transformers`, wants plain weights: they are unpacked once into the cache, tensor by tensor, so that no more than one
lies in memory, and written as one safetensors file. Known are the architectures `qwen2` and `llama`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compeer.errors import InputError
from compeer.io import atomic_folder
from compeer.progress import progress

if TYPE_CHECKING:
    import torch

_VALUES_AT_ONCE = 1 << 20
"""Unpacked at a time by a thread: what fits into a processor's cache."""
_ENDS = ("<|im_end|>", "<|endoftext|>")
"""What ends a turn, and what fills up a batch, where a file speaks ChatML."""
OUTSIDE_LAYERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYERS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
"""What `transformers` calls a tensor, by its name in a file."""


def read_gguf_state(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file in bfloat16, by the names that `transformers` gives them."""
    opened = _Opened(path)
    return {name: opened.unpacked(name) for name in opened.tensors}


def cache_folder() -> Path:
    """The folder of downloaded and converted models: `COMPEER_CACHE`, or `compeer` under the user's cache folder."""
    if folder := os.environ.get("COMPEER_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compeer"


def chat_template() -> str:
    """ChatML without a default system message, and with marks around what the assistant says, for training."""
    return files("compeer.engine").joinpath("chatml.jinja").read_text(encoding="utf-8")


def write_folder(source: Path, folder: Path, title: str) -> None:
    """Makes a model folder of a GGUF file, whole or not at all."""
    opened = _Opened(source)
    _check_room(source, folder, opened.bytes)
    with atomic_folder(folder) as unfinished:
        write_settings(source, unfinished, tied="lm_head.weight" not in opened.tensors)
        with progress(f"Unpacking {title} (once), MB", opened.bytes // 1_000_000) as advance:
            opened.write(unfinished / "model.safetensors", advance)


class _Opened:
    """A GGUF file, its tensors by their names in `transformers`."""

    def __init__(self, path: Path) -> None:
        import gguf

        try:
            reader = gguf.GGUFReader(path)
            self._fields = {name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name}
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise InputError(f"this is no GGUF file that can be read: {error}", file=path) from error
        self._kind = str(self._fields.get("general.architecture"))
        if self._kind not in ("qwen2", "llama"):
            do = "Known are qwen2 and llama."
            raise InputError(f"the architecture '{self._kind}' is not known here.", file=path, do=do)
        self.tensors = {_name(path, one.name): one for one in reader.tensors if one.name != "rope_freqs.weight"}

    @property
    def bytes(self) -> int:
        """What all tensors take in bfloat16."""
        return sum(2 * int(one.n_elements) for one in self.tensors.values())

    def unpacked(self, name: str) -> torch.Tensor:
        """A tensor in bfloat16."""
        import gguf
        import numpy as np
        import torch

        tensor = self.tensors[name]
        shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
        found = torch.empty(shape, dtype=torch.bfloat16)
        rows, width = shape[0], int(tensor.n_elements) // shape[0]
        step = max(1, _VALUES_AT_ONCE // width) if len(shape) > 1 else rows

        def unpack(start: int) -> None:
            values = gguf.quants.dequantize(tensor.data[start : start + step], tensor.tensor_type)
            found[start : start + step] = torch.from_numpy(np.require(values, requirements="W"))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(unpack, range(0, rows, step)))
        return self._in_order(name, found)

    def _in_order(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Rows of queries and keys lie in another order in files of Llama's kind, for the sake of their rotation."""
        asked = re.search(r"\.([qk])_proj\.", name)
        if self._kind != "llama" or not asked:
            return tensor
        heads = int(self._fields[f"llama.attention.head_count{'_kv' if asked[1] == 'k' else ''}"])
        pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)

    def write(self, path: Path, advance: Callable[[int], None]) -> None:
        """Writes all tensors as one safetensors file, one after the other; `advance` is told of megabytes."""
        import torch

        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, tensor in self.tensors.items():
            start, end = end, end + 2 * int(tensor.n_elements)
            shape = [int(size) for size in reversed(tensor.shape.tolist())]
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        done = 0
        with path.open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for name in self.tensors:
                values = self.unpacked(name).contiguous().view(torch.uint16).numpy()
                file.write(values.data)
                before, done = done, done + values.nbytes
                advance(done // 1_000_000 - before // 1_000_000)


def _name(path: Path, name: str) -> str:
    """What `transformers` calls a tensor."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in OUTSIDE_LAYERS:
        return f"{OUTSIDE_LAYERS[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in IN_LAYERS:
        return f"model.layers.{parts[1]}.{IN_LAYERS[parts[2]]}.{parts[3]}"
    raise InputError(f"the tensor '{name}' is not known here.", file=path)


def write_settings(source: Path, folder: Path, tied: bool = True) -> None:
    """Config and tokenizer as the file has them. Its own chat template lies beside ours, which training needs."""
    import torch
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
    config.dtype = torch.bfloat16
    config.tie_word_embeddings = tied
    marks = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    marks["pad_token_id"] = tokenizer.pad_token_id
    for name, value in marks.items():
        setattr(config, name, value)
    config.save_pretrained(folder)
    GenerationConfig(**marks).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _check_room(source: Path, folder: Path, size: int) -> None:
    existing = next(parent for parent in folder.parents if parent.is_dir())
    if shutil.disk_usage(existing).free < size + 200_000_000:
        do = "Free some space, or set COMPEER_CACHE to a folder with more."
        raise InputError(f"the disk is full: unpacked, {source.name} takes {size / 1e9:.1f} GB.", file=existing, do=do)
