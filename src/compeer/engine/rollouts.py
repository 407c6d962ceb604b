"""Fast rollouts: many outputs for many prompts, sampled from exactly the distribution that training computes.

A prompt is computed once for all its outputs. Prompts of about the same length share a batch. Rows that have ended are
dropped at intervals, so that a few long outputs do not cost whole batches. Every row samples with its own numbers,
seeded by the caller: how rows are divided over batches and processes changes an output by no more than rounding can.

A step is more than a thousand kernels of microseconds each, which a CUDA graph records once and starts together. For
that every tensor of a step must stay where it is: a `Batch` holds them all. Rows are padded on the left, so all write
to the same column; a step attends to the first `width` columns and computes the first `rows` rows only, and there is a
graph for each such pair. On a CPU the same steps are taken one kernel at a time.
"""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from compeer.engine.attention import GROUPED, attend
from compeer.engine.multimodal import inputs_beside_tokens
from compeer.engine.network import last_logits
from compeer.engine.sampling import sample
from compeer.engine.torch_table import Keys, Slots
from compeer.pipeline import in_blocks
from compeer.statistics import generator

_log = logging.getLogger(__name__)
_ROWS, _COLUMNS = 8, 128  # graphs are for powers of two of at least so many rows, and multiples of so many columns
_INTERVAL = 16  # steps between two checks of which rows have ended: a check waits for the device
_PREFILL = 32768  # tokens of prompts computed at a time, to bound memory


@dataclass(frozen=True, eq=False)
class Prompt:
    """What an output answers: tokens, and the pictures among them as the network takes them."""

    ids: tuple[int, ...]
    pixels: Tensor | None = None
    grids: Tensor | None = None

    def key(self) -> tuple[int, tuple[int, ...], bytes]:
        """Sorts prompts by length; equal for equal prompts."""
        pixels = b"" if self.pixels is None else hashlib.sha256(self.pixels.float().cpu().numpy().tobytes()).digest()
        return len(self.ids), self.ids, pixels


@dataclass(frozen=True)
class RolloutSampling:
    """How tokens are sampled: the softmax of the logits over the temperature, cut as set; 0 takes the likeliest."""

    max_tokens: int
    ends: tuple[int, ...]
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    never: tuple[int, ...] = ()  # tokens that are never sampled

    def cuts(self, device: torch.device) -> list[LogitsProcessor]:
        """What is cut off, in the order in which `generate` does it."""
        cuts = (
            self.never and SuppressTokensLogitsProcessor(list(self.never), device=str(device)),
            self.top_k and TopKLogitsWarper(self.top_k),
            self.top_p < 1 and TopPLogitsWarper(self.top_p),
            self.min_p and MinPLogitsWarper(self.min_p),
        )
        return [cut for cut in cuts if cut]


def sample_tokens(logits: Tensor, uniform: Tensor, temperature: float, cuts: Sequence[LogitsProcessor]) -> Tensor:
    """A token for each row, (rows, 1); `uniform`, one number a row, picks by inverse CDF."""
    scores = logits.float() / (temperature or 1.0)
    for cut in cuts:
        scores = cut(None, scores)
    return sample(torch.softmax(scores, -1), uniform) if temperature else scores.argmax(-1, keepdim=True)


