"""The rounds of a judge in this process: which questions are asked together, and how an answer is worded.

A history is computed once for all outputs and branches that share it; each round adds only its own few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from compeer.engine.answers import Reading
from compeer.engine.multimodal import Picture
from compeer.engine.network import first_tokens, token_ids
from compeer.reasoning import STRATEGIES
from compeer.reward.conversation import BEFORE_VERDICT, RESPONSE_WORDS, STEP_WORDS, JudgeForm, JudgeQuestion

MISSING_REASON = "There is no note."


@dataclass(eq=False)
class Branch:
    """One branch of one case as it is fed to a model."""

    case: int
    rounds: list[JudgeQuestion]
    texts: list[str]  # what is fed before each answer
    pictures: list[Picture]  # the pictures of the history, for a multimodal judge
    candidate_first: bool
    number: int = 0
    starts: int = 0  # the round from which on it goes its own way, after all that its parent was fed before
    parent: Branch | None = None
    pieces: list[list[int]] = field(default_factory=list)  # the texts as tokens
    unfed: list[int] = field(default_factory=list)  # tokens of its last answer that were not fed yet


Hear = Callable[[Branch, JudgeQuestion, list[float], list[int]], None]  # the words' probabilities, a reason's tokens


class AnswerWords:
    """The words that a judge may answer with, as tokens: a verdict is known by its first token, and fed by all."""

    def __init__(self, tokenizer: Any, form: JudgeForm, folder: str | Path) -> None:
        self.tokenizer, self.ids = tokenizer, partial(token_ids, tokenizer)
        self.before = self.ids(BEFORE_VERDICT)
        questions = (STEP_WORDS, RESPONSE_WORDS, *((STRATEGIES,) if form.alone else ()))
        blank = " " if form.reasons else ""  # a verdict begins the answer, or follows a reason and a blank
        self.answers = {word: self.ids(blank + word) for words in questions for word in words}
        self.first: dict[str, int] = {}
        for words in questions:
            self.first |= zip(words, first_tokens(tokenizer, [blank + word for word in words], folder), strict=True)

    def ends_reason(self, token: int) -> bool:
        return token in self.tokenizer.all_special_ids or "\n" in self.tokenizer.decode([token])

    def reason(self, written: list[int]) -> tuple[list[int], list[int]]:
        """The reason in what was written, and what is fed after all of it but the last token, up to the verdict."""
        if not written or not self.ends_reason(written[-1]):
            return written, [*written[-1:], *self.before]
        text = self.tokenizer.decode(written[-1:])
        if text.endswith("\n") and text.count("\n") == 1:  # some tokenizers join a full stop and the line's end
            return written, [written[-1], *self.ids(BEFORE_VERDICT.removeprefix("\n"))]
        return written[:-1], self.before


def ask_rounds(
    begin: Callable[[Sequence[Branch]], Reading], branches: Sequence[Branch], words: AnswerWords, reason_tokens: int
) -> Callable[[Hear], None]:
    """Begins to read the histories; what comes back asks the rounds. A reason has at most `reason_tokens`; 0: none."""
    first = [branch for branch in branches if not branch.starts]
    reading = begin(first)
    for branch, length in zip(first, reading.read, strict=True):
        del branch.pieces[0][:length]

    def ask(hear: Hear) -> None:
        """Asks round after round, all at a time; branches end with their last round, and forks begin with theirs."""
        active = first
        for number in range(max(len(branch.rounds) for branch in branches)):
            now = [branch for branch in branches if branch.starts <= number < len(branch.rounds)]
            if now != active:
                before = [one.parent if one.parent and one.starts == number else one for one in now]
                reading.select([active.index(branch) for branch in before])
                for branch, other in zip(now, before, strict=True):
                    branch.unfed = list(other.unfed)
                active = now
            questions = [branch.rounds[number] for branch in active]
            pieces = [branch.unfed + branch.pieces[number] for branch in active]
            reasons: list[list[int]] = [[] for _ in active]
            if reason_tokens:
                asked = [question.asked for question in questions]
                written = reading.write(pieces, asked, words.ends_reason, reason_tokens)
                missing, pairs = words.ids(MISSING_REASON), zip(written, asked, strict=True)
                found = [words.reason(own) if wanted else (missing, missing + words.before) for own, wanted in pairs]
                reasons, pieces = [reason for reason, _ in found], [piece for _, piece in found]
            answers = [[words.first[word] for word in question.words] for question in questions]
            values = reading.probabilities(pieces, answers)
            for branch, question, own, reason in zip(active, questions, values, reasons, strict=True):
                hear(branch, question, own, reason)

    return ask
