"""A judge at work in this process: what it is asked, and what becomes of the answers.

A verdict is read off the probabilities of the allowed words, so none is ever unreadable; a judge that gives reasons
writes one first. `rounds.py` asks the rounds themselves, on torch, or on llama.cpp for adapters over a large base.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from compeer.engine import network as networks
from compeer.engine.answers import CpuReading, Reading, TorchReading
from compeer.engine.attention import FOLDED, attend
from compeer.engine.cpu_table import CpuEngine
from compeer.engine.multimodal import PictureError, PictureReader, picture_reader
from compeer.errors import InputError
from compeer.models.resolve import cpu_files, model_folder
from compeer.models.training import model_card
from compeer.pipeline import in_blocks
from compeer.reasoning import MAX_RESPONSE, ParsedTurn, Part, Step
from compeer.reward.anti_gaming import quoted
from compeer.reward.conversation import Case, JudgeForm, JudgeQuestion, branches, system_message, void_response
from compeer.reward.rounds import AnswerWords, Branch, ask_rounds
from compeer.reward.score import Answers, Judgment, Unscored
from compeer.reward.second_pass import PassWeights

_TOO_LONG = "too long for the judge"


class LocalJudge:
    """Judges with a model folder, `batch_size` outputs at a time, in the form and with the threshold of its card.

    With `both_orders` the responses are compared in both orders and the probabilities averaged. `network` and
    `tokenizer` take the place of the folder's where they are loaded already, `media` that of the card's folder.
    """

    def __init__(
        self,
        model: str | Path,
        batch_size: int = 8,
        device: torch.device | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        form: JudgeForm | None = None,
        both_orders: bool = False,
        threshold: float | None = None,
        reason_tokens: int = 64,
        network: Any = None,
        tokenizer: Any = None,
        media: str | Path | None = None,
    ) -> None:
        device = device or networks.best_device()
        prepared = cpu_files(model, "judge") if network is None and device.type == "cpu" else None
        folder = (prepared.card or prepared.tokenizer) if prepared else model_folder(model)
        card = model_card(folder)
        self.name, self.form = str(model), form or form_of(card)
        self.threshold = card.get("threshold", 0.5) if threshold is None else threshold
        if not 0 <= self.threshold <= 1:
            problem = f"the threshold {self.threshold} is no probability."
            raise InputError(problem, file=folder, do="Give one from 0 to 1.")
        self.pass_weights = PassWeights.model_validate(card["looks"]) if "looks" in card else None
        self._batch_size, self._both_orders = batch_size, both_orders
        self._reason_tokens = reason_tokens if self.form.reasons else 0
        self._progress = progress or (lambda done: None)
        self._tokenizer = tokenizer or networks.load_tokenizer(prepared.tokenizer if prepared else folder)
        self._words = AnswerWords(self._tokenizer, self.form, folder)
        media = card.get("media", "") if media is None else media
        self._reader: PictureReader | None = None if prepared else picture_reader(folder, media)
        self._picture: Any = cache(self._reader.read) if self._reader else None  # those of a batch are read once
        self._begin: Callable[[Sequence[Branch]], Reading]
        if prepared:
            engine = CpuEngine(prepared, self._tokenizer.eos_token_id)
            self._begin, self._limit = lambda rows: CpuReading(engine, len(rows)), engine.width
            self._batch_size = 1  # one case after the other: what its branches share stays at hand
        else:
            own = network or networks.load_network(folder, device, networks.fast_dtype(device))
            if network is None and not self._reader:  # one that is given may be in training, and stays as it is
                attend(own, FOLDED)
            self._begin, self._limit = partial(self._begin_on_torch, own), networks.position_limit(own)

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        found: dict[int, Judgment | Unscored] = {}
        lengths = [sum(len(utterance.text) for utterance in case.history) for case in cases]
        order = sorted(range(len(cases)), key=lengths.__getitem__)  # equal lengths together: little padding
        for batch in in_blocks(order, self._batch_size):
            found |= zip(batch, self._judge_batch([cases[number] for number in batch]), strict=True)
            self._progress(len(batch))
        return [found[number] for number in range(len(cases))]

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        return await asyncio.to_thread(self.judge, cases)

    def pieces(self, case: Case, branch: int = 0) -> tuple[list[JudgeQuestion], list[list[int]]]:
        """A branch's rounds, and the tokens fed before each answer: exactly those of the whole chat, cut there."""
        row = self._branch(0, case, branch, self._questions(case)[branch])
        self._tokenise([row])
        return row.rounds, row.pieces

    def _questions(self, case: Case) -> list[list[JudgeQuestion]]:
        return branches(case, self.form, images=True) if self._reader else branches(case, self.form)

    def _branch(self, case_number: int, case: Case, number: int, rounds: list[JudgeQuestion]) -> Branch:
        pictures = [self._picture(path) for path in rounds[0].images]
        texts = texts_before_answers(self._tokenizer, system_message(self.form), rounds)
        return Branch(case_number, rounds, texts, pictures, case.candidate_first, number)

    def _branches(self, case_number: int, case: Case) -> list[Branch]:
        """The branches of a case that need the judge, with the other order of the responses if wanted."""
        found = []
        for number, rounds in enumerate(self._questions(case)):
            if not any(question.asked for question in rounds):
                continue
            branch = self._branch(case_number, case, number, rounds)
            found.append(branch)
            parts = [question.part for question in rounds]
            if self._both_orders and "response" in parts:
                other = replace(case, candidate_first=not case.candidate_first)
                turned = self._branch(case_number, other, number, self._questions(other)[number])
                found.append(replace(turned, starts=parts.index("response"), parent=branch))
        return found

    def _tokenise(self, rows: Sequence[Branch]) -> None:
        texts = [text for row in rows for text in row.texts]
        found = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False) if texts else {}
        ids = iter(found.get("input_ids", []))
        for row in rows:
            row.pieces = [next(ids) for _ in row.texts]
            if self._reader and row.pictures:
                row.pieces[0] = self._reader.expand(row.pieces[0], [picture.grid for picture in row.pictures])

    def _judge_batch(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        failed: dict[int, Unscored] = {}
        rows: list[Branch] = []
        for number, case in enumerate(cases):
            try:
                rows.extend(self._branches(number, case))
            except PictureError as error:
                failed[number] = Unscored(error.reason)
        self._tokenise(rows)
        judged = list(cases)
        for number in sorted({row.case for row in rows if self._length(row) > self._limit}):
            own, rows = [row for row in rows if row.case == number], [row for row in rows if row.case != number]
            if (least := self._least(number, cases[number])) > self._limit:
                failed[number] = Unscored(f"history and reference need {least} tokens; the judge takes {self._limit}")
            else:
                judged[number], own = self._shortened(cases[number], own)
                rows.extend(own)
        if self._picture:
            self._picture.cache_clear()
        ask = ask_rounds(self._begin, rows, self._words, self._reason_tokens) if rows else None
        voids = [self._void(case, short) for case, short in zip(cases, judged, strict=True)]  # while a GPU is busy
        answers = [Answers() for _ in cases]
        if ask:
            ask(lambda row, question, values, reason: self._hear(row, question, values, reason, answers[row.case]))
        how = self.threshold, self.pass_weights
        every = zip(answers, cases, voids, judged, strict=True)
        found = [one.judgment(case, self.form, void, *how, short) for one, case, void, short in every]
        return [failed.get(number) or one for number, one in enumerate(found)]

    def _begin_on_torch(self, network: Any, rows: Sequence[Branch]) -> Reading:
        """Computes the histories of the branches, each once."""
        first, pictures = [row.pieces[0] for row in rows], [row.pictures for row in rows]
        groups = [(row.rounds[0].history, *row.rounds[0].images) for row in rows]
        return TorchReading(network, self._tokenizer.pad_token_id, self._reader, first, groups, pictures)

    def _length(self, row: Branch) -> int:
        answer = 2 + (self._reason_tokens + len(self._words.before) if self.form.reasons else 0)
        return sum(len(piece) + answer for piece in row.pieces)

    def _least(self, number: int, case: Case) -> int:
        """The tokens of the longest branch of a case if nothing of its output were there but the reference."""
        response: dict[Part, Step | str] = {"response": ""} if "response" in case.output.parts else {}
        bare = replace(case, output=replace(case.output, turn=None, parts=response))
        rows = [self._branch(number, bare, one, rounds) for one, rounds in enumerate(self._questions(bare))]
        self._tokenise(rows)
        return max(map(self._length, rows))

    def _shortened(self, case: Case, rows: list[Branch]) -> tuple[Case, list[Branch]]:
        """A case and its branches without the longest parts of its output, until they fit; these count as missing."""
        number = rows[0].case
        while any(self._length(row) > self._limit for row in rows):
            asked = {question.part for row in rows for question in row.rounds if question.asked}
            present = [part for part in case.output.parts if part in asked]
            longest = max(present, key=partial(self._part_length, case.output))
            parts = {part: value for part, value in case.output.parts.items() if part != longest}
            missing = {**case.output.missing, longest: f"over-long: {_TOO_LONG}"}
            case = replace(case, output=replace(case.output, turn=None, parts=parts, missing=missing))
            rows = self._branches(number, case)
            self._tokenise(rows)
        return case, rows

    def _part_length(self, output: ParsedTurn, part: Part) -> int:
        value = output.parts[part]
        return len(self._words.ids(quoted(value if isinstance(value, str) else value.text, MAX_RESPONSE)))

    def _void(self, case: Case, judged: Case) -> str | None:
        """Why a response counts for nothing; one that is not in the case as it was `judged` was too long."""
        too_long = self.form.kind != "process" and "response" in set(case.output.parts) - set(judged.output.parts)
        return f"the response is {_TOO_LONG}" if too_long else void_response(case, self.form)

    def _hear(self, row: Branch, question: JudgeQuestion, values: list[float], reason: list[int], to: Answers) -> None:
        """Takes a verdict's probabilities; the next round follows the likeliest word."""
        word = question.words[max(range(len(values)), key=values.__getitem__)] if question.asked else "False"
        if question.asked:
            text = self._tokenizer.decode(reason, skip_special_tokens=True) if self.form.reasons else None
            to.add(question, values, row.number, row.candidate_first, text)
        row.unfed = list(self._words.answers[word])


def form_of(card: Mapping[str, Any]) -> JudgeForm:
    """The form in which a model was trained, by its card."""
    return JudgeForm.model_validate({key: card[key] for key in JudgeForm.model_fields if key in card})


_GAP = "\u241f"  # stands for an answer while a chat is rendered; taken out of whatever the chat quotes


def texts_before_answers(tokenizer: Any, system: Mapping[str, Any], rounds: Sequence[JudgeQuestion]) -> list[str]:
    """What is fed before each answer of the judge: the chat as the tokenizer's template renders it, cut there."""
    messages = [system]
    for question in rounds:
        content = replace(question, text=question.text.replace(_GAP, "")).content
        messages += [{"role": "user", "content": content}, {"role": "assistant", "content": _GAP}]
    text: str = tokenizer.apply_chat_template(networks.defuse(tokenizer, messages), tokenize=False)
    return text.split(_GAP)[: len(rounds)]
