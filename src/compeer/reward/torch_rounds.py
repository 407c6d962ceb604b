"""A judge's rounds on torch: all rows of a batch on one cache, round after round.

The tokens of a history are computed once and shared by all outputs that answer it, and by all branches in which an
output is judged; each round then adds only its own few tokens. Rows of a batch differ in length: pieces are padded on
the left and masked, and positions count real tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from compeer.engine.attention import roomy_cache
from compeer.engine.multimodal import MultimodalCache, PictureReader
from compeer.engine.network import position_limit
from compeer.reward.conversation import Question
from compeer.reward.rows import Hear, Row
from compeer.reward.rows import common_prefix as _common_prefix
from compeer.reward.words import MISSING_REASON, Words


class TorchRounds:
    """Asks a network. `reason_tokens` is the most that a reason may have; 0 asks for none."""

    def __init__(self, network: Any, words: Words, reason_tokens: int, reader: PictureReader | None) -> None:
        self._network, self._words, self._reason_tokens, self._reader = network, words, reason_tokens, reader
        self._device = network.device
        self._tokenizer = words.tokenizer
        self.limit = position_limit(network)

    @torch.inference_mode()
    def begin(self, rows: Sequence[Row]) -> Callable[[Hear], None]:
        """Computes the histories of the rows; what comes back asks the rounds."""
        active = [row for row in rows if not row.starts]
        cache, mask = self._shared_prefixes(active)
        return lambda hear: self._ask(rows, hear, active, cache, mask)

    @torch.inference_mode()
    def _ask(self, rows: Sequence[Row], hear: Hear, active: list[Row], cache: Any, mask: torch.Tensor) -> None:
        """Asks round after round, all rows at a time; rows end with their last round, and forks begin with theirs."""
        for number in range(max(len(row.rounds) for row in rows)):
            going = [row for row in rows if row.starts <= number < len(row.rounds)]
            if going != active:
                places = [active.index(row.parent if row.parent and row.starts == number else row) for row in going]
                for row in going:
                    if row.parent and 0 < row.starts == number:
                        row.unfed = list(row.parent.unfed)
                keep = self._given(places)
                cache.batch_select_indices(keep)
                mask, active = mask[keep], going
            logits, mask = self._feed([row.unfed + row.pieces[number] for row in active], cache, mask)
            reasons: list[list[int]] = [[] for _ in active]
            if self._reason_tokens:
                reasons, logits, mask = self._give_reasons([row.rounds[number] for row in active], logits, cache, mask)
            # all rows at a time: each by itself would wait for the device
            chances = self._chances(logits, [row.rounds[number].words for row in active])
            for row, reason, own in zip(active, reasons, chances, strict=True):
                hear(row, row.rounds[number], own, reason)

    def _chances(self, logits: torch.Tensor, allowed: Sequence[Sequence[str]]) -> list[list[float]]:
        """The probabilities of the words that each row may answer with."""
        tokens = [[self._words.first[word] for word in words] for words in allowed]
        filled = [row + row[:1] * (self._words.most - len(row)) for row in tokens]
        values = logits.gather(1, self._given(filled)).float().cpu()
        beyond = torch.arange(self._words.most) >= torch.tensor([len(row) for row in tokens]).unsqueeze(1)
        chances = torch.softmax(values.masked_fill(beyond, -torch.inf), 1).tolist()
        return [own[: len(row)] for own, row in zip(chances, tokens, strict=True)]

    def _give_reasons(
        self, questions: Sequence[Question], logits: torch.Tensor, cache: Any, mask: torch.Tensor
    ) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
        """Writes a reason for each row, token by token, and feeds what leads over to the verdict."""
        found = [[] if question.asked else self._words.ids(MISSING_REASON) for question in questions]
        unfed = [list(reason) for reason in found]
        ended = [not question.asked for question in questions]
        after = [self._words.after_reason(None) for _ in questions]
        for _ in range(self._reason_tokens):
            for number, token in enumerate(logits.argmax(-1).tolist()):
                if ended[number]:
                    continue
                ended[number] = self._words.ends_reason(token)
                if ended[number]:
                    after[number] = self._words.after_reason(token)
                    if not self._words.goes_with_reason(token):
                        continue
                found[number].append(token)
                unfed[number] = [token]
            if all(ended):
                break
            logits, mask = self._feed([[] if e else u for e, u in zip(ended, unfed, strict=True)], cache, mask)
            unfed = [u if e else [] for e, u in zip(ended, unfed, strict=True)]
        logits, mask = self._feed([u + a for u, a in zip(unfed, after, strict=True)], cache, mask)
        return found, logits, mask

    def _shared_prefixes(self, rows: Sequence[Row]) -> tuple[Any, torch.Tensor]:
        """The cache of what the rows of one history have in common, computed once a history; cuts it off the pieces."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, row in enumerate(rows):
            groups.setdefault((row.rounds[0].history, *row.rounds[0].images), []).append(number)
        prefixes: list[list[int]] = []
        owner = [0] * len(rows)
        for number, members in enumerate(groups.values()):
            shared = _common_prefix([rows[member].pieces[0][:-1] for member in members])
            prefixes.append(shared)
            for member in members:
                owner[member] = number
                del rows[member].pieces[0][: len(shared)]
        places = self._given(owner)
        if self._reader:
            shown = [rows[members[0]].pictures for members in groups.values()]
            cache: Any = MultimodalCache(self._reader, shown, self._device)
            empty = torch.zeros((len(prefixes), 0), dtype=torch.long, device=self._device)
            _, mask = self._feed(prefixes, cache, empty)
        else:
            cache, mask = self._begin(prefixes)
        cache.batch_select_indices(places)
        return cache, mask[places]

    def _begin(self, prefixes: Sequence[list[int]]) -> tuple[Any, torch.Tensor]:
        """A new cache that holds the prefixes, and the mask of what in it is real.

        They are padded on the right, where no token of theirs looks: so this, most of the work, needs no mask.
        """
        cache = roomy_cache()
        ids, mask = self._padded(prefixes, left=False)
        self._network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache, mask

    def _feed(self, pieces: Sequence[list[int]], cache: Any, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Feeds a piece to each row; returns the logits after it and the mask of all that was fed."""
        ids, new = self._padded(pieces, left=True)
        mask = torch.cat([mask, new], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        seen = cache.inputs(pieces, positions) if self._reader else {"position_ids": positions}
        output = self._network(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1, **seen
        )
        return output.logits[:, -1], mask

    def _padded(self, pieces: Sequence[list[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Pieces as one table of tokens, and which of them are real."""
        width = max(map(len, pieces))
        filled = np.full((len(pieces), width), self._tokenizer.pad_token_id)
        real = np.zeros_like(filled)
        for row, piece in enumerate(pieces):
            own = slice(width - len(piece), width) if left else slice(len(piece))
            filled[row, own], real[row, own] = piece, 1
        return self._given(filled), self._given(real)

    def _given(self, values: Any) -> torch.Tensor:
        """Numbers on the judge's device; a GPU goes on with what it has to do while it is given them."""
        tensor = torch.from_numpy(np.asarray(values))
        cuda = self._device.type == "cuda"
        return (tensor.pin_memory() if cuda else tensor).to(self._device, non_blocking=cuda)
