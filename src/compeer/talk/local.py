"""A supporter in this process: any model folder, all its conversations written together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import torch

from compeer.models.base import Message, Request, Sampling
from compeer.models.grammars import Grammars
from compeer.models.local import (
    best_device,
    defuse,
    fast_dtype,
    load_network,
    load_tokenizer,
    model_folder,
    position_limit,
)
from compeer.models.shipped import shown_name
from compeer.models.training import model_card
from compeer.models.vision import PictureError, chat_pictures, picture_reader
from compeer.policy.prompt import refuse_direct
from compeer.reward.form import Judge
from compeer.safety.guard import Guard
from compeer.talk.batching import Batcher
from compeer.talk.drawing import Row
from compeer.talk.guarded import GuardedSupporter
from compeer.talk.writing import Ending, NotWritten

LONGEST = 4096
"""Tokens of a prompt with its answer at most, to bound the memory of a conversation; a model may take fewer."""


def default_rows(device: torch.device) -> int:
    """How many outputs are written together: as many as still gain from it."""
    return 64 if device.type == "cuda" else 8


class LocalWriter:
    """Writes with a model folder, `rows` outputs at a time, each held to its grammar. Serves any number of loops."""

    constrained = continues = True

    def __init__(self, model: str | Path = "embedded", rows: int | None = None, media: str | Path = "") -> None:
        folder = model_folder(model)
        device = best_device()
        self._name = shown_name(model)
        self._reader = picture_reader(folder, media)
        self._tokenizer = load_tokenizer(folder)
        self._network = load_network(folder, device, fast_dtype(device))
        self._limit = min(position_limit(self._network), LONGEST)
        self.rows = rows or default_rows(device)
        self._batcher = Batcher(self._network, self._tokenizer, self.rows, self._reader)
        self._grammars = Grammars(self._tokenizer, self._network)

    @property
    def name(self) -> str:
        return self._name

    @property
    def sees(self) -> bool:
        return self._reader is not None

    def close(self) -> None:
        self._batcher.close()

    def fits(self, messages: list[Message], max_tokens: int) -> bool:
        pictures = len(chat_pictures(messages)) if self._reader else 0
        return len(self._ids(messages, "")) + pictures * 512 + max_tokens <= self._limit

    async def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[str | Ending, None]:
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[str | Ending | NotWritten] = asyncio.Queue()

        def tell(what: str | Ending | NotWritten) -> None:
            try:
                loop.call_soon_threadsafe(told.put_nowait, what)
            except RuntimeError:  # the loop has been closed: nobody listens any more
                row.cancelled = True

        row = await asyncio.to_thread(self._row, request, sampling, tell)
        self._batcher.submit(row)
        try:
            while True:
                what = await told.get()
                if isinstance(what, NotWritten):
                    raise what
                yield what
                if isinstance(what, Ending):
                    return
        finally:
            self._batcher.cancel(row)

    def _row(self, request: Request, sampling: Sampling, tell: Any) -> Row:
        ids = self._ids(list(request.messages), request.prefix)
        try:
            pictures = [self._reader.read(path) for path in chat_pictures(request.messages)] if self._reader else []
        except PictureError as error:
            raise NotWritten(error.reason, passing=False) from None
        if self._reader:
            ids = self._reader.spread(ids, [picture.grid for picture in pictures])
        if (needed := len(ids) + sampling.max_tokens) > self._limit:
            raise NotWritten(f"prompt and answer need {needed} tokens; the model takes {self._limit}", passing=False)
        return Row(tuple(ids), sampling, request.seed, tell, self._matcher(request), request.prefix, pictures)

    def _ids(self, messages: list[Message], prefix: str) -> list[int]:
        text: str = self._tokenizer.apply_chat_template(
            defuse(self._tokenizer, messages), tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = self._tokenizer(text + prefix, add_special_tokens=False)["input_ids"]
        return ids

    def _matcher(self, request: Request) -> Any:
        """Follows the request's grammar, its prefix already read; None without a grammar."""
        if request.grammar is None:
            return None
        own = self._grammars.matcher(request.grammar)
        if own.is_error():
            raise NotWritten("the grammar cannot be used", passing=False)
        if request.prefix:
            own.consume_tokens(self._tokenizer(request.prefix, add_special_tokens=False)["input_ids"])
        if own.is_error():
            raise NotWritten("what the output begins with does not follow its grammar", passing=False)
        return own


class LocalSupporter(GuardedSupporter):
    """Takes the supporter's part with a model folder, as its card says. `waiting` outputs may stand in line."""

    def __init__(
        self,
        model: str | Path = "embedded",
        guard: Guard | None = None,
        judge: Judge | None = None,
        *,
        rows: int | None = None,
        waiting: int | None = None,
    ) -> None:
        folder = model_folder(model)
        refuse_direct(folder)
        card = model_card(folder)
        writer = LocalWriter(model, rows, card.get("media", ""))
        places = writer.rows + (2 * writer.rows if waiting is None else waiting)
        super().__init__(writer, guard, judge, history=card.get("history"), places=places)
