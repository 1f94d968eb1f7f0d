"""The committed sets of cells; ``llmopt bench --suite NAME`` runs one again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from llmopt.benchmarks.bench import reactions
from llmopt.benchmarks.bench.cells import make_cell
from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.methods.table import METHODS
from llmopt.benchmarks.tasks.reactions import REACTIONS

BATCH = 4
"""Points that the suites ask of a model in one request."""

EMBEDDED = ("llm-columns", "columns-network", "columns-gaussian")
"""The embedded model with its adapter, and its two strongest ablations."""

RIVALS = (
    "cma",
    "cma-bipop",
    "optuna-tpe",
    "optuna-gp",
    "turbo",
    "ars",
    "random",
)
"""What it is ranked among."""

_TASKS = {
    "mountaincar": 20,
    "swimmer": 1,  # its initial states hardly differ, and an episode has 1,000 steps
    "cartpole": 5,
    "inverted-pendulum": 5,
    "reacher": 5,
    "hopper": 5,
}
"""Task -> episodes of one evaluation."""

_MORE = {
    "mountaincar-discrete": 5,
    "pendulum": 5,
    "acrobot": 5,
    "inverted-double-pendulum": 5,
    "llmopt.benchmarks.experiments.systems:TwoZones-v0": 5,
    "llmopt.benchmarks.experiments.systems:HeavyMountainCar-v0": 5,
}
"""Six more, chosen before any of their searches: four known systems, two of this project."""


def _policies(model: str, batch: int) -> list[Cell]:
    """Return the cells of the committed results, 5 seeds; whole seeds first."""
    return _searches(_TASKS, (*EMBEDDED, *RIVALS), model, batch)


def _more_policies(model: str, batch: int) -> list[Cell]:
    """Return the cells of six more tasks, and of one more method."""
    tuned = "optuna-tpe-tuned"
    more = _searches(_MORE, (*EMBEDDED, *RIVALS, tuned), model, batch)
    return more + _searches(_TASKS, (tuned,), model, batch)


def _searches(tasks: Mapping[str, int], names: Sequence[str], model: str, batch: int) -> list[Cell]:
    # Skip methods whose large packages are not installed.
    methods = [
        m for m in names if "torch" not in METHODS[m].needs or all(map(find_spec, METHODS[m].needs))
    ]
    return [
        make_cell(task, m, seed, model=model, batch=batch, episodes=episodes)
        for seed in range(5)
        for task, episodes in tasks.items()
        for m in methods
    ]


def _reactions(model: str, batch: int) -> list[Cell]:
    """Return the searches of reactions; those of a chat model where `model` names one."""
    return [
        make_cell(
            task, m, seed, reactions.EVALUATIONS, model,
            episodes=1, warmup=0, heldout=1, batch=1, finalists=0,
        )
        for seed in range(reactions.SEEDS)
        for task in REACTIONS
        for m in reactions.methods(model)
    ]  # fmt: skip


def _smoke(model: str, batch: int) -> list[Cell]:
    grids = {
        "mountaincar": ("llm-columns", "columns-network", "columns-gaussian", "cma"),
        "cartpole": ("columns-gaussian", "cma", "random"),
    }
    return [
        make_cell(task, m, seed, 12, model, batch=batch, warmup=4, heldout=10)
        for task, methods in grids.items()
        for seed in range(2)
        for m in methods
    ]


SUITES: dict[str, Callable[[str, int], list[Cell]]] = {
    "policies": _policies,
    "more-policies": _more_policies,
    "reactions": _reactions,
    "smoke": _smoke,
}
"""Name -> the cells for a model and its batch size.

- ``policies``: the embedded model under `columns`, two ablations and its rivals on six tasks: the
  committed results, in about three quarters of an hour of one core without PyTorch's methods;
- ``more-policies``: the same methods, and a tuned TPE, on six more tasks (two of
  them are in a checkout only);
- ``reactions``: six tables of real reactions, 20 evaluations, 20 seeds; with ``--model`` of a chat
  model its searches, too (``--methods llm-words``);
- ``smoke``: a minute's worth of everything.
"""
