"""``llmopt report``: page and tables made of raw results."""

from llmopt.benchmarks.report.command import markdown

__all__ = [
    "markdown",
]
