"""A model that runs in this process: any folder that `transformers` loads, the embedded one by default.

Each row samples with its own random generator, seeded by its request, so an answer does not depend on which other
requests share the batch (but for rounding: the same bytes need the same requests in the same order).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from compeer.engine import network as networks
from compeer.engine.batching import write_rows
from compeer.engine.multimodal import Picture, PictureError, PictureReader, chat_pictures, picture_reader
from compeer.engine.rows import Ending, NotWritten, Row
from compeer.engine.sampling import Grammars
from compeer.engine.torch_table import TorchTable
from compeer.models.base import Failure, Generation, Message, Request, Sampling
from compeer.models.costs import Counters
from compeer.models.resolve import model_folder
from compeer.pipeline import in_blocks

Hear = Callable[[list[int], bool], bool]
End = Callable[[Ending | NotWritten], None]


class RowMaker:
    """Makes rows of requests to a model that takes `limit` tokens; pictures are for those with a reader."""

    def __init__(self, tokenizer: Any, vocabulary: int, limit: int, reader: PictureReader | None = None) -> None:
        self._tokenizer, self.limit, self.reader = tokenizer, limit, reader
        self._grammars = Grammars(tokenizer, vocabulary)

    def row(
        self, request: Request, sampling: Sampling, hear: Hear, end: End = lambda _: None, adapter: Path | None = None
    ) -> Row:
        """A row to write; `NotWritten` says why a request cannot be answered."""
        ids = self.ids(request.messages, request.prefix)
        pictures: list[Picture] = []
        if self.reader:
            try:
                pictures = [self.reader.read(path) for path in chat_pictures(request.messages)]
            except PictureError as error:
                raise NotWritten(error.reason, passing=False) from None
            ids = self.reader.expand(ids, [picture.grid for picture in pictures])
        if (needed := len(ids) + sampling.max_tokens) > self.limit:
            raise NotWritten(f"prompt and answer need {needed} tokens; the model takes {self.limit}", passing=False)
        begun = networks.token_ids(self._tokenizer, request.prefix)
        matcher = self._grammars.matcher(request.grammar, begun) if request.grammar else None
        if matcher is not None and matcher.is_error():
            what = "what the output begins with does not follow the grammar"
            raise NotWritten(what if request.prefix else "the grammar cannot be used", passing=False)
        return Row(tuple(ids), sampling, request.seed, hear, end, matcher, adapter, pictures)

    def text(self, messages: Sequence[Message], prefix: str = "") -> str:
        """What the model is fed for these messages."""
        safe = networks.defuse(self._tokenizer, messages)
        text: str = self._tokenizer.apply_chat_template(safe, tokenize=False, add_generation_prompt=True)
        return text + prefix

    def ids(self, messages: Sequence[Message], prefix: str = "") -> list[int]:
        return networks.token_ids(self._tokenizer, self.text(messages, prefix))


class LocalModel:
    """Asks a model in this process, `batch_size` requests at a time, in their order."""

    def __init__(
        self,
        model: str | Path = "embedded",
        device: torch.device | None = None,
        batch_size: int = 16,
        name: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        folder = model_folder(model)
        reader = picture_reader(folder)
        self.multimodal = reader is not None
        self.device = device or networks.best_device()
        self.tokenizer = networks.load_tokenizer(folder)
        self.network = networks.load_network(folder, self.device, networks.fast_dtype(self.device))
        self.batch_size, self.at_once = batch_size, 1
        self.name = name or ("SmolLM2-135M-Instruct" if str(model) == "embedded" else str(model))
        self.counters = Counters()
        self._progress = progress or (lambda done: None)
        vocabulary, limit = networks.vocabulary_size(self.network), networks.decoding_limit(self.network)
        self.rows = RowMaker(self.tokenizer, vocabulary, limit, reader)
        self._table = TorchTable(self.network, batch_size, reader)

    async def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation | Failure]:
        answers: list[Generation | Failure] = []
        for batch in in_blocks(requests, self.batch_size):
            begun = [self._row(request, sampling) for request in batch]
            write_rows(self._table, [row for row in begun if isinstance(row, Row)], self.tokenizer.eos_token_id)
            for request, row in zip(batch, begun, strict=True):
                answers.append(self._generation(request, row) if isinstance(row, Row) else row)
            self._progress(len(batch))
        self.counters.requests += len(answers)
        self.counters.calls += len(answers)
        for answer in answers:
            self.counters.count(answer)
        return answers

    def _row(self, request: Request, sampling: Sampling) -> Row | Failure:
        """A row to write, or why this request cannot be answered; the others of its batch are not disturbed."""

        def stops(tokens: list[int], _: bool) -> bool:
            return bool(sampling.stop) and self._text(tokens, sampling.stop)[1]

        try:
            return self.rows.row(request, sampling, stops)
        except NotWritten as error:
            return Failure("refused", error.reason)

    def _generation(self, request: Request, row: Row) -> Generation:
        assert isinstance(row.ending, Ending), "nothing else ends a row here"
        text = request.prefix + self._text(row.tokens, row.sampling.stop)[0]
        return Generation(text, row.ending.cut_off, row.ending.prompt_tokens, row.ending.tokens)

    def _text(self, tokens: list[int], stops: Sequence[str]) -> tuple[str, bool]:
        """Tokens as text up to the first stop string, and whether there is one."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        found = [index for stop in stops if (index := text.find(stop)) >= 0]
        return text[: min(found, default=None)], bool(found)
