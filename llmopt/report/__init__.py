"""The report of a search as one HTML page, and the same plots in Matplotlib.

from llmopt.report import write_report

write_report("search.jsonl", "search.html")
write_report(optuna.load_study(study_name="tuning", storage="sqlite:///study.db"))
"""

from __future__ import annotations

from llmopt.report.page import report_page, write_report
from llmopt.report.sources import read_search

__all__ = ["read_search", "report_page", "write_report"]
