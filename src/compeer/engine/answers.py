"""Probabilities of given answers after prompts that go on piece by piece, on torch or on a CPU's engine.

On torch all rows share one cache. What the first pieces of a group have in common is computed once; each further piece
then adds only its own few tokens. Rows differ in length: pieces are padded on the left and masked, and positions count
real tokens only. On a CPU's engine one row is asked after the other: it remembers what it read, and a batch would gain
little.
"""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from compeer.engine.attention import roomy_cache
from compeer.engine.cpu_table import CpuEngine
from compeer.engine.multimodal import Picture, PictureReader, inputs_beside_tokens
from compeer.engine.network import last_logits
from compeer.engine.rows import Ending, NotWritten, Row, Sampling, common

Pieces = Sequence[list[int]]  # the next tokens of each row
Pictures = Sequence[Sequence[Picture]]
Groups = Sequence[Hashable]


class CpuReading:
    """Rows on a CPU's engine; what the calls do is written at `TorchReading`."""

    def __init__(self, engine: CpuEngine, rows: int) -> None:
        self._engine = engine
        self._ids: list[list[int]] = [[] for _ in range(rows)]
        self.read = [0] * rows

    def select(self, indices: Sequence[int]) -> None:
        self._ids = [list(self._ids[index]) for index in indices]

    def probabilities(self, pieces: Pieces, answers: Pieces) -> list[list[float]]:
        found = []
        for ids, piece, tokens in zip(self._ids, pieces, answers, strict=True):
            ids += piece
            found.append(self._engine.probabilities(ids, tokens))
        return found

    def write(self, pieces: Pieces, asked: Sequence[bool], ends: Callable[[int], bool], most: int) -> list[list[int]]:
        found = []
        for ids, piece, is_asked in zip(self._ids, pieces, asked, strict=True):
            ids += piece
            found.append(self._written(ids, ends, most) if is_asked else [])
            ids += found[-1][:-1]
        return found

    def _written(self, ids: Sequence[int], ends: Callable[[int], bool], most: int) -> list[int]:
        ended, greedy = Future[Ending | NotWritten](), Sampling(temperature=0, max_tokens=most)
        row = Row(tuple(ids), greedy, 0, lambda tokens, last: last or ends(tokens[-1]), ended.set_result)
        row.adapter = self._engine.adapter
        self._engine.batcher.submit(row)
        if isinstance(ending := ended.result(), NotWritten):
            raise ending
        return row.tokens


class TorchReading:
    """Rows on torch, with their first pieces and pictures; those of a group share what their pieces have in common."""

    @torch.inference_mode()
    def __init__(
        self, network: Any, pad: int, reader: PictureReader | None, first: Pieces, groups: Groups, pictures: Pictures
    ) -> None:
        self._network, self._pad, self._reader, self._device = network, pad, reader, network.device
        members: dict[Hashable, list[int]] = {}
        for row, group in enumerate(groups):
            members.setdefault(group, []).append(row)
        shared = [common_prefix([first[row][:-1] for row in rows]) for rows in members.values()]
        numbers = {group: number for number, group in enumerate(members)}
        owners = [numbers[group] for group in groups]
        self.read = [len(shared[owner]) for owner in owners]  # so many tokens of its first piece when a row began
        self._cache = roomy_cache()
        self._shift = torch.zeros((len(shared), 1), dtype=torch.long, device=self._device)  # by pictures, of positions
        if reader:
            self._mask = torch.zeros((len(shared), 0), dtype=torch.long, device=self._device)
            self._feed(shared, [pictures[rows[0]] for rows in members.values()])
        else:
            # padded on the right, where no token attends: so this, most of the work, needs no mask
            ids, self._mask = self._padded(shared, left=False)
            last_logits(network, ids, self._cache)
        self.select(owners)

    @torch.inference_mode()
    def select(self, indices: Sequence[int]) -> None:
        """Goes on with these rows, of which one may be named twice."""
        keep = self._on_device(indices)
        self._cache.batch_select_indices(keep)
        self._mask, self._shift = self._mask[keep], self._shift[keep]

    @torch.inference_mode()
    def probabilities(self, pieces: Pieces, answers: Pieces) -> list[list[float]]:
        """Reads pieces; how probable each row's answers are after them, given that it is one of them. A token each."""
        logits = self._feed(pieces)
        most = max(map(len, answers))
        filled = [row + row[:1] * (most - len(row)) for row in answers]
        values = logits.gather(1, self._on_device(filled)).float().cpu()  # all at a time: each would wait
        beyond = torch.arange(most) >= torch.tensor([len(row) for row in answers]).unsqueeze(1)
        found = torch.softmax(values.masked_fill(beyond, -torch.inf), 1).tolist()
        return [own[: len(row)] for own, row in zip(found, answers, strict=True)]

    @torch.inference_mode()
    def write(self, pieces: Pieces, asked: Sequence[bool], ends: Callable[[int], bool], most: int) -> list[list[int]]:
        """Reads pieces; the likeliest tokens after them, for the rows that are asked, the last of them not yet read."""
        found: list[list[int]] = [[] for _ in pieces]
        going = list(asked)
        for _ in range(most):
            for row, token in enumerate(self._feed(pieces).argmax(-1).tolist()):
                if going[row]:
                    found[row].append(token)
                    going[row] = not ends(token)
            if not any(going):
                break
            pieces = [own[-1:] if goes_on else [] for own, goes_on in zip(found, going, strict=True)]
        return found

    def _feed(self, pieces: Pieces, pictures: Pictures = ()) -> Tensor:
        """Feeds a piece to each row, the first ones with pictures; the logits after it."""
        ids, new = self._padded(pieces, left=True)
        self._mask = torch.cat([self._mask, new], dim=1)
        if self._reader and any(pictures):
            given = self._reader.inputs([picture for row in pictures for picture in row])
            inputs, following = inputs_beside_tokens(self._network, ids, self._mask, given)
            self._shift = (following - self._mask.sum(1))[:, None]
        else:
            positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            inputs = {"position_ids": positions + self._shift}
        return last_logits(self._network, ids, self._cache, attention_mask=self._mask, **inputs)

    def _padded(self, pieces: Pieces, left: bool) -> tuple[Tensor, Tensor]:
        """Pieces as one table of tokens, and which of them are real."""
        side, rows = "left" if left else "right", [torch.tensor(piece, dtype=torch.long) for piece in pieces]
        filled = pad_sequence(rows, batch_first=True, padding_value=self._pad, padding_side=side)
        real = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side)
        return self._on_device(filled), self._on_device(real)

    def _on_device(self, values: Any) -> Tensor:
        """Numbers on the network's device, which goes on computing while it is given them."""
        tensor = torch.as_tensor(values)
        cuda = self._device.type == "cuda"
        return (tensor.pin_memory() if cuda else tensor).to(self._device, non_blocking=cuda)


Reading = CpuReading | TorchReading  # rows that are read on piece by piece


def common_prefix(rows: Pieces) -> list[int]:
    """The tokens that all rows begin with."""
    first, last = min(rows), max(rows)  # what these two share, all share: they are the furthest apart
    return first[: common(first, last)]
