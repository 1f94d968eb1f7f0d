"""Searches on synthetic functions, from which the adapter of the prompt `columns` is trained.

A search keeps its best points; their frame (`covariance_frame`, turned by
`slope_frame`) writes each of their coordinates as one of 26 levels. A *line* is one
coordinate of the twenty best points, best first. What is to be learned is where better points
lie: of a thousand candidates sampled in the frame the best thirty-two are taken, and the share of
each level among their coordinates is the target. The candidates are evaluated for the training
alone; a search never sees them.

The functions are none of the benchmarks': draws of Gaussian processes (by random Fourier
features, Rahimi and Recht 2007), random networks, cones in the 1-, 1.4- and maximum norms, the
same in steps or with ripples, curved valleys, and slopes with a bonus behind a few thresholds.
All are shifted, most are rotated and scaled. They are kin all the same: to a search, which sees
ranks alone, a scaled cone is not far from an ellipsoid (in one dimension it is one), ripples on
a cone from rastrigin, a curved valley from rosenbrock.

Source of the idea: EvoLLM (Lange et al. 2024, arXiv 2402.18381), where a model is tuned on the
trajectories of a teacher. Here the function itself is the teacher.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from llmopt.client.local.network import LEVELS, draw_choices
from llmopt.prompt.columns.columns import ELITES, LEAST, REGRESSION, SPREAD
from llmopt.prompt.columns.frame import covariance_frame, share_places, slope_frame
from llmopt.space import Space
from llmopt.space.dimensions import Float

WARMUP, EVALUATIONS, BATCH = 20, 100, 4
CANDIDATES, CHOSEN = 1024, 32
MOMENTS = 4
"""Moments taken from one search."""

LINES_OF_ONE = 6
"""Lines taken from one moment of a search, so that many dimensions do not prevail."""

DIMENSIONS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 20])
_SHARES = DIMENSIONS**-0.7 / (DIMENSIONS**-0.7).sum()

Function = Callable[[np.ndarray], np.ndarray]
"""Maps ``(count, n)`` points of the unit cube to ``(count,)`` losses."""


Lines = tuple[np.ndarray, np.ndarray, np.ndarray]
"""What the prompt `columns` shows, as `llmopt.client.local.network.features` reads it.

The ``(count, ELITES)`` levels of the best points, best first; whether a line's axis is the slope;
the dimensions of the search that a line is from.
"""

Policy = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Says how likely each level is to be a good one: see `llmopt.client.local.network.Network`."""


class Columns(NamedTuple):
    """What there is to learn: `Lines`, and the shares of the levels among better points."""

    levels: np.ndarray
    leading: np.ndarray
    dimensions: np.ndarray
    targets: np.ndarray  # `(count, LEVELS)`

    @property
    def lines(self) -> Lines:
        """What is read."""
        return self[:3]

    def take(self, chosen: np.ndarray | slice) -> Columns:
        """Return some of the lines."""
        return Columns(*(part[chosen] for part in self))


def join(parts: Sequence[Columns]) -> Columns:
    """Return all of them in one."""
    return Columns(*map(np.concatenate, zip(*parts, strict=True)))


# -- functions ----------------------------------------------------------------------------


