"""``llmopt report``: page and tables made of raw results."""

from llmopt.benchmarks.report.main import markdown

__all__ = [
    "markdown",
]
