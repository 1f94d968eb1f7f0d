"""The committed sets of cells: ``llmopt bench --suite NAME`` makes their results anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from llmopt.benchmarks.bench.cells import BenchCell
from llmopt.benchmarks.methods.table import METHODS

BATCH = 4
"""Points that the suites ask of a model in one request."""

WIDE_BOX = (-15.0, 15.0)
"""A box for MountainCarContinuous-v0 that holds a velocity gain of 15, which solves it."""

BASELINES = tuple(name for name, entry in METHODS.items() if entry.group == "baseline")
SAMPLERS = ("levels-uniform", "levels-gaussian")
MODEL = ("llm-levels", *SAMPLERS)
"""The model, and what answers in its place with no model."""

ADAPTED = (
    "llm-columns", "columns-uniform", "columns-gaussian", "columns-slope", "columns-network",
    "llm-hybrid", "hybrid-gaussian",
)  # fmt: skip
"""The embedded model with its adapter, its ablations, and CMA-ES beside it."""

CHAT = ("llm-props", "llm-props-plus", "llm-props-critic", "llm-opro", "llm-published")
"""Prompts that expect a model which can follow instructions."""

_CLASSIC = ("cartpole", "pendulum", "acrobot", "mountaincar-discrete")
_MUJOCO = ("inverted-pendulum", "inverted-double-pendulum", "reacher", "hopper")
_TABULAR = ("frozenlake",)


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


def _mountaincar(
    evaluations: int, methods: Sequence[str], model: str, batch: int
) -> list[BenchCell]:
    """Return the cells of MountainCarContinuous-v0 in both boxes at one budget, 10 seeds."""
    cells: list[BenchCell] = []
    for box in (None, WIDE_BOX):
        options: dict[str, Any] = {"box": box, "episodes": 20, "evaluations": evaluations}
        cells += _grid("mountaincar", methods, 10, model, batch, **options)
    return cells


def _swimmer(evaluations: int, methods: Sequence[str], model: str, batch: int) -> list[BenchCell]:
    """Return the cells of Swimmer-v5 at one budget, 10 seeds."""
    # A start hardly matters to a swimmer, and an episode takes a thousand steps of MuJoCo.
    options = {"episodes": 1, "evaluations": evaluations}
    return _grid("swimmer", methods, 10, model, batch, **options)


def _others(methods: Sequence[str], model: str, batch: int) -> list[BenchCell]:
    """Return the cells of the other tasks at 100 evaluations, 5 seeds."""
    cells = _grid("mountaincar", methods, 5, model, batch, bias=False, episodes=20)
    for task in (*_CLASSIC, *_TABULAR):
        cells += _grid(task, methods, 5, model, batch, episodes=20)
    for task in _MUJOCO:
        cells += _grid(task, methods, 5, model, batch, episodes=5)
    return cells


def _available(methods: Sequence[str]) -> tuple[str, ...]:
    """Leave out Bayesian optimization where the large packages that it needs are not installed."""
    large = {"torch", "botorch"}
    return tuple(m for m in methods if all(map(find_spec, large & {*METHODS[m].needs})))


def _full(model: str, batch: int) -> list[BenchCell]:
    methods = (*MODEL, *_available(BASELINES))
    # The costly ablation is run where the model has the most seeds for its time.
    ablated = ("llm-shuffled", *methods)
    return [
        *_mountaincar(100, ablated, model, batch),
        *_others(methods, model, batch),
        *_mountaincar(400, methods, model, batch),
        *_swimmer(100, ablated, model, batch),
        *_swimmer(400, methods, model, batch),
    ]


def _adapted(model: str, batch: int) -> list[BenchCell]:
    ablated = ("llm-columns-shuffled", *ADAPTED)
    return [
        *_mountaincar(100, ablated, model, batch),
        *_others(ADAPTED, model, batch),
        *_swimmer(100, ablated, model, batch),
        *_mountaincar(400, ADAPTED, model, batch),
        *_swimmer(400, ADAPTED, model, batch),
    ]


def _baselines(model: str, batch: int) -> list[BenchCell]:
    return [cell for cell in _full(model, batch) if not METHODS[cell.method].asks_model]


def _prompts(model: str, batch: int) -> list[BenchCell]:
    # A small model writes on and on; what counts stands in the first line.
    options: dict[str, Any] = {"episodes": 20, "evaluations": 50, "max_tokens": 160}
    methods = ("llm-columns", "llm-levels", "llm-pattern", *CHAT)
    cells = _grid("mountaincar", methods, 2, model, batch, **options)
    return cells + _grid("mountaincar", ("llm-props-ab",), 2, model, batch, bias=False, **options)


def _proof(model: str, batch: int) -> list[BenchCell]:
    """Return CMA-ES on Swimmer-v5 by single episodes, for which results are known."""
    cells: list[BenchCell] = []
    for evaluations in (600, 2400):
        options: dict[str, Any] = {"evaluations": evaluations, "episodes": 1, "warmup": 0}
        cells += _grid("swimmer", ("cma",), 10, model, batch, **options)
    return cells


def _smoke(model: str, batch: int) -> list[BenchCell]:
    options: dict[str, Any] = {"evaluations": 12, "warmup": 4, "heldout": 10}
    methods = ("llm-columns", "columns-network", "llm-levels", *SAMPLERS, "cma")
    cells = _grid("mountaincar", methods, 2, model, batch, **options)
    return cells + _grid("cartpole", (*SAMPLERS, "cma", "random"), 2, model, batch, **options)


SUITES: dict[str, Callable[[str, int], list[BenchCell]]] = {
    "full": _full,
    "adapted": _adapted,
    "baselines": _baselines,
    "prompts": _prompts,
    "proof": _proof,
    "smoke": _smoke,
}
"""Name -> the cells for a model and its batch size.

- ``full``: the model under `levels`, its ablations and all baselines; ``baselines``: the same
  without the model, which the same file can then take;
- ``adapted``: the same problems for the embedded model under `columns`, through its adapter, with
  its ablations; a report takes both files;
- ``prompts``: the model under every shipped prompt, and the published loop;
- ``proof``: CMA-ES on Swimmer-v5, as proof that the harness is sound;
- ``smoke``: a minute's worth of everything.
"""
