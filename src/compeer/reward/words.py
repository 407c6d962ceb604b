"""The words that a judge may answer with, as tokens of its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from compeer.errors import InputError
from compeer.reasoning import STRATEGIES
from compeer.reward.conversation import BEFORE_VERDICT, RESPONSE_WORDS, STEP_WORDS
from compeer.reward.form import Form

MISSING_REASON = "There is no note."


class Words:
    """What is said and read of words: a verdict is known by its first token, and fed by all of them."""

    def __init__(self, tokenizer: Any, form: Form, folder: str | Path) -> None:
        self.tokenizer = tokenizer
        self.before = self.ids(BEFORE_VERDICT)
        questions = (STEP_WORDS, RESPONSE_WORDS, *((STRATEGIES,) if form.alone else ()))
        # a verdict opens the answer, or follows a reason and a blank
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
        """How probable each of the words is, if one of them is said; logits of one place."""
        found: list[float] = torch.softmax(logits[[self.first[word] for word in words]].float(), 0).tolist()
        return found
