"""The reference turn of a context: what the corpus knows of the moment, put into words, and the corpus' reply.

What the corpus does not label is derived by rules that look at the history only, and the record says so:

- stage: rounds 1-3 exploration, 4-6 comforting, later action;
- emotion: the one of the seeker's last message, else of the dialogue; intensity likewise, else the initial one, else 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from compeer.dialogue import Notes, Stage
from compeer.reasoning import (
    MAX_RESPONSE,
    EmotionStep,
    HistoryStep,
    StrategyStep,
    SupportTurn,
    sentiment_of,
)
from compeer.ser.sampling import Context
from compeer.ser.silver.wording import (
    HistoryWords,
    Quotes,
    emotion_words,
    history_words,
    quotes_of,
    strategy_words,
)
from compeer.statistics import generator


@dataclass(frozen=True)
class Reference:
    """A context that can serve, with its reference steps in two wordings."""

    context: Context
    quotes: Quotes
    history: tuple[HistoryWords, HistoryWords]
    turns: tuple[SupportTurn, SupportTurn]
    derived: tuple[str, ...]

    @property
    def turn(self) -> SupportTurn:
        return self.turns[0]


def derived_stage(number: int) -> Stage:
    """The stage by the round's number alone, where a corpus has none."""
    return "exploration" if number <= 3 else "comforting" if number <= 6 else "action"


def why_not(context: Context) -> str | None:
    """Why a context has no reference turn, or None."""
    reply = context.reply
    if reply.strategy is None:
        return "no strategy label"
    if not reply.text.strip():
        return "empty reply"
    if len(reply.text) > MAX_RESPONSE:
        return "over-long reply"
    if reply.feedback is not None and reply.feedback <= 2:
        return "badly rated reply"
    if context.helped is False and (reply.feedback or 0) < 4:
        return "dialogue did not help"
    if context.emotion is None:
        return "no emotion label"
    return None


def reference_of(context: Context, seed: int) -> Reference:
    """A context's reference turn. Ask `why_not` first."""
    rng = generator(seed, "wording", context.id)
    part, language = "test" if context.split == "test" else "train", context.language
    notes, strategy, emotion = context.reply.notes or Notes(), context.reply.strategy, context.emotion
    assert strategy is not None
    assert emotion is not None
    stage, intensity = context.reply.stage or derived_stage(context.round), context.intensity or 3
    quotes = quotes_of(context.history)
    histories, turns = [], []
    for _ in range(2):
        history = history_words(quotes, stage, language, part, notes.history, rng)
        histories.append(history)
        turn = SupportTurn(
            history=HistoryStep(text=history.text, stage=stage),
            emotion=EmotionStep(
                text=emotion_words(quotes, emotion, intensity, language, part, notes.emotion, rng),
                sentiment=sentiment_of(emotion),
                emotion=emotion,
                intensity=intensity,
            ),
            strategy=StrategyStep(
                text=strategy_words(quotes, strategy, language, part, notes.strategy, rng), strategy=strategy
            ),
            response=context.reply.text,
        )
        turns.append(turn)
    return Reference(context, quotes, (histories[0], histories[1]), (turns[0], turns[1]), context.derived)
