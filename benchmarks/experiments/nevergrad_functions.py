"""Nevergrad's artificial functions: a language model beside Nevergrad's own optimizers.

Question: given 100 evaluations of a smooth or rugged function, how far does a model get that
sees nothing but numbers? Protocol: sphere, cigar, rastrigin, rosenbrock and hm in 2, 5 and 10
dimensions, translated by N(0, 1) and rotated, unbounded; each seed is one instance, the same
for every method; the best loss of 100 evaluations counts (the optimum is 0). Nevergrad's
optimizers run one evaluation at a time; the model proposes several at a time (`--batch`), so
it works with older information than they do. Runtime: the baselines' 900 cells take about
five minutes on two cores; ``--estimate`` measures the model's.

    python -m llmopt.benchmarks.experiments.nevergrad_functions --seeds 10 --jobs 2

A cell is one function, dimension, method and seed. Each finished one is a line of
``nevergrad_functions.jsonl`` and is not run again; the table ``nevergrad_functions.md`` is
made from that file alone (``--table-only``).
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import itertools
import multiprocessing
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nevergrad as ng
import numpy as np
from nevergrad.functions import ArtificialFunction

from llmopt._version import __version__
from llmopt.adapters.nevergrad import ParametrizedLLM
from llmopt.benchmarks.pool import cell_reader, run_pool
from llmopt.benchmarks.report.stats import ranks as ranks_of
from llmopt.client.base import Client
from llmopt.client.registry import get_client
from llmopt.search.eventlog import EventLog, read_events

FUNCTIONS = ("sphere", "cigar", "rastrigin", "rosenbrock", "hm")
DIMENSIONS = (2, 5, 10)
BASELINES = ("CMA", "NGOpt", "DE", "PSO", "OnePlusOne", "RandomSearch")
MODEL = "LLM"
BUDGET = 100
RESULTS = Path(__file__).parents[1] / "results" / "nevergrad_functions.jsonl"
PACKAGES = ("nevergrad", "numpy", "cma")
# Offsets that keep the instance's and the optimizer's random numbers apart.
_INSTANCE_SEED, _OPTIMIZER_SEED = 1_000, 2_000


@dataclass(frozen=True)
class NevergradCell:
    """One run: what is minimized, by what, from which seed."""

    method: str
    function: str
    dimension: int
    seed: int
    budget: int = BUDGET
    model: str = ""
    prompt: str = ""
    batch: int = 1

    @property
    def label(self) -> str:
        """The method as the table names it."""
        return f"{self.method} ({self.model}, {self.prompt})" if self.model else self.method


def run_cell(cell: NevergradCell, threads: int | None = None) -> dict[str, Any]:
    """Run one cell and return its line."""
    function = ArtificialFunction(
        cell.function, cell.dimension, rotation=True, translation_factor=1.0
    )
    # The transform is drawn at the first call, which must not take the optimizer's numbers.
    function.parametrization.random_state.seed(_INSTANCE_SEED + cell.seed)
    function(np.zeros(cell.dimension))
    parametrization = ng.p.Array(shape=(cell.dimension,))
    parametrization.random_state = np.random.RandomState(_OPTIMIZER_SEED + cell.seed)
    # Some of Nevergrad's optimizers draw from NumPy's global state as well.
    np.random.seed(_OPTIMIZER_SEED + cell.seed)
    losses: list[float] = []

    def evaluate(x: np.ndarray) -> float:
        losses.append(float(function(x)))
        return losses[-1]

    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = _make_optimizer(cell, threads, parametrization)
        recommended = optimizer.minimize(evaluate)
    line = {
        **asdict(cell),
        "best": min(losses),
        "recommended": float(function(recommended.value)),
        "losses": [float(f"{loss:.4g}") for loss in losses],
        "seconds": round(time.perf_counter() - start, 3),
        "versions": {"llmopt": __version__, **{p: importlib.metadata.version(p) for p in PACKAGES}},
    }
    if cell.model:
        usage = optimizer.usage
        line["usage"] = {
            **{k: getattr(usage, k) for k in ("requests", "prompt_tokens", "completion_tokens")},
            **{k: getattr(usage, k) for k in ("proposals", "rejected")},
            "seconds": round(usage.seconds, 3),
        }
    return line


def _make_optimizer(
    cell: NevergradCell, threads: int | None, parametrization: ng.p.Parameter
) -> Any:
    if not cell.model:
        return ng.optimizers.registry[cell.method](parametrization, cell.budget)
    configured = ParametrizedLLM(
        model=_client(cell.model, threads),
        prompt=cell.prompt,
        batch_size=cell.batch,
    )
    return configured(parametrization, cell.budget)


@functools.cache
def _client(model: str, threads: int | None) -> Client:
    """Return the model, loaded once for each process."""
    local = model == "smollm2" or model.startswith("gguf:")
    return get_client(model, **({"threads": threads} if local and threads else {}))


def make_table(lines: Sequence[dict[str, Any]], command: str) -> str:
    """Return the Markdown report of all finished cells.

    Ranks are taken among the methods on each instance (1 is best, ties share) and averaged;
    only instances that every method has finished count.
    """
    found: dict[tuple[str, int, int], dict[str, float]] = defaultdict(dict)
    cells = [_cell_of(line) for line in lines]
    for cell, line in zip(cells, lines, strict=True):
        found[cell.function, cell.dimension, cell.seed][cell.label] = line["best"]
    methods = sorted({c.label for c in cells}, key=lambda m: (m in BASELINES, _place(m)))
    problems = sorted({key[:2] for key in found}, key=lambda p: (FUNCTIONS.index(p[0]), p[1]))
    whole = {k: v for k, v in found.items() if len(v) == len(methods)}
    ranks: dict[tuple[str, int], dict[str, list[float]]] = {}
    for (function, dimension, _), best in whole.items():
        of = ranks.setdefault((function, dimension), defaultdict(list))
        for method, rank in zip(best, ranks_of([-loss for loss in best.values()]), strict=True):
            of[method].append(rank)
    budgets = sorted({c.budget for c in cells})
    text = [
        "# Nevergrad's artificial functions",
        "",
        f"Best loss of {', '.join(map(str, budgets))} evaluations (the optimum is 0): median "
        "[quartiles] over seeds. Functions are translated by N(0, 1), rotated and unbounded. "
        "Nevergrad's optimizers evaluate one point at a time; the model's batch is in its "
        "section below.",
        "",
        "```",
        command,
        "```",
        "",
        "## Mean rank",
        "",
        f"Over the {len(whole)} of {len(found)} instances that every method has finished; "
        "1 is best.",
        "",
        _row(["method", *(f"{d} dimensions" for d in _dimensions(problems)), "all"]),
        _row(["---"] * (len(_dimensions(problems)) + 2)),
    ]
    for method in methods:
        shown = [
            _mean(r for p, of in ranks.items() if p[1] == d for r in of[method])
            for d in _dimensions(problems)
        ]
        text.append(_row([method, *shown, _mean(r for of in ranks.values() for r in of[method])]))
    text += ["", "## Best loss", "", _row(["function", "dimensions", "seeds", *methods])]
    text.append(_row(["---"] * (len(methods) + 3)))
    for function, dimension in problems:
        of_problem = [v for k, v in found.items() if k[:2] == (function, dimension)]
        counts = [sum(m in best for best in of_problem) for m in methods]
        shown = [_quartiles([best[m] for best in of_problem if m in best]) for m in methods]
        low, high = min(counts), max(counts)
        seeds = str(low) if low == high else f"{low} to {high}"
        text.append(_row([function, str(dimension), seeds, *shown]))
    text += _model_section(cells, lines)
    versions = sorted({f"{k} {v}" for line in lines for k, v in line["versions"].items()})
    return "\n".join([*text, "", f"Made with {', '.join(versions)}.", ""])


def _model_section(cells: Sequence[NevergradCell], lines: Sequence[dict[str, Any]]) -> list[str]:
    text: list[str] = []
    for label in sorted({c.label for c in cells if c.model}):
        own = [(c, line) for c, line in zip(cells, lines, strict=True) if c.label == label]
        usages = [line["usage"] for _, line in own]
        sources: dict[str, int] = defaultdict(int)
        for usage in usages:
            for source, number in usage["proposals"].items():
                sources[source] += number
        total = sum(sources.values())
        shares = ", ".join(f"{s} {n / total:.1%}" for s, n in sorted(sources.items()))
        text += [
            "",
            f"## {label}",
            "",
            f"Points proposed {' or '.join(map(str, sorted({c.batch for c, _ in own})))} at a "
            f"time. Where the points came from: {shares}. For each run of {own[0][0].budget} "
            f"evaluations: {_per_run(usages, 'requests')} requests, "
            f"{_per_run(usages, 'prompt_tokens')} prompt tokens, "
            f"{_per_run(usages, 'completion_tokens')} completion tokens, "
            f"{_per_run(usages, 'seconds')} s of model time.",
        ]
    return text


def _per_run(usages: Sequence[dict[str, Any]], name: str) -> str:
    return f"{statistics.mean(u[name] for u in usages):,.0f}"


def _cell_of(line: dict[str, Any]) -> NevergradCell:
    return NevergradCell(**{name: line[name] for name in NevergradCell.__dataclass_fields__})


def _place(method: str) -> tuple[int, str]:
    return (BASELINES.index(method) if method in BASELINES else -1, method)


def _dimensions(problems: Iterable[tuple[str, int]]) -> list[int]:
    return sorted({dimension for _, dimension in problems})


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{statistics.mean(found):.2f}" if found else ""


def _quartiles(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.2g} [{low:.2g}, {high:.2g}]"


def _row(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |"


def estimate(args: argparse.Namespace, threads: int | None) -> None:
    """Time one cell of the model in each dimension, and print what all of them would take."""
    total = 0.0
    for dimension in args.dimensions:
        cell = NevergradCell(
            MODEL, "sphere", dimension, 0, args.budget, args.model, args.prompt, args.batch
        )
        run_cell(
            NevergradCell(**{**asdict(cell), "budget": 10 + args.batch}), threads
        )  # loads the model
        line = run_cell(cell, threads)
        share = line["seconds"] * len(args.functions) * args.seeds
        total += share
        print(
            f"{dimension} dimensions: {line['seconds']:.1f} s a cell, "
            f"{line['usage']['requests']} requests, {share / 60:.1f} min for all"
        )
    print(
        f"in all {total / 60:.0f} min one cell after the other with "
        f"{threads or 'the default number of'} threads"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--functions", nargs="+", default=list(FUNCTIONS), choices=FUNCTIONS)
    parser.add_argument("--dimensions", nargs="+", type=int, default=list(DIMENSIONS))
    parser.add_argument("--methods", nargs="+", default=[*BASELINES, MODEL])
    parser.add_argument("--seeds", type=int, default=10, help="instances of each function")
    parser.add_argument("--budget", type=int, default=BUDGET, help="evaluations of each run")
    parser.add_argument("--model", default="smollm2", help="model string of the method LLM")
    parser.add_argument("--prompt", default="levels", help="its prompt")
    parser.add_argument("--batch", type=int, default=4, help="points it proposes at a time")
    parser.add_argument("--jobs", type=int, default=1, help="cells run at once")
    parser.add_argument("--threads", type=int, help="CPU threads of a local model, in each job")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    parser.add_argument("--estimate", action="store_true", help="time the model and stop")
    args = parser.parse_args(argv)
    cores = multiprocessing.cpu_count()
    threads = args.threads or (max(1, cores // args.jobs) if args.jobs > 1 else None)
    if args.estimate:
        estimate(args, threads)
        return
    if not args.table_only:
        _run_all(args, threads)
    lines = list(read_events(args.results))
    command = "python -m llmopt.benchmarks.experiments.nevergrad_functions --seeds 10 --jobs 2"
    table = args.results.with_suffix(".md")
    table.write_text(make_table(lines, command), encoding="utf-8")
    print(f"wrote {table}")


def _run_all(args: argparse.Namespace, threads: int | None) -> None:
    model = {"model": args.model, "prompt": args.prompt, "batch": args.batch}
    wanted = [
        NevergradCell(
            method, function, dimension, seed, args.budget, **(model if method == MODEL else {})
        )
        for seed, dimension, function, method in itertools.product(
            range(args.seeds), args.dimensions, args.functions, args.methods
        )
    ]
    run = functools.partial(run_cell, threads=threads)
    run_pool(wanted, run, EventLog(args.results), cell_reader(NevergradCell), jobs=args.jobs)


if __name__ == "__main__":
    main()
