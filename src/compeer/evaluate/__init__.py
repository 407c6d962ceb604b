"""How good a supporter is: its decisions against gold, its form, its diversity, the judge's opinion; and how safe."""

from compeer.evaluate.decisions import measure_decisions
from compeer.evaluate.diversity import measure_diversity
from compeer.evaluate.safety import SafetyCase, measure_detection, measure_replies, read_cases
from compeer.evaluate.supporters import EvaluateSettings, evaluate_run

__all__ = [
    "EvaluateSettings",
    "SafetyCase",
    "evaluate_run",
    "measure_decisions",
    "measure_detection",
    "measure_diversity",
    "measure_replies",
    "read_cases",
]
