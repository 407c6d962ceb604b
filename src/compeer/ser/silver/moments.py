"""How usual a strategy is at a moment, by the corpus' own statistics.

A moment is described by what a reader of the history sees: how far the conversation is, what the supporter did last,
whether the seeker just asked something, how much the seeker just wrote, and of what kind it was (a goodbye, a wish for
advice, thanks, a feeling, a greeting). For each of them the corpus says how much more or less often than usual a
strategy follows (its *lift*); the lift at a moment is their product, as if they were independent, scaled so that the
shares add up to one. A strategy whose lift is low is improbable there: the only ground on which a strategy that is not
the corpus' own is called False.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from compeer.dialogue import Strategy, last_seeker
from compeer.reasoning import STRATEGIES
from compeer.ser.sampling import Context
from compeer.statistics import words

IMPROBABLE = 0.75
"""A strategy is improbable where it is used less than three quarters as often as usual."""

_PRIOR = 20.0
"""Each lift is drawn toward 1 as if so many moments without any tendency had been seen as well."""


_SAYS = {
    "goodbye": r"\b(bye|good ?night|take care|nice talking|good talking)\b|再见|晚安",
    "advice": r"\b(should i|what (can|do|should|would) (i|you)|how (can|do|should) i|advice|suggest\w*|any (ideas|tips)"
    r")\b|怎么办|建议",
    "thanks": r"\b(thanks?|thank you|thx|appreciate|helpful|helped)\b|谢谢|感谢",
    "feeling": r"\b(feel|feeling|felt|sad|scared|afraid|depress\w*|anxi\w*|upset|hurts?|angry|lonely|cry\w*|worr\w+|"
    r"stress\w*)\b|难过|害怕|焦虑|伤心|压力|生气",
    "greeting": r"^\W*(hi|hello|hey|good (morning|afternoon|evening))\b|你好",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _SAYS.items()}


def features(context: Context) -> tuple[str, ...]:
    """What describes the moment of a context, by name and value."""
    number = context.round
    place = next(name for bound, name in _PLACES if number <= bound)
    before = context.earlier_strategies[-1] if context.earlier_strategies else None
    last = last_seeker(context.history)
    text = last.text if last else ""
    asks = "asks" if "?" in text or "？" in text else "tells"
    length = len(words(text)) // (16 if context.language == "zh" else 8)
    says = next((name for name, pattern in _PATTERNS.items() if pattern.search(text)), "else")
    return f"round {place}", f"after {before}", asks, f"length {min(4, length)}", f"says {says}"


_PLACES = ((1, "1"), (3, "2-3"), (6, "4-6"), (10, "7-10"), (1 << 30, "11+"))


_NOTHING: Counter[str] = Counter()


@dataclass
class Moments:
    """Counts of strategies by feature; nothing else of the corpus is kept."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    usual: Counter[str] = field(default_factory=Counter)

    def add(self, context: Context) -> None:
        strategy = context.reply.strategy
        if strategy is None:
            return
        self.usual[strategy] += 1
        for feature in features(context):
            self.counts.setdefault(feature, Counter())[strategy] += 1

    def lifts(self, context: Context) -> npt.NDArray[np.float64]:
        """For each strategy of the vocabulary how much more often than usual it is used at this moment."""
        usual = np.array([self.usual[strategy] + 1.0 for strategy in STRATEGIES])
        usual /= usual.sum()
        shares = usual.copy()
        for feature in features(context):
            here = np.array([self.counts.get(feature, _NOTHING)[strategy] for strategy in STRATEGIES])
            shares *= (here + _PRIOR * usual) / ((here.sum() + _PRIOR) * usual)
        found: npt.NDArray[np.float64] = shares / shares.sum() / usual
        return found

    def most_usual(self, context: Context) -> Strategy:
        """The strategy that is used most often at this moment."""
        shares = [self.usual[strategy] for strategy in STRATEGIES]
        return STRATEGIES[int(np.argmax(self.lifts(context) * np.array(shares)))]
