"""How good a supporter is: its decisions against gold, its form, its diversity, and the judge's opinion."""

from compeer.evaluate.decisions import decision_figures
from compeer.evaluate.diversity import diversity_figures
from compeer.evaluate.supporters import EvaluateSettings, evaluate_run

__all__ = ["EvaluateSettings", "decision_figures", "diversity_figures", "evaluate_run"]
