"""Fast rollouts: many outputs for many prompts, drawn from exactly the distribution that training sees.

A prompt is computed once for all its outputs. Prompts of about the same length share a batch; each step of the batch is
one CUDA graph where there is a GPU (see `graphs`) and plain PyTorch elsewhere. Rows that have ended are dropped at
intervals, so that a few long outputs do not cost whole batches. Every row draws with its own numbers, seeded by the
caller: how rows are spread over batches and processes changes what is drawn by no more than rounding can.

`FastRollouts` (see `fast_rollouts`) puts this in place of TRL's own generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from compeer.models.attention import use_grouped_attention
from compeer.policy.graphs import Batch, Drawing, Stepper
from compeer.statistics import generator

_INTERVAL = 16
"""Steps between two looks at which rows have ended: a look waits for the device."""
_PREFILL = 32768
"""Tokens of prompts computed at a time, to bound memory."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """What an output answers: tokens, and the pictures among them as the network takes them."""

    ids: tuple[int, ...]
    pixels: torch.Tensor | None = None
    grids: torch.Tensor | None = None

    def key(self) -> tuple[int, tuple[int, ...], bytes]:
        """Sorts prompts by length; equal for equal prompts."""
        seen = b"" if self.pixels is None else hashlib.sha256(self.pixels.float().cpu().numpy().tobytes()).digest()
        return len(self.ids), self.ids, seen


@dataclass(frozen=True)
class Drawn:
    """An output's tokens, the ending one among them if it ended, and their log-probabilities before cuts."""

    ids: list[int]
    logprobs: list[float]


