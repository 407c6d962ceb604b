"""How good a supporter is: its decisions against gold, its form, its diversity, the judge's opinion; and how safe."""

from compeer.evaluate.supporters import EvaluateSettings, evaluate_run

__all__ = ["EvaluateSettings", "evaluate_run"]
