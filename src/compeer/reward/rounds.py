"""The rounds of a judge in this process, asked on torch or on llama.cpp.

On torch all rows of a batch share one cache. The tokens of a history are computed once and shared by all outputs that
answer it and by all branches of an output; each round then adds only its own few tokens. Rows differ in length: pieces
are padded on the left and masked, and positions count real tokens only. On llama.cpp one question is asked after the
other: the engine remembers what it read, and on a CPU a batch would gain nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compeer.engine.attention import roomy_cache
from compeer.engine.llama_table import CpuEngine
from compeer.engine.multimodal import MultimodalCache, Picture, PictureReader
from compeer.engine.network import position_limit
from compeer.engine.rows import Ending, NotWritten, common
from compeer.engine.rows import Row as EngineRow
from compeer.errors import InputError
from compeer.models.base import Sampling
from compeer.reasoning import STRATEGIES
from compeer.reward.conversation import BEFORE_VERDICT, RESPONSE_WORDS, STEP_WORDS, JudgeForm, JudgeQuestion

MISSING_REASON = "There is no note."


@dataclass(eq=False)
class Branch:
    """One branch of one case as it is fed to a model."""

    case: int
    rounds: list[JudgeQuestion]
    texts: list[str]
    """What is fed before each answer."""
    pictures: list[Picture]
    """The pictures of the history, for a multimodal judge."""
    candidate_first: bool
    number: int = 0
    starts: int = 0
    """The round from which on it goes its own way, on a copy of its parent's cache."""
    parent: Branch | None = None
    pieces: list[list[int]] = field(default_factory=list)
    """The texts as tokens."""
    unfed: list[int] = field(default_factory=list)
    """Tokens of its last answer that are not on the cache yet."""


Hear = Callable[[Branch, JudgeQuestion, list[float], list[int]], None]
"""Takes an answer: the branch, its question, the probabilities of the words and the tokens of the reason."""


class AnswerWords:
    """The words that a judge may answer with, as tokens: a verdict is known by its first token, and fed by all."""

    def __init__(self, tokenizer: Any, form: JudgeForm, folder: str | Path) -> None:
        self.tokenizer = tokenizer
        self.before = self.ids(BEFORE_VERDICT)
        questions = (STEP_WORDS, RESPONSE_WORDS, *((STRATEGIES,) if form.alone else ()))
        # a verdict begins the answer, or follows a reason and a blank
        self.answers = {word: self.ids(f" {word}" if form.reasons else word) for words in questions for word in words}
        self.first = {word: ids[0] for word, ids in self.answers.items()}
        self.most = max(len(words) for words in questions)
        for words in questions:
            if len({self.first[word] for word in words}) < len(words):
                raise InputError(f"its tokenizer starts two of the words {', '.join(words)} alike.", file=folder)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def ends_reason(self, token: int) -> bool:
        """Whether a reason is over with this token."""
        return token in self.tokenizer.all_special_ids or "\n" in self.tokenizer.decode([token])

    def goes_with_reason(self, token: int) -> bool:
        """Whether the token that ends a reason belongs to it: some tokenizers join a full stop and the line's end."""
        text = self.tokenizer.decode([token])
        return bool(text.endswith("\n") and text.count("\n") == 1)

    def after_reason(self, token: int | None) -> list[int]:
        """What leads over from a reason, which this token ended, to the verdict."""
        if token is not None and self.goes_with_reason(token):
            return self.ids(BEFORE_VERDICT.removeprefix("\n"))
        return list(self.before)

    def probabilities(self, logits: torch.Tensor, words: Sequence[str]) -> list[float]:
        """The probability of each of the words, given that it is one of them; logits of one position."""
        found: list[float] = torch.softmax(logits[[self.first[word] for word in words]].float(), 0).tolist()
        return found


# --- llama.cpp --------------------------------------------------------------------------------------------------------


