"""What the corpus' labels say about a step: right, wrong and how, or nothing."""

from __future__ import annotations

from compeer.dialogue import Emotion, Stage
from compeer.reasoning import STRATEGIES, EmotionStep, SupportTurn, sentiment_of
from compeer.ser.record import StepLabel, StepLabels
from compeer.ser.sampling import Context
from compeer.ser.silver.moments import IMPROBABLE, Moments
from compeer.ser.silver.wording import telling_words

FAMILIES: tuple[frozenset[Emotion], ...] = (
    frozenset(("anxiety", "fear", "stress", "confusion")),
    frozenset(("sadness", "depression", "hurt", "loneliness")),
    frozenset(("anger", "frustration", "disgust")),
    frozenset(("shame", "guilt")),
    frozenset(("relief", "hope", "joy", "gratitude")),
)
"""Emotions that lie near each other."""

SAID = 0.3
"""Share of a step's telling words that must have been said for its issue to count as this seeker's."""


def wrong_emotion(context: Context, right: EmotionStep, shown: EmotionStep) -> str:
    """What kind of mistake an emotion is, given the right one."""
    if shown.emotion == right.emotion:
        return "wrong intensity"
    if shown.emotion in context.earlier_emotions:
        return "outdated emotion"
    if sentiment_of(shown.emotion) != sentiment_of(right.emotion):
        return "opposite emotion"
    if are_near(shown.emotion, right.emotion):
        return "neighbouring emotion"
    return "another emotion"


def are_near(one: Emotion, other: Emotion) -> bool:
    """Whether two emotions are of one family."""
    return any(one in family and other in family for family in FAMILIES)


def compare_turn(turn: SupportTurn, context: Context, moments: Moments, stage: Stage) -> StepLabels | None:
    """The labels of a turn that a model wrote, or None where the corpus cannot decide all three."""
    history, emotion, strategy = (
        _history(turn, context, stage),
        _emotion(turn, context),
        _strategy(turn, context, moments),
    )
    if history is None or emotion is None or strategy is None:
        return None
    return StepLabels(history=history, emotion=emotion, strategy=strategy)


def _label(value: bool, how: str, kind: str | None = None) -> StepLabel:
    return StepLabel(value=value, source="silver", how=how, kind=kind)


def _history(turn: SupportTurn, context: Context, stage: Stage) -> StepLabel | None:
    right = context.reply.stage or stage
    if turn.history.stage != right:
        return _label(False, "another stage than the corpus' or the rule's", "wrong stage")
    named = telling_words(turn.history.text)
    said = telling_words(" ".join(utterance.text for utterance in context.history))
    if not named or len(named & said) < SAID * len(named):
        return None  # other words for the same thing, or another thing: only a reader can tell
    return _label(True, "the right stage, and what it names was said")


def _emotion(turn: SupportTurn, context: Context) -> StepLabel | None:
    if context.emotion is None:
        return None
    shown = turn.emotion
    right = EmotionStep(
        text=shown.text,
        sentiment=sentiment_of(context.emotion),
        emotion=context.emotion,
        intensity=context.intensity or shown.intensity,
    )
    if shown.emotion == right.emotion and abs(shown.intensity - right.intensity) < 2:
        return _label(True, "the corpus' emotion")
    kind = wrong_emotion(context, right, shown)
    if kind == "neighbouring emotion" or (kind != "wrong intensity" and "emotion" in context.derived):
        return None  # near by, or the corpus' label is of the whole dialogue and may not hold for this moment
    if kind == "wrong intensity" and "intensity" in context.derived:
        return _label(True, "the corpus' emotion; its intensity at this moment is not known")
    return _label(False, "another emotion than the corpus'", kind)


def _strategy(turn: SupportTurn, context: Context, moments: Moments) -> StepLabel | None:
    if context.reply.strategy is None:
        return None
    if turn.strategy.strategy == context.reply.strategy:
        return _label(True, "the corpus' strategy")
    lift = moments.lifts(context)[STRATEGIES.index(turn.strategy.strategy)]
    if lift < IMPROBABLE:
        return _label(False, f"used {lift:.2f} times as often as usual at such moments", "improbable strategy")
    return _label(True, f"not the corpus' strategy, but usual at such moments ({lift:.2f})")