class Batch:
    """All that a step reads and writes, for at most `rows` rows and `width` columns; `like` as for `Slots`."""

    def __init__(
        self, like: Sequence[Keys], rows: int, width: int, sampling: RolloutSampling, dtype: torch.dtype | None
    ) -> None:
        self.slots = Slots(like, rows, width, dtype)
        device, columns = self.slots.device, sampling.max_tokens
        self.token = torch.zeros((rows, 1), dtype=torch.long, device=device)
        self.uniform = torch.zeros((rows, columns), dtype=torch.float64, device=device)
        self.ids = torch.zeros((rows, columns), dtype=torch.long, device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        self._ends = torch.tensor(sampling.ends, dtype=torch.long, device=device)
        self._temperature, self._cuts = sampling.temperature, sampling.cuts(device)

    def begin(self, lengths: Sequence[int], seeds: Sequence[int], positions: Tensor, column: int) -> None:
        """Takes in rows whose prompts, of these lengths, end before `column`, each with the numbers of its seed."""
        rows, device = len(lengths), self.slots.device
        uniform = np.stack([generator(seed, "tokens").random(self.uniform.shape[1]) for seed in seeds])
        self.slots.starts[:rows] = column - torch.tensor(lengths, device=device)
        self.slots.columns.fill_(column)  # of all rows: those beside the batch are computed too
        self.slots.positions[:rows] = positions
        self.uniform[:rows] = torch.from_numpy(uniform).to(device)
        self.ended.fill_(False)
        self.count.zero_()

    def take(self, rows: int, logits: Tensor) -> None:
        """Samples the next token of the first rows, and keeps it."""
        uniform = self.uniform[:rows].index_select(1, self.count)
        self.token[:rows] = token = sample_tokens(logits, uniform, self._temperature, self._cuts)
        self.ids[:rows].index_copy_(1, self.count, token)
        # compared, not `isin`, which may sort, and a graph cannot record that
        self.ended[:rows].logical_or_((token == self._ends).any(1))
        self.count.add_(1)

    def keep(self, indices: Tensor, columns: int) -> None:
        """Moves these rows to the front, with their first columns."""
        rows = len(indices)
        for own in (self.token, self.uniform, self.ids, self.ended):
            own[:rows] = own[indices]
        self.slots.move(indices, slice(rows), columns)


class Stepper:
    """Takes steps with a network: on CUDA by graphs, each recorded when its shape comes up the second time."""

    def __init__(self, network: Any, precision: torch.dtype | None) -> None:
        self._network, self._precision = network, precision
        self.graphs: bool = network.device.type == "cuda"
        self._recorded: dict[tuple[int, int], Any] = {}
        self._pool: Any = None

    def forget(self) -> None:
        """Drops all graphs: something has moved."""
        self._recorded.clear()

    def rows(self, rows: int) -> int:
        """How many rows are computed for so many."""
        return max(_ROWS, 1 << (rows - 1).bit_length()) if self.graphs else rows

    def width(self, columns: int) -> int:
        """How many columns are attended to for so many."""
        return -(-columns // _COLUMNS) * _COLUMNS

    def precisely(self) -> Any:
        """The context in which the network computes as it does in training."""
        if self._precision is None:
            return nullcontext()
        return torch.autocast(self._network.device.type, dtype=self._precision, cache_enabled=False)

    def step(self, batch: Batch, rows: int, width: int) -> None:
        """Feeds each of the first rows its token and samples the next."""
        shape = (rows, width)
        # the first step of a shape is one like any other, that also loads the kernels which recording needs
        if self.graphs and shape in self._recorded and self._recorded[shape] is None:
            self._recorded[shape] = self._record(batch, *shape)
        if graph := self._recorded.setdefault(shape, None):
            graph.replay()
        else:
            self._step(batch, *shape)

    def _record(self, batch: Batch, rows: int, width: int) -> Any:
        """The graph of a step, none of which is computed while it is recorded; None where that fails."""
        try:
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._step(batch, rows, width)
        except Exception as error:  # whatever a driver or kernel has against it, decoding goes on
            _log.warning("no CUDA graph could be recorded (%s); rollouts are slower without", error)
            self.graphs = False
            self.forget()
            return None
        return graph

    def _step(self, batch: Batch, rows: int, width: int) -> None:
        with self.precisely():
            logits = batch.slots.step(self._network, batch.token, rows, width)
        batch.take(rows, logits)


class Decoder:
    """Samples outputs, at most `rows` at a time, with a network, best a mirror, that is made to attend by groups."""

    def __init__(
        self, network: Any, sampling: RolloutSampling, precision: torch.dtype | None = None, rows: int = 512
    ) -> None:
        attend(network, GROUPED)
        self._network, self._sampling, self._precision, self._rows = network, sampling, precision, rows
        self.stepper = Stepper(network, precision)
        self._batch: Batch | None = None

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[list[int]]:
        """The tokens of an output for each prompt, the ending one among them if it ended, by its seed's numbers."""
        keys = [prompt.key() for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda number: (keys[number], number))
        found: dict[int, list[int]] = {}
        for chosen in in_blocks(order, self._rows):
            column = len(prompts[chosen[-1]].ids)
            alike = [list(own) for _, own in groupby(chosen, key=keys.__getitem__)]
            firsts, repeats = [prompts[own[0]] for own in alike], [len(own) for own in alike]
            logits, following = self._prefill(firsts, repeats, len(chosen), column)
            assert self._batch is not None
            lengths = [len(prompts[number].ids) for number in chosen]
            self._batch.begin(lengths, [seeds[number] for number in chosen], following, column)
            outputs = self._finish(self._batch, logits, len(chosen), column)
            found |= {chosen[index]: ids for index, ids in outputs.items()}
        return [found[number] for number in range(len(prompts))]

    def _prefill(
        self, prompts: Sequence[Prompt], repeats: Sequence[int], rows: int, column: int
    ) -> tuple[Tensor, Tensor]:
        """Computes each prompt once and lays its keys and values in all its rows; logits and positions that follow."""
        logits: list[Tensor] = []
        positions: list[Tensor] = []
        row = start = 0
        while start < len(prompts):
            end = start + 1
            while end < len(prompts) and (end + 1 - start) * len(prompts[end].ids) <= _PREFILL:
                end += 1
            times = torch.tensor(repeats[start:end], device=self._network.device)
            cache, last, following = self._read(prompts[start:end])
            batch = self._room(cache, rows, column + self._sampling.max_tokens)
            until, width = row + int(times.sum()), len(prompts[end - 1].ids)
            for layer, own in enumerate(cache.layers):
                for slots, values in ((batch.slots.keys, own.keys), (batch.slots.values, own.values)):
                    slots[layer][row:until, :, column - width : column] = values.repeat_interleave(times, 0)
            logits.append(last.repeat_interleave(times, 0))
            positions.append(following.repeat_interleave(times, 0))
            row, start = until, end
        return torch.cat(logits), torch.cat(positions)

    def _read(self, prompts: Sequence[Prompt]) -> tuple[Any, Tensor, Tensor]:
        """The prompts' cache, the logits after them, and the position of what follows."""
        device = self._network.device
        tokens = [torch.tensor(prompt.ids) for prompt in prompts]
        real = [torch.ones_like(row, dtype=torch.bool) for row in tokens]
        ids, mask = (pad_sequence(own, batch_first=True, padding_side="left").to(device) for own in (tokens, real))
        given = [(prompt.pixels, prompt.grids) for prompt in prompts if prompt.pixels is not None]
        names = ("pixel_values", "image_grid_thw")
        pictures = {name: torch.cat(own) for name, own in zip(names, zip(*given, strict=True), strict=False)}
        inputs, following = inputs_beside_tokens(self._network, ids, mask, pictures)
        width = ids.shape[1]
        square = torch.ones((width, width), dtype=torch.bool, device=device)
        # padding attends to itself, so that no row of the mask is empty
        attended = (square.tril() & mask[:, None, :]) | torch.eye(width, dtype=torch.bool, device=device)
        cache = DynamicCache()
        with self.stepper.precisely():
            logits = last_logits(self._network, ids, cache, attention_mask=attended[:, None], **inputs)
        return cache, logits, following

    def _room(self, cache: Any, rows: int, width: int) -> Batch:
        """The batch, made larger where it is too small; graphs of a smaller one are void."""
        rows, width = self.stepper.rows(rows), self.stepper.width(width)
        if self._batch is None or self._batch.slots.most < rows or self._batch.slots.width < width:
            old, self._batch = self._batch, None
            rows, width = max(rows, old.slots.most if old else 0), max(width, old.slots.width if old else 0)
            self.stepper.forget()
            del old  # its memory is free before more is asked for
            like = [(layer.keys, layer.values) for layer in cache.layers]
            self._batch = Batch(like, rows, width, self._sampling, self._precision)
        return self._batch

    def _finish(self, batch: Batch, logits: Tensor, rows: int, column: int) -> dict[int, list[int]]:
        """Samples to the end; outputs by their index in the batch."""
        found: dict[int, list[int]] = {}
        owners = list(range(rows))
        batch.take(rows, logits)
        for count in range(1, self._sampling.max_tokens + 1):
            last = count == self._sampling.max_tokens
            if last or count % _INTERVAL == 0:
                ended = batch.ended[: len(owners)].tolist()
                left = [index for index, end in enumerate(ended) if not (end or last)]
                if not left or self.stepper.rows(len(left)) < self.stepper.rows(len(owners)):
                    gone = [index for index, end in enumerate(ended) if end or last]
                    for index, ids in zip(gone, batch.ids[gone, :count].tolist(), strict=True):
                        length = next((n + 1 for n, token in enumerate(ids) if token in self._sampling.ends), count)
                        found[owners[index]] = ids[:length]
                    owners = [owners[index] for index in left]
                    if not owners:
                        break
                    batch.keep(torch.tensor(left, device=logits.device), column + count)
            self.stepper.step(batch, self.stepper.rows(len(owners)), self.stepper.width(column + count))
        return found
