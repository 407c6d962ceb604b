"""Many outputs written together, token by token: rows join when they come and leave when they have ended.

A step of a model is mostly reading its weights, or starting kernels: both cost nearly the same for one row as for many.
So one thread takes a step for all rows at work, then lets new ones in, as in every serving engine since Orca. What
holds their keys and values is a `Backend`: torch, or llama.cpp on a CPU. Every row samples with the numbers of its own
seed, so its text depends on its company by no more than rounding does. Where a grammar leaves one way to go on, nothing
is sampled: such tokens are fed together, on backends that can. Questions of which only the logits are wanted,
as a judge's, are answered by the same thread between two steps, on the same weights.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any, TypeVar

import torch

from compeer.engine.rows import Backend, Ending, NotWritten, Row
from compeer.engine.sampling import next_tokens
from compeer.pipeline import in_blocks
from compeer.statistics import generator

_JOINING = 2  # so many prompts are read between two steps at most: those at work must not wait long for newcomers
_CLOSED = "the supporter has been closed"
Result = TypeVar("Result")


class Batcher:
    """Writes outputs with a backend, as many at a time as it can hold; others wait in line. `end` ends an output."""

    def __init__(self, table: Backend, end: int) -> None:
        self.table, self._end = table, end
        self._waiting: deque[Row] = deque()
        self._questions: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="compeer-batcher", daemon=True)
        self._thread.start()

    def submit(self, row: Row) -> None:
        _begin(self.table, row, self._end)
        self._line_up(self._waiting, row)

    def ask(self, work: Callable[[], Result]) -> Future[Result]:
        """What a piece of work on the backend gives, done by the thread that owns it when its turn has come."""
        answer: Future[Result] = Future()
        self._line_up(self._questions, (work, answer))
        return answer

    def _line_up(self, line: deque[Any], one: Any) -> None:
        with self._changed:
            if self._closed:
                raise NotWritten(_CLOSED, passing=False)
            line.append(one)
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread; rows that are still here end with it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the thread -----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self.table.rows or self._waiting or self._questions or self._closed):
                    self.table.rest()
                    self._changed.wait()
                closed = self._closed
            if closed:
                self._fail(NotWritten(_CLOSED, passing=False))
                self.table.close()
                return
            try:
                for row in [row for row in self.table.rows if row.cancelled]:
                    self.table.leave(row)
                self._join()
                self._answer()
                if self.table.rows:
                    _take(self.table, list(self.table.rows), self.table.step(), self._end)
            except Exception as error:  # memory that ran out, say: the rows of now fail, the next ones need not
                self._fail(NotWritten(f"the model failed: {type(error).__name__}"))

    def _fail(self, why: NotWritten) -> None:
        with self._changed:
            rows, questions = [*self.table.rows, *self._waiting], list(self._questions)
            self._waiting.clear()
            self._questions.clear()
        self.table.clear()
        for row in rows:
            row.finish(why)
        for _, answer in questions:
            answer.set_exception(why)

    def _join(self) -> None:
        """Lets waiting rows in as long as there is room; rows with the same prompt share its reading."""
        for _ in range(_JOINING if self.table.rows else self.table.most):
            group: list[Row] = []
            with self._changed:
                while self._waiting and len(self.table.rows) + len(group) < self.table.most:
                    if not self._waiting[0].cancelled:
                        if group and group[0].prompt() != self._waiting[0].prompt():
                            break
                        group.append(self._waiting[0])
                    self._waiting.popleft()
            if not group:
                return
            try:
                logits = self.table.join(group)
            except Exception as error:  # what is wrong with one prompt does not concern the others
                for row in group:
                    row.finish(NotWritten(f"the model failed: {type(error).__name__}"))
                continue
            _take(self.table, group, logits, self._end)

    def _answer(self) -> None:
        """Answers questions that wait, a few between two steps."""
        for _ in range(_JOINING if self.table.rows else max(1, len(self._questions))):
            with self._changed:
                if not self._questions:
                    return
                work, answer = self._questions.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(work())
            except Exception as error:
                answer.set_exception(error)


@torch.inference_mode()
def write_rows(table: Backend, rows: Sequence[Row], end: int) -> None:
    """Writes rows to their ends in the caller's thread, as many at a time as the table has room for."""
    try:
        for batch in in_blocks(rows, table.most):
            for row in batch:
                _begin(table, row, end)
            for group in [list(alike) for _, alike in groupby(batch, key=Row.prompt)]:
                _take(table, group, table.join(group), end)
            while table.rows:
                _take(table, list(table.rows), table.step(), end)
        table.rest()
    except BaseException:
        table.clear()
        raise


def _begin(table: Backend, row: Row, end: int) -> None:
    row.uniform = generator(row.seed, "tokens")
    _go_on(table, row, end)


def _take(table: Backend, rows: Sequence[Row], logits: torch.Tensor, end: int) -> None:
    """Samples a token for each row, reports it, and lets go of rows that have ended."""
    for row, token in zip(rows, next_tokens(logits, rows, end), strict=True):
        ended = token == end
        if not ended:
            row.tokens.append(token)
            if row.matcher is not None:
                row.matcher.consume_token(token)
                _go_on(table, row, end)
        cut_off = not ended and len(row.tokens) >= row.sampling.max_tokens
        ended = row.hear(row.tokens, ended or cut_off) or ended
        if ended or cut_off:
            table.leave(row)
            row.finish(Ending(cut_off and not ended, len(row.tokens), len(row.ids)))


def _go_on(table: Backend, row: Row, end: int) -> None:
    """Adds the tokens that the grammar leaves no choice about, where a backend can be fed many at a time."""
    if table.at_once == 1 or row.matcher is None or row.matcher.is_stopped():
        return
    forced = row.matcher.compute_ff_tokens()[: row.sampling.max_tokens - 1 - len(row.tokens)]
    if forced and end not in forced:
        row.matcher.consume_tokens(forced)
        row.tokens += forced
