"""``llmopt bench``: many cells of task, method and seed."""

from llmopt.benchmarks.bench.cells import BenchCell, read_results, run_bench, run_cell

__all__ = [
    "BenchCell",
    "read_results",
    "run_bench",
    "run_cell",
]
