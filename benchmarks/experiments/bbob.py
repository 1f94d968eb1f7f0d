"""BBOB: the 24 noiseless functions of the field's own benchmark, and rivals that bite.

Question: how good is the embedded model at searching functions, beside Bayesian optimization,
CMA-ES and replacements of the model? Protocol: the functions of the package `ioh` (Hansen
et al. 2009, RR-6829; shifted, most of them rotated) on [-5, 5], in 2, 5, 10 and 20 dimensions. Each
search has 20 uniform warm-up points, the same for all methods of an instance, and 100 or 400
evaluations more. The model and its stand-ins propose four points a request, TuRBO four a step,
the others one. A search of 400 holds that of 100: no method knows its budget. All runs that
were made count; a method is ranked on the instances that all ranked methods have finished.

A line of the results is one search: each improvement as [evaluation, precision], from the first
warm-up point on; the precision is the distance of the best value to the optimum, which
counts as reached at 1e-8.

    python -m llmopt.benchmarks.experiments.bbob --seeds 1 2 3 4 5 --evaluations 100 --jobs 2

A seed is the number of an instance. The order is balanced: all functions and methods of an
instance, the small dimensions first. The same command resumes after a kill. Runtime of a search of
100 evaluations on one core: the model about 3 s a dimension, a Gaussian process 1 to 2 minutes, the
others seconds.
"""

from __future__ import annotations

import math
import time
import warnings
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.benchmarks.engine.cell import Cell, Row
from llmopt.benchmarks.engine.pool import load_model
from llmopt.benchmarks.engine.search import Proposed, Result, search
from llmopt.benchmarks.experiments.command import Experiment
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Problem
from llmopt.benchmarks.methods.table import METHODS, check_method, make_method

RESULTS = Path(__file__).parents[1] / "results" / "bbob.jsonl"
WARMUP = 20
REACHED = 1e-8
"""Distance to the optimum that counts as reached."""

MAIN = "llm-columns"
ABLATIONS = ("columns-network", "columns-gaussian")
Key = tuple[int, int, int]
BATCH = 4
FUNCTIONS = tuple(f"f{i}" for i in range(1, 25))
DIMENSIONS = (2, 5, 10, 20)
RUN = (MAIN, *ABLATIONS, "cma", "cma-bipop", "optuna-tpe", "ars", "random")
"""What is run by default: all that costs seconds."""


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


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Row:
    """Run one search and return its line; the model's answers are not kept."""
    function, dimension = int(cell.task[1:]), cell["dimension"]
    instance, problem = instance_of(function, cell.seed, dimension, cell.evaluations)
    key = [dimension, function, cell.seed]
    seed = np.random.SeedSequence([*key, zlib.crc32(cell.method.encode())])
    client = load_model(source or cell.model, 1) if cell.model else None
    rewards = problem.rewards
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = make_method(cell.method, problem, seed, client=client, batch_size=BATCH)

        def evaluate(asked: Proposed) -> Result:
            rewards.append(-instance(asked.params))
            return Result(rewards[-1])

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


def read_runs(lines: Iterable[Mapping[str, Any]], budget: int) -> dict[str, dict[Key, Any]]:
    """Return the improvements of each method's searches of at least `budget` evaluations."""
    found: dict[str, dict[Key, Any]] = {}
    for line in sorted(lines, key=lambda line: list(METHODS).index(line["method"])):
        if line["evaluations"] >= budget:
            key = line["dimension"], int(line["task"][1:]), line["seed"]
            found.setdefault(line["method"], {})[key] = line["steps"]
    return found


def precision(steps: Sequence[Sequence[float]], evaluation: int) -> float:
    """Return the distance to the optimum after some evaluations, warm-up included."""
    place = bisect_right([step[0] for step in steps], evaluation)
    return max(steps[place - 1][1], REACHED)


def check(cells: Sequence[Cell]) -> None:
    """Raise where a package is missing."""
    require_packages("the experiment bbob", ("ioh", "scipy"))
    for method in dict.fromkeys(cell.method for cell in cells):
        check_method(method)


EXPERIMENT = Experiment(
    FUNCTIONS,
    list(METHODS),
    RESULTS,
    run_cell,
    lambda method: METHODS[method].asks_model,
    "steps",
    {"methods": RUN, "seeds": [1, 2, 3, 4, 5], "evaluations": 100, "model": "smollm2"},
    {"dimension": DIMENSIONS},
    check=check,
    missing=missing_cells,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
