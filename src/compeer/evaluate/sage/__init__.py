"""SAGE: a sentient seeker whose emotion tells how well it is supported; the rules, the seeker, and re-scoring."""

from compeer.evaluate.sage.answers import EmotionAnswer, read_emotion_answer
from compeer.evaluate.sage.rescore import Rescored, rescore, rescore_command
from compeer.evaluate.sage.rules import (
    PRESETS,
    RLVER,
    SAGE,
    SAGE_PAPER,
    SAGE_RELEASED,
    Rules,
    outcome_of,
    preset,
    update,
)
from compeer.evaluate.sage.sentient import SeekerProfile, SentientSeeker, emotions, read_profiles

__all__ = [
    "PRESETS",
    "RLVER",
    "SAGE",
    "SAGE_PAPER",
    "SAGE_RELEASED",
    "EmotionAnswer",
    "Rescored",
    "Rules",
    "SeekerProfile",
    "SentientSeeker",
    "emotions",
    "outcome_of",
    "preset",
    "read_emotion_answer",
    "read_profiles",
    "rescore",
    "rescore_command",
    "update",
]
