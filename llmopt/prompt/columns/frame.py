"""Frames: what the letters of `ColumnsPrompt` stand for, as cells of the search space.

A frame gives each dimension a range of integers. A dimension with few values is shown by the
index of its value. A continuous one is cut into cells, over its whole range or over a window
that follows the elites.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical, Dimension

SLOPE_RIDGE = 20.0
"""Penalty of `slope_frame`: chosen, with its other constants, on functions made for training."""


@dataclass(frozen=True)
class Levels:
    """A dimension shown by the index of its value: 0 to ``count - 1``."""

    dimension: Dimension
    count: int
    first = 0

    @property
    def last(self) -> int:
        """The largest index."""
        return self.count - 1


@dataclass(frozen=True)
class Cells:
    """A coordinate shown by its cell, `first` to `last`, of some `width` together from `low` on."""

    first: int
    last: int
    low: float
    width: float

    def integer(self, coordinate: float) -> int:
        """Return the integer of a coordinate's cell, or of the nearest one."""
        cells = self.last - self.first + 1
        cell = math.floor((coordinate - self.low) / self.width * cells)
        return self.first + min(max(cell, 0), cells - 1)

    def coordinate(self, integer: int, within: float) -> float:
        """Return the coordinate at a place (0 to 1) within a cell."""
        cells = self.last - self.first + 1
        return self.low + (integer - self.first + within) / cells * self.width


def whole_cells(first: int, last: int) -> Cells:
    """Return cells over 0 to 1, both bounds in the middle of their cells."""
    steps = last - first
    return Cells(first, last, -0.5 / steps, (steps + 1) / steps)


@dataclass(frozen=True)
class Axes:
    """Axes of the cells: ``unit = mean + matrix @ coordinate``, ``(n,)`` and ``(n, n)``."""

    mean: np.ndarray
    matrix: np.ndarray

    def coordinates(self, units: np.ndarray) -> np.ndarray:
        """Return the coordinates of one point, ``(n,)``, or of several, ``(count, n)``."""
        coordinates: np.ndarray = np.linalg.solve(self.matrix, (units - self.mean).T).T
        return coordinates


@dataclass(frozen=True)
class Frame:
    """A range of integers for each dimension, and the way from values to them and back.

    The coordinates of its `Cells` are along `axes`, or those of `Space.encode`.
    """

    space: Space
    parts: tuple[Levels | Cells, ...]
    axes: Axes | None = None

    @property
    def continuous(self) -> list[int]:
        """Which dimensions are cut into cells."""
        return [i for i, part in enumerate(self.parts) if isinstance(part, Cells)]

    def integers(self, values: tuple[Value, ...], units: np.ndarray) -> list[int]:
        """Return the integers of a point with ``(n,)`` encoded coordinates."""
        coordinates = units.copy()
        if self.axes is not None:
            chosen = self.continuous
            coordinates[chosen] = self.axes.coordinates(units[chosen])
        row = []
        for part, value, at in zip(self.parts, values, coordinates, strict=True):
            if isinstance(part, Cells):
                row.append(part.integer(float(at)))
            else:
                row.append(part.dimension.place(value))
        return row

    def rows(self, points: Sequence[tuple[Value, ...]]) -> list[list[int]]:
        """Return the integers of points, one row for each."""
        return [self.integers(p, np.asarray(self.space.encode(p), dtype=float)) for p in points]

    def values(
        self, integers: Sequence[int], within: np.ndarray, *, reflect: bool = False
    ) -> tuple[Value, ...]:
        """Return the point of integers at ``(n,)`` places in their cells, clipped to the space.

        With `reflect`, a coordinate beyond a bound is reflected at it, and lies as far inside.
        """
        coordinates = np.array(
            [
                part.coordinate(k, float(w)) if isinstance(part, Cells) else 0.0
                for part, k, w in zip(self.parts, integers, within, strict=True)
            ]
        )
        if self.axes is not None:
            chosen = self.continuous
            coordinates[chosen] = self.axes.mean + self.axes.matrix @ coordinates[chosen]
        if reflect:
            coordinates = np.where(coordinates > 1.0, 2.0 - coordinates, np.abs(coordinates))
        values = list(self.space.decode(np.clip(coordinates, 0.0, 1.0)))
        for i, part in enumerate(self.parts):
            if isinstance(part, Levels):
                values[i] = part.dimension.value(integers[i])
        return self.space.clip(values)


def whole_frame(space: Space, cells: Cells, exact: int) -> Frame:
    """Return the frame over a whole space.

    A dimension of at most `exact` values, or a categorical one, is shown by their index.
    """
    parts: list[Levels | Cells] = []
    for dimension in space.dimensions:
        count = dimension.count
        known = count <= exact or isinstance(dimension, Categorical)
        parts.append(Levels(dimension, int(count)) if known else cells)
    return Frame(space, tuple(parts))


def weigh(count: int) -> np.ndarray:
    """Return ``(count,)`` weights of elites, best first, that add up to 1.

    Hansen 2016, The CMA Evolution Strategy: A Tutorial (arXiv 1604.00772), eq. 49, with
    (lambda + 1) / 2 = count + 1 / 2.
    """
    weights = np.log(count + 0.5) - np.log(np.arange(1, count + 1))
    total: np.ndarray = weights / weights.sum()
    return total