def _map(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return an ``(n, n)`` map with scales over up to one and a half decades, often rotated."""
    rotation = np.linalg.qr(rng.standard_normal((n, n)))[0] if rng.random() < 0.6 else np.eye(n)
    scales = 10 ** (rng.uniform(0, 1.5) * np.linspace(0, 1, n))
    rng.shuffle(scales)
    return np.asarray(rotation * (scales / np.sqrt(np.mean(scales**2)))[:, None])


def _process(rng: np.random.Generator, n: int, scale: float = 1.0) -> Function:
    length = np.exp(rng.uniform(np.log(0.25), np.log(1.5))) * np.sqrt(n / 3)
    waves = rng.standard_normal((200, n)) / length
    if rng.random() < 0.5:  # a rougher kernel: Matern with nu = 5/2
        waves /= np.sqrt(rng.chisquare(5, size=(200, 1)) / 5)
    waves = waves @ _map(rng, n)
    phases = rng.uniform(0, 2 * np.pi, 200)
    weights = scale * rng.standard_normal(200) * np.sqrt(2 / 200)
    return lambda x: np.cos(x @ waves.T + phases) @ weights


def _cone(rng: np.random.Generator, n: int) -> Function:
    centre, scaled = rng.uniform(0.1, 0.9, n), _map(rng, n)
    norm, power = rng.choice([1.0, 1.4, np.inf]), rng.choice([0.5, 1.0, 3.0])

    def loss(x: np.ndarray) -> np.ndarray:
        away = np.abs((x - centre) @ scaled.T)
        size = away.max(1) if norm == np.inf else (away**norm).sum(1) ** (1 / norm)
        return np.asarray(size**power)

    return loss


def _network(rng: np.random.Generator, n: int) -> Function:
    first = rng.standard_normal((16, n)) * rng.uniform(1, 4) / np.sqrt(n)
    bias = rng.uniform(-1, 1, 16)
    second, last = rng.standard_normal((8, 16)) * 0.4, rng.standard_normal(8)
    return lambda x: np.tanh(np.tanh((2 * x - 1) @ first.T + bias) @ second.T) @ last


def _steps(rng: np.random.Generator, n: int) -> Function:
    centre, scaled = rng.uniform(0.1, 0.9, n), _map(rng, n)
    norm, count = rng.choice([1.0, 1.4]), rng.integers(4, 25)

    def loss(x: np.ndarray) -> np.ndarray:
        size = (np.abs((x - centre) @ scaled.T) ** norm).sum(1) ** (1 / norm)
        return np.asarray(np.round(size * count / np.sqrt(n)))

    return loss


def _valley(rng: np.random.Generator, n: int) -> Function:
    centre, scaled = rng.uniform(0.1, 0.9, n), 2 * _map(rng, n)
    bends, walls = rng.uniform(-2, 2, n), 10 ** rng.uniform(-0.5, 1)

    def loss(x: np.ndarray) -> np.ndarray:
        z = (x - centre) @ scaled.T
        off = np.abs(z[:, 1:] - bends[1:] * np.sin(2 * z[:, :-1]))
        return np.asarray(0.3 * np.abs(z[:, 0]) + walls * (off**1.5).sum(1))

    return loss


def _ripples(rng: np.random.Generator, n: int) -> Function:
    slope, waves = _cone(rng, n), _process(rng, n, rng.uniform(0.05, 0.3))
    scale = max(float(slope(np.full((1, n), 0.8))[0]), 1e-3)
    return lambda x: slope(x) / scale + waves(x)


def _thresholds(rng: np.random.Generator, n: int) -> Function:
    """Make a gentle slope, and a bonus where a few sums all exceed their thresholds."""
    slope = _cone(rng, n)
    sums = rng.standard_normal((rng.integers(1, 4), n)) / np.sqrt(n)
    limits = rng.normal(0.05, 0.15, len(sums))
    steep = 10 ** rng.uniform(0.5, 2)

    def loss(x: np.ndarray) -> np.ndarray:
        beyond = ((x - 0.5) @ sums.T - limits).min(1)
        bonus = 3 / (1 + np.exp(-np.clip(steep * beyond, -60, 60)))
        return np.asarray(0.1 * slope(x) - bonus)

    return loss


FAMILIES: Mapping[str, Callable[[np.random.Generator, int], Function]] = {
    "process": _process,
    "cone": _cone,
    "network": _network,
    "steps": _steps,
    "valley": _valley,
    "ripples": _ripples,
    "thresholds": _thresholds,
}
_WEIGHTS = np.array([2, 1, 1, 1, 1, 1, 2]) / 9


# -- searches -----------------------------------------------------------------------------


class Window:
    """The frame of the best points, and the way between its levels and points."""

    def __init__(self, points: np.ndarray, losses: np.ndarray) -> None:
        order = np.argsort(losses, kind="stable")
        best, n = points[order[:ELITES]], points.shape[1]
        least = np.full(n, LEAST)
        frame = covariance_frame(_cube(n), best, SPREAD, least)
        known = order[:REGRESSION]
        frame, leading = slope_frame(frame, points[known], share_places(losses[known].tolist()))
        assert frame.axes is not None
        self._axes = frame.axes
        levels = _levels(self._axes.coordinates(best)).T
        self.lines: Lines = levels, np.arange(n) == leading, np.full(n, n)

    def points(self, levels: np.ndarray, within: np.ndarray) -> np.ndarray:
        """Return ``(count, n)`` points of levels and places within them."""
        coordinates = (levels + within) / LEVELS * 2 * SPREAD - SPREAD
        return np.asarray((self._axes.mean + coordinates @ self._axes.matrix.T).clip(0, 1))


@functools.cache
def _cube(n: int) -> Space:
    return Space.of({f"x{i}": Float(0, 1) for i in range(n)})


def _levels(coordinates: np.ndarray) -> np.ndarray:
    cells = np.floor((coordinates + SPREAD) / (2 * SPREAD) * LEVELS)
    return np.asarray(cells.clip(0, LEVELS - 1).astype(np.int64))


def _search(rng: np.random.Generator, n: int, policy: Policy | None) -> list[Columns]:
    """Run one search; return what there is to learn at some of its moments."""
    function = FAMILIES[str(rng.choice(list(FAMILIES), p=_WEIGHTS))](rng, n)
    points = rng.random((WARMUP, n))
    if rng.random() < 0.3:  # a warm-up that is not over the whole space
        around = rng.uniform(0.3, 0.7, n)
        points = (around + rng.uniform(0.05, 0.3) * rng.standard_normal((WARMUP, n))).clip(0, 1)
    losses = function(points)
    taken = set(rng.choice(EVALUATIONS // BATCH, MOMENTS, replace=False).tolist())
    manner, spread = rng.random(), rng.uniform(0.6, 1.2)
    found = []
    for step in range(max(taken) + 1):
        window = Window(points, losses)
        if step in taken:
            found.append(Columns(*window.lines, _target(rng, function, window, n)))
        if manner < 0.1:
            levels = rng.integers(0, LEVELS, (BATCH, n))
        elif manner < 0.2 or policy is None:
            levels = _levels(spread * rng.standard_normal((BATCH, n)))
        else:
            levels = draw_choices(rng, policy(*window.lines), BATCH)
        new = window.points(levels, rng.random((BATCH, n)))
        points, losses = np.vstack([points, new]), np.append(losses, function(new))
    return found


def _target(rng: np.random.Generator, function: Function, window: Window, n: int) -> np.ndarray:
    levels = _levels(rng.standard_normal((CANDIDATES, n)))
    wide = CANDIDATES // 8
    levels[:wide] = rng.integers(0, LEVELS, (wide, n))
    # Equal losses are in random order: those who come first are no better.
    levels = levels[rng.permutation(CANDIDATES)]
    losses = function(window.points(levels, rng.random((CANDIDATES, n))))
    best = levels[np.argsort(losses, kind="stable")[:CHOSEN]]
    shares = np.stack([np.bincount(column, minlength=LEVELS) for column in best.T]) / CHOSEN
    return shares.astype(np.float32)


def make_columns(seed: int | list[int], count: int, policy: Policy | None = None) -> Columns:
    """Return lines of searches on newly sampled functions, and the targets to learn.

    The policy proposes the points of four fifths of the searches; normal draws in the frame do,
    where it is missing, and in a tenth always, as do uniform draws in another.
    """
    rng = np.random.default_rng(seed)
    parts, found = [], 0
    while found < count:
        n = int(rng.choice(DIMENSIONS, p=_SHARES))
        for moment in _search(rng, n, policy):
            # The slope's line among them: there is most to learn from it.
            chosen = np.argsort(rng.random(n) - moment.leading)[:LINES_OF_ONE]
            parts.append(moment.take(chosen))
            found += len(chosen)
    return join(parts).take(rng.permutation(found)[:count])
