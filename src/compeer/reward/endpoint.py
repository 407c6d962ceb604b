"""A judge behind any language model: a server that speaks OpenAI's protocol, or a model in this process.

The rounds of a branch are one chat; branches and cases are asked at the same time, as many as the model takes. A model
that was not trained as a judge gets a longer instruction. An answer is read strictly; what cannot be read is asked
again with the complaint, and then makes the case `Unscored`, as do pictures that the model cannot get: such a judge has
not judged the same conversation. A verdict in words has no probability of its own: it counts as 1, and the others as 0.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compeer.models.base import Failure, Generation, Message, Request, Sampling, TextModel
from compeer.pipeline import in_blocks
from compeer.reward import conversation
from compeer.reward.conversation import BEFORE_VERDICT, Case, JudgeForm, JudgeQuestion, prompt_text
from compeer.reward.score import Answers, Judgment, Unscored
from compeer.ser.asking import Answer, AnswerFault, Read, ask_until_read, data_url

_OTHER_WORDS = {"对": "True", "错": "False", "都好": "Both", "都不好": "Neither"}
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
_LABEL = re.compile(r"(?:verdict|判断|结论)\s*[:：]\s*", re.IGNORECASE)
_AROUND = " \t*_`\"'“”‘’.。()[]"
_CONTROL = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>")
_ADDRESS = re.compile(r"data:|.*://")
_RETRIES = 2
_NOT_ASKED = Read("False", f"There is no note.{BEFORE_VERDICT} False", 0)


class ModelJudge:
    """Judges by asking a model in words; `trained`: as a judge of this form. Paths of pictures count from `media`."""

    def __init__(
        self,
        model: TextModel,
        form: JudgeForm | None = None,
        *,
        trained: bool = False,
        both_orders: bool = False,
        progress: Callable[[int], None] | None = None,
        media: str | Path = "",
    ) -> None:
        self.form = form or JudgeForm()
        self.name = model.name
        self._model, self._trained, self._both_orders, self._media = model, trained, both_orders, media
        self._system = conversation.system_message(self.form) if trained else untrained_system(self.form)
        self._sampling = Sampling(temperature=0, max_tokens=192 if self.form.reasons else 16)
        self._progress = progress or (lambda done: None)

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return asyncio.run(self.ajudge(cases))

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        asked = [self._begin(case) for case in cases]
        left = [len(chats) for chats in asked]
        self._progress(left.count(0))
        every = [(number, branch) for number, chats in enumerate(asked) for branch in chats]
        blocks = in_blocks(every, self._model.batch_size)

        async def work() -> None:
            for block in blocks:  # one iterator for all workers: each takes the next block when it is free
                await self._ask([branch for _, branch in block])
                for number, _ in block:
                    left[number] -= 1
                    self._progress(int(left[number] == 0))

        async with asyncio.TaskGroup() as workers:
            for _ in range(self._model.at_once):
                workers.create_task(work())
        return [_judgment(case, self.form, chats) for case, chats in zip(cases, asked, strict=True)]

    def _begin(self, case: Case) -> list[_AskedBranch]:
        turned = replace(case, candidate_first=not case.candidate_first)
        found = []
        for own, other in zip(self._questions(case), self._questions(turned), strict=True):
            rounds: list[tuple[JudgeQuestion, ...]] = [(question,) for question in own]
            if self._both_orders:  # what comes after a comparison in both orders refers to the last one
                for number in [n for n, question in enumerate(own) if question.part == "response"]:
                    rounds[number:] = [(own[number], other[number]), *((one,) for one in other[number + 1 :])]
            found.append(_AskedBranch(rounds, [self._system]))
        return found

    def _questions(self, case: Case) -> list[list[JudgeQuestion]]:
        """The chats of a case; an untrained model gets the list of the kinds of help."""
        found = conversation.branches(case, self.form, images=True)
        last = found[-1][-1] if found else None
        if last and last.part == "kind" and not self._trained:
            found[-1][-1] = replace(last, text=f"{last.text} {', '.join(last.words)}?")
        return found

    async def _ask(self, block: Sequence[_AskedBranch]) -> None:
        """Asks some branches all their rounds, in step; one that failed is asked no further."""
        for branch in block:
            branch.load_pictures(getattr(self._model, "multimodal", None), Path(self._media))
        for number in range(max(len(branch.rounds) for branch in block)):
            active = [branch for branch in block if number < len(branch.rounds) and branch.problem is None]
            rows = [(branch, question) for branch in active for question in branch.rounds[number]]
            asked = [(branch, question) for branch, question in rows if question.asked]
            answers = iter(await self._answers(asked))
            for branch, question in rows:
                branch.take(question, next(answers) if question.asked else _NOT_ASKED, self.form.reasons)
        for branch in block:
            branch.pictures = []  # they are large, and there may be thousands of cases

    async def _answers(self, asked: Sequence[tuple[_AskedBranch, JudgeQuestion]]) -> list[Answer[str]]:
        reasons = self.form.reasons
        requests = [Request(own.messages_with(one), grammar=verdict_grammar(one.words, reasons)) for own, one in asked]

        def read(index: int, generation: Generation) -> str | AnswerFault:
            if generation.cut_off:
                return AnswerFault("it was cut off before its end")
            return read_verdict(generation.text, asked[index][1].words)

        return await ask_until_read(self._model, requests, read, self._sampling, _RETRIES) if requests else []


@dataclass
class _AskedBranch:
    """A branch as far as it has come. A round has one question, or two where responses come in both orders."""

    rounds: Sequence[tuple[JudgeQuestion, ...]]
    messages: list[Message]
    answers: list[tuple[JudgeQuestion, Read[str]]] = field(default_factory=list)
    problem: str | None = None
    pictures: list[dict[str, Any]] = field(default_factory=list)

    def load_pictures(self, multimodal: bool | None, media: Path) -> None:
        """Takes in the pictures of the history: files below `media` for a model here, addresses or data for others."""
        paths = self.rounds[0][0].images
        if not paths or not any(question.asked for questions in self.rounds for question in questions):
            return
        if multimodal is False:
            self.problem = "the history has pictures, and the judge's model cannot be shown any"
        elif multimodal:
            files = [path if "://" in path else str(media / path) for path in paths]
            self.pictures = [{"type": "image", "path": file} for file in files]
        else:
            try:
                urls = [path if _ADDRESS.match(path) else data_url(media / path) for path in paths]
                self.pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            except OSError as error:
                self.problem = f"the picture {error.filename} cannot be read: {error.strerror}"

    def messages_with(self, question: JudgeQuestion) -> tuple[Message, ...]:
        """The chat so far and a question; the pictures stand with the history, in the first message."""
        system, first, *others = (*self.messages, _user(question))
        if self.pictures:
            first = {"role": "user", "content": [*self.pictures, {"type": "text", "text": first["content"]}]}
        return (system, first, *others)

    def take(self, question: JudgeQuestion, answer: Answer[str], reasons: bool) -> None:
        """Adds an answer to the chat; of one that is none, notes why."""
        if isinstance(answer, Failure):
            self.problem = f"the judge could not be asked ({answer.kind}): {answer.reason}"
        elif not isinstance(answer, Read):
            self.problem = f"the judge's answer cannot be read: {answer.complaint}"
        else:
            text = answer.text.strip() if reasons else answer.value
            self.messages += [_user(question), {"role": "assistant", "content": text}]
            self.answers.append((question, answer))


def _judgment(case: Case, form: JudgeForm, chats: Sequence[_AskedBranch]) -> Judgment | Unscored:
    if problem := next((branch.problem for branch in chats if branch.problem is not None), None):
        return Unscored(problem)
    found = Answers()
    for number, branch in enumerate(chats):
        first = case.candidate_first
        for question, answer in (one for one in branch.answers if one[0].asked):
            reason = answer.text.rpartition(BEFORE_VERDICT)[0].strip() or None
            found.add(question, [float(word == answer.value) for word in question.words], number, first, reason)
            if question.part == "response":
                first = not first  # a second comparison in the same chat is in the other order
    return found.judgment(case, form, conversation.void_response(case, form))


def untrained_system(form: JudgeForm) -> Message:
    """The instruction for a model that was not trained as a judge."""
    answer = prompt_text("untrained_answer_reason" if form.reasons else "untrained_answer_verdict")
    return {"role": "system", "content": prompt_text("untrained_system").format(answer=answer)}


def read_verdict(text: str, allowed: Sequence[str]) -> str | AnswerFault:
    """The verdict of an answer or its last line, in whatever quotes; none if lines have differing verdicts."""
    lines = [line for line in _THOUGHTS.sub("", text).splitlines() if line.strip(_AROUND)]
    if not lines:
        return AnswerFault("it is empty")
    expected = f"its last line must be one of: {', '.join(allowed)}"
    named = [[_word(piece, allowed) for piece in _LABEL.split(line)] for line in lines]
    last = named[-1][-1]
    if last is None:
        return AnswerFault(expected)
    if any(word not in (None, last) for line in named for word in line):
        return AnswerFault(f"it gives several verdicts; {expected}")
    return last


def _word(text: str, allowed: Sequence[str]) -> str | None:
    """The verdict that a line, or what stands after `Verdict:` in it, is."""
    text = text.strip(_AROUND)
    text = _OTHER_WORDS.get(text, text)
    return next((word for word in allowed if word.lower() == text.lower()), None)


def verdict_grammar(allowed: Sequence[str], reasons: bool) -> str:
    """A Lark grammar of the answer, for models that can decode under one."""
    words = " | ".join(f'"{word}"' for word in allowed)
    if not reasons:
        return f"start: {words}"
    # the line break belongs to the reason: a lexer is greedy, and would only stop at the greatest length
    return f'start: reason "Verdict: " verdict\nreason: /[^\\s][^\\n]{{1,400}}\\n/\nverdict: {words}'


def _user(question: JudgeQuestion) -> Message:
    """A round's question. Control tokens that it quotes are broken up, so that no text can forge an answer."""
    text = _CONTROL.sub(lambda found: f"{found[0][0]} {found[0][1:]}", question.text)
    return {"role": "user", "content": text}
