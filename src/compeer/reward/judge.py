"""A judge at work in this process: four verdicts on one cache.

The tokens of a history are computed once and shared by all outputs that answer it; each round then adds only its own
few tokens. A verdict is read off the probabilities of the allowed words, so no verdict is ever unreadable. Rows of a
batch differ in length: pieces are padded on the left and masked, and positions count real tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from compeer.dialogue import transcript
from compeer.errors import InputError
from compeer.models.local import best_device, defuse, fast_dtype, load_network, load_tokenizer, model_folder
from compeer.models.training import model_card
from compeer.reasoning import Part
from compeer.reward.conversation import RESPONSE_WORDS, STEP_WORDS, Case, Question, preferred, questions, system_message
from compeer.reward.score import Judgment, Unscored
from compeer.ser.record import Preferred

_VERDICT = "\u241f"
"""Stands for a verdict while a chat is rendered; taken out of whatever the chat quotes."""


class LocalJudge:
    """Judges with a model folder, `batch_size` outputs at a time; histories are cut as its card says."""

    def __init__(
        self,
        model: str | Path,
        batch_size: int = 8,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        folder = model_folder(model)
        self._device = device or best_device()
        self._tokenizer = load_tokenizer(folder)
        self._network = load_network(folder, self._device, dtype or fast_dtype(self._device))
        self._batch_size, self._last = batch_size, model_card(folder).get("history")
        self._progress = progress or (lambda done: None)
        self._limit = getattr(self._network.config, "max_position_embeddings", None) or 1 << 30
        self._words = {word: self._first_token(word) for word in (*STEP_WORDS, *RESPONSE_WORDS)}
        for words in (STEP_WORDS, RESPONSE_WORDS):
            if len({self._words[word] for word in words}) < len(words):
                raise InputError(f"its tokenizer starts two of the words {', '.join(words)} alike.", file=folder)

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """A judgment for each case, in their order."""
        found: list[Judgment | Unscored] = []
        for start in range(0, len(cases), self._batch_size):
            batch = cases[start : start + self._batch_size]
            found.extend(self._judge_batch(batch))
            self._progress(len(batch))
        return found

    def pieces(self, case: Case) -> tuple[list[Question], list[list[int]]]:
        """The case's rounds, and the tokens fed before each verdict: exactly those of the whole chat, cut there."""
        rounds = questions(case, self._last)
        messages: list[dict[str, str]] = [system_message()]
        for question in rounds:
            messages.append({"role": "user", "content": question.text.replace(_VERDICT, "")})
            messages.append({"role": "assistant", "content": _VERDICT})
        text: str = self._tokenizer.apply_chat_template(defuse(self._tokenizer, messages), tokenize=False)
        return rounds, [self._ids(piece) for piece in text.split(_VERDICT)[: len(rounds)]]

    @torch.inference_mode()
    def _judge_batch(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        prepared = [self.pieces(case) for case in cases]
        found: list[Judgment | Unscored] = [Unscored("not judged")] * len(cases)
        rows: list[int] = []
        for index, (_, pieces) in enumerate(prepared):
            length = sum(len(piece) + 2 for piece in pieces)
            if length > self._limit:
                found[index] = Unscored(f"the case has {length} tokens; the judge takes {self._limit}")
            else:
                rows.append(index)
        if not rows:
            return found
        cache, mask = self._shared_prefixes(
            [transcript(cases[row].history) for row in rows], [prepared[row][1] for row in rows]
        )
        steps: dict[int, dict[Part, float]] = {row: {} for row in rows}
        responses: dict[int, dict[Preferred, float]] = {}
        said: dict[int, list[int]] = {row: [] for row in rows}
        active = rows
        for number in range(max(len(prepared[row][0]) for row in rows)):
            going = [row for row in active if number < len(prepared[row][0])]
            if len(going) < len(active):
                keep = torch.tensor([active.index(row) for row in going], device=self._device)
                cache.batch_select_indices(keep)
                mask, active = mask[keep], going
            logits, mask = self._feed([said[row] + prepared[row][1][number] for row in active], cache, mask)
            for row, values in zip(active, logits, strict=True):
                question = prepared[row][0][number]
                chances = torch.softmax(values[[self._words[word] for word in question.words]].float(), 0).tolist()
                word = question.words[max(range(len(chances)), key=chances.__getitem__)]
                if not question.asked:
                    word = "False"
                elif question.part == "response":
                    first = cases[row].candidate_first
                    responses[row] = {preferred(w, first): p for w, p in zip(question.words, chances, strict=True)}
                else:
                    steps[row][question.part] = chances[0]
                said[row] = self._ids(word)
        for row in rows:
            finite = all(p == p for p in [*steps[row].values(), *responses.get(row, {}).values()])
            found[row] = (
                Judgment(steps=steps[row], response=responses.get(row))
                if finite
                else Unscored("the judge's probabilities are not numbers")
            )
        return found

    def _shared_prefixes(self, histories: Sequence[str], pieces: Sequence[list[list[int]]]) -> tuple[Any, torch.Tensor]:
        """The cache of what the rows of one history have in common, computed once a history; cuts it off the pieces."""
        groups: dict[str, list[int]] = {}
        for row, history in enumerate(histories):
            groups.setdefault(history, []).append(row)
        prefixes: list[list[int]] = []
        owner = [0] * len(histories)
        for number, members in enumerate(groups.values()):
            shared = _common_prefix([pieces[row][0][:-1] for row in members])
            prefixes.append(shared)
            for row in members:
                owner[row] = number
                del pieces[row][0][: len(shared)]
        cache = DynamicCache()
        empty = torch.zeros((len(prefixes), 0), dtype=torch.long, device=self._device)
        _, mask = self._feed(prefixes, cache, empty)
        rows = torch.tensor(owner, device=self._device)
        cache.batch_select_indices(rows)
        return cache, mask[rows]

    def _feed(self, pieces: Sequence[list[int]], cache: Any, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Feeds a piece to each row; returns the logits after it and the mask of all that was fed."""
        width = max(len(piece) for piece in pieces)
        pad = self._tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(piece)) + piece for piece in pieces], device=self._device)
        new = torch.tensor([[0] * (width - len(piece)) + [1] * len(piece) for piece in pieces], device=self._device)
        mask = torch.cat([mask, new], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -width:]
        output = self._network(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1], mask

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _first_token(self, word: str) -> int:
        return self._ids(word)[0]


def _common_prefix(rows: Sequence[list[int]]) -> list[int]:
    length = min(len(row) for row in rows)
    for position in range(length):
        if any(row[position] != rows[0][position] for row in rows):
            return rows[0][:position]
    return rows[0][:length]
