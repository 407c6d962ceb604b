"""One decoding step at fixed addresses, so that a CUDA graph can repeat it without launching its kernels one by one.

Decoding a small model on a large GPU is all launching: a step is more than a thousand kernels of microseconds each. A
CUDA graph records them once and starts them together. For that every tensor of a step must stay where it is. So a
`Batch` holds all that a step reads and writes: keys and values of every layer, the mask, tokens and positions, the
numbers to draw with, what was drawn. Rows stand left-padded, so all write to the same column of the keys; a step
attends to the first `width` columns and computes the first `rows` rows only, and there is a graph for each such pair.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from compeer.engine.torch_table import Slots
from compeer.models.drawing import drawn

_log = logging.getLogger(__name__)
_ROWS, _COLUMNS = 8, 128
"""Graphs are made for powers of two of at least so many rows, and for multiples of so many columns."""


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn: the softmax of the logits over the temperature, cut as set; 0 takes the likeliest."""

    max_tokens: int
    ends: tuple[int, ...]
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    never: tuple[int, ...] = ()
    """Tokens that are not drawn."""

    def cuts(self, device: torch.device) -> list[LogitsProcessor]:
        """What is cut off, in the order in which `generate` does it."""
        found: list[LogitsProcessor] = []
        if self.never:
            found.append(SuppressTokensLogitsProcessor(list(self.never), device=str(device)))
        if self.top_k:
            found.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            found.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            found.append(MinPLogitsWarper(self.min_p))
        return found


def draw(
    logits: torch.Tensor, uniform: torch.Tensor, temperature: float, cuts: Sequence[LogitsProcessor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row and its log-probability before cuts; `uniform`, one number a row, picks by inverse CDF."""
    scores = logits.float() / (temperature or 1.0)
    chances = torch.log_softmax(scores, -1)
    for cut in cuts:
        scores = cut(None, scores)
    token = drawn(torch.softmax(scores, -1), uniform) if temperature else scores.argmax(-1, keepdim=True)
    return token, chances.gather(1, token)


class Batch:
    """All that a step reads and writes, for at most `rows` rows and `width` columns."""

    def __init__(
        self, shapes: Sequence[tuple[torch.Size, torch.Size]], rows: int, width: int, drawing: Drawing, **like: Any
    ) -> None:
        device = like["device"]
        self.rows, self.width = rows, width
        self.slots = Slots(shapes, rows, width, **like)
        self.bias = torch.zeros((rows, width), **like)
        self.token = torch.zeros((rows, 1), dtype=torch.long, device=device)
        self.position = torch.zeros((rows, 1), dtype=torch.long, device=device)
        self.uniform = torch.zeros((rows, drawing.max_tokens), dtype=torch.float64, device=device)
        self.ids = torch.zeros((rows, drawing.max_tokens), dtype=torch.long, device=device)
        self.chances = torch.zeros((rows, drawing.max_tokens), device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        self._ends = torch.tensor(drawing.ends, dtype=torch.long, device=device)
        self._temperature, self._cuts = drawing.temperature, drawing.cuts(device)

    def begin(self, positions: torch.Tensor, uniform: torch.Tensor, lengths: torch.Tensor, column: int) -> None:
        """Takes in rows whose prompts, of these lengths, end before `column`."""
        rows = len(positions)
        places = torch.arange(self.width, device=self.bias.device)
        seen = (places >= column - lengths[:, None]) & (places < column)
        self.bias[:rows] = torch.where(seen, 0.0, torch.finfo(self.bias.dtype).min).to(self.bias.dtype)
        self.position[:rows, 0] = positions
        self.uniform[:rows] = uniform
        self.ended.fill_(False)
        self.count.zero_()
        self.slots.column.fill_(column)

    def take(self, rows: int, logits: torch.Tensor) -> None:
        """Draws the next token of the first rows, and keeps it."""
        uniform = self.uniform[:rows].index_select(1, self.count)
        token, chance = draw(logits, uniform, self._temperature, self._cuts)
        self.token[:rows] = token
        self.ids[:rows].index_copy_(1, self.count, token)
        self.chances[:rows].index_copy_(1, self.count, chance)
        # compared, not `isin`, which may sort, and a graph cannot record that
        self.ended[:rows].logical_or_((token == self._ends).any(1))
        self.count.add_(1)

    def keep(self, places: torch.Tensor, columns: int) -> None:
        """Moves these rows to the front, with their first columns."""
        rows = len(places)
        for own in (self.bias, self.token, self.position, self.uniform, self.ids, self.chances, self.ended):
            own[:rows] = own[places]
        for own in (*self.slots.keys, *self.slots.values):
            own[:rows, :, :columns] = own[places, :, :columns]


class Stepper:
    """Takes steps with a network: on CUDA by graphs, each recorded when its shape comes up the second time.

    Where recording fails, one warning is given and steps are taken one kernel at a time. With `compiled`, the network
    is compiled first, which takes half a minute and joins many kernels into one.
    """

    def __init__(self, network: Any, precision: torch.dtype | None, compiled: bool = False) -> None:
        self._network, self._precision = network, precision
        self._call = torch.compile(network, dynamic=True) if compiled else network
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
        """Feeds each of the first rows its token and draws the next."""
        shape = (rows, width)
        if not self.graphs:
            self._step(batch, *shape)
        elif shape not in self._recorded:
            self._step(batch, *shape)  # a step like any other, that also loads the kernels which recording needs
            self._recorded[shape] = None
        else:
            graph = self._recorded[shape] or self._record(batch, *shape)
            if graph is None:
                self._step(batch, *shape)
            else:
                self._recorded[shape] = graph
                graph.replay()

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
        slots = batch.slots
        slots.rows, slots.width = rows, width
        batch.bias[:rows].index_fill_(1, slots.column, 0)
        with self.precisely():
            logits = self._call(
                input_ids=batch.token[:rows],
                attention_mask=batch.bias[:rows, None, None, :width],
                position_ids=batch.position[:rows],
                past_key_values=slots,
                use_cache=True,
            ).logits
        slots.column.add_(1)
        batch.position.add_(1)
        batch.take(rows, logits[:, -1])
