"""BBOB: the 24 noiseless functions of the field's own benchmark, and rivals that bite.

Question: how good is the embedded model at searching functions, beside Bayesian optimization,
CMA-ES and what stands in the model's place? Protocol: the functions of the package `ioh` (Hansen
et al. 2009, RR-6829; shifted, most of them rotated) on [-5, 5], in 2, 5, 10 and 20 dimensions. Each
search has 20 uniform warm-up points, the same for all methods of an instance, and 100 or 400
evaluations more. The model and its stand-ins propose four points a request, TuRBO four a step,
the others one. A search of 400 holds that of 100: no method is told its budget. All runs that
were made count; a method is ranked on the instances that all ranked methods have finished.

A line of the results is one search: each improvement as [evaluation, precision], from the first
warm-up point on; the precision is the distance of the best value to the optimum, which
counts as reached at 1e-8.

    python -m llmopt.benchmarks.experiments.bbob --instances 5 --budget 100 --jobs 2
    python -m llmopt.benchmarks.experiments.bbob --table-only

The order is balanced: all functions and methods of an instance, the small dimensions first. The
same command goes on after a kill. Runtime of a search of 100 evaluations on one core: the model
about 3 s a dimension, a Gaussian process 1 to 2 minutes, the others seconds.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.benchmarks.engine.pool import cell_reader, load_model, run_pool
from llmopt.benchmarks.engine.search import Asked, Outcome, search
from llmopt.benchmarks.experiments.bbob_page import MAIN, WARMUP, draw, make_page
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Problem
from llmopt.benchmarks.methods.table import METHODS, check_method, make_method
from llmopt.search.eventlog import EventLog, read_events

RESULTS = Path(__file__).parents[1] / "results" / "bbob.jsonl"
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "bbob.png"
BATCH = 4
FUNCTIONS = tuple(range(1, 25))
DIMENSIONS = (2, 5, 10, 20)
RUN = (
    MAIN,
    "columns-network",
    "columns-gaussian",
    "cma",
    "cma-bipop",
    "optuna-tpe",
    "ars",
    "random",
)
"""What is run by default: all that costs seconds."""


@dataclass(frozen=True)
class BbobCell:
    """One search: which method, on which instance of a function, for how many evaluations."""

    method: str
    function: int
    instance: int
    dimension: int
    budget: int
    model: str = ""


class Instance:
    """An instance of a function, from the best value on: ``instance(x)`` is x's precision."""

    def __init__(self, function: int, instance: int, dimension: int) -> None:
        import ioh

        self._problem = ioh.get_problem(
            function, instance=instance, dimension=dimension, problem_class=ioh.ProblemClass.BBOB
        )
        self._best = float(self._problem.optimum.y)
        self.name = str(self._problem.meta_data.name)

    def __call__(self, x: np.ndarray) -> float:
        value = float(self._problem(np.asarray(x, dtype=float).tolist()))
        return max(value - self._best, 0.0)


def instance_of(
    function: int, instance: int, dimension: int, budget: int
) -> tuple[Instance, Problem]:
    """Return an instance, and the problem with its warm-up points that all methods share."""
    value = Instance(function, instance, dimension)
    rng = np.random.default_rng([dimension, function, instance])
    points = rng.uniform(-5, 5, (WARMUP, dimension))
    known = tuple((tuple(x.tolist()), -value(x)) for x in points)
    return value, Problem(-5, 5, dimension, budget, known)


def run_cell(cell: BbobCell) -> dict[str, Any]:
    """Run one search and return its line."""
    instance, problem = instance_of(cell.function, cell.instance, cell.dimension, cell.budget)
    key = [cell.dimension, cell.function, cell.instance]
    seed = np.random.SeedSequence([*key, zlib.crc32(cell.method.encode())])
    client = load_model(cell.model, 1) if cell.model else None
    rewards = problem.rewards
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = make_method(cell.method, problem, seed, client=client, batch_size=BATCH)

        def evaluate(asked: Asked) -> Outcome:
            rewards.append(-instance(asked.params))
            return Outcome(rewards[-1])

        search(method, cell.budget, evaluate)
    line = {
        **asdict(cell),
        "steps": improvements([-r for r in rewards]),
        "seconds": round(time.perf_counter() - start, 1),
        "llmopt": __version__,
    }
    if cell.model and isinstance(method, ModelMethod):
        line["tokens"] = [method.usage.prompt_tokens, method.usage.completion_tokens]
        line["fallback_share"] = method.usage.fallback_share
    return line


def improvements(precisions: Sequence[float]) -> list[list[float]]:
    """Return ``[evaluation, precision]`` of each value that is better than all before it."""
    best, found = math.inf, []
    for number, value in enumerate(precisions, start=1):
        if value < best:
            best = value
            found.append([number, float(f"{value:.4g}")])
    return found


def missing_cells(wanted: Sequence[BbobCell], lines: Sequence[Mapping[str, Any]]) -> list[BbobCell]:
    """Return the searches that no line holds, as it is or with a larger budget."""
    longest: dict[tuple[Any, ...], int] = {}
    for line in lines:
        key = tuple(line[name] for name in ("method", "function", "instance", "dimension", "model"))
        longest[key] = max(longest.get(key, 0), line["budget"])
    return [
        cell
        for cell in wanted
        if longest.get((cell.method, cell.function, cell.instance, cell.dimension, cell.model), 0)
        < cell.budget
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(RUN))
    parser.add_argument("--functions", nargs="+", type=int, choices=FUNCTIONS, default=FUNCTIONS)
    parser.add_argument("--dimensions", nargs="+", type=int, default=DIMENSIONS)
    parser.add_argument("--instances", type=int, default=5, help="of each function, from 1 on")
    parser.add_argument("--first-instance", type=int, default=1)
    parser.add_argument("--budget", type=int, default=100, help="evaluations after the warm-up")
    parser.add_argument("--model", default="smollm2", help="model string")
    parser.add_argument("--jobs", type=int, default=1, help="searches run at once")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    args = parser.parse_args(argv)
    if not args.table_only:
        _run(args)
    lines = list(read_events(args.results))
    args.results.with_suffix(".md").write_text(make_page(lines), encoding="utf-8")
    draw(lines, args.picture)


def _run(args: argparse.Namespace) -> None:
    require_packages("the experiment bbob", ("ioh",))
    for method in args.methods:
        check_method(method)
    instances = range(args.first_instance, args.first_instance + args.instances)
    grid = itertools.product(instances, args.dimensions, args.functions, args.methods)
    wanted = [
        BbobCell(m, f, i, d, args.budget, args.model if METHODS[m].asks_model else "")
        for i, d, f, m in grid
    ]
    log = EventLog(args.results)
    cells = missing_cells(wanted, log.events)
    run_pool(cells, run_cell, log, cell_reader(BbobCell), jobs=args.jobs)


if __name__ == "__main__":
    main()
