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
    python -m llmopt.benchmarks.experiments.bbob --table --picture docs/images/bbob.png

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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.benchmarks.engine.cell import Cell, Line
from llmopt.benchmarks.engine.pool import load_model
from llmopt.benchmarks.engine.search import Asked, Outcome, search
from llmopt.benchmarks.experiments.command import Experiment
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Problem
from llmopt.benchmarks.methods.table import METHODS, check_method, make_method
from llmopt.benchmarks.report.figures import COLORS, GREY, Look, Panel, panels
from llmopt.benchmarks.report.stats import Duel, format_p, fought, ranks
from llmopt.benchmarks.report.table import Table

RESULTS = Path(__file__).parents[1] / "results" / "bbob.jsonl"
WARMUP = 20
REACHED = 1e-8
"""Distance to the optimum that counts as reached."""

TARGETS = 10.0 ** np.linspace(2, -8, 51)
"""The field's targets: Hansen et al. 2021, COCO (arXiv 1603.08785), section 4."""

MAIN = "llm-columns"
ABLATIONS = ("columns-network", "columns-gaussian")
Key = tuple[int, int, int]
Runs = Mapping[str, Mapping[Key, Sequence[Sequence[float]]]]
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


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Line:
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


# -- the page -----------------------------------------------------------------------------


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


def shared(runs: Runs, methods: Sequence[str], dimension: int | None = None) -> list[Key]:
    """Return the instances that all of some methods have finished."""
    keys = set.intersection(*(set(runs.get(m, ())) for m in methods)) if methods else set()
    return sorted(key for key in keys if dimension in (None, key[0]))


def reached(
    runs: Mapping[Key, Sequence[Sequence[float]]], keys: Sequence[Key], evaluations: np.ndarray
) -> np.ndarray:
    """Return the share of pairs of instance and target that is reached after some evaluations."""
    shares = [
        [(TARGETS >= precision(runs[key], int(n))).mean() for n in evaluations] for key in keys
    ]
    return np.asarray(np.mean(shares, axis=0))


def label(method: str) -> str:
    """Return what tables call a method."""
    return METHODS[method].label.replace("{model}", "smollm2")


