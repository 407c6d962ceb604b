"""Asks the learnt layers: the classifier where it works, the weighted phrases where it does not, and says which.

The classifier runs in a thread of its own, with a time limit: one that hangs or is slow must not keep a seeker waiting.
After a failure the phrases answer alone for a while; then it is tried again. What was asked before is remembered.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooSlow
from typing import Literal, Protocol

from compeer.safety.memory import Memory
from compeer.safety.phrases import Guess, packaged_phrases

Window = tuple[str, ...]
"""One message, or several in a row."""

RETRY = 30.0
"""Seconds until a classifier that failed is tried again."""
HARMLESS = 0.1
"""Below which probability of danger a layer is sure that there is none (see its training for the scale)."""
AT_ONCE = 4
"""Windows that the classifier is given at once, within its time limit."""
_REMEMBERED = 2**16
"""Windows whose guesses are remembered: what hundreds of long conversations hold."""


class Classifies(Protocol):
    """Anything that says of each run of messages how sure it is of danger, and of which kind."""

    def classify(self, windows: Sequence[Sequence[str]], /) -> Sequence[Guess]: ...


class Learned:
    """The learnt layers of one detector."""

    def __init__(self, classifier: Classifies | Literal["packaged"] | None, timeout: float, loading: float) -> None:
        self._classifier = classifier
        self._timeout, self._loading = timeout, loading
        self._phrases: Memory[Guess] = Memory(_REMEMBERED)
        self._classified: Memory[Guess] = Memory(_REMEMBERED)
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[Sequence[Guess]] | None = None
        self._failure, self._until = "", 0.0

    def guesses(self, windows: Sequence[Window]) -> tuple[dict[Window, tuple[Guess, str]], tuple[str, ...]]:
        """For each window a guess and the layer it comes from; and what did not work, in words."""
        failed: list[str] = []
        found: dict[Window, tuple[Guess, str]] = {}
        if self._classifier is not None:
            try:
                known = self._classified.all(windows, self._classify)
                return {window: (one, "classifier") for window, one in zip(windows, known, strict=True)}, ()
            except _Unusable as error:
                failed.append(f"{error}: rules and weighted phrases alone")
        try:
            known = self._phrases.all(windows, lambda new: packaged_phrases().classify(new))
            found = {window: (one, "weighted phrases") for window, one in zip(windows, known, strict=True)}
        except Exception as error:  # without them the rules go on alone
            failed.append(f"the weighted phrases could not be used ({type(error).__name__}): rules alone")
        return found, tuple(failed)

    def harmless(self, windows: Sequence[Window]) -> set[Window]:
        """The windows that the phrases, which are always there, are sure to be no danger."""
        try:
            known = self._phrases.all(windows, lambda new: packaged_phrases().classify(new))
        except Exception:  # `guesses` says so; nothing is taken back then
            return set()
        return {window for window, guess in zip(windows, known, strict=True) if guess.danger < HARMLESS}

    def _classify(self, windows: Sequence[Window]) -> list[Guess]:
        """Asks the classifier, a few windows at a time."""
        if self._until and (time.monotonic() < self._until or (self._last is not None and not self._last.done())):
            raise _Unusable(self._failure)
        first = self._thread is None
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="risk-classifier")
        found: list[Guess] = []
        try:
            for start in range(0, len(windows), AT_ONCE):
                self._last = self._thread.submit(self._ask, windows[start : start + AT_ONCE])
                # The first call loads the encoder, which takes seconds and says nothing of its speed.
                limit = max(self._timeout, self._loading) if first and not start else self._timeout
                found += self._last.result(timeout=limit)
        except TooSlow:
            self._failure = f"the classifier took longer than {self._timeout:g} s"
        except Exception as error:  # whatever it is, the other layers go on
            self._failure = f"the classifier could not be used ({type(error).__name__})"
        else:
            self._failure, self._until = "", 0.0
            return found
        self._until = time.monotonic() + RETRY
        raise _Unusable(self._failure)

    def _ask(self, windows: Sequence[Window]) -> Sequence[Guess]:
        if self._classifier == "packaged":
            from compeer.safety.classifier import RiskClassifier

            self._classifier = RiskClassifier()
        if self._classifier is None or isinstance(self._classifier, str):
            raise ValueError(f"no classifier: {self._classifier}")
        guesses = self._classifier.classify(windows)
        if len(guesses) != len(windows):
            raise ValueError("the classifier must answer for each window")
        return guesses


class _Unusable(Exception):
    """The classifier cannot be asked now; says why."""
