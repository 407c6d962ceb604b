"""What a run found, for people: figures, curves, warnings and examples in one self-contained HTML file."""

from compeer.report.page import write_report

__all__ = ["write_report"]