def make_page(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown page."""
    everything = read_runs(lines, 1)
    dimensions = sorted({key[0] for runs in everything.values() for key in runs})
    text = [
        "# BBOB",
        "",
        "24 functions of the package `ioh`; 20 shared warm-up points, then 100 or 400 evaluations. "
        "Made by `python -m llmopt.benchmarks.experiments.bbob --table` from the committed "
        "lines alone.",
        "",
        "## What was run",
        "",
        "Searches of at least 100 evaluations (in brackets: of 400), by dimension; 24 are one "
        "instance of each function. CPU seconds and waiting together, on cores shared with other "
        "work.",
        "",
    ]
    rows = []
    long = read_runs(lines, 400)
    for method, runs in everything.items():
        counts = []
        for d in dimensions:
            short = sum(key[0] == d for key in runs)
            more = sum(key[0] == d for key in long.get(method, ()))
            counts.append(f"{short} ({more})" if more else str(short))
        taken = [r["seconds"] / r["evaluations"] for r in lines if r["method"] == method]
        rows.append([label(method), *counts, f"{100 * np.mean(taken):.1f}"])
    head = ["method", *(f"{d}-D" for d in dimensions), "s a search of 100"]
    text += Table.of(head, rows).markdown()
    for budget in (100, 400):
        text += _ranked(read_runs(lines, budget), budget)
    return "\n".join([*text, ""])


def everywhere(runs: Runs, dimension: int) -> list[str]:
    """Return the methods that have finished every function in a dimension."""
    return [m for m in runs if len({k[1] for k in runs[m] if k[0] == dimension}) == 24]


def rankings(runs: Runs, dimension: int) -> list[tuple[list[str], list[Key]]]:
    """Return the rankings of a dimension: all methods, then the methods with more instances.

    An instance counts for a method that has finished all its functions.
    """
    whole = {}
    for method in everywhere(runs, dimension):
        count = Counter(key[2] for key in runs[method] if key[0] == dimension)
        whole[method] = {instance for instance, functions in count.items() if functions == 24}
    found = []
    for least in sorted({len(instances) for instances in whole.values()} - {0}):
        methods = [m for m in whole if len(whole[m]) >= least]
        instances = set.intersection(*(whole[m] for m in methods))
        keys = [key for key in shared(runs, methods, dimension) if key[2] in instances]
        if keys and len(methods) > 1:
            found.append((methods, keys))
    return found


def _ranked(runs: Runs, budget: int) -> list[str]:
    """Return a section: ranks in each dimension, and pairwise tests on what each pair has."""
    end = WARMUP + budget
    columns: dict[str, dict[str, str]] = {}
    for d in sorted({key[0] for own in runs.values() for key in own}):
        for methods, keys in rankings(runs, d):
            places = [ranks([-precision(runs[m][k], end) for m in methods]) for k in keys]
            means = (f"{rank:.2f}" for rank in np.mean(places, axis=0))
            columns[f"{d}-D: of {len(methods)}, {len(keys)} searches"] = dict(
                zip(methods, means, strict=True)
            )
    if not columns:
        return []
    pairs = {}
    for main in (MAIN, ABLATIONS[0]):
        cells = {
            m: f"{d.wins} : {d.losses}, {format_p(d.adjusted)}"
            for m, d in duels(runs, main, end).items()
            if d.wins + d.ties + d.losses
        }
        if cells:
            pairs[f"{label(main)} better : worse, p"] = cells
    return [
        "",
        f"## {budget} evaluations",
        "",
        "Mean rank in each dimension, among the methods that have every function there, on the "
        "instances that all of these have finished; beside it, among the methods that have "
        "finished more instances.",
        "",
        *_by_method(runs, columns),
        "",
        "Pairs: each function of each dimension counts once, by its mean over the instances of "
        "both (p: two-sided Wilcoxon test of the logarithms of the distances to the optimum, after "
        "Holm's correction for the column).",
        "",
        *_by_method(runs, pairs),
    ]


def _by_method(runs: Runs, columns: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a table with a row for each method, and a column for each mapping of methods."""
    rows = [[label(m), *(cells.get(m, "") for cells in columns.values())] for m in runs]
    return Table.of(["method", *columns], rows).markdown()


def duels(runs: Runs, main: str, evaluation: int) -> dict[str, Duel]:
    """Compare a method with each other one.

    A function of a dimension counts once: the mean over the instances that both have finished, as
    the instances of a function are not independent.
    """
    found = {}
    for other in runs if main in runs else ():
        gains: dict[tuple[int, int], list[float]] = {}
        for key in shared(runs, (main, other)) if other != main else ():
            one, rival = (np.log10(precision(runs[m][key], evaluation)) for m in (main, other))
            gains.setdefault(key[:2], []).append(float(rival - one))
        if other != main:
            found[other] = [float(np.mean(own)) for own in gains.values()]
    return fought(found)


def draw(lines: Sequence[Mapping[str, Any]]) -> bytes | None:
    """Draw the runtime profiles: the share of targets reached over evaluations / dimension."""
    sets = [(b, read_runs(lines, b)) for b in (100, 400)]
    sets = [(budget, runs) for budget, runs in sets if runs]
    found = {key[0] for _, runs in sets for own in runs.values() for key in own}
    dimensions = sorted(d for d in found if any(everywhere(runs, d) for _, runs in sets))
    if not dimensions:
        return None
    grid = []
    for budget, runs in sets:
        evaluations = np.unique(np.geomspace(1, WARMUP + budget, 60).astype(int))
        row = []
        for d in dimensions:
            # A panel shows the methods that have an instance of every function there.
            here, keys = next(iter(rankings(runs, d)), ([], []))
            curves = [(m, evaluations / d, reached(runs[m], keys, evaluations)) for m in here]
            title = f"{d}-D, {budget} evaluations, {len(keys)} searches each"
            row.append(Panel(title, curves, (0, 1), WARMUP / d))
        grid.append(row)
    styles = _styles({m for _, runs in sets for m in runs})
    look = Look(
        styles,
        {m: label(m) for m in styles},
        "evaluations / dimension",
        "share of targets reached",
        True,
        (3.3, 3.1),
    )
    return panels(grid, look)


def _styles(methods: set[str]) -> dict[str, dict[str, Any]]:
    """Return a line for each method: ablations dashed, random search grey."""
    styles: dict[str, dict[str, Any]] = {}
    colours = iter((*COLORS[1:], "#7f3c8d", "#994f00"))
    for method in METHODS:
        if method not in methods:
            continue
        if method == MAIN:
            styles[method] = {"color": COLORS[0], "linewidth": 2.4, "zorder": 5}
        elif method in ABLATIONS:
            dashes = "--" if method == ABLATIONS[0] else ":"
            styles[method] = {"color": COLORS[0], "linewidth": 1.6, "linestyle": dashes}
        elif method == "random":
            styles[method] = {"color": GREY, "linewidth": 1.3}
        else:
            styles[method] = {"color": next(colours), "linewidth": 1.4}
    return styles


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
    make_page,
    lambda method: METHODS[method].asks_model,
    "steps",
    {"methods": RUN, "seeds": [1, 2, 3, 4, 5], "evaluations": 100, "model": "smollm2"},
    {"dimension": DIMENSIONS},
    check=check,
    missing=missing_cells,
    draw=draw,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
