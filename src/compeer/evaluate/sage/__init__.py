"""SAGE: conversations with a sentient seeker (`compeer.simulate.sentient`), run, scored, and scored again."""

from compeer.evaluate.sage.rescore import Rescored, rescore, rescore_command
from compeer.simulate.sentient.answers import EmotionAnswer, read_emotion_answer
from compeer.simulate.sentient.rules import (
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
from compeer.simulate.sentient.seeker import SeekerProfile, SentientSeeker, emotions, read_profiles

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
