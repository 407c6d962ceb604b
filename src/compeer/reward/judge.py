"""A judge at work in this process: all verdicts on one cache.

The tokens of a history are computed once and shared by all outputs that answer it, and by all branches in which an
output is judged; each round then adds only its own few tokens. A verdict is read off the probabilities of the allowed
words, so no verdict is ever unreadable; a judge that gives reasons writes one first, up to the end of its line. Rows of
a batch differ in length: pieces are padded on the left and masked, and positions count real tokens only. A judge that
sees is shown the pictures of a history with it, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compeer.errors import InputError
from compeer.models.attention import roomy_cache, use_folded_attention
from compeer.models.local import (
    best_device,
    fast_dtype,
    load_network,
    load_tokenizer,
    model_folder,
    position_limit,
)
from compeer.models.training import model_card
from compeer.models.vision import Picture, PictureError, SeeingCache, picture_reader
from compeer.reasoning import MAX_RESPONSE, STEPS, STRATEGIES, ParsedTurn, Part, Step
from compeer.reward.conversation import (
    BEFORE_VERDICT,
    RESPONSE_WORDS,
    STEP_WORDS,
    Case,
    Question,
    branches,
    carried_out,
    preferred,
    system_message,
    void_response,
)
from compeer.reward.form import Form
from compeer.reward.frames import Frames
from compeer.reward.guards import quoted
from compeer.reward.looks import LookWeights
from compeer.reward.rows import Row, Said
from compeer.reward.rows import common_prefix as _common_prefix
from compeer.reward.score import Judgment, Order, Unscored, judgment

_MISSING_REASON = "There is no note."
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
        folder = model_folder(model)
        card = model_card(folder)
        self._name = name or str(model)
        self.form = form or Form.model_validate({key: card[key] for key in Form.model_fields if key in card})
        self.threshold = card.get("threshold", 0.5) if threshold is None else threshold
        if not 0 <= self.threshold <= 1:
            problem = f"the threshold {self.threshold} is no probability."
            raise InputError(problem, file=folder, do="Give one from 0 to 1.")
        self.looks = LookWeights.model_validate(card["looks"]) if "looks" in card else None
        self._device = network.device if network is not None else device or best_device()
        self._tokenizer = tokenizer or load_tokenizer(folder)
        self._network = network or load_network(folder, self._device, dtype or fast_dtype(self._device))
        self._batch_size, self._both_orders, self._reason_tokens = batch_size, both_orders, reason_tokens
        self._progress = progress or (lambda done: None)
        self._reader = picture_reader(folder, card.get("media", "") if media is None else media)
        if network is None and not self._reader:  # one that is given may be in training, and stays as it is
            use_folded_attention(self._network)
        self._frames = Frames(self._tokenizer, system_message(self.form))
        self._limit = position_limit(self._network)
        self._before = self._ids(BEFORE_VERDICT)
        questions = (STEP_WORDS, RESPONSE_WORDS, *((STRATEGIES,) if self.form.alone else ()))
        self._answers = {word: self._word_ids(word) for words in questions for word in words}
        self._words = {word: ids[0] for word, ids in self._answers.items()}
        self._most_words = max(len(words) for words in questions)
        for words in questions:
            if len({self._words[word] for word in words}) < len(words):
                raise InputError(f"its tokenizer starts two of the words {', '.join(words)} alike.", file=folder)

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
                row.pieces[0] = self._reader.spread(row.pieces[0], [picture.grid for picture in row.pictures])

    @torch.inference_mode()
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
        begun = self._begun(rows) if rows else None
        voids = [self._void(case, shown) for case, shown in zip(cases, judged, strict=True)]  # while a GPU is busy
        if begun:
            self._ask(rows, said, *begun)
        for number, case in enumerate(cases):
            if isinstance(found[number], Judgment):
                found[number] = self._read(case, judged[number], said[number], voids[number])
        return found

    def _length(self, row: Row) -> int:
        """The tokens of a row and of its answers."""
        answer = 2 + (self._reason_tokens + len(self._before) if self.form.reasons else 0)
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
        return len(self._ids(quoted(value if isinstance(value, str) else value.text, MAX_RESPONSE)))

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

    def _begun(self, rows: Sequence[Row]) -> tuple[list[Row], Any, torch.Tensor]:
        """The rows that begin at once, with what is known of their histories: its cache and mask."""
        active = [row for row in rows if not row.starts]
        return active, *self._shared_prefixes(active)

    def _ask(
        self, rows: Sequence[Row], said: Sequence[Said], active: list[Row], cache: Any, mask: torch.Tensor
    ) -> None:
        """Asks round after round, all rows at a time; rows end with their last round, and forks begin with theirs."""
        for number in range(max(len(row.rounds) for row in rows)):
            going = [row for row in rows if row.starts <= number < len(row.rounds)]
            if going != active:
                places = [active.index(row.parent if row.parent and row.starts == number else row) for row in going]
                for row in going:
                    if row.parent and 0 < row.starts == number:
                        row.unfed = list(row.parent.unfed)
                keep = self._given(places)
                cache.batch_select_indices(keep)
                mask, active = mask[keep], going
            logits, mask = self._feed([row.unfed + row.pieces[number] for row in active], cache, mask)
            reasons: list[list[int]] = [[] for _ in active]
            if self.form.reasons:
                reasons, logits, mask = self._give_reasons([row.rounds[number] for row in active], logits, cache, mask)
            # all rows at a time: each by itself would wait for the device
            chances = self._chances(logits, [row.rounds[number].words for row in active])
            for row, reason, own in zip(active, reasons, chances, strict=True):
                self._hear(row, row.rounds[number], own, reason, said[row.case])

    def _chances(self, logits: torch.Tensor, allowed: Sequence[Sequence[str]]) -> list[list[float]]:
        """The probabilities of the words that each row may answer with."""
        tokens = [[self._words[word] for word in words] for words in allowed]
        filled = [row + row[:1] * (self._most_words - len(row)) for row in tokens]
        values = logits.gather(1, self._given(filled)).float().cpu()
        beyond = torch.arange(self._most_words) >= torch.tensor([len(row) for row in tokens]).unsqueeze(1)
        chances = torch.softmax(values.masked_fill(beyond, -torch.inf), 1).tolist()
        return [own[: len(row)] for own, row in zip(chances, tokens, strict=True)]

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
        row.unfed = list(self._answers[word])

    def _give_reasons(
        self, questions: Sequence[Question], logits: torch.Tensor, cache: Any, mask: torch.Tensor
    ) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
        """Writes a reason for each row, token by token, and feeds what leads over to the verdict."""
        found = [[] if question.asked else self._ids(_MISSING_REASON) for question in questions]
        unfed = [list(reason) for reason in found]
        ended = [not question.asked for question in questions]
        after = [list(self._before) for _ in questions]
        for _ in range(self._reason_tokens):
            for number, token in enumerate(logits.argmax(-1).tolist()):
                if ended[number]:
                    continue
                text = self._tokenizer.decode([token])
                ended[number] = token in self._tokenizer.all_special_ids or "\n" in text
                if text.endswith("\n") and text.count("\n") == 1:  # some tokenizers join a full stop and the line's end
                    after[number] = self._ids(BEFORE_VERDICT.removeprefix("\n"))
                elif ended[number]:
                    continue
                found[number].append(token)
                unfed[number] = [token]
            if all(ended):
                break
            logits, mask = self._feed([[] if e else u for e, u in zip(ended, unfed, strict=True)], cache, mask)
            unfed = [u if e else [] for e, u in zip(ended, unfed, strict=True)]
        logits, mask = self._feed([u + a for u, a in zip(unfed, after, strict=True)], cache, mask)
        return found, logits, mask

    def _shared_prefixes(self, rows: Sequence[Row]) -> tuple[Any, torch.Tensor]:
        """The cache of what the rows of one history have in common, computed once a history; cuts it off the pieces."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, row in enumerate(rows):
            groups.setdefault((row.rounds[0].history, *row.rounds[0].images), []).append(number)
        prefixes: list[list[int]] = []
        owner = [0] * len(rows)
        for number, members in enumerate(groups.values()):
            shared = _common_prefix([rows[member].pieces[0][:-1] for member in members])
            prefixes.append(shared)
            for member in members:
                owner[member] = number
                del rows[member].pieces[0][: len(shared)]
        places = self._given(owner)
        if self._reader:
            shown = [rows[members[0]].pictures for members in groups.values()]
            cache: Any = SeeingCache(self._reader, shown, self._device)
            empty = torch.zeros((len(prefixes), 0), dtype=torch.long, device=self._device)
            _, mask = self._feed(prefixes, cache, empty)
        else:
            cache, mask = self._begin(prefixes)
        cache.batch_select_indices(places)
        return cache, mask[places]

    def _begin(self, prefixes: Sequence[list[int]]) -> tuple[Any, torch.Tensor]:
        """A new cache that holds the prefixes, and the mask of what in it is real.

        They are padded on the right, where no token of theirs looks: so this, most of the work, needs no mask.
        """
        cache = roomy_cache()
        ids, mask = self._padded(prefixes, left=False)
        self._network(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache, mask

    def _feed(self, pieces: Sequence[list[int]], cache: Any, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Feeds a piece to each row; returns the logits after it and the mask of all that was fed."""
        ids, new = self._padded(pieces, left=True)
        mask = torch.cat([mask, new], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        seen = cache.inputs(pieces, positions) if self._reader else {"position_ids": positions}
        output = self._network(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1, **seen
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
        return self._given(filled), self._given(real)

    def _given(self, values: Any) -> torch.Tensor:
        """Numbers on the judge's device; a GPU goes on with what it has to do while it is given them."""
        tensor = torch.from_numpy(np.asarray(values))
        cuda = self._device.type == "cuda"
        return (tensor.pin_memory() if cuda else tensor).to(self._device, non_blocking=cuda)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _word_ids(self, word: str) -> list[int]:
        """A verdict's tokens: it opens the answer, or follows a reason and a blank."""
        return self._ids(f" {word}" if self.form.reasons else word)


def _without(output: ParsedTurn, part: Part) -> ParsedTurn:
    """An output in which a part counts as missing because of its length."""
    parts = {name: value for name, value in output.parts.items() if name != part}
    return replace(output, turn=None, parts=parts, missing={**output.missing, part: f"over-long: {_TOO_LONG}"})
