"""The hypervolume of a Pareto front: how much of the space of objectives it dominates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmopt.errors import LLMOptError
from llmopt.util.text import short

if TYPE_CHECKING:
    from llmopt.report.data import SearchData

Reference = Sequence[float] | Mapping[str, float] | None
"""A reference point: a number for each objective, in their order or by name."""


def hypervolumes(data: SearchData, reference: Reference = None) -> list[float]:
    """Return the hypervolume after each trial that has a result; an infeasible one adds none.

    Args:
        data: The search.
        reference: The reference point; ``None`` for that of `reference_of`.

    Raises:
        LLMOptError: The search has one objective, no trial is feasible and no reference is given,
            or the reference does not fit the objectives.
    """
    if len(data.directions) == 1:
        raise LLMOptError(
            "the hypervolume needs several objectives, and this search has one: see plot_history()"
        )
    signs = np.array([1.0 if d == "minimize" else -1.0 for d in data.directions])
    corner = signs * np.array(given_reference(data, reference))
    front: np.ndarray = np.empty((0, len(signs)))
    volumes, latest = [], 0.0
    for trial in data.done:
        point = signs * np.array(trial.rewards, dtype=float)
        inside = trial.constraint_violation <= 0 and bool((point < corner).all())
        if inside and not (front <= point).all(axis=1).any():
            front = np.vstack([front[~(point <= front).all(axis=1)], point])
            latest = _volume(front, corner)
        volumes.append(latest)
    return volumes


def reference_of(data: SearchData) -> list[float]:
    """Return the reference point of a search: a tenth of the range beyond its worst results.

    Only feasible trials count, if there are any.
    """
    rows = [t.rewards for t in data.done if t.rewards and t.constraint_violation <= 0]
    rows = rows or [t.rewards for t in data.done if t.rewards]
    if not rows:
        raise LLMOptError("the hypervolume: no trial has a result yet; continue the search")
    found = []
    for column, direction in zip(zip(*rows, strict=True), data.directions, strict=True):
        margin = 0.1 * (max(column) - min(column)) or 1.0
        found.append(max(column) + margin if direction == "minimize" else min(column) - margin)
    return found


def given_reference(data: SearchData, reference: Reference) -> list[float]:
    """Return a reference point in the order of the objectives; see `hypervolumes`."""
    if reference is None:
        return reference_of(data)
    names = data.objectives
    if isinstance(reference, Mapping):
        if {str(name) for name in reference} != set(names):
            raise _refused(reference, names)
        reference = [reference[name] for name in names]
    try:
        numbers = [float(value) for value in reference]
    except (TypeError, ValueError):
        raise _refused(reference, names) from None
    if len(numbers) != len(names) or not all(map(math.isfinite, numbers)):
        raise _refused(reference, names)
    return numbers


def _refused(reference: object, names: Sequence[str]) -> LLMOptError:
    return LLMOptError(
        f"reference={short(reference)}: expected a finite number for each objective, as a list or "
        f"by name: {', '.join(map(repr, names))}"
    )


def _volume(front: np.ndarray, corner: np.ndarray) -> float:
    """Return the volume between points to minimize and a corner, by slices along the last axis.

    Source: Zitzler, "Evolutionary Algorithms for Multiobjective Optimization" (1999).
    """
    if front.shape[1] == 1:
        return float(corner[0] - front.min()) if len(front) else 0.0
    order = front[np.argsort(front[:, -1], kind="stable")]
    depths = np.diff(np.append(order[:, -1], corner[-1]))
    rest, total = np.empty((0, front.shape[1] - 1)), 0.0
    for point, depth in zip(order[:, :-1], depths, strict=True):
        if not (rest <= point).all(axis=1).any():
            rest = np.vstack([rest[~(point <= rest).all(axis=1)], point])
        if depth > 0:
            total += depth * _volume(rest, corner[:-1])
    return float(total)