class EngineRounds:
    """Asks a model on llama.cpp. `reason_tokens` is the most that a reason may have; 0 asks for none."""

    def __init__(self, engine: CpuEngine, words: AnswerWords, reason_tokens: int) -> None:
        self._engine, self._words, self._reason_tokens = engine, words, reason_tokens
        self.limit = engine.width

    def begin(self, branches: Sequence[Branch]) -> Callable[[Hear], None]:
        """Nothing is begun before it is asked."""
        return lambda hear: self._ask(branches, hear)

    def _ask(self, branches: Sequence[Branch], hear: Hear) -> None:
        for case in dict.fromkeys(branch.case for branch in branches):
            own = [branch for branch in branches if branch.case == case]
            fed: dict[int, list[int]] = {id(branch): [] for branch in own}
            for number in range(max(len(branch.rounds) for branch in own)):
                active = [branch for branch in own if branch.starts <= number < len(branch.rounds)]
                for branch in active:
                    if branch.parent and 0 < branch.starts == number:
                        branch.unfed, fed[id(branch)] = list(branch.parent.unfed), list(fed[id(branch.parent)])
                for branch in active:
                    ids, question = fed[id(branch)], branch.rounds[number]
                    ids += branch.unfed + branch.pieces[number]
                    reason = self._reason(question, ids) if self._reason_tokens else []
                    logits = self._engine.logits(ids).result()
                    hear(branch, question, self._words.probabilities(logits, question.words), reason)

    def _reason(self, question: JudgeQuestion, ids: list[int]) -> list[int]:
        """Writes a reason, and adds it and what leads over to the verdict to what was fed."""
        if not question.asked:
            reason = self._words.ids(MISSING_REASON)
            ids += reason + self._words.before
            return reason
        ended = threading.Event()
        endings: list[Ending | NotWritten] = []
        written: list[int] = []

        def listen(tokens: list[int], last: bool) -> bool:
            written[:] = tokens
            return last or self._words.ends_reason(tokens[-1])

        def end(ending: Ending | NotWritten) -> None:
            endings.append(ending)
            ended.set()

        sampling = Sampling(temperature=0, max_tokens=self._reason_tokens)
        self._engine.batcher.submit(EngineRow(tuple(ids), sampling, 0, listen, end, adapter=self._engine.adapter))
        ended.wait()
        if isinstance(endings[0], NotWritten):
            raise endings[0]
        last = written[-1] if written and self._words.ends_reason(written[-1]) else None
        if last is not None and not self._words.goes_with_reason(last):
            written.pop()
        ids += written + self._words.after_reason(last)
        return written


# --- torch ------------------------------------------------------------------------------------------------------------


