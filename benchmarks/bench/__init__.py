"""``llmopt bench``: many cells of task, method and seed."""

from llmopt.benchmarks.bench.cells import make_cell, read_results, run_bench, run_cell

__all__ = ["make_cell", "read_results", "run_bench", "run_cell"]
