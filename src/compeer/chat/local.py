"""A supporter in this process: any model that can be loaded, all its conversations written in one batch.

On a CPU, and for text only, llama.cpp computes; on a GPU, and for multimodal models, torch does.
"""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from compeer.chat.conversation import GuardedSupporter
from compeer.dialogue import Utterance
from compeer.engine import network as networks
from compeer.engine.batching import Batcher
from compeer.engine.cpu_table import CpuEngine
from compeer.engine.multimodal import chat_pictures, picture_reader
from compeer.engine.rows import Ending, NotWritten, common
from compeer.engine.torch_table import TorchTable
from compeer.models.base import Message, Request, Sampling
from compeer.models.catalogue import BASES
from compeer.models.local import RowMaker
from compeer.models.resolve import Use, cpu_files, display_name, model_folder
from compeer.models.training import model_card
from compeer.policy.control import Control
from compeer.policy.prompt import Task, refuse_direct, supporter_prompt
from compeer.policy.repeats import RepetitionFilter
from compeer.reward.score import Judge
from compeer.safety.guard import Guard

LONGEST = 4096  # tokens of a prompt with its answer at most, to bound a conversation's memory; a model may take fewer
_ROWS = 64  # outputs written together on torch, as many as still gain from it on a GPU


class LocalWriter:
    """Writes as a model's card says, `rows` outputs at a time, each held to its grammar; for any number of loops."""

    constrained = continues = True

    def __init__(self, model: str | Path = "embedded", rows: int | None = None, use: Use = "chat") -> None:
        self.name, device = display_name(model), networks.best_device()
        prepared = cpu_files(model, use) if device.type == "cpu" else None
        folder = prepared.card if prepared is not None else model_folder(model)
        if folder is not None:
            refuse_direct(folder)
        self.card = model_card(folder) if folder is not None else {}
        self.task: Task = self.card.get("task", "shown" if str(model) in BASES else "supporter")
        self._adapter: Path | None = None
        if prepared is not None:
            self._tokenizer = networks.load_tokenizer(prepared.tokenizer)
            engine = CpuEngine(prepared, self._tokenizer.eos_token_id, rows)
            self._batcher, self._adapter, self.close = engine.batcher, engine.adapter, engine.close
            self._rows, self.rows = RowMaker(self._tokenizer, engine.vocabulary, engine.width), engine.rows
            engine.keep(self._beginning())
        else:
            assert folder is not None, "only what runs on a CPU may have no folder"
            reader = picture_reader(folder, self.card.get("media", ""))
            self._tokenizer = networks.load_tokenizer(folder)
            network = networks.load_network(folder, device, networks.fast_dtype(device))
            limit = min(networks.position_limit(network), LONGEST)
            self._rows = RowMaker(self._tokenizer, networks.vocabulary_size(network), limit, reader)
            self.rows = rows or (_ROWS if device.type == "cuda" else 8)
            self._batcher = Batcher(TorchTable(network, self.rows, reader), self._tokenizer.eos_token_id)
            self.close = self._batcher.close
        self.multimodal = self._rows.reader is not None

    def supporter(
        self, guard: Guard | None, judge: Judge | None = None, waiting: int | None = None
    ) -> GuardedSupporter:
        """The supporter that writes so; `waiting` outputs may stand in line, two for each row where nothing is said."""
        capacity = self.rows + (2 * self.rows if waiting is None else waiting)
        return GuardedSupporter(self, guard, judge, history=self.card.get("history"), task=self.task, capacity=capacity)

    def fits(self, messages: list[Message], max_tokens: int) -> bool:
        pictures = len(chat_pictures(messages)) if self.multimodal else 0
        return len(self._rows.ids(messages)) + pictures * 512 + max_tokens <= self._rows.limit

    async def write(self, request: Request, sampling: Sampling) -> AsyncGenerator[str | Ending, None]:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | Ending | NotWritten] = asyncio.Queue()

        def put(piece: str | Ending | NotWritten) -> None:
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:  # the loop has been closed: nobody listens any more
                row.cancelled = True

        output, size = RepetitionFilter(request.prefix), 0

        def hear(tokens: list[int], last: bool) -> bool:
            """Puts out new text, but no half characters and no beginning of a stop; whether the output is over."""
            nonlocal size
            text = self._tokenizer.decode(tokens, skip_special_tokens=True)
            stops = [index for stop in sampling.stop if (index := text.find(stop)) >= 0]
            if stops:
                text = text[: min(stops)]
            elif not last:
                text = text[: len(text) - max((len(stop) - 1 for stop in sampling.stop), default=0)].rstrip("\ufffd")
            if new := output.feed(text[size:], last or bool(stops)):
                put(new)
            size = max(size, len(text))
            return output.over or bool(stops)

        row = await asyncio.to_thread(self._rows.row, request, sampling, hear, put, self._adapter)
        self._batcher.submit(row)
        try:
            while True:
                piece = await pieces.get()
                if isinstance(piece, NotWritten):
                    raise piece
                yield piece
                if isinstance(piece, Ending):
                    return
        finally:
            row.cancelled = True

    def _beginning(self) -> list[int]:
        """What the prompts of all conversations begin with, steered or not."""
        first, second = ([Utterance(speaker="seeker", text=text)] for text in ("A", "It"))
        steered = supporter_prompt(second, control=Control(strategy="Question"), task=self.task)
        one, other = (self._rows.ids(messages) for messages in (supporter_prompt(first, task=self.task), steered))
        return one[: common(one, other)]
