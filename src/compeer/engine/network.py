"""Networks and tokenizers that `transformers` loads, ready to be asked, and mirrors of networks in training.

Training keeps float32 weights and computes in a lower precision (autocast), casting every weight in every call; it may
add adapters beside them, and trainers put hooks around its calls. A mirror, for sampling rollouts, has none of that:
its matrices stand in the precision that training casts them to, adapters merged, at addresses that stay the same.
Everything else, and on a CPU all of it, is shared with the network in training and takes no memory.
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

from compeer.engine.gguf import cache_folder
from compeer.engine.multimodal import network_class
from compeer.errors import InputError

_CAST = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.Conv3d)  # what autocast computes in the lower precision


def best_device() -> torch.device:
    """CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on CUDA; float32 on a CPU, where most have no bfloat16 units and emulate them slowly."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def steady_attention() -> None:
    """Keeps torch, in this process, from attending by cuDNN, which plans every new shape for up to half a second."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, padding on the left and able to pad."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    beside = folder / "chat_template.json"  # where folders of multimodal models may keep it
    if tokenizer.chat_template is None and beside.is_file():
        tokenizer.chat_template = json.loads(beside.read_text(encoding="utf-8"))["chat_template"]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """A text's tokens as they are, without those that a tokenizer may put around it."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
    return ids


def first_tokens(tokenizer: Any, words: Sequence[str], folder: str | Path) -> list[int]:
    """The first token of each word, by which an answer is known; an error if two words begin with the same."""
    found = [token_ids(tokenizer, word)[0] for word in words]
    if len(set(found)) < len(words):
        raise InputError(
            f"its tokenizer starts two of the words {', '.join(map(str.strip, words))} alike.", file=folder
        )
    return found


def load_network(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The folder's language model, a multimodal one among them, ready to be asked."""
    steady_attention()
    try:
        network = network_class(folder).from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError, json.JSONDecodeError, SafetensorError) as error:
        again = "Delete this folder and call again: it is unpacked anew." if cache_folder() in folder.parents else None
        raise InputError(f"transformers cannot load it: {error}", file=folder, do=again) from error
    return network.to(device).eval()


def last_logits(network: Any, ids: torch.Tensor, cache: Any, **inputs: Any) -> torch.Tensor:
    """Feeds rows of tokens, whose keys and values go into a cache; the logits after the last ones."""
    output = network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **inputs)
    logits: torch.Tensor = output.logits[:, -1]
    return logits


def vocabulary_size(network: Any) -> int:
    """How many logits a network gives; more than its tokenizer has words, often."""
    return int(network.get_output_embeddings().weight.shape[0])


def position_limit(network: Any) -> int:
    """How many tokens a network can take; a very large number where it does not say."""
    return getattr(network.config.get_text_config(), "max_position_embeddings", None) or 1 << 30


def decoding_limit(network: Any) -> int:
    """How many tokens a network takes where every token attends to all before it, as the engine has it."""
    layers = DynamicCache(config=network.config.get_text_config()).layers
    if not all(isinstance(layer, DynamicLayer) for layer in layers):
        do = "Serve it with vLLM or llama.cpp, and give NAME@http://host:8000/v1."
        raise InputError("this model has layers that do not attend to all tokens, which is not known here.", do=do)
    windows = [getattr(layer, "sliding_window", None) or position_limit(network) for layer in layers]
    return min([position_limit(network), *windows])


def defuse(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with every control token that they quote broken up, so that no text can forge a turn."""
    control = [str(token) for token in tokenizer.get_added_vocab()]

    def broken(content: Any) -> Any:
        if isinstance(content, list):
            return [{**block, "text": broken(block["text"])} if "text" in block else block for block in content]
        for token in control:
            content = content.replace(token, token[0] + " " + token[1:])
        return content

    return [{**message, "content": broken(message["content"])} for message in messages]


class Mirror:
    """A network that computes what `source` does in training, in autocast to `precision` where one is given."""

    def __init__(self, source: Any, precision: torch.dtype | None = None) -> None:
        self._precision = precision
        base = _base(source)
        with torch.device("meta"):
            network = type(base)(copy.deepcopy(base.config))
        self.network: Any = network.eval().requires_grad_(False)
        for name, buffer in base.named_buffers(remove_duplicate=False):
            module, leaf = self._owner(name.replace(".base_layer.", "."))
            module._buffers[leaf] = buffer
        self.follow(source)

    @torch.no_grad()
    def follow(self, source: Any) -> bool:
        """Takes over the weights as they are now; whether any stands elsewhere than before."""
        moved = False
        for name, value in _weights(_base(source)):
            module, leaf = self._owner(name)
            own = module._parameters[leaf]
            cast = self._precision if self._precision and isinstance(module, _CAST) else value.dtype
            shared = cast == value.dtype and isinstance(value, torch.nn.Parameter)
            if not shared and own.device == value.device and own.dtype == cast:
                own.copy_(value)
            elif not shared or own.data_ptr() != value.data_ptr():
                held = value.detach() if shared else value.detach().to(cast)
                module._parameters[leaf] = torch.nn.Parameter(held, requires_grad=False)
                moved = True
        return moved

    def _owner(self, name: str) -> tuple[Any, str]:
        parent, _, leaf = name.rpartition(".")
        return self.network.get_submodule(parent), leaf


def _base(source: Any) -> Any:
    return source.get_base_model() if hasattr(source, "get_base_model") else source


def _weights(base: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights by the names that a network without adapters has, adapters added."""
    for name, value in base.named_parameters(remove_duplicate=False):
        if ".lora_" in name:
            continue
        owner, held, leaf = name.rpartition(".base_layer.")
        if not held:
            yield name, value
            continue
        layer = base.get_submodule(owner)
        if leaf == "weight" and not layer.merged:
            value = value + sum(layer.get_delta_weight(adapter) for adapter in layer.active_adapters)
        yield f"{owner}.{leaf}", value