class TorchRounds:
    """Asks a network. `reason_tokens` is the most that a reason may have; 0 asks for none."""

    def __init__(self, network: Any, words: AnswerWords, reason_tokens: int, reader: PictureReader | None) -> None:
        self._network, self._words, self._reason_tokens, self._reader = network, words, reason_tokens, reader
        self._device = network.device
        self._tokenizer = words.tokenizer
        self.limit = position_limit(network)

    @torch.inference_mode()
    def begin(self, branches: Sequence[Branch]) -> Callable[[Hear], None]:
        """Computes the histories of the branches; what comes back asks the rounds."""
        active = [branch for branch in branches if not branch.starts]
        cache, mask = self._shared_prefixes(active)
        return lambda hear: self._ask(branches, hear, active, cache, mask)

    @torch.inference_mode()
    def _ask(
        self, branches: Sequence[Branch], hear: Hear, active: list[Branch], cache: Any, mask: torch.Tensor
    ) -> None:
        """Asks round after round, all at a time; branches end with their last round, and forks begin with theirs."""
        for number in range(max(len(branch.rounds) for branch in branches)):
            now = [branch for branch in branches if branch.starts <= number < len(branch.rounds)]
            if now != active:
                indices = [active.index(one.parent if one.parent and one.starts == number else one) for one in now]
                for branch in now:
                    if branch.parent and 0 < branch.starts == number:
                        branch.unfed = list(branch.parent.unfed)
                keep = self._on_device(indices)
                cache.batch_select_indices(keep)
                mask, active = mask[keep], now
            questions = [branch.rounds[number] for branch in active]
            logits, mask = self._feed([branch.unfed + branch.pieces[number] for branch in active], cache, mask)
            reasons: list[list[int]] = [[] for _ in active]
            if self._reason_tokens:
                reasons, logits, mask = self._give_reasons(questions, logits, cache, mask)
            found = self._probabilities(logits, [question.words for question in questions])
            for branch, question, own, reason in zip(active, questions, found, reasons, strict=True):
                hear(branch, question, own, reason)

    def _probabilities(self, logits: torch.Tensor, allowed: Sequence[Sequence[str]]) -> list[list[float]]:
        """Those of the words that each row may answer with, all rows at a time: each would wait for the device."""
        tokens = [[self._words.first[word] for word in words] for words in allowed]
        filled = [row + row[:1] * (self._words.most - len(row)) for row in tokens]
        values = logits.gather(1, self._on_device(filled)).float().cpu()
        beyond = torch.arange(self._words.most) >= torch.tensor([len(row) for row in tokens]).unsqueeze(1)
        found = torch.softmax(values.masked_fill(beyond, -torch.inf), 1).tolist()
        return [own[: len(row)] for own, row in zip(found, tokens, strict=True)]

    def _give_reasons(
        self, questions: Sequence[JudgeQuestion], logits: torch.Tensor, cache: Any, mask: torch.Tensor
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

    def _shared_prefixes(self, branches: Sequence[Branch]) -> tuple[Any, torch.Tensor]:
        """The cache of what the rows of one history have in common, computed once; cuts it off the pieces."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, branch in enumerate(branches):
            groups.setdefault((branch.rounds[0].history, *branch.rounds[0].images), []).append(number)
        prefixes: list[list[int]] = []
        owner = [0] * len(branches)
        for number, members in enumerate(groups.values()):
            prefixes.append(common_prefix([branches[member].pieces[0][:-1] for member in members]))
            for member in members:
                owner[member] = number
                del branches[member].pieces[0][: len(prefixes[-1])]
        indices = self._on_device(owner)
        if self._reader:
            pictures = [branches[members[0]].pictures for members in groups.values()]
            cache: Any = MultimodalCache(self._reader, pictures, self._device)
            empty = torch.zeros((len(prefixes), 0), dtype=torch.long, device=self._device)
            _, mask = self._feed(prefixes, cache, empty)
        else:
            # padded on the right, where no token attends: so this, most of the work, needs no mask
            cache = roomy_cache()
            ids, mask = self._padded(prefixes, left=False)
            self._network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_select_indices(indices)
        return cache, mask[indices]

    def _feed(self, pieces: Sequence[list[int]], cache: Any, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Feeds a piece to each row; returns the logits after it and the mask of all that was fed."""
        ids, new = self._padded(pieces, left=True)
        mask = torch.cat([mask, new], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        more = cache.inputs(pieces, positions) if self._reader else {"position_ids": positions}
        output = self._network(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1, **more
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
        return self._on_device(filled), self._on_device(real)

    def _on_device(self, values: Any) -> torch.Tensor:
        """Numbers on the judge's device, which goes on computing while it is given them."""
        tensor = torch.from_numpy(np.asarray(values))
        cuda = self._device.type == "cuda"
        return (tensor.pin_memory() if cuda else tensor).to(self._device, non_blocking=cuda)


def common_prefix(rows: Sequence[list[int]]) -> list[int]:
    """The tokens that all rows begin with."""
    first, last = min(rows), max(rows)  # what these two share, all share: they are the furthest apart
    return first[: common(first, last)]
