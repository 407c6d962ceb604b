"""What was found, for people: the report of a run, the report of an evaluation, and the card of a dataset."""

from compeer.report.card import write_card
from compeer.report.evaluation import write_evaluation
from compeer.report.run import write_report

__all__ = ["write_card", "write_evaluation", "write_report"]
