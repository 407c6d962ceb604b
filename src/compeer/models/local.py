"""A model that runs in this process: any folder that `transformers` loads, the embedded one by default.

Each row draws from its own random generator, seeded by its request, so an answer does not depend on which other
requests share the batch (but for the last bits of floating point, which padding can move: the same bytes need the same
requests in the same order). On a CPU, what a prompt has in common with earlier ones is not read again (`prefixes.py`),
which changes no bit. `generate` is asked for the likeliest token, and the token that was drawn is the only one left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from compeer.errors import InputError
from compeer.models.attention import use_grouped_attention
from compeer.models.base import Failure, Generation, Message, Request, Sampling
from compeer.models.catalogue import is_base
from compeer.models.drawing import allowed, drawn
from compeer.models.embedded import cache_folder, embedded_model
from compeer.models.gguf import base_folder
from compeer.models.grammars import Grammars
from compeer.models.network import steady_attention
from compeer.models.prefixes import PromptMemory, can_share
from compeer.models.shipped import is_shipped, packaged_adapters, shipped_model
from compeer.models.vision import Picture, PictureError, chat_pictures, network_class, picture_reader
from compeer.statistics import generator


def best_device() -> torch.device:
    """CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on CUDA; float32 on a CPU, where most have no bfloat16 units and emulate them slowly."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def model_folder(model: str | Path) -> Path:
    """The folder that a model's name means: `embedded`, `supporter`, `judge`, a base of the catalogue, or a path."""
    if str(model) == "embedded":
        return embedded_model()
    if is_shipped(model):
        return shipped_model(str(model))
    if is_base(model):
        return base_folder(str(model))
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise InputError(
            "this is no model folder: there is no config.json in it.",
            file=folder,
            do="Give a folder that transformers can load, 'embedded' for the packaged model, or a base's name "
            "(compeer models list).",
        )
    return folder


def card_folder(model: str | Path) -> Path:
    """The folder in which a model's card lies, if it has one: that of adapters is their own."""
    if is_shipped(model):
        return packaged_adapters(str(model))
    return Path(model) if (Path(model) / "adapter_config.json").is_file() else model_folder(model)


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, padding on the left and able to pad."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    beside = folder / "chat_template.json"  # where folders of models that see may keep it
    if tokenizer.chat_template is None and beside.is_file():
        tokenizer.chat_template = json.loads(beside.read_text(encoding="utf-8"))["chat_template"]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_network(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The folder's language model, one that sees among them, ready to be asked."""
    steady_attention()
    try:
        network = network_class(folder).from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError, json.JSONDecodeError, SafetensorError) as error:
        again = "Delete this folder and call again: it is unpacked anew." if cache_folder() in folder.parents else None
        raise InputError(f"transformers cannot load it: {error}", file=folder, do=again) from error
    return network.to(device).eval()


def vocabulary_size(network: Any) -> int:
    """How many logits a network gives; more than its tokenizer has words, often."""
    return int(network.get_output_embeddings().weight.shape[0])


def position_limit(network: Any) -> int:
    """How many tokens a network can take; a very large number where it does not say."""
    return getattr(network.config.get_text_config(), "max_position_embeddings", None) or 1 << 30


