"""``llmopt bench``: many cells of task, method and seed."""

from llmopt.benchmarks.bench.main import Cell, read_results, run_cell, run_cells

__all__ = [
    "Cell",
    "read_results",
    "run_cell",
    "run_cells",
]