class Decoder:
    """Draws outputs with a network, at most `rows` at a time; memory for them is kept from call to call.

    `precision` is what training computes in where that is not the weights' own (autocast). The network is made to
    attend by groups, so it should be a twin of the one in training.
    """

    def __init__(
        self,
        network: Any,
        drawing: Drawing,
        precision: torch.dtype | None = None,
        rows: int = 512,
        compiled: bool = False,
    ) -> None:
        use_grouped_attention(network)
        self._network, self._drawing, self._precision, self._rows = network, drawing, precision, rows
        self.stepper = Stepper(network, precision, compiled)
        self._batch: Batch | None = None

    @torch.no_grad()
    def draw(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Drawn]:
        """An output for each prompt, in their order, drawn with the numbers of its seed."""
        keys = [prompt.key() for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda number: (keys[number], number))
        found: dict[int, Drawn] = {}
        for start in range(0, len(order), self._rows):
            chosen = order[start : start + self._rows]
            column = len(prompts[chosen[-1]].ids)
            firsts = [n for n, number in enumerate(chosen) if n == 0 or keys[number] != keys[chosen[n - 1]]]
            repeats = np.diff([*firsts, len(chosen)]).tolist()
            logits, following = self._prefill([prompts[chosen[f]] for f in firsts], repeats, len(chosen), column)
            self._begin([(prompts[number], seeds[number]) for number in chosen], following, column)
            for place, drawn in self._finish(logits, len(chosen), column).items():
                found[chosen[place]] = drawn
        return [found[number] for number in range(len(prompts))]

    def _prefill(
        self, prompts: Sequence[Prompt], repeats: Sequence[int], rows: int, column: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes each prompt once and lays its keys and values in all its rows; logits and positions that follow."""
        logits: list[torch.Tensor] = []
        positions: list[torch.Tensor] = []
        row = start = 0
        while start < len(prompts):
            end = start + 1
            while end < len(prompts) and (end + 1 - start) * len(prompts[end].ids) <= _PREFILL:
                end += 1
            times = torch.tensor(repeats[start:end], device=self._network.device)
            cache, last, following = self._read(prompts[start:end])
            batch = self._room(cache, rows, column + self._drawing.max_tokens)
            until, width = row + int(times.sum()), len(prompts[end - 1].ids)
            for layer, own in enumerate(cache.layers):
                for place, values in ((batch.slots.keys, own.keys), (batch.slots.values, own.values)):
                    place[layer][row:until, :, column - width : column] = values.repeat_interleave(times, 0)
            logits.append(last.repeat_interleave(times, 0))
            positions.append(following.repeat_interleave(times, 0))
            row, start = until, end
        return torch.cat(logits), torch.cat(positions)

    def _read(self, prompts: Sequence[Prompt]) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """The prompts' cache, the logits after them, and the position of what follows."""
        device = self._network.device
        width = max(len(prompt.ids) for prompt in prompts)
        ids = torch.zeros((len(prompts), width), dtype=torch.long)
        mask = torch.zeros((len(prompts), width), dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt.ids) :] = torch.tensor(prompt.ids)
            mask[row, width - len(prompt.ids) :] = True
        ids, mask = ids.to(device), mask.to(device)
        inputs, following = self._positions(prompts, ids, mask)
        square = torch.ones((width, width), dtype=torch.bool, device=device)
        # padding sees itself, so that no row of the mask is empty
        seen = (square.tril() & mask[:, None, :]) | torch.eye(width, dtype=torch.bool, device=device)
        cache = DynamicCache()
        with self.stepper.precisely():
            output = self._network(
                input_ids=ids,
                attention_mask=seen[:, None],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
                **inputs,
            )
        return cache, output.logits[:, -1], following

    def _positions(
        self, prompts: Sequence[Prompt], ids: torch.Tensor, mask: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """What the network is told beside the tokens, and the positions that follow; pictures take their own."""
        pictures = [prompt for prompt in prompts if prompt.pixels is not None]
        lengths = mask.sum(1)
        if not pictures:
            return {"position_ids": (mask.long().cumsum(1) - 1).clamp_(min=0)}, lengths
        pixels = torch.cat([prompt.pixels for prompt in pictures if prompt.pixels is not None])
        grids = torch.cat([prompt.grids for prompt in pictures if prompt.grids is not None]).to(ids.device)
        kinds = (ids == self._network.config.image_token_id).int()
        positions, shift = self._network.model.get_rope_index(
            ids, mm_token_type_ids=kinds, image_grid_thw=grids, attention_mask=mask
        )
        inputs = {"position_ids": positions, "pixel_values": pixels.to(ids.device), "image_grid_thw": grids}
        return inputs, lengths + shift[:, 0]

    def _room(self, cache: Any, rows: int, width: int) -> Batch:
        """The batch, made larger where it is too small; graphs of a smaller one are void."""
        rows, width = self.stepper.rows(rows), self.stepper.width(width)
        if self._batch is None or self._batch.rows < rows or self._batch.width < width:
            old, self._batch = self._batch, None
            rows, width = max(rows, old.rows if old else 0), max(width, old.width if old else 0)
            self.stepper.forget()
            del old  # its memory is free before more is asked for
            shapes = [(layer.keys.shape, layer.values.shape) for layer in cache.layers]
            like = {"dtype": self._precision or cache.layers[0].keys.dtype, "device": self._network.device}
            self._batch = Batch(shapes, rows, width, self._drawing, **like)
        return self._batch

    def _begin(self, rows: Sequence[tuple[Prompt, int]], following: torch.Tensor, column: int) -> None:
        """Takes in the rows, each with the numbers that its seed gives."""
        assert self._batch is not None
        device = self._network.device
        uniform = np.stack([generator(seed, "tokens").random(self._drawing.max_tokens) for _, seed in rows])
        lengths = torch.tensor([len(prompt.ids) for prompt, _ in rows], device=device)
        self._batch.begin(following, torch.from_numpy(uniform).to(device), lengths, column)

    def _finish(self, logits: torch.Tensor, rows: int, column: int) -> dict[int, Drawn]:
        """Draws to the end; outputs by their place in the batch."""
        assert self._batch is not None
        batch = self._batch
        found: dict[int, Drawn] = {}
        owners = list(range(rows))
        batch.take(rows, logits)
        for count in range(1, self._drawing.max_tokens + 1):
            last = count == self._drawing.max_tokens
            if last or count % _INTERVAL == 0:
                ended = batch.ended[: len(owners)].tolist()
                left = [place for place, end in enumerate(ended) if not (end or last)]
                if not left or self.stepper.rows(len(left)) < self.stepper.rows(len(owners)):
                    gone = [place for place, end in enumerate(ended) if end or last]
                    found |= self._harvest(batch, gone, owners, count)
                    owners = [owners[place] for place in left]
                    if not owners:
                        break
                    batch.keep(torch.tensor(left, device=logits.device), column + count)
            self.stepper.step(batch, self.stepper.rows(len(owners)), self.stepper.width(column + count))
        return found

    def _harvest(self, batch: Batch, places: Sequence[int], owners: Sequence[int], count: int) -> dict[int, Drawn]:
        index = torch.tensor(places, device=batch.ids.device)
        found = {}
        ids, chances = batch.ids[index, :count].tolist(), batch.chances[index, :count].tolist()
        for place, own, logprobs in zip(places, ids, chances, strict=True):
            length = next((n + 1 for n, token in enumerate(own) if token in self._drawing.ends), count)
            found[owners[place]] = Drawn(own[:length], logprobs[:length])
        return found
