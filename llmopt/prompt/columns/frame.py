"""Frames: what the letters of `ColumnsPrompt` stand for, as cells of the search space.

Each dimension is cut into 26 cells, over its whole range or over a window that follows the elites.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from llmopt.space import Space, Value

LETTERS = 26
"""Cells of a dimension."""

SLOPE_RIDGE = 20.0
"""Penalty of `slope_frame`: chosen, with its other constants, on functions made for training."""


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
    """Cells for each dimension, and the way from points to them and back.

    Attributes:
        space: The search space.
        low: The lowest coordinate of the cells, and their `width` together. By default both ends
            of a range lie in the middle of their cells.
        axes: Of the coordinates, for the dimensions with several values; ``None`` for those of
            `Space.encode`.
    """

    space: Space
    low: float = -0.5 / (LETTERS - 1)
    width: float = LETTERS / (LETTERS - 1)
    axes: Axes | None = None

    @property
    def varying(self) -> np.ndarray:
        """Which dimensions have several values, ``(n,)`` bools."""
        return np.array([d.count > 1 for d in self.space.dimensions])

    def levels(self, points: Sequence[tuple[Value, ...]]) -> np.ndarray:
        """Return the ``(count, n)`` cells of points, from 0 on."""
        coordinates = np.array([self.space.encode(p) for p in points], dtype=float)
        if self.axes is not None:
            varying = self.varying
            coordinates[:, varying] = self.axes.coordinates(coordinates[:, varying])
        cells = np.floor((coordinates - self.low) / self.width * LETTERS)
        return np.where(self.varying, cells.clip(0, LETTERS - 1), 0).astype(int)

    def point(
        self, levels: np.ndarray, within: np.ndarray, *, reflect: bool = False
    ) -> tuple[Value, ...]:
        """Return the point at ``(n,)`` places (0 to 1) within its cells, clipped to the space.

        With `reflect`, a coordinate beyond a bound is reflected at it, and lies as far inside.
        """
        varying = self.varying
        cells = self.low + (levels + within) / LETTERS * self.width
        units = np.where(varying, cells, 0.0)
        if self.axes is not None:
            units[varying] = self.axes.mean + self.axes.matrix @ units[varying]
        if reflect:
            units = np.where(units > 1.0, 2.0 - units, np.abs(units))
        return self.space.clip(self.space.decode(np.clip(units, 0.0, 1.0)))


def weigh(count: int) -> np.ndarray:
    """Return ``(count,)`` weights of elites, best first, that add up to 1.

    Hansen 2016, The CMA Evolution Strategy: A Tutorial (arXiv 1604.00772), eq. 49, with
    (lambda + 1) / 2 = count + 1 / 2.
    """
    weights = np.log(count + 0.5) - np.log(np.arange(1, count + 1))
    total: np.ndarray = weights / weights.sum()
    return total


def covariance_frame(space: Space, units: np.ndarray, spread: float, least: np.ndarray) -> Frame:
    """Fit the cells to elites, along axes that take their correlation half into account.

    Taken whole, the covariance of a few elites lets a search converge too early. The axes are
    nearest to the axes of the parameters (Kessy, Lewin and Strimmer 2018, arXiv 1512.00809,
    ZCA-cor), for the weighted correlation shrunk by half towards none, or by more where there
    are fewer elites than dimensions.

    Args:
        space: The search space.
        units: ``(n_elites, n_dimensions)`` encoded coordinates, best first.
        spread: Half of the cells, in weighted standard deviations.
        least: ``(n_dimensions,)`` least standard deviations.
    """
    whole = Frame(space)
    varying = whole.varying
    if not varying.any():
        return whole
    units, least = units[:, varying], least[varying]
    count, n = units.shape
    weights = weigh(count)
    mean = weights @ units
    deviation = np.maximum(np.sqrt(weights @ (units - mean) ** 2), least)
    scaled = (units - mean) / deviation
    correlation = (weights[:, None] * scaled).T @ scaled
    # Where discrete values agree, the least deviation keeps their neighbours in reach.
    discrete = np.array([d.count < math.inf for d in space.dimensions])[varying]
    agree = np.flatnonzero(discrete & (deviation <= least))
    correlation[agree, agree] = 1.0
    share = min(0.5, count / (2 * n))
    blend = share * correlation + (1 - share) * np.diag(np.diag(correlation))
    # A direction in which the elites do not differ stays open by a hundredth.
    variances, directions = np.linalg.eigh(blend)
    roots = np.sqrt(np.maximum(variances, 1e-4))
    matrix = deviation[:, None] * ((directions * roots) @ directions.T)
    return Frame(space, -spread, 2 * spread, Axes(mean, matrix))


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
    chosen = np.flatnonzero(frame.varying)
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
    return replace(frame, axes=Axes(mean, matrix)), int(chosen[nearest])


def share_places(keys: Sequence[Hashable]) -> np.ndarray:
    """Return ``(count,)`` places from 0 on of keys, given best first; equal keys share a place."""
    places = np.arange(len(keys), dtype=float)
    equal = defaultdict(list)
    for i, key in enumerate(keys):
        equal[key].append(i)
    for same in equal.values():
        places[same] = places[same].mean()
    return places
