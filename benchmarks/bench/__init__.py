"""``llmopt bench``: many cells of task, method and seed."""

from llmopt.benchmarks.bench.cells import BenchCell, read_results, run_bench, run_cell

# The names of llmopt 0.1.
Cell, run_cells = BenchCell, run_bench

__all__ = [
    "BenchCell",
    "Cell",
    "read_results",
    "run_bench",
    "run_cell",
    "run_cells",
]
