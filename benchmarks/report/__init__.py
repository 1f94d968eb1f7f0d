"""``llmopt report``: page and tables made of raw results."""

from llmopt.benchmarks.report.markdown import markdown

__all__ = ["markdown"]
