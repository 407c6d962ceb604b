"""A judge at work in this process: what is asked, and what becomes of the answers.

A verdict is read off the probabilities of the allowed words, so no verdict is ever unreadable; a judge that gives
reasons writes one first, up to the end of its line. A judge that sees is shown the pictures of a history with it, once.
The rounds themselves are asked on torch (`torch_rounds.py`), or on llama.cpp where a judge is adapters over a large
base (`engine_rounds.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from compeer.engine.attention import use_folded_attention
from compeer.engine.llama_table import CpuEngine
from compeer.engine.multimodal import Picture, PictureError, PictureReader, picture_reader
from compeer.engine.network import best_device, fast_dtype, load_network, load_tokenizer
from compeer.errors import InputError
from compeer.models.resolve import cpu_files, model_folder
from compeer.models.training import model_card
from compeer.reasoning import MAX_RESPONSE, STEPS, ParsedTurn, Part, Step
from compeer.reward.conversation import (
    Case,
    Question,
    branches,
    carried_out,
    preferred,
    system_message,
    void_response,
)
from compeer.reward.engine_rounds import EngineRounds
from compeer.reward.form import Form
from compeer.reward.frames import Frames
from compeer.reward.guards import quoted
from compeer.reward.looks import LookWeights
from compeer.reward.rows import Row, Said
from compeer.reward.score import Judgment, Order, Unscored, judgment
from compeer.reward.torch_rounds import TorchRounds
from compeer.reward.words import Words

_TOO_LONG = "too long for the judge"


class LocalJudge:
    """Judges with a model folder, `batch_size` outputs at a time, in the form and with the threshold of its card.

    With `both_orders` the responses are compared in both orders and the probabilities averaged. A reason has at most
    `reason_tokens` tokens. `network` and `tokenizer` take the place of the folder's where they are loaded already.
    A judge that sees reads pictures from files; `media` is the folder from which their paths count, else that of the
    card.
    """

    def __init__(
        self,
        model: str | Path,
        batch_size: int = 8,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        form: Form | None = None,
        both_orders: bool = False,
        threshold: float | None = None,
        reason_tokens: int = 64,
        name: str | None = None,
        network: Any = None,
        tokenizer: Any = None,
        media: str | Path | None = None,
    ) -> None:
        prepared = cpu_files(model, "judge") if network is None and (device or best_device()).type == "cpu" else None
        folder = (prepared.card or prepared.tokenizer) if prepared else model_folder(model)
        card = model_card(folder)
        self._name = name or str(model)
        self.form = form or Form.model_validate({key: card[key] for key in Form.model_fields if key in card})
        self.threshold = card.get("threshold", 0.5) if threshold is None else threshold
        if not 0 <= self.threshold <= 1:
            problem = f"the threshold {self.threshold} is no probability."
            raise InputError(problem, file=folder, do="Give one from 0 to 1.")
        self.looks = LookWeights.model_validate(card["looks"]) if "looks" in card else None
        self._batch_size, self._both_orders = batch_size, both_orders
        self._reason_tokens = reason_tokens if self.form.reasons else 0
        self._progress = progress or (lambda done: None)
        self._tokenizer = tokenizer or load_tokenizer(prepared.tokenizer if prepared else folder)
        self._words = Words(self._tokenizer, self.form, folder)
        self._frames = Frames(self._tokenizer, system_message(self.form))
        self._reader: PictureReader | None = None
        self._rounds: EngineRounds | TorchRounds
        if prepared:
            engine = CpuEngine(prepared, self._tokenizer.eos_token_id)
            self._rounds = EngineRounds(engine, self._words, self._reason_tokens)
        else:
            self._reader = picture_reader(folder, card.get("media", "") if media is None else media)
            device = device or best_device()
            own = network or load_network(folder, device, dtype or fast_dtype(device))
            if network is None and not self._reader:  # one that is given may be in training, and stays as it is
                use_folded_attention(own)
            self._rounds = TorchRounds(own, self._words, self._reason_tokens, self._reader)
        self._limit = self._rounds.limit

    @property
    def name(self) -> str:
        return self._name

    def judge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """A judgment for each case, in their order."""
        found: list[Judgment | Unscored] = [Unscored("not judged")] * len(cases)
        lengths = [sum(len(utterance.text) for utterance in case.history) for case in cases]
        order = sorted(range(len(cases)), key=lengths.__getitem__)  # equal lengths together: little padding
        for start in range(0, len(cases), self._batch_size):
            batch = order[start : start + self._batch_size]
            for number, one in zip(batch, self._judge_batch([cases[n] for n in batch]), strict=True):
                found[number] = one
            self._progress(len(batch))
        return found

    async def ajudge(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        """The same in a thread of its own, for callers that are async."""
        return await asyncio.to_thread(self.judge, cases)

    def pieces(self, case: Case, branch: int = 0) -> tuple[list[Question], list[list[int]]]:
        """A branch's rounds, and the tokens fed before each answer: exactly those of the whole chat, cut there."""
        row = self._row(0, case, branch, self._branches(case)[branch], {})
        self._tokenise([row])
        return row.rounds, row.pieces

    def _branches(self, case: Case) -> list[list[Question]]:
        return branches(case, self.form, images=True) if self._reader else branches(case, self.form)

    def _row(self, number: int, case: Case, branch: int, rounds: list[Question], read: dict[str, Picture]) -> Row:
        """A branch of a case as it is fed; pictures that are not `read` yet are."""
        pictures = []
        if self._reader and rounds[0].images:
            for path in rounds[0].images:
                if path not in read:
                    read[path] = self._reader.read(path)
            pictures = [read[path] for path in rounds[0].images]
        return Row(number, rounds, self._frames.texts(rounds), pictures, case.candidate_first, branch)

    def _rows(self, number: int, case: Case, read: dict[str, Picture]) -> list[Row]:
        """The branches of a case that need the judge, the other order of the responses among them if wanted."""
        found = []
        for branch, rounds in enumerate(self._branches(case)):
            if not any(question.asked for question in rounds):
                continue
            row = self._row(number, case, branch, rounds, read)
            found.append(row)
            parts = [question.part for question in rounds]
            if self._both_orders and "response" in parts:
                other = replace(case, candidate_first=not case.candidate_first)
                turned = self._row(number, other, branch, self._branches(other)[branch], read)
                found.append(replace(turned, starts=parts.index("response"), parent=row))
        return found

    def _tokenise(self, rows: Sequence[Row]) -> None:
        """Turns the texts of all rows into tokens, in one call."""
        texts = [text for row in rows for text in row.texts]
        found = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False) if texts else {}
        ids = iter(found.get("input_ids", []))
        for row in rows:
            row.pieces = [next(ids) for _ in row.texts]
            if self._reader and row.pictures:
                row.pieces[0] = self._reader.expand(row.pieces[0], [picture.grid for picture in row.pictures])

    def _judge_batch(self, cases: Sequence[Case]) -> list[Judgment | Unscored]:
        found: list[Judgment | Unscored] = [Judgment({})] * len(cases)
        said = [Said() for _ in cases]
        rows: list[Row] = []
        read: dict[str, Picture] = {}
        for number, case in enumerate(cases):
            try:
                rows.extend(self._rows(number, case, read))
            except PictureError as error:
                found[number] = Unscored(error.reason)
        self._tokenise(rows)
        judged = list(cases)
        for number in sorted({row.case for row in rows if self._length(row) > self._limit}):
            own, rows = [row for row in rows if row.case == number], [row for row in rows if row.case != number]
            if (least := self._least(number, cases[number], read)) > self._limit:
                found[number] = Unscored(f"history and reference need {least} tokens; the judge takes {self._limit}")
            else:
                judged[number], own = self._shortened(cases[number], own, read)
                rows.extend(own)
        ask = self._rounds.begin(rows) if rows else None
        voids = [self._void(case, shown) for case, shown in zip(cases, judged, strict=True)]  # while a GPU is busy
        if ask:
            ask(lambda row, question, chances, reason: self._hear(row, question, chances, reason, said[row.case]))
        for number, case in enumerate(cases):
            if isinstance(found[number], Judgment):
                found[number] = self._read(case, judged[number], said[number], voids[number])
        return found

    def _length(self, row: Row) -> int:
        """The tokens of a row and of its answers."""
        answer = 2 + (self._reason_tokens + len(self._words.before) if self.form.reasons else 0)
        return sum(len(piece) + answer for piece in row.pieces)

    def _least(self, number: int, case: Case, read: dict[str, Picture]) -> int:
        """The tokens of the longest branch of a case if nothing of its output were there; the reference is shown."""
        response: dict[Part, Step | str] = {"response": ""} if "response" in case.output.parts else {}
        bare = replace(case, output=replace(case.output, turn=None, parts=response))
        rows = [self._row(number, bare, branch, rounds, read) for branch, rounds in enumerate(self._branches(bare))]
        self._tokenise(rows)
        return max(map(self._length, rows))

    def _shortened(self, case: Case, rows: list[Row], read: dict[str, Picture]) -> tuple[Case, list[Row]]:
        """A case whose rows are too long without the longest parts of its output, and the rows that are left.

        What is too long in an output counts as missing: no output can keep itself from being scored.
        """
        number = rows[0].case
        while any(self._length(row) > self._limit for row in rows):
            asked = {question.part for row in rows for question in row.rounds if question.asked}
            shown = [part for part in case.output.parts if part in asked]
            case = replace(case, output=_without(case.output, max(shown, key=partial(self._part_length, case.output))))
            rows = self._rows(number, case, read)
            self._tokenise(rows)
        return case, rows

    def _part_length(self, output: ParsedTurn, part: Part) -> int:
        """The tokens of a part as the judge is shown it."""
        value = output.parts[part]
        return len(self._words.ids(quoted(value if isinstance(value, str) else value.text, MAX_RESPONSE)))

    def _void(self, case: Case, judged: Case) -> str | None:
        """Why a response counts for nothing; one that is not in the case as it was `judged` was too long."""
        too_long = self.form.kind != "process" and "response" in set(case.output.parts) - set(judged.output.parts)
        return f"the response is {_TOO_LONG}" if too_long else void_response(case, self.form)

    def _read(self, case: Case, judged: Case, said: Said, void: str | None) -> Judgment | Unscored:
        """What was said of a case."""
        if self.form.kind != "outcome":  # a step that is there, but in which nothing can be seen, is False
            said.steps = {part: said.steps.get(part, 0.0) for part in STEPS if part in case.output.parts}
        carried = carried_out(judged, said.kinds)
        return judgment(said.steps, said.compared, self.threshold, said.reasons, void, carried, self.looks)

    def _hear(self, row: Row, question: Question, chances: list[float], reason: list[int], said: Said) -> None:
        """Takes down a verdict's probabilities; the likeliest word is what the next round will see."""
        word = question.words[max(range(len(chances)), key=chances.__getitem__)]
        if not question.asked:
            word = "False"
        elif question.part == "response":
            order: Order = "candidate first" if row.candidate_first else "reference first"
            values = zip(question.words, chances, strict=True)
            heard = {preferred(choice, row.candidate_first): chance for choice, chance in values}
            said.compared.setdefault(order, {})[row.branch] = heard
        elif question.part == "kind":
            said.kinds.append(dict(zip(question.words, chances, strict=True)))
        else:
            said.steps[question.part] = chances[0]
        if self.form.reasons and question.asked and question.part != "kind":
            text = self._tokenizer.decode(reason, skip_special_tokens=True)
            said.reasons.setdefault(question.part, quoted(text, len(text)))
        row.unfed = list(self._words.answers[word])


def _without(output: ParsedTurn, part: Part) -> ParsedTurn:
    """An output in which a part counts as missing because of its length."""
    parts = {name: value for name, value in output.parts.items() if name != part}
    return replace(output, turn=None, parts=parts, missing={**output.missing, part: f"over-long: {_TOO_LONG}"})
