"""The table of searches with few evaluations: the best value after 1, 5, 10 and 20 of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from llmopt.benchmarks.methods.table import METHODS
from llmopt.benchmarks.report.lines import label_of
from llmopt.benchmarks.report.table import Table

BUDGETS = (1, 5, 10, 20)

Searches = Mapping[tuple[str, str], Sequence[Sequence[float]]]
"""By task and method: for each search the best value after each of `BUDGETS`."""


def best_after(values: Sequence[float | None], count: int) -> float:
    """Return the best of the first values; a search that ended earlier keeps its best one."""
    return max((v for v in values[:count] if v is not None), default=-math.inf)


def searches(lines: Iterable[Mapping[str, Any]]) -> Searches:
    """Sort the lines of results by task and method."""
    found: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for line in lines:
        own = [best_after(line["means"], count) for count in BUDGETS]
        found[line["task"], line["cell"]["method"]].append(own)
    return found


def medians(found: Sequence[Sequence[float]]) -> list[float]:
    """Return the median over searches after each of `BUDGETS`."""
    return [median(column) for column in zip(*found, strict=True)]


def budgets(lines: Iterable[Mapping[str, Any]], best: Mapping[str, float]) -> Table:
    """Return a row for each task and a column for each method: medians after each of `BUDGETS`.

    Args:
        lines: The lines of results.
        best: The tasks in the order of the table, with the best value that each has.
    """
    rows = list(lines)
    found, labels = searches(rows), {line["cell"]["method"]: label_of(line) for line in rows}
    methods = [method for method in METHODS if method in labels]
    made = []
    for task, top in best.items():
        own = [found.get((task, method), ()) for method in methods]
        if any(own):
            cells = (", ".join(f"{v:.1f}" for v in medians(each)) for each in own)
            made.append([f"{task} ({top:.4g})", *cells])
    return Table.of(["table (best)", *(labels[method] for method in methods)], made)
