"""The hypervolume of a Pareto front: how much of the space of objectives it dominates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from llmopt.errors import LLMOptError
from llmopt.util.text import short

if TYPE_CHECKING:
    from llmopt.report.data import SearchData

Reference = Sequence[float] | Mapping[str, float] | None
"""A reference point: a number for each objective, in their order or by name."""


def hypervolume(data: SearchData, reference: Reference = None) -> float:
    """Return the hypervolume of the Pareto front; arguments and errors as for `hypervolumes`."""
    corner = _corner(data, reference)
    *_, front = _fronts(data, corner)
    return _volume(front, corner)


def hypervolumes(data: SearchData, reference: Reference = None) -> list[float]:
    """Return the hypervolume after each trial that has a result; an infeasible one adds none.

    Args:
        data: The search.
        reference: The reference point; ``None`` for that of `reference_of`.

    Raises:
        LLMOptError: The search has one objective, no trial has a result and no reference is given,
            or the reference does not fit the objectives.
    """
    corner = _corner(data, reference)
    fronts = list(_fronts(data, corner))
    volumes = [0.0]
    for before, front in pairwise(fronts):
        volumes.append(volumes[-1] if front is before else _volume(front, corner))
    return volumes[1:]


def _fronts(data: SearchData, corner: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the Pareto front before the first trial and after each, with all to be minimized."""
    front: np.ndarray = np.empty((0, len(corner)))
    yield front
    for trial in data.done:
        point = _signs(data) * np.array(trial.rewards, dtype=float)
        if trial.constraint_violation <= 0 and bool((point < corner).all()):
            front = _with(front, point)
        yield front


def _with(front: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Return a front with a point, or the same one if it dominates the point."""
    if (front <= point).all(axis=1).any():
        return front
    return np.vstack([front[~(point <= front).all(axis=1)], point])


def _signs(data: SearchData) -> np.ndarray:
    return np.array([1.0 if d == "minimize" else -1.0 for d in data.directions])


def _corner(data: SearchData, reference: Reference) -> np.ndarray:
    """Return the reference point with all objectives to be minimized."""
    if not data.several:
        raise LLMOptError(
            "the hypervolume needs several objectives, and this search has one: see plot_history()"
        )
    corner: np.ndarray = _signs(data) * np.array(given_reference(data, reference))
    return corner


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
        if reference.keys() != set(names):
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
    rest: np.ndarray = np.empty((0, front.shape[1] - 1))
    total = 0.0
    for point, depth in zip(order[:, :-1], depths, strict=True):
        rest = _with(rest, point)
        if depth > 0:
            total += depth * _volume(rest, corner[:-1])
    return float(total)
