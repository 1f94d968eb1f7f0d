"""Hyper-parameters of scikit-learn models: the embedded model beside Optuna's own samplers.

Question: with 40 trials, does the small embedded model find better hyper-parameters than
numeric samplers? Its default prompt shows the best trials as letters and nothing else; a
model that is asked with another prompt (``--model openai:…``) also sees the parameters'
names, ranges and a sentence on the task. Protocol: two models on two data sets that
scikit-learn ships, 3-fold cross-validation, every sampler with its default settings, 40
trials, 5 seeds; the best value counts. All but CMA-ES, which starts in the middle of the
space, have the same 10 random points first. GP needs ``torch`` and CMA-ES needs ``cmaes``; a
method whose package is missing is left out and named. Runtime: about ten minutes on two cores
that do nothing else.

    python -m llmopt.benchmarks.experiments.optuna_sklearn

A run is one task, method and seed. Each finished one is a line of ``optuna_sklearn.jsonl``
and is not run again; the table ``optuna_sklearn.md`` is made from that file alone
(``--table-only``).
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from llmopt._version import __version__
from llmopt.adapters.optuna import LLMSampler
from llmopt.client.base import Client
from llmopt.client.registry import get_client
from llmopt.search.eventlog import EventLog, read_events

RESULTS = Path(__file__).parents[1] / "results" / "optuna_sklearn.jsonl"
MODEL = "LLM"
TRIALS = 40
SEEDS = 5
CHECKPOINTS = (20, 40)
COMMAND = "python -m llmopt.benchmarks.experiments.optuna_sklearn"


@dataclass(frozen=True)
class Task:
    """What is optimized, which way, and what the model is told about it.

    Attributes:
        space: The parameters' distributions.
        evaluate: From parameters to the value.
        direction: ``"maximize"`` or ``"minimize"``.
        metric: What the value is.
        description: The task in words, for the model.
    """

    space: dict[str, BaseDistribution]
    evaluate: Callable[[dict[str, Any]], float]
    direction: Literal["maximize", "minimize"]
    metric: str
    description: str


def svr_diabetes(params: dict[str, Any]) -> float:
    """Return the R² of a support vector regression on the diabetes data; -1 if worse."""
    model = make_pipeline(StandardScaler(), SVR(**params, max_iter=20_000))
    x, y = load_diabetes(return_X_y=True)
    folds = KFold(3, shuffle=True, random_state=0)
    return max(float(cross_val_score(model, x, y, cv=folds, scoring="r2").mean()), -1.0)


def boosting_wine(params: dict[str, Any]) -> float:
    """Return the log-loss of gradient boosting on the wine data."""
    model = GradientBoostingClassifier(**params, random_state=0)
    x, y = load_wine(return_X_y=True)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    return -float(cross_val_score(model, x, y, cv=folds, scoring="neg_log_loss").mean())


TASKS = {
    "svr-diabetes": Task(
        {
            "kernel": CategoricalDistribution(["rbf", "poly", "sigmoid"]),
            "C": FloatDistribution(1e-2, 1e4, log=True),
            "gamma": FloatDistribution(1e-4, 10.0, log=True),
            "epsilon": FloatDistribution(1e-2, 100.0, log=True),
            "coef0": FloatDistribution(-1.0, 1.0),
        },
        svr_diabetes,
        "maximize",
        "R²",
        "Cross-validated R² of a support vector regression (scikit-learn's SVR, features "
        "standardized) on the diabetes data: 442 patients, 10 features.",
    ),
    "boosting-wine": Task(
        {
            "learning_rate": FloatDistribution(1e-3, 1.0, log=True),
            "n_estimators": IntDistribution(5, 80, log=True),
            "max_depth": IntDistribution(1, 8),
            "subsample": FloatDistribution(0.3, 1.0),
            "max_features": FloatDistribution(0.1, 1.0),
            "min_samples_leaf": IntDistribution(1, 40),
        },
        boosting_wine,
        "minimize",
        "log-loss",
        "Cross-validated log-loss of scikit-learn's GradientBoostingClassifier on the wine "
        "data: 178 wines, 13 features, 3 classes.",
    ),
}

# Method -> (the package it needs beside Optuna, the sampler for a seed).
BASELINES: dict[str, tuple[str | None, Callable[[int], optuna.samplers.BaseSampler]]] = {
    "TPE": (None, lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "CMA-ES": (
        "cmaes",
        lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
    ),
    "GP": ("torch", lambda seed: optuna.samplers.GPSampler(seed=seed)),
    "random": (None, lambda seed: optuna.samplers.RandomSampler(seed=seed)),
}


def run(task: Task, sampler: optuna.samplers.BaseSampler, trials: int) -> dict[str, Any]:
    """Optimize a task and return what happened, JSON-serializable.

    Args:
        task: The task.
        sampler: The sampler.
        trials: How many trials.
    """
    study = optuna.create_study(sampler=sampler, direction=task.direction)
    proposing = 0.0
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        for _ in range(trials):
            asked = time.perf_counter()
            trial = study.ask(task.space)
            proposing += time.perf_counter() - asked
            study.tell(trial, task.evaluate(trial.params))
    total = time.perf_counter() - start
    return {
        "values": [float(f"{t.value:.6g}") for t in study.trials],
        "params": study.best_params,
        "proposing_seconds": round(proposing, 3),
        "total_seconds": round(total, 3),
    }


def llm_run(task: Task, client: Client, seed: int, trials: int) -> dict[str, Any]:
    """Optimize a task with the model, and return what happened and what it cost."""
    sampler = LLMSampler(
        client,
        description=task.description,
        seed=seed,
        total=trials,
        # The start-up points that TPE, GP and random search draw from this seed.
        independent_sampler=optuna.samplers.RandomSampler(seed=seed),
    )
    record = run(task, sampler, trials)
    usage = sampler.usage
    return {
        **record,
        "prompt": sampler.prompt.name,
        "requests": usage.requests,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "proposals": usage.proposals,
        "rejected": usage.rejected,
    }


def methods() -> tuple[list[str], list[str]]:
    """Return the methods that can be run here, and why others cannot."""
    missing = [
        f"{name} is left out: `{package}` is not installed"
        for name, (package, _) in BASELINES.items()
        if package and importlib.util.find_spec(package) is None
    ]
    left_out = {line.split()[0] for line in missing}
    return [MODEL, *(name for name in BASELINES if name not in left_out)], missing


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return the Markdown report for finished runs."""
    lines = [
        "# Hyper-parameters of scikit-learn models",
        "",
        "Best value so far: median [quartiles] over seeds. Every sampler has Optuna's default "
        f"settings; all but CMA-ES have the same 10 random points first. `{MODEL}` is "
        "described in its section below.",
        "",
        "```",
        COMMAND,
        "```",
        "",
    ]
    names = [n for n in (MODEL, *BASELINES) if any(r["method"] == n for r in records)]
    for task_name, task in TASKS.items():
        lines += [f"## {task_name} ({task.metric}, {task.direction})", ""]
        header = ["method", "seeds", *(f"{c} trials" for c in CHECKPOINTS)]
        lines += ["| " + " | ".join(header) + " |", "| --- " * len(header) + "|"]
        for name in names:
            own = [r for r in records if (r["task"], r["method"]) == (task_name, name)]
            if not own:
                continue
            cells = [_quartiles(_best(r, task, c) for r in own) for c in CHECKPOINTS]
            lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["## The model", ""]
    own = [r for r in records if r["method"] == MODEL]
    for model in sorted({r["model"] for r in own}):
        runs = [r for r in own if r["model"] == model]
        asked = [r["proposals"].get("llm", 0) + r["proposals"].get("fallback", 0) for r in runs]
        failed = sum(r["proposals"].get("fallback", 0) for r in runs)
        prompts = ", ".join(sorted({r["prompt"] for r in runs}))
        tokens = [r["prompt_tokens"] + r["completion_tokens"] for r in runs]
        lines.append(
            f"`{model}`, prompt `{prompts}`: {failed / max(sum(asked), 1):.1%} of the points that "
            "it was asked for were drawn at random because it did not deliver; "
            f"{statistics.mean(tokens):,.0f} tokens a run. (Under `columns` the choices of a "
            "categorical parameter, as one of svr-diabetes is, are drawn with no model.)"
        )
    versions = sorted({f"{k} {v}" for r in records for k, v in r["versions"].items()})
    lines += ["", f"Versions: {', '.join(versions)}.", ""]
    return "\n".join(lines)


