"""Every method of the benchmark behind one ask/tell interface."""

from llmopt.benchmarks.methods.protocol import Method, Problem
from llmopt.benchmarks.methods.table import METHODS, make_method

__all__ = ["METHODS", "Method", "Problem", "make_method"]
