"""The committed sets of cells: ``llmopt bench --suite NAME`` makes their results anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from llmopt.benchmarks.bench.cells import BenchCell
from llmopt.benchmarks.methods.table import METHODS

BATCH = 4
"""Points that the suites ask of a model in one request."""

BASELINES = tuple(name for name, entry in METHODS.items() if entry.group == "baseline")
SAMPLERS = ("columns-uniform", "columns-gaussian")

EMBEDDED = ("llm-columns", "columns-network", "columns-gaussian")
"""The embedded model with its adapter, and its two strongest ablations."""

RIVALS = ("cma", "cma-bipop", "optuna-tpe", "optuna-gp", "turbo", "ars", "random")
"""What it is ranked among."""

ABLATED = (
    "llm-columns-shuffled", "columns-uniform", "columns-slope", "llm-hybrid", "hybrid-gaussian",
)  # fmt: skip
"""Its further ablations, and CMA-ES beside it."""

CHAT = ("llm-props", "llm-props-plus", "llm-opro", "llm-published")
"""Prompts that expect a model which can follow instructions."""

_TASKS: dict[str, int] = {
    "mountaincar": 20,
    "swimmer": 1,  # a start hardly matters to a swimmer, and an episode is a thousand steps
    "cartpole": 5,
    "inverted-pendulum": 5,
    "reacher": 5,
    "hopper": 5,
}
"""Task -> episodes of one evaluation."""

_MORE_TASKS: dict[str, int] = {
    "mountaincar-published": 20,
    "mountaincar-discrete": 20,
    "pendulum": 5,
    "acrobot": 5,
    "inverted-double-pendulum": 5,
    "halfcheetah": 1,
    "frozenlake": 20,
}


def _grid(
    task: str,
    methods: Sequence[str],
    seeds: int,
    model: str,
    batch: int,
    **options: Any,
) -> list[BenchCell]:
    return [
        BenchCell.make(task=task, method=m, seed=s, model=model, batch=batch, **options)
        for s in range(seeds)
        for m in methods
    ]


def _available(methods: Sequence[str]) -> tuple[str, ...]:
    """Leave out the methods whose large packages are not installed."""
    return tuple(
        m
        for m in methods
        if "torch" not in METHODS[m].needs or all(map(find_spec, METHODS[m].needs))
    )


def _policies(model: str, batch: int) -> list[BenchCell]:
    """Return the cells of the committed results, 5 seeds; whole seeds first."""
    methods = _available((*EMBEDDED, *RIVALS))
    grids = [
        _grid(task, methods, 5, model, batch, episodes=episodes)
        for task, episodes in _TASKS.items()
    ]
    return sorted((cell for grid in grids for cell in grid), key=lambda cell: cell.seed)


def _full(model: str, batch: int) -> list[BenchCell]:
    methods = (*EMBEDDED, *ABLATED, *_available(BASELINES))
    cells: list[BenchCell] = []
    for evaluations in (100, 400):
        for task, episodes in {**_TASKS, **_MORE_TASKS}.items():
            options = {"episodes": episodes, "evaluations": evaluations}
            cells += _grid(task, methods, 10, model, batch, **options)
    return cells


def _baselines(model: str, batch: int) -> list[BenchCell]:
    return [cell for cell in _full(model, batch) if not METHODS[cell.method].asks_model]


def _prompts(model: str, batch: int) -> list[BenchCell]:
    # A small model writes on and on; what counts stands in the first line.
    options: dict[str, Any] = {"evaluations": 50, "max_tokens": 160}
    options["episodes"] = _TASKS["mountaincar"]
    methods = ("llm-columns", *CHAT)
    cells = _grid("mountaincar", methods, 2, model, batch, **options)
    return cells + _grid("mountaincar", ("llm-props-ab",), 2, model, batch, bias=False, **options)


def _proof(model: str, batch: int) -> list[BenchCell]:
    """Return CMA-ES on Swimmer-v5 by single episodes, for which results are known."""
    options: dict[str, Any] = {"evaluations": 600, "episodes": 1, "warmup": 0, "finalists": 0}
    return _grid("swimmer", ("cma",), 10, model, batch, **options)


def _smoke(model: str, batch: int) -> list[BenchCell]:
    options: dict[str, Any] = {"evaluations": 12, "warmup": 4, "heldout": 10}
    methods = ("llm-columns", "columns-network", *SAMPLERS, "cma")
    cells = _grid("mountaincar", methods, 2, model, batch, **options)
    return cells + _grid("cartpole", (*SAMPLERS, "cma", "random"), 2, model, batch, **options)


SUITES: dict[str, Callable[[str, int], list[BenchCell]]] = {
    "policies": _policies,
    "full": _full,
    "baselines": _baselines,
    "prompts": _prompts,
    "proof": _proof,
    "smoke": _smoke,
}
"""Name -> the cells for a model and its batch size.

- ``policies``: the embedded model under `columns`, two ablations and its rivals on six tasks: the
  committed results, in about three quarters of an hour of one core without PyTorch's methods;
- ``full``: all tasks, methods and two budgets, 10 seeds: days; ``baselines``: the same without the
  model, which the same file can then take;
- ``prompts``: the model under every shipped prompt, and the published loop;
- ``proof``: CMA-ES on Swimmer-v5, as proof that the harness is sound;
- ``smoke``: a minute's worth of everything.
"""