def covariance_frame(
    whole: Frame, units: np.ndarray, first: int, last: int, spread: float, least: np.ndarray
) -> Frame:
    """Fit the cells to elites, along axes that take their correlation half into account.

    Taken whole, the covariance of a few elites lets a search converge too early. The axes are
    nearest to the axes of the parameters (Kessy, Lewin and Strimmer 2018, arXiv 1512.00809,
    ZCA-cor), for the weighted correlation shrunk by half towards none, or by more where there
    are fewer elites than dimensions.

    Args:
        whole: The frame over the whole space; its exact dimensions stay as they are.
        units: ``(n_elites, n_dimensions)`` encoded coordinates, best first.
        first: Integer of the lowest cell.
        last: Integer of the highest cell.
        spread: Half of the cells, in weighted standard deviations.
        least: ``(n_dimensions,)`` least standard deviations.
    """
    chosen = whole.continuous
    if not chosen:
        return whole
    units = units[:, chosen]
    mean, deviation = _moments(units, least[chosen])
    scaled = (units - mean) / deviation
    count, n = scaled.shape
    correlation = (weigh(count)[:, None] * scaled).T @ scaled
    # Where discrete values agree, the least deviation keeps their neighbours in reach.
    dimensions = [whole.space.dimensions[i] for i in chosen]
    discrete = np.array([d.count < math.inf for d in dimensions])
    agree = np.flatnonzero(discrete & (deviation <= least[chosen]))
    correlation[agree, agree] = 1.0
    share = min(0.5, count / (2 * n))
    blend = share * correlation + (1 - share) * np.diag(np.diag(correlation))
    # A direction in which the elites do not differ stays open by a hundredth.
    variances, directions = np.linalg.eigh(blend)
    roots = np.sqrt(np.maximum(variances, 1e-4))
    matrix = deviation[:, None] * ((directions * roots) @ directions.T)
    cells = Cells(first, last, -spread, 2 * spread)
    parts = tuple(cells if isinstance(part, Cells) else part for part in whole.parts)
    return Frame(whole.space, parts, Axes(mean, matrix))


def slope_frame(frame: Frame, units: np.ndarray, places: np.ndarray) -> tuple[Frame, int | None]:
    """Turn a frame's axes so that one of them points to where points get better.

    The slope comes from a ridge regression of the places' normal scores on the coordinates and
    their squares; points far from the frame's middle count less. A Householder reflection takes
    the nearest axis onto the slope. It turns the other axes, too, and keeps lengths and angles.

    Args:
        frame: One of `covariance_frame`.
        units: ``(count, n_dimensions)`` encoded coordinates of points.
        places: ``(count,)`` places of these points, 0 for the best; see `share_places`.

    Returns:
        The frame, and the dimension whose axis is the slope, worse to better from its lowest cell
        to its highest; where the points show no slope the same frame and ``None``.
    """
    if frame.axes is None:
        return frame, None
    chosen = frame.continuous
    mean, matrix = frame.axes.mean, frame.axes.matrix
    z = frame.axes.coordinates(units[:, chosen])
    weights = np.exp(-0.5 * (z**2).mean(axis=1).clip(max=80)) + 1e-9
    weights *= len(z) / weights.sum()
    z = z.clip(-3, 3)
    normal = NormalDist()
    scores = np.array([-normal.inv_cdf((k + 0.5) / len(z)) for k in places])
    scores -= np.average(scores, weights=weights)
    deviation = math.sqrt(np.average(scores**2, weights=weights))
    if deviation < 1e-9:
        return frame, None
    terms = np.hstack([z, 0.5 * z**2])
    terms -= np.average(terms, axis=0, weights=weights)
    weighted = terms * weights[:, None]
    ridge = weighted.T @ terms + SLOPE_RIDGE * np.eye(terms.shape[1])
    slope = np.linalg.solve(ridge, weighted.T @ scores / deviation)[: len(chosen)]
    length = np.linalg.norm(slope)
    if length < 1e-9:
        return frame, None
    slope /= length
    nearest = int(np.abs(slope).argmax())
    away = slope - np.eye(len(slope))[nearest]
    size = away @ away
    if size > 1e-12:
        matrix = matrix - np.outer(matrix @ away, away) * (2 / size)
    return replace(frame, axes=Axes(mean, matrix)), chosen[nearest]


def share_places(keys: Sequence[Hashable]) -> np.ndarray:
    """Return ``(count,)`` places from 0 on of keys, given best first; equal keys share a place."""
    places = np.arange(len(keys), dtype=float)
    equal = defaultdict(list)
    for i, key in enumerate(keys):
        equal[key].append(i)
    for same in equal.values():
        places[same] = places[same].mean()
    return places


def _moments(units: np.ndarray, least: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted mean and standard deviation of each column."""
    weights = weigh(len(units))
    mean = weights @ units
    deviation = np.sqrt(weights @ (units - mean) ** 2)
    return mean, np.maximum(deviation, least)
