"""Care first: danger in the seeker's words is found (`detect`) and answered (`Guard`), whatever the model says."""

from compeer.safety.detect import Detector, detect
from compeer.safety.guard import Guard, GuardState
from compeer.safety.hooks import CrisisEvent
from compeer.safety.output import check_reply
from compeer.safety.risk import Finding, Risk, Trigger

__all__ = ["CrisisEvent", "Detector", "Finding", "Guard", "GuardState", "Risk", "Trigger", "check_reply", "detect"]
