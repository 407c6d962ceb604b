"""A seeker with an emotion: its rules, how its answers are read, and the agent that plays it."""

from compeer.simulate.sentient.rules import PRESETS, RLVER, SAGE, Rules, preset, update
from compeer.simulate.sentient.seeker import SeekerProfile, SentientSeeker, emotions, read_profiles

__all__ = [
    "PRESETS",
    "RLVER",
    "SAGE",
    "Rules",
    "SeekerProfile",
    "SentientSeeker",
    "emotions",
    "preset",
    "read_profiles",
    "update",
]