class LocalModel:
    """Asks a model in this process, `batch_size` requests at a time, in their order."""

    def __init__(
        self,
        model: str | Path = "embedded",
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        batch_size: int = 16,
        name: str | None = None,
        progress: Callable[[int], None] | None = None,
        media: str | Path = "",
    ) -> None:
        folder = model_folder(model)
        self._reader = picture_reader(folder, media)
        self.device = device or best_device()
        self.tokenizer = load_tokenizer(folder)
        self.network = load_network(folder, self.device, dtype or fast_dtype(self.device))
        self._batch_size = batch_size
        self._name = name or ("SmolLM2-135M-Instruct" if str(model) == "embedded" else str(model))
        self._progress = progress or (lambda done: None)
        self._grammars = Grammars(self.tokenizer, vocabulary_size(self.network))
        self._memory: PromptMemory | None = None
        if not self._reader and can_share(self.network):  # models that see count positions in a way of their own
            use_grouped_attention(self.network)
            self._memory = PromptMemory(self.network)

    @property
    def name(self) -> str:
        return self._name

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def at_once(self) -> int:
        return 1

    @property
    def sees(self) -> bool:
        """Whether pictures in a request are shown to it."""
        return self._reader is not None

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        answers: list[Generation | Failure] = []
        for start in range(0, len(requests), self._batch_size):
            batch = requests[start : start + self._batch_size]
            answers.extend(self._generate_batch(batch, sampling))
            self._progress(len(batch))
        return answers

    def prompt_text(self, messages: Sequence[Message], prefix: str = "") -> str:
        """What the model is fed for these messages."""
        text: str = self.tokenizer.apply_chat_template(
            defuse(self.tokenizer, messages), tokenize=False, add_generation_prompt=True
        )
        return text + prefix

    def _generate_batch(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        """Answers what can be answered; a request that cannot be does not disturb the others."""
        found: list[Generation | Failure | None] = []
        limit = position_limit(self.network)
        good: list[tuple[Request, list[int], Any]] = []
        seen: list[Picture] = []
        for request in requests:
            ids = _ids(self.tokenizer, self.prompt_text(request.messages, request.prefix))
            try:
                pictures = [self._reader.read(path) for path in chat_pictures(request.messages)] if self._reader else []
            except PictureError as error:
                found.append(Failure("refused", error.reason))
                continue
            if self._reader:
                ids = self._reader.spread(ids, [picture.grid for picture in pictures])
            matcher = self._matcher(request)
            if len(ids) + sampling.max_tokens > limit:
                reason = f"prompt and answer need {len(ids) + sampling.max_tokens} tokens; the model takes {limit}"
                found.append(Failure("refused", reason))
            elif matcher is not None and matcher.is_error():
                found.append(Failure("refused", f"the prefix {request.prefix!r} does not follow the grammar"))
            else:
                found.append(None)
                good.append((request, ids, matcher))
                seen += pictures
        answers = iter(self._answer(good, sampling, seen)) if good else iter(())
        return [next(answers) if entry is None else entry for entry in found]

    @torch.inference_mode()
    def _answer(
        self, asked: Sequence[tuple[Request, list[int], Any]], sampling: Sampling, seen: Sequence[Picture]
    ) -> list[Generation]:
        rows = [ids for _, ids, _ in asked]
        inputs = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self.device)
        if self._reader and seen:
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == self._reader.token).int()
            inputs.update({name: values.to(self.device) for name, values in self._reader.inputs(seen).items()})
        elif self._memory:
            inputs["past_key_values"] = self._memory.batch(rows, sampling.max_tokens)
        width = inputs["input_ids"].shape[1]
        processors = LogitsProcessorList()
        if any(matcher for _, _, matcher in asked):
            processors.append(_GrammarMask([matcher for _, _, matcher in asked], self.tokenizer.eos_token_id, width))
        if sampling.temperature > 0:
            processors.append(_RowSampler([request.seed for request, _, _ in asked], sampling))
        output = self.network.generate(
            **inputs,
            max_new_tokens=sampling.max_tokens,
            do_sample=False,
            logits_processor=processors,
            stopping_criteria=StoppingCriteriaList([_StopStrings(self.tokenizer, sampling.stop, width)]),
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
        )
        return [
            self._read_row(request, new, len(ids), sampling)
            for (request, ids, _), new in zip(asked, output[:, width:].tolist(), strict=True)
        ]

    def _read_row(self, request: Request, ids: list[int], prompt_tokens: int, sampling: Sampling) -> Generation:
        end = self.tokenizer.eos_token_id
        ended = end in ids
        if ended:
            ids = ids[: ids.index(end)]
        ids = [token for token in ids if token != self.tokenizer.pad_token_id]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        for stop in sampling.stop:
            if stop in text:
                text, ended = text.split(stop, 1)[0], True
        return Generation(request.prefix + text, cut_off=not ended, prompt_tokens=prompt_tokens, tokens=len(ids))

    def _matcher(self, request: Request) -> Any:
        """Follows the request's grammar, its prefix already read; None without a grammar."""
        if request.grammar is None:
            return None
        return self._grammars.matcher(request.grammar, _ids(self.tokenizer, request.prefix))


class _RowSampler(LogitsProcessor):  # type: ignore[misc]
    """Turns the following argmax into a draw, row by row from the row's own generator."""

    def __init__(self, seeds: Sequence[int], sampling: Sampling) -> None:
        self._generators = [generator(seed, "tokens") for seed in seeds]
        self._temperature = sampling.temperature
        top_p = [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
        self._cuts = [*top_p, *([MinPLogitsWarper(sampling.min_p)] if sampling.min_p else [])]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.float() / self._temperature
        for cut in self._cuts:
            scores = cut(input_ids, scores)
        numbers = [[own.random()] for own in self._generators]
        uniform = torch.tensor(numbers, dtype=torch.float64, device=scores.device)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn(torch.softmax(scores, -1), uniform), 0.0)


class _GrammarMask(LogitsProcessor):  # type: ignore[misc]
    """Forbids the tokens that a row's grammar does not allow next."""

    def __init__(self, matchers: Sequence[Any], end: int, width: int) -> None:
        self._matchers, self._end, self._width = matchers, end, width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] > self._width:
            for matcher, token in zip(self._matchers, input_ids[:, -1].tolist(), strict=True):
                if matcher is not None and not matcher.is_stopped():
                    matcher.consume_token(token)
        return allowed(scores, self._matchers, self._end)


class _StopStrings(StoppingCriteria):  # type: ignore[misc]
    """Ends a row once what it said, prompt and prefix apart, holds one of the strings."""

    def __init__(self, tokenizer: Any, stop: Sequence[str], width: int) -> None:
        self._tokenizer, self._stop, self._width = tokenizer, stop, width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        done = [False] * len(input_ids)
        if self._stop:
            said = self._tokenizer.batch_decode(input_ids[:, self._width :], skip_special_tokens=True)
            done = [any(stop in text for stop in self._stop) for text in said]
        return torch.tensor(done, device=input_ids.device)


def control_tokens(tokenizer: Any) -> list[str]:
    """The words of a tokenizer that are no text: they begin turns, end them, or stand for pictures."""
    return [str(token) for token in tokenizer.get_added_vocab()]


def broken_up(text: str, tokens: Sequence[str]) -> str:
    """The text with every one of the tokens that it quotes broken up."""
    for token in tokens:
        if token in text:
            text = text.replace(token, token[0] + " " + token[1:])
    return text


def defuse(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with every control token that they quote broken up, so that no text can forge a turn."""
    tokens = control_tokens(tokenizer)

    def broken(content: Any) -> Any:
        if isinstance(content, list):
            return [{**block, "text": broken(block["text"])} if "text" in block else block for block in content]
        return broken_up(content, tokens)

    return [{**message, "content": broken(message["content"])} for message in messages]


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
    return ids
