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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.benchmarks.engine.cell import Cell, Line, read_lines
from llmopt.benchmarks.engine.pool import load_model, run_pool
from llmopt.benchmarks.engine.search import Asked, Outcome, search
from llmopt.benchmarks.experiments.bbob_page import MAIN, WARMUP, draw, make_page
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Problem
from llmopt.benchmarks.methods.table import METHODS, check_method, make_method

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


def make_cell(
    method: str, function: int, instance: int, dimension: int, budget: int, model: str = ""
) -> Cell:
    """Return the cell of a search: its task is the function, and its seed the instance."""
    return Cell.make(f"f{function}", method, instance, budget, model, dimension=dimension)


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


def run_cell(cell: Cell) -> Line:
    """Run one search and return its line."""
    function, dimension = int(cell.task[1:]), cell["dimension"]
    instance, problem = instance_of(function, cell.seed, dimension, cell.evaluations)
    key = [dimension, function, cell.seed]
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

        search(method, cell.evaluations, evaluate)
    line = cell.line(
        steps=improvements([-r for r in rewards]),
        seconds=round(time.perf_counter() - start, 1),
        llmopt=__version__,
    )
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


def missing_cells(wanted: Sequence[Cell], lines: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Return the searches that no line holds, as it is or with a larger budget."""
    longest: dict[Cell, int] = {}
    for done in map(Cell.of, lines):
        key = replace(done, evaluations=0)
        longest[key] = max(longest.get(key, 0), done.evaluations)
    return [c for c in wanted if longest.get(replace(c, evaluations=0), 0) < c.evaluations]


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
    lines = read_lines(args.results)
    args.results.with_suffix(".md").write_text(make_page(lines), encoding="utf-8")
    draw(lines, args.picture)


def _run(args: argparse.Namespace) -> None:
    require_packages("the experiment bbob", ("ioh",))
    for method in args.methods:
        check_method(method)
    instances = range(args.first_instance, args.first_instance + args.instances)
    grid = itertools.product(instances, args.dimensions, args.functions, args.methods)
    wanted = [
        make_cell(m, f, i, d, args.budget, args.model if METHODS[m].asks_model else "")
        for i, d, f, m in grid
    ]
    done = read_lines(args.results) if args.results.exists() else []
    run_pool(missing_cells(wanted, done), run_cell, args.results, jobs=args.jobs)


if __name__ == "__main__":
    main()