def _best(record: dict[str, Any], task: Task, trials: int) -> float:
    pick = max if task.direction == "maximize" else min
    return float(pick(record["values"][:trials]))


def _quartiles(values: Iterable[float]) -> str:
    low, median, high = np.quantile(list(values), [0.25, 0.5, 0.75])
    digits = max(0, 2 - math.floor(math.log10(max(abs(median), 1e-12))))
    return f"{median:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is not run yet, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of raw results (JSONL)")
    parser.add_argument("--model", default="smollm2", help="model string")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    args = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if not args.table_only:
        _run_missing(args)
    records = list(read_events(args.out))
    args.out.with_suffix(".md").write_text(table(records), encoding="utf-8")
    print(table(records))


def _run_missing(args: argparse.Namespace) -> None:
    names, missing = methods()
    print("\n".join(missing))
    client = get_client(args.model)
    packages = ("optuna", "scikit-learn", "numpy")
    versions = {"llmopt": __version__, **{p: version(p) for p in packages}}
    log = EventLog(args.out)
    try:
        for seed in range(args.seeds):
            for task_name, task in TASKS.items():
                for name in names:
                    model = args.model if name == MODEL else ""
                    cell = {"task": task_name, "method": name, "model": model, "seed": seed}
                    cell["trials"] = args.trials
                    if any(cell.items() <= r.items() for r in _hashable(log.events)):
                        continue
                    if name == MODEL:
                        result = llm_run(task, client, seed, args.trials)
                    else:
                        result = run(task, BASELINES[name][1](seed), args.trials)
                    record = {**cell, **result, "versions": versions}
                    log.append(record)
                    log.events.append(record)
                    best = _best(record, task, args.trials)
                    print(f"{task_name} {name} seed {seed}: {best:.4g}", flush=True)
    finally:
        log.close()


def _hashable(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the part of each record that names its run."""
    keys = ("task", "method", "model", "seed", "trials")
    return [{k: r.get(k) for k in keys} for r in records]


if __name__ == "__main__":
    main()
