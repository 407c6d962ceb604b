"""How good a supporter is: its decisions against gold, its form, its diversity, the judge's opinion; and how safe."""

from compeer.evaluate.decisions import decision_figures
from compeer.evaluate.diversity import diversity_figures
from compeer.evaluate.safety import SafetyCase, measure_detection, measure_replies, read_cases
from compeer.evaluate.supporters import EvaluateSettings, evaluate_run

__all__ = [
    "EvaluateSettings",
    "SafetyCase",
    "decision_figures",
    "diversity_figures",
    "evaluate_run",
    "measure_detection",
    "measure_replies",
    "read_cases",
]
