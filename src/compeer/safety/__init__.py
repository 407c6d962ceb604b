"""Care first: danger in the seeker's words is found (`detect`) and answered (`Guard`), whatever the model says."""

from compeer.safety.detect import Detector, detect
from compeer.safety.guard import Guard, GuardedTurn, GuardState
from compeer.safety.hooks import CrisisEvent, HandOver, LogLine, Webhook
from compeer.safety.output import CATEGORIES, Category, Finding, SentenceGate, check_reply, floored
from compeer.safety.resources import Resources, load_resources
from compeer.safety.risk import KINDS, LEVELS, Kind, Level, Risk, Trigger, higher

__all__ = [
    "CATEGORIES",
    "KINDS",
    "LEVELS",
    "Category",
    "CrisisEvent",
    "Detector",
    "Finding",
    "Guard",
    "GuardState",
    "GuardedTurn",
    "HandOver",
    "Kind",
    "Level",
    "LogLine",
    "Resources",
    "Risk",
    "SentenceGate",
    "Trigger",
    "Webhook",
    "check_reply",
    "detect",
    "floored",
    "higher",
    "load_resources",
]
