"""A judge's rounds on llama.cpp: one question after the other, each reading only what is new.

The engine remembers what it read, so the history of a case is computed once for all its branches and for all outputs
that answer it. Several at a time would gain nothing: on a CPU, reading is all computing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from compeer.engine.llama_table import CpuEngine
from compeer.engine.rows import Ending, NotWritten
from compeer.engine.rows import Row as Written
from compeer.models.base import Sampling
from compeer.reward.conversation import Question
from compeer.reward.rows import Hear, Row
from compeer.reward.words import MISSING_REASON, Words


class EngineRounds:
    """Asks a model on llama.cpp. `reason_tokens` is the most that a reason may have; 0 asks for none."""

    def __init__(self, engine: CpuEngine, words: Words, reason_tokens: int) -> None:
        self._engine, self._words, self._reason_tokens = engine, words, reason_tokens
        self.limit = engine.width

    def begin(self, rows: Sequence[Row]) -> Callable[[Hear], None]:
        """Nothing is begun before it is asked."""
        return lambda hear: self._ask(rows, hear)

    def _ask(self, rows: Sequence[Row], hear: Hear) -> None:
        for case in dict.fromkeys(row.case for row in rows):
            own = [row for row in rows if row.case == case]
            fed: dict[int, list[int]] = {id(row): [] for row in own}
            for number in range(max(len(row.rounds) for row in own)):
                going = [row for row in own if row.starts <= number < len(row.rounds)]
                for row in going:
                    if row.parent and 0 < row.starts == number:
                        row.unfed, fed[id(row)] = list(row.parent.unfed), list(fed[id(row.parent)])
                for row in going:
                    ids = fed[id(row)]
                    ids += row.unfed + row.pieces[number]
                    reason = self._reason(row.rounds[number], ids) if self._reason_tokens else []
                    logits = self._engine.logits(ids).result()
                    hear(row, row.rounds[number], self._words.probabilities(logits, row.rounds[number].words), reason)

    def _reason(self, question: Question, ids: list[int]) -> list[int]:
        """Writes a reason, and adds it and what leads over to the verdict to what was fed."""
        if not question.asked:
            reason = self._words.ids(MISSING_REASON)
            ids += reason + self._words.before
            return reason
        ended = threading.Event()
        how: list[Ending | NotWritten] = []
        said: list[int] = []

        def listen(tokens: list[int], last: bool) -> bool:
            said[:] = tokens
            return last or self._words.ends_reason(tokens[-1])

        def end(ending: Ending | NotWritten) -> None:
            how.append(ending)
            ended.set()

        sampling = Sampling(temperature=0, max_tokens=self._reason_tokens)
        self._engine.batcher.submit(Written(tuple(ids), sampling, 0, listen, end, adapter=self._engine.adapter))
        ended.wait()
        if isinstance(how[0], NotWritten):
            raise how[0]
        last = said[-1] if said and self._words.ends_reason(said[-1]) else None
        if last is not None and not self._words.goes_with_reason(last):
            said.pop()
        ids += said + self._words.after_reason(last)
        return said
